"""Extractive question answering, SQuAD 1.1 and 2.0 (sections 4.2 and 4.3), in windows as Google's run_squad makes them.

Q questions; S windows of T tokens in all; M tokens of all contexts, of which each is tokenized once for its questions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from bertwright.batching.batch import offsets_from_lengths, positions_from_lengths
from bertwright.metrics.exact_match import best_threshold, scores
from bertwright.models.heads import HeadSpec
from bertwright.tasks.squad import QaExample, placement, read_questions
from bertwright.tasks.task import DisplayTable, Encoded, Ints, Outputs, Task, TaskBatch, check_metric, flat_ranges
from bertwright.vocabulary.tokenizer import Tokenizer

CONTEXTS_AT_ONCE = 512  # a call of the tokenizer, whose encodings are large and so should not all live at once
ADDED = 3  # [CLS] question [SEP] context [SEP]
SHOWN_ANSWERS = 5  # of a question, to people; files have them all
NO_ANSWER = "(no answer)"  # to people

Floats = npt.NDArray[np.float64]


class Candidate(NamedTuple):
    """A span that may be the answer; no answer is "" from 0 to 0."""

    text: str
    """`context[start:end]`, from the first character of the span's first token to the last of its last."""
    start: int
    end: int
    probability: float
    """Among the candidates of its question."""
    score: float
    """S·T_i + E·T_j of the paper; of no answer S·C + E·C."""


class Answer(NamedTuple):
    """What the model answers to one question."""

    text: str
    """Cut from the context; "" for no answer."""
    start: int
    """First character in the context, and one past the last; both 0 for no answer."""
    end: int
    probability: float
    """Of what is answered, among the candidates."""
    score: float
    """Of the best span, whether or not it is what is answered."""
    null_score: float
    """Of no answer: the lowest of all windows, since one window with an answer is enough."""
    candidates: tuple[Candidate, ...]
    """The best spans and, where questions may have no answer, no answer; by falling score."""

    @property
    def margin(self) -> float:
        """By how much the best span is better than no answer: what τ is compared with."""
        return self.score - self.null_score

    @property
    def best_span(self) -> str:
        """The best span's text, whether or not it is what is answered; "" where the context has no token."""
        return next((candidate.text for candidate in self.candidates if candidate.end), "")


@dataclass(frozen=True, kw_only=True)
class EncodedQuestions(Encoded):
    """Questions as windows, with the way back from tokens to characters."""

    context_at: Ints
    """S, place of the first context token within its window."""
    first: Ints
    """S, number of that token among the M of all contexts."""
    offsets: npt.NDArray[np.int32]
    """M × 2, first character of each token in its context, and one past its last."""

    @cached_property
    def content(self) -> Ints:
        """S, context tokens of each window."""
        return self.lengths - self.context_at - 1


@dataclass(frozen=True)
class QuestionAnswering(Task[QaExample, Answer]):
    """Point at the answer to a question in a text: the start and the end of a span."""

    kind: ClassVar[str] = "question-answering"
    form: ClassVar[str] = ".json"
    limit: ClassVar[str] = "max_query_length"  # a longer context has more windows

    max_length: int = 384
    """Longest window in tokens: [CLS] question [SEP] part of the context [SEP]."""
    doc_stride: int = 128
    """Tokens from one window's start to the next one's, as Google's doc_stride (in `transformers`, `stride` is what
    two windows share); no more than a window holds of the context, so that every token is in one."""
    max_query_length: int = 64
    """Longest question in tokens; the rest of a longer one is not read."""
    n_best_size: int = 20
    """Candidates weighed for an answer."""
    max_answer_length: int = 30
    """Longest answer in tokens."""
    allow_no_answer: bool = False
    """May a question have no answer, as in SQuAD 2.0?"""
    threshold: float = 0.0
    """τ: a question is answered if its best span's score exceeds that of no answer by more; chosen on dev."""
    metric: str = "f1"
    """f1 or exact_match."""

    def __post_init__(self) -> None:
        for name in ("doc_stride", "max_query_length", "n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if self.max_length <= self.max_query_length + ADDED:
            raise ValueError(
                f"max_length is {self.max_length}: max_query_length {self.max_query_length} and [CLS], [SEP], [SEP] leave no "
                f"room for the context; at least {self.max_query_length + ADDED + 1} is needed, or a lower max_query_length"
            )
        check_metric(self.metric, ("f1", "exact_match"))
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold is {self.threshold}; a finite number is needed")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("span", 2)

    def limited_to(self, positions: int) -> Self:
        """Where a question could fill the whole window, a quarter of it is left to questions."""
        longest = min(self.max_length, positions)
        fits = self.max_query_length + ADDED < longest
        return replace(
            self, max_length=longest, max_query_length=self.max_query_length if fits else max(longest // 4, 1)
        )

    def read(self, path: str, labelled: bool = True) -> Iterator[QaExample]:
        """The questions of SQuAD .json, .jsonl or .parquet; see `tasks.squad`."""
        for example in read_questions(path, labelled):
            if example.is_impossible and not self.allow_no_answer:
                raise ValueError(
                    f"{example.location}: it has no answer; allow that (SQuAD 2.0) with --allow-no-answer True"
                )
            yield example

    def examples_from_texts(self, texts: Sequence[str], place: str) -> list[QaExample]:
        if len(texts) != 2:
            raise ValueError("question answering takes two texts: the question, then the context")
        return [QaExample("1", texts[0], texts[1], location=place)]

    def with_labels_of(self, examples: Sequence[QaExample]) -> Self:
        """This task as it is. Raises ValueError where no example can be learned from."""
        if not any(example.learnable for example in examples):
            first = f", the first is {examples[0].location}" if examples else ""
            raise ValueError(f"none of {len(examples)} questions has an answer that is found in its context{first}")
        return self

    def check(self, examples: Sequence[QaExample]) -> None:
        for example in examples:
            if not (example.answers or example.is_impossible):
                raise ValueError(f"{example.location}: its answers are not known, but needed here")

    def group_keys(self, examples: Sequence[QaExample]) -> Sequence[Hashable]:
        return [example.context for example in examples]

    def notes(self, examples: Sequence[QaExample]) -> list[str]:
        """What the user should know of these examples before they are trained on: answers moved, questions left out."""
        return placement(examples).notes()

    def reported(self, examples: Sequence[QaExample]) -> dict[str, Any]:
        """All places that the notes count. Of training alone: scores compare texts, wherever these stand."""
        return {"answers": placement(examples)._asdict()}

    def encode(self, examples: Sequence[QaExample], tokenizer: Tokenizer, labelled: bool = True) -> EncodedQuestions:
        """Questions as windows: the first `max_query_length` tokens of the question, and of the context what fits.

        With `labelled`, questions whose answer has no place in the context (`placement` lists them) are left out; the
        target of a window is the answer's first and last token, or [CLS] twice where the answer is not wholly inside.
        """
        kept = np.array([n for n, e in enumerate(examples) if e.learnable or not labelled], dtype=np.int64)
        chosen = [examples[number] for number in kept]
        context_numbers = {context: n for n, context in enumerate(dict.fromkeys(e.context for e in chosen))}
        context_of = np.array([context_numbers[example.context] for example in chosen], dtype=np.int64)
        ids, offsets, bounds = tokenized(list(context_numbers), tokenizer)
        questions = tokenizer.encode_ids([example.question for example in chosen])
        whole = np.diff(questions.offsets) - 2
        asked = np.minimum(whole, self.max_query_length)
        of, first, content = windows(np.diff(bounds)[context_of], self.max_length - ADDED - asked, self.doc_stride)
        first += bounds[context_of[of]]
        # [CLS] and question, [SEP], context, [SEP]: four runs of tokens a window, out of one pool
        pool = np.concatenate([questions.ids, ids, [tokenizer.sep_id]]).astype(np.int32)
        sep, one = np.full_like(of, len(pool) - 1), np.ones_like(of)
        runs = np.stack([questions.offsets[of], sep, len(questions.ids) + first, sep], axis=1).reshape(-1)
        run_lengths = np.stack([1 + asked[of], one, content, one], axis=1).reshape(-1)
        lengths = asked[of] + content + ADDED
        targets = np.zeros((0, 2), np.int64)
        if labelled:
            spans = answer_tokens(chosen, context_of, offsets, bounds)[of]
            inside = (spans[:, 0] >= first) & (spans[:, 1] < first + content)
            targets = np.where(inside[:, None], spans - first[:, None] + asked[of, None] + 2, 0)
        return EncodedQuestions(
            input_ids=pool[flat_ranges(runs, run_lengths)],
            token_type_ids=np.repeat(np.tile(np.array([0, 0, 1, 1], np.int8), len(of)), run_lengths),
            lengths=lengths,
            example_ids=kept[of],
            positions=positions_from_lengths(lengths).astype(np.int32),
            position_counts=lengths,
            labels=targets,
            label_counts=one if labelled else np.zeros_like(of),
            truncated=int((whole > asked).sum()),
            context_at=asked[of] + 2,
            first=first,
            offsets=offsets,
        )

    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Sum over windows of the mean of two cross entropies, of the start and of the end, over all their tokens."""
        bounds = batch.batch.cu_seqlens.long()
        lengths = bounds.diff()
        peak = torch.segment_reduce(logits.detach(), "max", offsets=bounds, axis=0)  # B 2
        shifted = logits - peak.repeat_interleave(lengths, 0, output_size=len(logits))
        totals = torch.segment_reduce(shifted.exp(), "sum", offsets=bounds, axis=0).log()
        aimed = shifted.gather(0, bounds[:-1, None] + batch.labels)
        if smoothing:
            aimed = torch.lerp(aimed, torch.segment_reduce(shifted, "mean", offsets=bounds, axis=0), smoothing)
        return (totals - aimed).sum() / 2

    def decode(self, examples: Sequence[QaExample], encoded: Encoded, outputs: Outputs) -> list[Answer]:
        """The best span of each question over all its windows, or no answer where that is allowed and scores higher.

        A span starts and ends in the context, i ≤ j, with at most `max_answer_length` tokens; all such spans are weighed,
        not only those between the best starts and the best ends. Where windows share its first token, it counts in
        the window that shows most around that token. Of equal scores the first in the text stands. Characters are
        those from the first token's first to the last token's last, so an answer may end inside a word. A context
        without a token has no answer, with probability 1, also where questions must have one.
        """
        assert isinstance(encoded, EncodedQuestions)
        bounds = np.searchsorted(encoded.example_ids, np.arange(len(examples) + 1))
        nulls = outputs[encoded.starts[:-1]].sum(1, dtype=np.float64)
        answers = []
        for example, begin, end in zip(examples, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            assert begin < end, f"{example.location} has no window: it was encoded to be learned, not to be answered"
            found = self._spans(encoded, outputs, begin, end)
            answers.append(self._answer(example.context, found, encoded.offsets, float(nulls[begin:end].min())))
        return answers

    def _spans(self, encoded: EncodedQuestions, outputs: Outputs, begin: int, end: int) -> Spans:
        """The best spans of one question, whose windows are `begin` to `end`."""
        first, content = encoded.first[begin:end], encoded.content[begin:end]
        owner = max_context_window(first - first[0], content)
        found = []
        for number in range(end - begin):
            at = encoded.starts[begin + number] + encoded.context_at[begin + number]
            logits = outputs[at : at + content[number]].astype(np.float64)
            place = first[number] - first[0]
            own = owner[place : place + content[number]] == number
            spans = best_spans(logits[:, 0], logits[:, 1], own, self.max_answer_length, self.n_best_size)
            found.append(Spans(spans.scores, spans.first + first[number], spans.last + first[number]))
        if len(found) == 1:
            return found[0]
        joined = Spans(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
        return joined.take(np.lexsort((joined.last, joined.first, -joined.scores))[: self.n_best_size])

    def _answer(self, context: str, spans: Spans, offsets: npt.NDArray[np.int32], null_score: float) -> Answer:
        begins, ends = offsets[spans.first, 0].tolist(), offsets[spans.last, 1].tolist()
        rated = spans.scores.tolist()
        score = rated[0] if rated else null_score
        speaks = bool(rated) and (not self.allow_no_answer or score - null_score > self.threshold)
        if self.allow_no_answer or not rated:
            rank = sum(value > null_score for value in rated)
            for column, value in ((begins, 0), (ends, 0), (rated, null_score)):
                column.insert(rank, value)
        weights = np.exp(np.array(rated) - rated[0])
        shares = (weights / weights.sum()).tolist()
        candidates = tuple(
            Candidate(context[begin:end], begin, end, share, value)
            for begin, end, share, value in zip(begins, ends, shares, rated, strict=True)
        )
        answer = next(candidate for candidate in candidates if (candidate.end > 0) == speaks)
        return Answer(*answer[:4], score, null_score, candidates)

    def score(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> dict[str, float]:
        """SQuAD's official exact match and F1; see `metrics.answers.scores`."""
        return scores([answer.text for answer in predictions], _right(examples))

    def with_threshold_from(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> Self:
        """This task with the τ that gives the highest F1 on these examples (section 4.3).

        Predictions keep the τ they were decoded with; decode again for the new one.
        """
        if not self.allow_no_answer:
            return self
        margins = np.array([answer.margin for answer in predictions])
        best = best_threshold(margins, [answer.best_span for answer in predictions], _right(examples))
        return replace(self, threshold=best.value)

    def facts(self) -> dict[str, str]:
        lead = f"if the best span leads by no more than {self.threshold:.3f}"
        return {"no answer": lead if self.allow_no_answer else "never"}

    def record(self, example: QaExample, prediction: Answer) -> dict[str, Any]:
        values = prediction._asdict()
        candidates = [candidate._asdict() for candidate in prediction.candidates]
        answer = {"id": example.id, "answer": prediction.text} | {name: values[name] for name in _RECORDED}
        return answer | {"candidates": candidates}

    def predictable(self, examples: Iterable[QaExample], form: str) -> Iterator[QaExample]:
        ids: set[str] = set()
        for example in examples:
            if form == self.form:
                if example.id in ids:
                    raise ValueError(
                        f'{example.location}: the id "{example.id}" is that of a question before; answer each file by '
                        "itself, or name a .jsonl file"
                    )
                ids.add(example.id)
            yield example

    def formatted(self, found: Iterable[tuple[QaExample, Answer]]) -> Iterator[str]:
        """SQuAD's own: one object, the answers by the ids of their questions."""
        as_json = partial(json.dumps, ensure_ascii=False)
        before = "{"
        for example, answer in found:
            yield f"{before}{as_json(example.id)}: {as_json(answer.text)}"
            before = ", "
        yield "}"

    def shown(self, found: Sequence[tuple[QaExample, Answer]]) -> list[DisplayTable]:
        tables = []
        for _, answer in found:
            rows = [
                (one.text or NO_ANSWER, f"{one.start}-{one.end}" if one.text else "", f"{one.probability:.1%}")
                for one in answer.candidates[:SHOWN_ANSWERS]
            ]
            tables.append(DisplayTable(("answer", "characters", "probability"), rows, heading=answer.text or NO_ANSWER))
        return tables


_RECORDED = ("start", "end", "probability", "score", "null_score")


class Spans(NamedTuple):
    """Spans of tokens, best first."""

    scores: Floats
    first: Ints
    last: Ints

    def take(self, chosen: Ints) -> Spans:
        return Spans(self.scores[chosen], self.first[chosen], self.last[chosen])


def tokenized(contexts: Sequence[str], tokenizer: Tokenizer) -> tuple[Ints, npt.NDArray[np.int32], Ints]:
    """Ids (M) and offsets (M × 2) of texts laid end to end, and where each text starts (one more than texts)."""
    ids, offsets = [np.empty(0, np.int64)], [np.empty((0, 2), np.int32)]
    for begin in range(0, len(contexts), CONTEXTS_AT_ONCE):
        for encoding in tokenizer.encode_batch(contexts[begin : begin + CONTEXTS_AT_ONCE]):
            ids.append(encoding.ids[1:-1])
            offsets.append(encoding.offsets[1:-1].astype(np.int32))
    bounds = offsets_from_lengths(np.array([len(row) for row in ids[1:]], dtype=np.int64))
    return np.concatenate(ids), np.concatenate(offsets), bounds


def windows(tokens: Ints, room: Ints, stride: int) -> tuple[Ints, Ints, Ints]:
    """Windows of contexts of `tokens` tokens, `room` a window: whose each is, its first token, how many it has.

    Every token is in a window, the last window ends with the last token, and a context without tokens has one window.

    >>> [part.tolist() for part in windows(np.array([9, 3]), np.array([5, 5]), stride=3)]
    [[0, 0, 0, 1], [0, 3, 6, 0], [5, 5, 3, 3]]
    """
    step = np.minimum(room, stride)
    number = 1 + np.maximum(-(-(tokens - room) // step), 0)
    of = np.repeat(np.arange(len(tokens)), number)
    first = positions_from_lengths(number) * step[of]
    return of, first, np.minimum(room[of], tokens[of] - first)


def answer_tokens(
    examples: Sequence[QaExample], context_of: Ints, offsets: npt.NDArray[np.int32], bounds: Ints
) -> Ints:
    """First and last token, among the M of all contexts, of the answer to learn, Q × 2; -1 for no answer.

    These are the tokens that share a character with the answer. Raises ValueError where there are none.
    """
    answers = [example.target for example in examples]
    begin = np.array([answer.start if answer else 0 for answer in answers], dtype=np.int64)
    end = begin + np.array([len(answer.text) if answer else 0 for answer in answers], dtype=np.int64)
    # One search for all contexts: a character is known by its context and its place there.
    base = np.repeat(np.arange(len(bounds) - 1) << 32, np.diff(bounds))
    first = np.searchsorted(base + offsets[:, 1], (context_of << 32) + begin, side="right")
    last = np.searchsorted(base + offsets[:, 0], (context_of << 32) + end, side="left") - 1
    answered = np.array([answer is not None for answer in answers], dtype=bool)
    if (lost := np.flatnonzero(answered & (last < first))).size:
        example = examples[lost[0]]
        answer = example.target
        assert answer is not None
        raise ValueError(f"{example.location}: the answer {answer.text!r} has no token; take the question out")
    return np.where(answered[:, None], np.stack([first, last], axis=1), -1)


def max_context_window(first: Ints, content: Ints) -> Ints:
    """For each token of one context, the window that shows most around it: most on the side where it shows less.

    That is Google's "max context" rule, by which a token is scored once: the longer window wins among equals, and then
    the earlier.

    >>> max_context_window(np.array([0, 3]), np.array([6, 6])).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    owner = np.zeros(first[-1] + content[-1], dtype=np.int64)
    if len(first) == 1:
        return owner
    most = np.full(len(owner), -1, dtype=np.int64)
    for number, (begin, length) in enumerate(zip(first.tolist(), content.tolist(), strict=True)):
        left = np.arange(length)
        shown = 100 * np.minimum(left, left[::-1]) + length  # Google's rule times 100: whole numbers tie exactly
        better = shown > most[begin : begin + length]
        most[begin : begin + length][better] = shown[better]
        owner[begin : begin + length][better] = number
    return owner


def best_spans(
    start: Floats, end: Floats, own: npt.NDArray[np.bool_], max_answer_length: int, n_best_size: int
) -> Spans:
    """The `n_best_size` spans (i, j) with the highest `start[i] + end[j]`, i ≤ j < i + max_answer_length, that begin where `own`.

    >>> spans = best_spans(np.array([0.0, 3, 1]), np.array([9.0, 1, 2]), np.array([True] * 3), max_answer_length=2, n_best_size=2)
    >>> [part.tolist() for part in spans]
    [[9.0, 5.0], [0, 1], [0, 2]]
    """
    width = min(max_answer_length, len(start))
    if not own.any():
        return Spans(np.empty(0), *np.empty((2, 0), dtype=np.int64))
    begins = np.flatnonzero(own)
    ends = sliding_window_view(np.concatenate([end, np.full(width - 1, -np.inf)]), width)
    sums = (start[begins, None] + ends[begins]).reshape(-1)
    count = min(n_best_size, int(np.minimum(width, len(start) - begins).sum()))  # the others are past the end
    least = np.partition(sums, len(sums) - count)[len(sums) - count]
    chosen = np.flatnonzero(sums >= least)  # more than `count` where the last place is shared
    chosen = chosen[np.argsort(-sums[chosen], kind="stable")][:count]
    first = begins[chosen // width]
    return Spans(sums[chosen], first, first + chosen % width)


def _right(examples: Sequence[QaExample]) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]
