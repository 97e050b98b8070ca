"""Token tagging (section 5.3): the tag of a word is read from the state of its first token, without a CRF.

A window is one sentence, with [CLS] and [SEP]. A sentence too long for it is cut between words; each piece takes at
most three quarters of its window and sees its neighbours in the rest. With document context the sentences around fill
every window, half of the room on either side, or more where the other side has less ("the maximal document context
provided by the data"). They follow one another without [SEP], in one segment, as running text does: [SEP] marked
the two segments of pre-training, and a sentence in the middle of a text had none around it there. Only the sentence's
own words are trained and scored, each exactly once.

W words with those around them, S windows, R words to tag, C tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple, Self, cast, get_args

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from bertwright.batching.batch import offsets_from_lengths
from bertwright.metrics.span_f1 import (
    BARE,
    OUTSIDE,
    PREFIXES,
    Scheme,
    SpanScores,
    accuracy,
    detect,
    find_invalid_tag,
    span_scores,
    spans,
    split_tag,
    to_canonical_scheme,
)
from bertwright.models.heads import HeadSpec
from bertwright.settings import did_you_mean
from bertwright.tasks.conll import TagExample, column_text, read_sentences, with_document_context
from bertwright.tasks.task import (
    DisplayTable,
    Encoded,
    Ints,
    Outputs,
    Task,
    TaskBatch,
    check_metric,
    flat_ranges,
    percent,
)
from bertwright.vocabulary.tokenizer import Tokenizer

SPECIALS = 2  # [CLS] and [SEP] around every window
METRICS = ("f1", "accuracy")
UNSEEN = -100  # target of a tag that training never showed: no class, and no loss (cross entropy's ignore_index)


class Entity(NamedTuple):
    """A span of the text."""

    label: str
    text: str
    start: int
    """Its first character."""
    end: int
    """The character after its last: `text` is the whole text's [start:end]."""
    probability: float
    """That all of its words have just these tags: the product over them, since each is tagged on its own."""


class TagPrediction(NamedTuple):
    """A sentence with its tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Of each word's tag."""
    entities: tuple[Entity, ...]
    """What the tags spell, as the scorer reads them; places are those in the raw text, or in the words joined by
    single spaces. Empty where tags are plain classes."""


@dataclass(frozen=True)
class Tagging(Task[TagExample, TagPrediction]):
    """A tag for each word: named entities, chunks, parts of speech."""

    kind: ClassVar[str] = "tagging"
    form: ClassVar[str] = ".conll"

    words: str | None = None
    """Column of the words: a number from 1, from the last if negative; in .conllu also a name; in .jsonl and .parquet
    the name of a field with a list. By default the first; form; words."""
    tags: str | None = None
    """Column of the tags, likewise. By default the last; upos; tags."""
    scheme: str | None = None
    """How tags spell spans: iob1, iob2, bioes (or BILOU), or none for plain classes; unset, the training data tell. The
    model learns iob1 as iob2, and BILOU as BIOES. An I- that begins a span is an error only where iob2 is asked for."""
    context: bool = False
    """Fill the window with the sentences around, from the same document (section 5.3). A file without document marks is
    one document; a row of .jsonl or .parquet stands alone."""
    max_length: int = 128
    """Longest window in tokens, [CLS] and [SEP] included."""
    metric: str = "f1"
    """The score that chooses the best checkpoint: f1 of spans, or accuracy; always accuracy for scheme none."""
    labels: tuple[str, ...] = ()
    """The tags, found in training."""

    def __post_init__(self) -> None:
        check_metric(self.metric, METRICS)
        if self.scheme not in (None, *get_args(Scheme)):
            raise ValueError(f"scheme = {self.scheme!r}: {did_you_mean(str(self.scheme), get_args(Scheme))}")
        if self.max_length <= SPECIALS:
            raise ValueError(f"max_length is {self.max_length}; [CLS], [SEP] and one token need {SPECIALS + 1}")

    @property
    def head(self) -> HeadSpec:
        if not self.labels:
            raise ValueError("the tags are not known yet; they are found in the training data")
        return HeadSpec("token", len(self.labels))

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels

    def read(self, path: str, labelled: bool = True) -> Iterator[TagExample]:
        sentences = read_sentences(path, self.words, self.tags, labelled)
        return with_document_context(sentences, self.max_length - SPECIALS) if self.context else sentences

    def in_context(self, sentences: Sequence[TagExample]) -> list[TagExample]:
        """Sentences that follow one another, with those around each. Raises ValueError where none was trained with."""
        if not self.context:
            raise ValueError("this model is not known to be trained with context; that needs --context True")
        return list(with_document_context(sentences, self.max_length - SPECIALS))

    @property
    def of_one_text(self) -> bool:
        return True

    def examples_from_texts(self, texts: Sequence[str], place: str) -> list[TagExample]:
        return [TagExample.from_text(text, place) for text in texts]

    def group_keys(self, examples: Sequence[TagExample]) -> Sequence[Hashable]:
        """The words; with context those of the whole document, since its sentences see one another."""
        if not self.context:
            return [example.words for example in examples]
        documents: dict[Hashable, list[tuple[str, ...]]] = {}
        for example in examples:
            documents.setdefault((example.source, example.document), []).append(example.words)
        texts: dict[Hashable, int] = {}  # numbered, for a document is long and asked for by each of its sentences
        numbers = {name: texts.setdefault(tuple(words), len(texts)) for name, words in documents.items()}
        return [numbers[example.source, example.document] for example in examples]

    def with_labels_of(self, examples: Sequence[TagExample]) -> Self:
        if not examples:
            raise ValueError("no sentences to learn from")
        scheme = cast("Scheme | None", self.scheme) or detect(_tags(example) for example in examples)
        for example in examples:
            if fault := find_invalid_tag(_tags(example), scheme):
                odd, word = _tags(example)[fault.place], example.words[fault.place]
                raise ValueError(f"{example.location_of(fault.place)}: tag {odd!r} of {word!r}: {fault.reason}")
        found = {tag for example in examples for tag in to_canonical_scheme(_tags(example), scheme)}
        if scheme != "none" and found & BARE and not found <= BARE | {OUTSIDE}:
            example, place = next((e, n) for e in examples for n, tag in enumerate(_tags(e)) if tag in BARE)
            odd, word = _tags(example)[place], example.words[place]
            raise ValueError(f"{example.location_of(place)}: tag {odd!r} of {word!r} has no type, and others have one")
        if not found:
            raise ValueError(f"{examples[0].location}: neither this nor any other sentence has a word to learn from")
        if len(found) < 2:
            raise ValueError(f"{examples[0].location}: all words have the tag {', '.join(found)!r}; two are the least")
        labels = tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))
        return replace(self, scheme=scheme, labels=labels, metric="accuracy" if scheme == "none" else self.metric)

    def check(self, examples: Sequence[TagExample]) -> None:
        self._targets(examples)

    def score_notes(self, examples: Sequence[TagExample]) -> list[str]:
        counts = Counter(tag for example in examples for tag in to_canonical_scheme(_tags(example), self._scheme))
        # A model from elsewhere may know iob1 as it stands, where I- begins a span; `score` reads it so.
        begun = {f"B{label[1:]}" for label in self.labels if self._scheme == "iob1" and split_tag(label)[1]}
        odd = {tag: count for tag, count in counts.items() if tag not in begun.union(self.labels)}
        if not odd:
            return []
        number = sum(odd.values())
        words = "1 word has a tag" if number == 1 else f"{number:,} words have tags"
        return [f"{words} that training never showed ({', '.join(sorted(odd))}): scored, and never found"]

    def encode(self, examples: Sequence[TagExample], tokenizer: Tokenizer, labelled: bool = True) -> Encoded:
        room = self.max_length - SPECIALS
        stream = word_stream(examples, tokenizer, room)
        cut = windows(stream, room)
        spread = flat_ranges(cut.first, cut.last - cut.first)
        content = stream.ids[flat_ranges(stream.first[spread], stream.lengths[spread])]
        lengths = stream.offsets[cut.last] - stream.offsets[cut.first] + SPECIALS
        position_counts = cut.end - cut.begin
        rows = (
            stream.offsets[flat_ranges(cut.begin, position_counts)]
            - np.repeat(stream.offsets[cut.first], position_counts)
            + 1
        )
        return Encoded(
            input_ids=_framed(content, lengths, tokenizer),
            token_type_ids=np.zeros(int(lengths.sum()), dtype=np.int8),
            lengths=lengths,
            example_ids=cut.example,
            positions=rows.astype(np.int32),
            position_counts=position_counts,
            labels=self._targets(examples) if labelled else np.zeros(0, dtype=np.int64),
            label_counts=position_counts if labelled else np.zeros_like(position_counts),
            truncated=stream.truncated,
        )

    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)

    def decode(self, examples: Sequence[TagExample], encoded: Encoded, outputs: Outputs) -> list[TagPrediction]:
        # Windows are in the order of the sentences, and their rows in that of the words: so are all rows.
        best = outputs.argmax(1)
        likely = 1 / np.exp(outputs - outputs.max(1, keepdims=True), dtype=np.float64).sum(1)  # the softmax at its peak
        names, shares = [self.labels[number] for number in best], likely.tolist()
        bounds = [0, *accumulate(len(example.words) for example in examples)]
        return [
            self._tagged(example, tuple(names[begin:end]), tuple(shares[begin:end]))
            for example, begin, end in zip(examples, bounds, bounds[1:], strict=False)
        ]

    def score(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> dict[str, float]:
        gold = [to_canonical_scheme(_tags(example), self._scheme) for example in examples]
        found = [prediction.tags for prediction in predictions]
        if self._scheme == "iob1":  # a model from elsewhere may have learned it as it stands, where I- begins a span
            found = [to_canonical_scheme(tags, "iob1") for tags in found]
        share = {"accuracy": accuracy(gold, found)}
        if self._scheme == "none":
            return share
        total = self.spans_found(examples, predictions).total
        return {"f1": total.f1, "precision": total.precision, "recall": total.recall} | share

    def spans_found(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> SpanScores:
        """Scores of all spans and of those of each type; none of either for scheme none."""
        gold = [to_canonical_scheme(_tags(example), self._scheme) for example in examples]
        return span_scores(gold, [prediction.tags for prediction in predictions])

    def details(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> list[DisplayTable]:
        """The scores of each type of span."""
        if self._scheme == "none":
            return []
        rows = [
            (name, f"{found.support:,}", percent(found.precision), percent(found.recall), percent(found.f1))
            for name, found in self.spans_found(examples, predictions).types.items()
        ]
        return [DisplayTable(("type", "spans", "precision", "recall", "f1"), rows)]

    def record(self, example: TagExample, prediction: TagPrediction) -> dict[str, Any]:
        return {
            "words": list(prediction.words),
            "tags": list(prediction.tags),
            "probabilities": list(prediction.probabilities),
            "entities": [entity._asdict() for entity in prediction.entities],
        }

    def predictable(self, examples: Iterable[TagExample], form: str) -> Iterator[TagExample]:
        for example in examples:
            if form == self.form:
                column_text(example.words, example.words, example.location)
            yield example

    def formatted(self, found: Iterable[tuple[TagExample, TagPrediction]]) -> Iterator[str]:
        """A word and its tag a line."""
        return (column_text(tagged.words, tagged.tags, example.location) for example, tagged in found)

    def shown(self, found: Sequence[tuple[TagExample, TagPrediction]]) -> list[DisplayTable]:
        """A text's entities or, where tags are plain classes, all of its words."""
        return [
            DisplayTable(
                ("text", "label", "characters", "probability"),
                self._rows(example, tagged),
                heading=(example.text or "").strip() or "(no text)",
                nothing="no words" if self._scheme == "none" else "no entities",
            )
            for example, tagged in found
        ]

    def _rows(self, example: TagExample, tagged: TagPrediction) -> list[tuple[str, str, str, str]]:
        found = [(one.text, one.label, one.start, one.end, one.probability) for one in tagged.entities]
        if self._scheme == "none":
            each = zip(tagged.words, tagged.tags, example.offsets, tagged.probabilities, strict=True)
            found = [(word, tag, *place, probability) for word, tag, place, probability in each]
        return [(text, label, f"{start}-{end}", f"{share:.1%}") for text, label, start, end, share in found]

    @property
    def _scheme(self) -> Scheme:
        if self.scheme is None:
            raise ValueError("the scheme of the tags is not known yet; it is found in the training data")
        return cast(Scheme, self.scheme)

    def _targets(self, examples: Sequence[TagExample]) -> Ints:
        numbers = {tag: number for number, tag in enumerate(self.labels)}
        if self._scheme != "none":
            # Of a type that training had, some spelling may be missing there, as I-LST in CoNLL-2000: it can be scored.
            types = {tag[1:] for tag in self.labels if split_tag(tag)[1]}
            spellings = [f"{prefix}{name}" for prefix in PREFIXES[self._scheme] for name in types]
            numbers = dict.fromkeys([OUTSIDE, *spellings], UNSEEN) | numbers
        meant = [to_canonical_scheme(_tags(example), self._scheme) for example in examples]
        try:
            return np.array([numbers[tag] for tags in meant for tag in tags], dtype=np.int64)
        except KeyError:
            example, place = next(
                (example, place)
                for example, tags in zip(examples, meant, strict=True)
                for place, tag in enumerate(tags)
                if tag not in numbers
            )
        odd, word, known = _tags(example)[place], example.words[place], ", ".join(self.labels)
        raise ValueError(
            f"{example.location_of(place)}: tag {odd!r} of {word!r} is unknown; those of training are {known}"
        )

    def _tagged(self, example: TagExample, tags: tuple[str, ...], shares: tuple[float, ...]) -> TagPrediction:
        if self._scheme == "none" or all(tag == OUTSIDE for tag in tags):
            return TagPrediction(example.words, tags, shares, ())
        text, offsets = example.text, example.offsets
        if text is None:
            text = " ".join(example.words)
            begins = [0, *accumulate(len(word) + 1 for word in example.words)]
            offsets = tuple((begin, begin + len(word)) for begin, word in zip(begins, example.words, strict=False))
        entities = []
        for label, first, last in spans(tags):
            start, end = offsets[first][0], offsets[last][1]
            entities.append(Entity(label, text[start:end], start, end, prod(shares[first : last + 1])))
        return TagPrediction(example.words, tags, shares, tuple(entities))


class WordStream(NamedTuple):
    """The words of all examples as tokens, each example's own with those before and after."""

    ids: np.ndarray[Any, np.dtype[np.int32]]
    """Tokens of the distinct words, end to end."""
    first: Ints
    """W, where each word's tokens start in `ids`."""
    lengths: Ints
    """W, how many tokens each word has: one at least, `room` at most."""
    offsets: Ints
    """W + 1, how many tokens stand before each word, and in all."""
    bounds: Ints
    """N × 4 of W: where an example's surroundings begin, its own words, their end, and that of the surroundings."""
    truncated: int
    """Examples with a word of more than `room` tokens, of which the rest was cut."""


def word_stream(examples: Sequence[TagExample], tokenizer: Tokenizer, room: int) -> WordStream:
    """Tokenize words, each on its own and each distinct one once; a word that gives no token becomes [UNK]."""
    numbers: dict[str, int] = {}
    which = np.array(
        [
            numbers.setdefault(word, len(numbers))
            for example in examples
            for part in (*example.before, example.words, *example.after)
            for word in part
        ],
        dtype=np.int64,
    )
    sizes = [(sum(map(len, one.before)), len(one.words), sum(map(len, one.after))) for one in examples]
    flat = offsets_from_lengths(np.array(sizes, dtype=np.int64).reshape(-1))
    bounds = np.stack([flat[:-1:3], flat[1::3], flat[2::3], flat[3::3]], axis=1)

    rows = tokenizer.encode_raw(list(numbers))
    tokens = np.diff(rows.offsets)
    first = np.where(tokens > 0, rows.offsets[:-1], len(rows.ids))  # [UNK] comes last
    lengths = np.clip(tokens, 1, room)[which]

    cut = np.flatnonzero((tokens > room)[which])
    holder = np.searchsorted(bounds[:, 0], cut, side="right") - 1
    own = (bounds[holder, 1] <= cut) & (cut < bounds[holder, 2])
    return WordStream(
        ids=np.append(rows.ids, tokenizer.unk_id).astype(np.int32),
        first=first[which],
        lengths=lengths,
        offsets=offsets_from_lengths(lengths),
        bounds=bounds,
        truncated=len(np.unique(holder[own])),
    )


class WordWindows(NamedTuple):
    """Which words each window shows, [first, last), and which of these it tags, [begin, end); S of each."""

    example: Ints
    first: Ints
    begin: Ints
    end: Ints
    last: Ints


def windows(stream: WordStream, room: int) -> WordWindows:
    """Windows of at most `room` tokens in which every word of every example is tagged once, in order.

    An example without words has none.
    """
    offsets, (low, begin, end, high) = stream.offsets, stream.bounds.T
    fits = offsets[end] - offsets[begin] <= room
    pieces = [np.stack([np.arange(len(low)), begin, end], axis=1)[fits & (begin < end)]]
    for number in np.flatnonzero(~fits):
        ends = _piece_ends(offsets, int(begin[number]), int(end[number]), room - room // 4)
        pieces.append(np.array([(number, *piece) for piece in pairwise([begin[number], *ends])], dtype=np.int64))
    found = np.concatenate(pieces)
    example, begin, end = found[np.argsort(found[:, 1])].T

    # Half of the spare room is for the left, or more where the right has less; the right then takes what it can use in
    # whole words, and the left what is still free.
    floor, ceiling = offsets[low[example]], offsets[high[example]]
    spare = room - (offsets[end] - offsets[begin])
    left = np.maximum(spare // 2, spare - (ceiling - offsets[end]))
    first = np.searchsorted(offsets, np.maximum(offsets[begin] - left, floor))
    most = offsets[first] + room
    last = np.searchsorted(offsets, np.minimum(most, ceiling), side="right") - 1
    first = np.searchsorted(offsets, np.maximum(offsets[last] - room, floor))
    return WordWindows(example, first, begin, end, last)


def _piece_ends(offsets: Ints, begin: int, end: int, limit: int) -> list[int]:
    """Where the pieces of a long sentence end: each has as many words as `limit` tokens hold, and one at least."""
    ends = []
    while begin < end:
        most = int(np.searchsorted(offsets, offsets[begin] + limit, side="right")) - 1
        begin = min(max(most, begin + 1), end)
        ends.append(begin)
    return ends


def _framed(content: np.ndarray[Any, Any], lengths: Ints, tokenizer: Tokenizer) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Windows end to end, each with its [CLS] and [SEP], from their tokens without; `lengths` with them."""
    bounds = offsets_from_lengths(lengths)
    flat = np.empty(bounds[-1], dtype=np.int32)
    inside = np.ones(len(flat), dtype=bool)
    inside[bounds[:-1]] = inside[bounds[1:] - 1] = False
    flat[bounds[:-1]], flat[bounds[1:] - 1], flat[inside] = tokenizer.cls_id, tokenizer.sep_id, content
    return flat


def _tags(example: TagExample) -> tuple[str, ...]:
    if example.tags is None:
        raise ValueError(f"{example.location}: no tags; they are needed to train and to score")
    return example.tags
