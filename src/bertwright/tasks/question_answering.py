"""Extractive question answering, SQuAD 1.1 and 2.0 (sections 4.2 and 4.3), in windows as Google's run_squad makes them.

Q questions; S windows with T tokens in all.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertwright.base.ragged import positions_from_lengths
from bertwright.base.settings import check_minimum, did_you_mean
from bertwright.metrics.answer_scores import RULES, Threshold, best_threshold, scores
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.tables.dialects import check_dialect
from bertwright.tables.qa_example import GoldAnswer, QaExample, align_answers
from bertwright.tables.question_files import QUESTION_FORMATS, QuestionFormat, read_questions
from bertwright.tasks.context_windows import (
    Spans,
    after_marks,
    answer_characters,
    answer_tokens,
    best_spans,
    count_cut_answers,
    label_windows,
    max_context_window,
    place_windows,
    split_windows,
    tokenize_contexts,
)
from bertwright.tasks.encoded import Encoded, Floats, Ints, Outputs
from bertwright.tasks.score_formats import DisplayTable, format_percent
from bertwright.tasks.task import LEARNED, Task, check_metric, log_softmax_of_groups, score_each
from bertwright.text.decoding import check_encoding, check_format
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.heads import TaskBatch

NUM_SPECIALS = 3  # [CLS] question [SEP] context [SEP]
SHOWN_ANSWERS = 5  # answers per question on the screen; files have all
NO_ANSWER = "(no answer)"
MAX_CUT_ANSWERS = 0.05  # share of the questions above which cut answers cause a notice


class Candidate(NamedTuple):
    """A span that may be the answer; "no answer" is the empty text from 0 to 0."""

    text: str
    """`context[start:end]`, from the first character of the span's first token to the last one of its last token."""
    start: int
    end: int
    probability: float
    """Among the candidates of the question."""
    score: float
    """S·T_i + E·T_j in the paper; S·C + E·C for no answer."""


class Answer(NamedTuple):
    """The model's answer to a question."""

    text: str
    """Part of the context; empty for no answer."""
    start: int
    """Index of the first character in the context; 0 for no answer."""
    end: int
    """Index after the last character; 0 for no answer."""
    probability: float
    """Of this answer, among the candidates."""
    score: float
    """Of the best span, also if the answer is none."""
    null_score: float
    """Of no answer: the minimum over all windows, since one window with an answer is enough."""
    candidates: tuple[Candidate, ...]
    """The best spans and, if questions may have no answer, "no answer"; by falling score."""

    @property
    def margin(self) -> float:
        """Score of the best span minus the score of no answer; compared with τ."""
        return self.score - self.null_score

    @property
    def best_span(self) -> str:
        """Text of the best span, also if the answer is none; empty if the context has no tokens."""
        return next((candidate.text for candidate in self.candidates if candidate.end), "")


@dataclass(frozen=True, kw_only=True)
class EncodedQuestions(Encoded):
    """Questions as windows, with the character offsets of the contexts' tokens."""

    context_start: Ints
    """S, position of the first context token in its window."""
    first: Ints
    """S, index of that token among the M of all contexts."""
    offsets: npt.NDArray[np.int32]
    """M × 2, start and end of each token in its context, in characters."""
    cut_answers: int
    """Number of answers that begin or end inside a token, so that no span of tokens equals them."""
    answer_lengths: Ints
    """Tokens of each answer; of questions without an answer 1."""

    @cached_property
    def context_lengths(self) -> Ints:
        """S, context tokens per window."""
        return self.lengths - self.context_start - 1


@dataclass(frozen=True)
class QuestionAnswering(Task[QaExample, Answer]):
    """The start and the end of the answer to a question in a context."""

    kind: ClassVar[str] = "question-answering"
    inference_call: ClassVar[str] = "answer(question, context)"
    native_suffix: ClassVar[str] = ".json"
    dialect_parts: ClassVar[tuple[str, ...]] = ("questions",)
    truncation_option: ClassVar[str] = "max_query_length"  # a longer context has more windows
    head: ClassVar[HeadSpec] = HeadSpec("span", 2)
    num_segments: ClassVar[int] = 2
    """2: question and context."""

    max_length: int = 384
    """Longest sequence in tokens, [CLS] and [SEP] included; a longer context has several windows."""
    doc_stride: int = 128
    """Tokens from the start of a window to the start of the next, as Google's doc_stride (in transformers, the overlap
    of two windows). At most the context tokens of a window, so that every token is in one."""
    max_query_length: int = 64
    """Longest question in tokens; longer ones are truncated."""
    n_best_size: int = 20
    """Number of candidates per question."""
    max_answer_length: int = 30
    """Longest answer in tokens."""
    allow_no_answer: bool = False
    """Whether a question may have no answer, as in SQuAD 2.0."""
    encoding: str = "utf-8"
    """Encoding of text files by its name in Python, such as latin-1 or cp949."""
    format: str | None = None
    """Format of all files, whatever their suffixes: json, jsonl or parquet; unset: by suffix."""
    dialect: str | None = None
    """Layout of all files: {dialects}, or plain for files as they stand; unset: recognized in a file that lacks
    columns, with a warning (docs/dialects.md)."""
    threshold: float = field(default=0.0, metadata=LEARNED)
    """τ: the best span is the answer if its score exceeds the score of no answer by more; chosen on dev."""
    metric: str = "f1"
    """Score that selects the best checkpoint: f1 or exact_match."""
    scoring: str = "squad"
    """Official script whose rules score the answers: squad, whose F1 counts words, or korquad, whose F1 counts
    characters."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "doc_stride", "max_query_length", "n_best_size", "max_answer_length")
        check_encoding(self.encoding)
        check_format(self.format, QUESTION_FORMATS)
        check_dialect(self.dialect, self.dialect_parts)
        if self.max_length <= self.max_query_length + NUM_SPECIALS:
            raise ValueError(
                f"max_length = {self.max_length}: a question of max_query_length = {self.max_query_length} and 3 "
                f"special tokens leave no token for the context; use at least "
                f"{self.max_query_length + NUM_SPECIALS + 1}, or a lower max_query_length"
            )
        check_metric(self.metric, ("f1", "exact_match"))
        if self.scoring not in RULES:
            raise ValueError(f"scoring = {self.scoring!r}: {did_you_mean(self.scoring, RULES)}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold = {self.threshold}: a finite number is needed")

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        return cls().limited_to(max_positions) if record.head.kind == "span" else None

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, threshold=threshold) if self.allow_no_answer else super().with_threshold(threshold)

    def merge(self, others: Sequence[Self]) -> Self:
        return replace(self, threshold=float(np.mean([task.threshold for task in (self, *others)])))

    def merge_notes(self) -> list[str]:
        if not self.allow_no_answer:
            return []
        return [
            f"the threshold of the ensemble is the mean of its models' thresholds, {self.threshold:.4g}; bertwright "
            "evaluate --ensemble on dev prints its best, for --threshold"
        ]

    def limited_to(self, max_positions: int) -> Self:
        """Return the task for a model with this number of positions.

        If a question could fill the whole window, questions get a quarter of it.
        """
        longest = min(self.max_length, max_positions)
        fits = self.max_query_length + NUM_SPECIALS < longest
        query = self.max_query_length if fits else max(longest // 4, 1)
        return replace(self, max_length=longest, max_query_length=query)

    def read(self, path: str, labeled: bool = True) -> Iterator[QaExample]:
        """Read the questions of SQuAD .json, .jsonl or .parquet; see `question_files`."""
        for example in read_questions(path, labeled, QuestionFormat(self.encoding, self.format, self.dialect)):
            if example.is_impossible and not self.allow_no_answer:
                raise ValueError(
                    f"{example.location}: the question has no answer; allow that with --allow-no-answer True"
                )
            if labeled and self.allow_no_answer and not example.answers:  # said by the user, if not by the file
                example = replace(example, is_impossible=True)
            yield example

    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[QaExample]:
        if len(texts) != 2:
            raise ValueError(f"question answering: give two texts, the question and the context, not {len(texts)}")
        return [QaExample("1", texts[0], texts[1], location=location)]

    def with_labels_of(self, examples: Sequence[QaExample]) -> Self:
        """Return the task unchanged. Raises ValueError if no example has an answer to learn."""
        if not any(example.learnable for example in examples):
            first = f"{examples[0].location}: " if examples else ""
            raise ValueError(
                f"{first}none of {len(examples)} questions has an answer that occurs in its context; fix them, or "
                "use --allow-no-answer True if there are none"
            )
        return self

    def check(self, examples: Sequence[QaExample]) -> None:
        """Raise ValueError if the answers are known of no example; see `AnswerAlignment` for some without."""
        if examples and not any(example.answers or example.is_impossible for example in examples):
            raise ValueError(
                f"{examples[0].location}: neither this nor any other question has an answer; scoring needs them"
            )

    def group_keys(self, examples: Sequence[QaExample]) -> Sequence[Hashable]:
        return [example.context for example in examples]

    def warnings(self, examples: Sequence[QaExample], paths: Sequence[str] = ()) -> list[str]:
        """Describe answers that do not occur at the start given in the file, and questions without any."""
        return align_answers(examples).warnings()

    def encoding_warnings(self, encoded: Encoded) -> list[str]:
        """Warn about answers that begin or end inside a token, if they are frequent."""
        assert isinstance(encoded, EncodedQuestions)
        count, total = encoded.cut_answers, len(set(encoded.example_ids.tolist()))
        notes = []
        if long := int((encoded.answer_lengths > self.max_answer_length).sum()):
            notes.append(
                f"{long:,} of {total:,} questions ({long / total:.1%}) have an answer of more than "
                f"{self.max_answer_length} tokens, which is never predicted whole; raise --max-answer-length, up to "
                f"{encoded.answer_lengths.max()}"
            )
        if count <= MAX_CUT_ANSWERS * total:
            return notes
        return [
            *notes,
            f"{count:,} of {total:,} questions ({count / total:.1%}) have an answer that begins or ends inside a "
            "token, so that no prediction can equal it; a vocabulary of fewer tokens splits words more often",
        ]

    def texts(self, examples: Sequence[QaExample]) -> Iterator[str]:
        """Yield the questions, and each context once."""
        yield from (example.question for example in examples)
        yield from dict.fromkeys(example.context for example in examples)

    def encode(self, examples: Sequence[QaExample], tokenizer: TextTokenizer, labeled: bool = True) -> EncodedQuestions:
        """Encode questions as windows: at most `max_query_length` tokens of the question, and the context that fits.

        With `labeled`, questions without an answer in their context (see `align_answers`) are left out. The label of a
        window is the answer's first and last token, or twice [CLS] if the window does not contain the whole answer.
        """
        indices = np.array([n for n, e in enumerate(examples) if e.learnable or not labeled], dtype=np.int64)
        chosen = [examples[index] for index in indices]
        contexts = tokenize_contexts(chosen, tokenizer)
        questions = tokenizer.encode_raw([example.question for example in chosen])
        full_lengths = np.diff(questions.offsets)
        space = self.max_length - tokenizer.layout.num_specials(2)  # of question and context
        query_lengths = np.minimum(full_lengths, min(self.max_query_length, space - 1))
        capacity = space - query_lengths
        windows = split_windows(contexts.begin, contexts.num_tokens, capacity, self.doc_stride)
        placed = place_windows(questions, query_lengths, contexts, windows, tokenizer.layout)
        context_start = placed.starts[1]
        labels, cut_answers = np.zeros((0, 2), np.int64), 0
        characters = answer_characters(chosen)
        tokens = answer_tokens(chosen, characters, contexts, strict=labeled)
        if labeled:
            cut_answers = count_cut_answers(characters, tokens, contexts.offsets)
            labels = label_windows(tokens, windows, context_start)
        return EncodedQuestions(
            input_ids=placed.ids,
            token_type_ids=placed.token_type_ids,
            lengths=placed.lengths,
            example_ids=indices[windows.question],
            positions=positions_from_lengths(placed.lengths).astype(np.int32),
            position_counts=placed.lengths,
            labels=labels,
            label_counts=np.full_like(windows.question, labeled),
            truncated=int((full_lengths > query_lengths).sum()),
            context_start=context_start,
            first=windows.first,
            offsets=contexts.offsets,
            cut_answers=cut_answers,
            answer_lengths=tokens[:, 1] - tokens[:, 0] + 1,
        )

    def loss(self, logits: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum over windows of the mean of two cross entropies over their tokens: start and end."""
        import torch

        bounds = batch.packing.cu_seqlens.long()
        lengths = bounds.diff()
        peak = torch.segment_reduce(logits.detach(), "max", offsets=bounds, axis=0)  # S 2
        shifted = logits - peak.repeat_interleave(lengths, 0, output_size=len(logits))  # T 2
        totals = torch.segment_reduce(shifted.exp(), "sum", offsets=bounds, axis=0).log()  # S 2
        targets = shifted.gather(0, bounds[:-1, None] + batch.labels)  # S 2
        if smoothing:
            targets = torch.lerp(targets, torch.segment_reduce(shifted, "mean", offsets=bounds, axis=0), smoothing)
        return (totals - targets).sum() / 2

    @property
    def has_frequent_answer(self) -> bool:
        return self.allow_no_answer

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        if not self.allow_no_answer:
            return super().frequent_outputs(train, encoded)
        outputs = np.zeros((len(encoded.positions), 2), dtype=np.float32)
        outputs[encoded.starts[:-1]] = 1 + max(0.0, self.threshold)  # [CLS]: no answer
        return outputs

    def decode(self, examples: Sequence[QaExample], encoded: Encoded, outputs: Outputs) -> list[Answer]:
        """Find the best span of each question over all its windows, or no answer if that is allowed and scores higher.

        A span starts and ends in the context, i ≤ j, and has at most `max_answer_length` tokens. All such spans are
        scored, not only combinations of the best starts and ends. If several windows contain its first token, the one
        with the most context around that token counts. Among equal scores, the first in the text wins. Offsets are
        of tokens, so an answer may end inside a word. A context without tokens has no answer, with probability 1,
        also if questions must have one.
        """
        assert isinstance(encoded, EncodedQuestions)
        bounds = np.searchsorted(encoded.example_ids, np.arange(len(examples) + 1))
        null_scores = outputs[encoded.starts[:-1]].sum(1, dtype=np.float64)
        answers = []
        for example, begin, end in zip(examples, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if begin == end:
                raise ValueError(f"{example.location}: no window; encode with labeled=False")
            found = self._best_spans(encoded, outputs, begin, end)
            null_score = float(null_scores[begin:end].min())
            answers.append(self._choose_answer(example.context, found, encoded.offsets, null_score))
        return answers

    def _best_spans(self, encoded: EncodedQuestions, outputs: Outputs, begin: int, end: int) -> Spans:
        """Find the best spans of one question, whose windows are `begin` to `end`."""
        first, context_lengths = encoded.first[begin:end], encoded.context_lengths[begin:end]
        owner = max_context_window(first - first[0], context_lengths)
        found = []
        for number in range(end - begin):
            start = encoded.starts[begin + number] + encoded.context_start[begin + number]
            logits = outputs[start : start + context_lengths[number]].astype(np.float64)
            offset = first[number] - first[0]
            own = owner[offset : offset + context_lengths[number]] == number
            spans = best_spans(logits[:, 0], logits[:, 1], own, self.max_answer_length, self.n_best_size)
            found.append(Spans(spans.scores, spans.first + first[number], spans.last + first[number]))
        if len(found) == 1:
            return found[0]
        joined = Spans(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
        best = np.lexsort((joined.last, joined.first, -joined.scores))[: self.n_best_size]
        return Spans(joined.scores[best], joined.first[best], joined.last[best])

    def _choose_answer(self, context: str, spans: Spans, offsets: npt.NDArray[np.int32], null_score: float) -> Answer:
        starts: list[Any] = offsets[spans.first, 0].tolist()
        ends: list[Any] = [after_marks(context, end) for end in offsets[spans.last, 1].tolist()]
        span_scores = spans.scores.tolist()
        score = span_scores[0] if span_scores else null_score
        answered = bool(span_scores) and (not self.allow_no_answer or score - null_score > self.threshold)
        if self.allow_no_answer or not span_scores:
            rank = sum(value > null_score for value in span_scores)
            for column, value in ((starts, 0), (ends, 0), (span_scores, null_score)):
                column.insert(rank, value)
        weights = np.exp(np.array(span_scores) - span_scores[0])
        probabilities = (weights / weights.sum()).tolist()
        candidates = tuple(
            Candidate(context[start:end], start, end, probability, value)
            for start, end, probability, value in zip(starts, ends, probabilities, span_scores, strict=True)
        )
        best = next(candidate for candidate in candidates if (candidate.end > 0) == answered)
        return Answer(best.text, best.start, best.end, best.probability, score, null_score, candidates)

    def log_probabilities(self, outputs: Floats, encoded: Encoded) -> Floats:
        """Compute the logarithms of probabilities among all tokens of a question's windows, for start and end."""
        first_windows = np.unique(encoded.example_ids, return_index=True)[1]
        return log_softmax_of_groups(outputs, np.diff(encoded.position_starts[first_windows], append=len(outputs)))

    def score(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> dict[str, float]:
        """Compute the official exact match and F1; see `metrics/answer_scores.py`."""
        return scores(_gold_texts(examples), [answer.text for answer in predictions], RULES[self.scoring])

    def with_threshold_from(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> Self:
        """Return the task with the τ that maximizes the F1 of these predictions (section 4.3).

        The predictions were decoded with the former τ; decode again to apply the new one.
        """
        if not self.allow_no_answer:
            return self
        return replace(self, threshold=self.best_threshold(examples, predictions).value)

    def best_threshold(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> Threshold:
        """Find the τ that maximizes the F1 of these predictions, whatever τ they were decoded with."""
        margins = np.array([answer.margin for answer in predictions])
        return best_threshold(
            _gold_texts(examples), [answer.best_span for answer in predictions], margins, RULES[self.scoring]
        )

    def example_scores(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> ExampleScores:
        return score_each(self, examples, predictions)

    def score_notes(self, examples: Sequence[QaExample], predictions: Sequence[Answer]) -> list[str]:
        if not self.allow_no_answer:
            return []
        best = self.best_threshold(examples, predictions)
        return [f"best on these examples: f1 {format_percent(best.f1)}, with --threshold {best.value!r}"]

    def describe(self) -> dict[str, str]:
        if not self.allow_no_answer:
            return {"no answer": "never"}
        return {"no answer": f"if the score of the best span exceeds that of no answer by at most {self.threshold:.3f}"}

    def report_fields(self, examples: Sequence[QaExample]) -> dict[str, Any]:
        return {"answers": align_answers(examples)._asdict()}

    def google_flags(self) -> list[str]:
        if not self.allow_no_answer:
            return []
        return ["--version_2_with_negative=True", f"--null_score_diff_threshold={-self.threshold:g}"]

    def to_record(self, example: QaExample, prediction: Answer) -> dict[str, Any]:
        values = prediction._asdict()
        return {
            "id": example.id,
            "answer": prediction.text,
            **{name: values[name] for name in ("start", "end", "probability", "score", "null_score")},
            "candidates": [candidate._asdict() for candidate in prediction.candidates],
        }

    def is_right(self, example: QaExample, prediction: Answer) -> bool:
        return self.score([example], [prediction])["exact_match"] == 1

    def gold_columns(self, example: QaExample) -> dict[str, Any]:
        gold = [answer.text for answer in example.answers]
        return {"location": example.location, "question": example.question, "gold": gold}

    def show(self, example: QaExample) -> dict[str, str]:
        """Return the question, its context, and its answers with their characters in the context."""
        found = [f"{answer.text}, {_place(answer)}" for answer in dict.fromkeys(example.answers)]
        gold = found or ([NO_ANSWER] if example.is_impossible else [])
        shown = {"location": example.location, "question": example.question, "context": example.context}
        return shown | ({"gold": "; ".join(gold)} if gold else {})

    def count_gold(self, examples: Sequence[QaExample]) -> Mapping[str, int]:
        return Counter("without an answer" if example.is_impossible else "with an answer" for example in examples)

    def display(self, predicted: Sequence[tuple[QaExample, Answer]]) -> list[DisplayTable]:
        tables = []
        for _, answer in predicted:
            rows = [
                (span.text or NO_ANSWER, f"{span.start}-{span.end}" if span.text else "", f"{span.probability:.1%}")
                for span in answer.candidates[:SHOWN_ANSWERS]
            ]
            tables.append(DisplayTable(("answer", "characters", "probability"), rows, heading=answer.text or NO_ANSWER))
        return tables

    def check_writable(self, examples: Iterable[QaExample], suffix: str) -> Iterator[QaExample]:
        """Yield the examples. Raises ValueError, for .json, with the location of a question whose id is not new."""
        ids: set[str] = set()
        for example in examples:
            if suffix == self.native_suffix:
                if example.id in ids:
                    raise ValueError(
                        f'{example.location}: the id "{example.id}" belongs to two questions; predict each file '
                        "separately, or write .jsonl"
                    )
                ids.add(example.id)
            yield example

    def format_native(self, predicted: Iterable[tuple[QaExample, Answer]]) -> Iterator[str]:
        """Format one object with the answers by the ids of their questions, as SQuAD's scorer reads it."""
        as_json = partial(json.dumps, ensure_ascii=False)
        before = "{"
        for example, answer in predicted:
            yield f"{before}{as_json(example.id)}: {as_json(answer.text)}"
            before = ", "
        yield "}"


def _gold_texts(examples: Sequence[QaExample]) -> list[list[str]]:
    return [[answer.text for answer in example.answers] for example in examples]


def _place(answer: GoldAnswer) -> str:
    if answer.start is None:
        return "not in the context"
    return f"characters {answer.start}-{answer.start + len(answer.text)}"
