"""Token tagging (section 5.3): a word's tag is read from the state of its first token, in a window of its sentence.

W words including context, S windows, R words to tag, C tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast, get_args

import numpy as np

from bertwright.base.messages import count_of
from bertwright.base.ragged import flat_ranges
from bertwright.base.settings import did_you_mean
from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.span_f1 import SpanScores, accuracy, span_scores
from bertwright.models.head_spec import HeadSpec
from bertwright.tables.conll_columns import to_conll
from bertwright.tables.dialects import check_dialect
from bertwright.tables.row_formats import LIST_FORMATS
from bertwright.tables.schema import list_names
from bertwright.tables.tag_example import TagExample, Unit
from bertwright.tables.tag_schemes import (
    BARE,
    OUTSIDE,
    OUTSIDES,
    Scheme,
    detect_scheme,
    find_invalid_tag,
    find_spans,
    normalize_tag,
    spell,
    spellings,
    split_tag,
    to_canonical_scheme,
)
from bertwright.tables.tagged_sentences import ColumnFormat, read_sentences, with_document_context
from bertwright.tasks.encoded import Encoded, Floats, Ints, Outputs, repeat_output
from bertwright.tasks.score_formats import DisplayTable, format_percent
from bertwright.tasks.task import LEARNED, Task, balance, check_metric, check_restored, count_labels, sum_cross_entropy
from bertwright.tasks.word_windows import split_windows, tokenize_words
from bertwright.text.decoding import check_encoding, check_format
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.encoder import TextEncoder
    from bertwright.models.heads import PathScores, TaskBatch, TaskHead

FORMATS = (*LIST_FORMATS, ".conllu", ".conll")
WITHOUT_PREFIX = "io"  # a scheme: a tag is the type alone, as in Few-NERD
NUM_SPECIALS = 2  # [CLS] and [SEP] of every window
UNSEEN = -100  # label of a tag that training never showed: no class, and no loss (cross entropy's ignore_index)


class TagHead(NamedTuple):
    """A head for tags."""

    location: str
    """MODULE:CLASS; the class is called with the `HeadSpec`, the width of the states, the tags and their scheme. Empty:
    the paper's linear layer."""
    scores_paths: bool
    """True if it scores all tags of a sentence together, so that its output is a `heads.PathScores`; False: a row of
    scores for each word."""


TAG_HEADS = {
    "linear": TagHead("", scores_paths=False),
    "crf": TagHead("bertwright.models.crf:CrfHead", scores_paths=True),
}
"""Heads for tags by name: add yours here."""


class Entity(NamedTuple):
    """A span of the text and its type."""

    label: str
    text: str
    start: int
    """Index of its first character."""
    end: int
    """Index after its last character: `text` is the whole text's [start:end]."""
    probability: float
    """That all of its words have exactly these tags, if each is tagged independently: the product over them."""


class TagPrediction(NamedTuple):
    """The tags of a sentence."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Of each word's tag."""
    entities: tuple[Entity, ...]
    """The spans that the tags spell, with offsets in the raw text, or in the words joined by single spaces. Empty if
    tags are plain classes."""


LONG_SENTENCE = 500  # words of a file that may lack its blank lines
ONE_TAG = 20  # words with the same tag that may be a small file


@dataclass(frozen=True)
class Tagging(Task[TagExample, TagPrediction]):
    """A tag per word: named entities, chunks, parts of speech."""

    kind: ClassVar[str] = "tagging"
    inference_call: ClassVar[str] = "tag(text)"
    dialect_parts: ClassVar[tuple[str, ...]] = ("words", "fields", "json", "rows")
    native_suffix: ClassVar[str] = ".conll"
    reads_words: ClassVar[bool] = True
    reads_single_texts: ClassVar[bool] = True

    words: str | None = None
    """Column of the words: a number from 1, or negative, counted from the last; in .conllu also a name; in .jsonl and
    .parquet the field with a list. Unset: the first column; in .conllu form; in .jsonl and .parquet words."""
    tags: str | None = None
    """Column of the tags, as for the words; in .conllu also a key of one, as in misc.NER. Unset: the last column; in
    .conllu upos; in .jsonl and .parquet tags."""
    scheme: str | None = None
    """Scheme of tags that spell spans: iob1, iob2, bioes (or BILOU), io for types without a prefix, of which equal
    neighbours are one span, or none for plain classes; unset: detected in the training data, io never. IOB1 and IO are
    learned as IOB2, and BILOU as BIOES. I- at the start of a span is an error only in iob2."""
    context: bool = False
    """Whether the adjacent sentences of the document fill the window (section 5.3). A file without document marks is
    one document; a row of .jsonl or .parquet has no context."""
    tag_head: str = "linear"
    """What scores the tags. linear: each word's tag is chosen by itself (paper, 5.3). crf: a linear-chain CRF scores
    all tags of a sentence together and learns spans as BIOES (Ma & Hovy 2016)."""
    comment_prefix: str | None = None
    """Start of lines that are comments, such as ## in KLUE-NER; unset: comments as in CoNLL-U only."""
    encoding: str = "utf-8"
    """Encoding of text files by its name in Python, such as latin-1 or cp949."""
    format: str | None = None
    """Format of all files, whatever their suffixes: conll, conllu, jsonl, json or parquet; unset: by suffix."""
    dialect: str | None = None
    """Layout of all files: {dialects}, or plain for files as they stand; unset: recognized in a file that lacks
    columns, with a warning (docs/dialects.md)."""
    unit: Unit = "word"
    """What raw text is split into: word, character, or character or blank. Characters if all words of the training data
    are; choose them for entities as spans of characters in a language without spaces."""
    max_length: int = 128
    """Longest sequence in tokens, [CLS] and [SEP] included; a longer sentence is split into windows."""
    metric: str = "f1"
    """Score that selects the best checkpoint: f1 of spans, or accuracy; with scheme none always accuracy."""
    labels: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """All tags, in the order of the head's outputs; empty: the tags of the training data."""
    class_weights: tuple[float, ...] = field(default=(), metadata=LEARNED)
    """Factor in the loss of training of each tag's words; empty: 1."""

    def __post_init__(self) -> None:
        check_metric(self.metric, ("f1", "accuracy"))
        check_encoding(self.encoding)
        check_format(self.format, FORMATS)
        check_dialect(self.dialect, self.dialect_parts)
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit = {self.unit!r}: {did_you_mean(self.unit, get_args(Unit))}")
        schemes = (*get_args(Scheme), WITHOUT_PREFIX)
        if self.scheme not in (None, *schemes):
            raise ValueError(f"scheme = {self.scheme!r}: {did_you_mean(str(self.scheme), schemes)}")
        if self.max_length <= NUM_SPECIALS:
            raise ValueError(f"max_length = {self.max_length}: at least {NUM_SPECIALS + 1}: [CLS], one token, [SEP]")
        if self.tag_head not in TAG_HEADS:
            raise ValueError(f"tag_head = {self.tag_head!r}: {did_you_mean(self.tag_head, TAG_HEADS)}")
        if self.comment_prefix == "":
            raise ValueError("comment_prefix is empty: every line would be a comment")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("token", count_labels(self.labels))

    @property
    def scores_paths(self) -> bool:
        return TAG_HEADS[self.tag_head].scores_paths

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        if record.head.kind != "token":
            return None
        labels = record.labels
        scheme = detect_scheme([label] for label in labels)
        normal = tuple(map(normalize_tag, labels))
        if (
            scheme == "none"
            and len({*normal}) == len(normal)
            and (other := detect_scheme([n] for n in normal)) != scheme
        ):
            scheme, labels = other, normal
        labels = to_canonical_scheme(labels, scheme) if scheme == "bioes" else labels  # or BILOU
        metric = "accuracy" if scheme == "none" else "f1"
        return cls(max_length=max_positions, scheme=scheme, metric=metric, labels=labels)

    def check_learned(self) -> None:
        super().check_learned()
        check_restored("scheme", self.scheme)

    def read(self, path: str, labeled: bool = True) -> Iterator[TagExample]:
        columns = ColumnFormat(self.words, self.tags, self.comment_prefix, self.encoding, self.format, self.dialect)
        found = read_sentences(path, labeled, columns)
        sentences = (sentence.split_into(self.unit) for sentence in found)
        return with_document_context(sentences, self.max_length - NUM_SPECIALS) if self.context else sentences

    def in_context(self, sentences: Sequence[TagExample]) -> list[TagExample]:
        """Add the adjacent sentences to each of a document. Raises ValueError if the model was trained without them."""
        if not self.context:
            raise ValueError(
                "context = False: the model was trained without document context; train with --context True"
            )
        return list(with_document_context(sentences, self.max_length - NUM_SPECIALS))

    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[TagExample]:
        return [TagExample.from_text(text, location, self.unit) for text in texts]

    def group_keys(self, examples: Sequence[TagExample]) -> Sequence[Hashable]:
        """Return each sentence's words; with context the number of its document's text, whose sentences share words."""
        if not self.context:
            return [example.words for example in examples]
        documents: dict[Hashable, list[tuple[str, ...]]] = {}
        for example in examples:
            documents.setdefault((example.source, example.document), []).append(example.words)
        texts: dict[Hashable, int] = {}
        numbers = {name: texts.setdefault(tuple(words), len(texts)) for name, words in documents.items()}
        return [numbers[example.source, example.document] for example in examples]

    def with_labels_of(self, examples: Sequence[TagExample]) -> Self:
        """Return the task with scheme and tags of the examples. Raises ValueError for an invalid tag."""
        if not examples:
            raise ValueError("no sentences to learn from")
        given = cast("Scheme | None", self.scheme) or detect_scheme(known_tags(example) for example in examples)
        task = replace(self, scheme=given)
        if given == "none" and self.scheme is None:
            normal = [tuple(map(normalize_tag, known_tags(example))) for example in examples]
            task = replace(self, scheme=detect_scheme(normal))
        scheme = task._scheme
        for example in examples:
            if invalid := find_invalid_tag(task._normal_tags(example), scheme):
                raise _tag_error(example, invalid.word_index, invalid.reason)
        found = {tag for example in examples for tag in task._targets(example)}
        if scheme != "none" and found & BARE and not found <= BARE | {OUTSIDE}:
            example, index = next((e, n) for e in examples for n, tag in enumerate(task._gold(e)) if tag in BARE)
            raise _tag_error(example, index, "it has no type, while other tags have one")
        if not found:
            raise ValueError(f"{examples[0].location}: neither this nor any other sentence has a word to learn from")
        if len(found) < 2:
            raise ValueError(
                f"{examples[0].location}: all words have the tag {', '.join(found)!r}; at least two are needed. "
                "By default, the first column has the words and the last one the tags; choose with --words and --tags"
            )
        if self.scores_paths and scheme != "none":  # a path needs a tag for every word
            found = {OUTSIDE, *spellings({split_tag(tag)[1] for tag in found} - {""}, task._learned_scheme)}
        labels = tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))
        metric = "accuracy" if scheme == "none" else self.metric
        return replace(self, scheme=task.scheme, labels=labels, metric=metric, unit=detect_unit(examples))

    def texts(self, examples: Sequence[TagExample]) -> Iterator[str]:
        return (word for example in examples for word in example.words)

    def check(self, examples: Sequence[TagExample]) -> None:
        self.encode_labels(examples)

    def warnings(self, examples: Sequence[TagExample], paths: Sequence[str] = ()) -> list[str]:
        found = []
        if blank := sum(not word.strip() for example in examples for word in example.words):
            found.append(f"{blank:,} words are blanks; the model reads each as [UNK]")
        spaced = [word for example in examples for word in example.words if " " in word.strip()]
        if len(spaced) > sum(len(example.words) for example in examples) / 2:
            found.append(f"most words contain spaces, such as {spaced[0][:40]!r}: does each line hold one word?")
        if changed := [(example, text) for example in examples for text in example.changed_spans]:
            hint = "; in a language without spaces, use --unit character" if self.unit == "word" else ""
            found.append(
                f"{len(changed):,} spans are not exactly words, or overlap a longer one, such as {changed[0][1]!r} "
                f"({changed[0][0].location}): read as all words of the text that they touch, or left out if they "
                f"overlap{hint}"
            )
        sources = Counter(example.source for example in examples)
        long = [one for one in examples if len(one.words) > LONG_SENTENCE and one.lines and sources[one.source] == 1]
        if long:
            found.append(
                f"one sentence of {len(long[0].words):,} words is all of {long[0].source}: do blank lines separate its "
                "sentences?"
            )
        counts = Counter(tag for example in examples for tag in self._targets(example))
        if len(counts) == 1 and counts.total() > ONE_TAG:
            tag = next(iter(counts))
            found.append(f"all {counts.total():,} words have the tag {tag!r}: are the tags in another column?")
        if self._scheme == "none" and (kinds := _entity_like(counts)):
            found.append(
                f"tags such as {kinds} look like entities, but are scored word by word as classes: for spans, use "
                "--scheme io if equal neighbours are one entity, or write B- and I- before each type, and O for words "
                "outside"
            )
        # A foreign model may have learned iob1 without conversion, with I- at the start of spans; `score` converts it.
        starts = {f"B{label[1:]}" for label in self.labels if self._scheme == "iob1" and split_tag(label)[1]}
        unseen = {tag: count for tag, count in counts.items() if tag not in starts.union(self.labels)}
        if unseen:
            having = count_of(sum(unseen.values()), "word has a tag", "words have tags")
            tags = ", ".join(sorted(unseen))
            found.append(f"{having} that the training data lack ({tags}): scored, but never predicted")
        return found

    def vocabulary_warnings(self, examples: Sequence[TagExample], tokenizer: TextTokenizer) -> list[str]:
        words = (word for example in examples for word in example.words)
        cased = next((word for word in words if word != word.lower()), None) if tokenizer.lowercase else None
        if cased is None:
            return []
        return [
            f"words have capital letters, such as {cased!r}, but the vocabulary is uncased: the model cannot see them; "
            "the paper tags with a cased model (section 5.3)"
        ]

    def encode(self, examples: Sequence[TagExample], tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        max_tokens = self.max_length - NUM_SPECIALS
        words = tokenize_words(examples, tokenizer, max_tokens)
        windows = split_windows(words, max_tokens)
        read = flat_ranges(windows.read_from, windows.read_until - windows.read_from)  # words of all windows
        window_begin = words.offsets[windows.read_from]  # tokens before each window's first word
        placed = tokenizer.layout.place([words.offsets[windows.read_until] - window_begin])
        ids = placed.rows_like(words.ids)
        ids[placed.is_text] = words.ids[flat_ranges(words.first[read], words.lengths[read])]
        counts = windows.tag_until - windows.tag_from
        positions = words.offsets[flat_ranges(windows.tag_from, counts)] - np.repeat(window_begin, counts)
        return Encoded(
            input_ids=ids,
            token_type_ids=placed.token_type_ids,
            lengths=placed.lengths,
            example_ids=windows.example,
            positions=(positions + np.repeat(placed.starts[0], counts)).astype(np.int32),
            position_counts=counts,
            labels=self.encode_labels(examples) if labeled else np.zeros(0, dtype=np.int64),
            label_counts=counts if labeled else np.zeros_like(counts),
            truncated=words.truncated,
            empty_words=int((words.first[read] == len(words.ids) - 1).sum()),
        )

    @property
    def head_builder(self) -> Callable[[TextEncoder], TaskHead] | None:
        location = TAG_HEADS[self.tag_head].location
        if not location:
            return None
        head_class = resolve_name(location)  # by name, because heads import PyTorch
        return lambda encoder: head_class(self.head, encoder.config.hidden_size, self.labels, self._learned_scheme)

    def loss(self, output: Any, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        if not self.scores_paths:
            return sum_cross_entropy(output, batch.labels, smoothing, self.class_weights)
        path_scores: PathScores = output
        return path_scores.negative_log_likelihood(batch.labels, batch.position_counts)

    def balanced_weights(self, examples: Sequence[TagExample]) -> Floats:
        if self.scores_paths:
            raise ValueError(
                f"class_weights: the loss of tag_head = {self.tag_head!r} is of whole sentences, not of words; omit it"
            )
        labels = self.encode_labels(examples)
        return balance(np.bincount(labels[labels != UNSEEN], minlength=len(self.labels)))

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        outputs = repeat_output(np.bincount(train.labels[train.labels >= 0], minlength=len(self.labels)), encoded)
        if not self.scores_paths:
            return outputs
        return self._with_paths(self.log_probabilities(outputs.astype(np.float64), encoded))

    def decode(self, examples: Sequence[TagExample], encoded: Encoded, outputs: Outputs) -> list[TagPrediction]:
        # Windows are in the order of the sentences and positions in the order of the words, and so are the outputs.
        if self.scores_paths:  # log-probabilities, and the best path's tags
            best = outputs[:, -1].astype(np.int64)
            peaks = np.exp(outputs[np.arange(len(best)), best].astype(np.float64))
        else:
            best = outputs.argmax(1)
            peaks = 1 / np.exp(outputs - outputs.max(1, keepdims=True), dtype=np.float64).sum(1)  # softmax's maximum
        names, probabilities = [self.labels[number] for number in best], peaks.tolist()
        bounds = [0, *accumulate(len(example.words) for example in examples)]
        return [
            self._predict(example, tuple(names[begin:end]), tuple(probabilities[begin:end]))
            for example, begin, end in zip(examples, bounds, bounds[1:], strict=False)
        ]

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        if not self.scores_paths:
            return super().merge_outputs(tasks, outputs, encoded)
        return self._with_paths(super().merge_outputs(tasks, [scores[:, :-1] for scores in outputs], encoded))

    @staticmethod
    def _with_paths(logarithms: Floats | Outputs) -> Outputs:
        """Return log-probabilities R × C with the most probable tag of each word as a last column, R × (C + 1)."""
        return np.concatenate([logarithms, logarithms.argmax(1)[:, None]], axis=1, dtype=np.float32)

    def score(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> dict[str, float]:
        y_true = [self._gold(example) for example in examples]
        y_pred = [prediction.tags for prediction in predictions]
        share = {"accuracy": accuracy(y_true, y_pred)}
        if self._scheme == "none":
            return share
        total = self.span_scores(examples, predictions).total
        return {"f1": total.f1, "precision": total.precision, "recall": total.recall} | share

    def span_scores(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> SpanScores:
        y_true = [self._gold(example) for example in examples]
        return span_scores(y_true, [prediction.tags for prediction in predictions])

    def example_scores(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> ExampleScores:
        counts = [self._count_hits(*pair) for pair in zip(examples, predictions, strict=True)]
        return ExampleScores("f1", np.array(counts, dtype=float))

    def _count_hits(self, example: TagExample, prediction: TagPrediction) -> tuple[int, int, int]:
        """Count right, predicted and true spans of a sentence; for plain classes, words instead of spans."""
        true = self._gold(example)
        if self.metric == "accuracy":
            return sum(map(str.__eq__, true, prediction.tags)), len(true), len(true)
        spans, predicted = {*find_spans(true)}, {*find_spans(prediction.tags)}
        return len(spans & predicted), len(predicted), len(spans)

    def score_tables(self, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> list[DisplayTable]:
        if self.scheme == "none":
            return []
        rows = [
            (name, f"{scores.support:,}", *map(format_percent, (scores.precision, scores.recall, scores.f1)))
            for name, scores in self.span_scores(examples, predictions).types.items()
        ]
        return [DisplayTable(("type", "spans", "precision", "recall", "f1"), rows)]

    def predicted_classes(self, predictions: Sequence[TagPrediction]) -> set[str]:
        return {tag for prediction in predictions for tag in prediction.tags}

    def to_record(self, example: TagExample, prediction: TagPrediction) -> dict[str, Any]:
        return ({} if example.text is None else {"text": example.text}) | {
            "words": list(prediction.words),
            "tags": list(prediction.tags),
            "probabilities": list(prediction.probabilities),
            "entities": [entity._asdict() for entity in prediction.entities],
        }

    def is_right(self, example: TagExample, prediction: TagPrediction) -> bool:
        return self.score([example], [prediction])["accuracy"] == 1

    def gold_columns(self, example: TagExample) -> dict[str, Any]:
        gold = None if example.tags is None else list(to_canonical_scheme(example.tags, self._scheme))
        return {"location": example.location, "gold": gold}

    def show(self, example: TagExample) -> dict[str, str]:
        """Return the sentence with its entities in brackets or, if tags are plain classes, the tag after each word."""
        words = list(example.words)
        if example.tags is not None and self._scheme == "none":
            words = [f"{word}/{tag}" for word, tag in zip(words, example.tags, strict=True)]
        elif example.tags is not None:
            for span in find_spans(self._gold(example)):
                words[span.first] = f"[{words[span.first]}"
                words[span.last] += f" {span.label}]"
        return {"location": example.location, "words": " ".join(words)}

    def count_gold(self, examples: Sequence[TagExample]) -> Mapping[str, int]:
        if self._scheme == "none":
            return Counter(tag for example in examples for tag in known_tags(example))
        return Counter(span.label for example in examples for span in find_spans(self._gold(example)))

    def display(self, predicted: Sequence[tuple[TagExample, TagPrediction]]) -> list[DisplayTable]:
        """Format the entities of each text or, if tags are plain classes, all of its words."""
        tables = []
        for example, tagged in predicted:
            spans = [(span.text, span.label, span.start, span.end, span.probability) for span in tagged.entities]
            if self.scheme == "none":
                words = zip(tagged.words, tagged.tags, example.offsets, tagged.probabilities, strict=True)
                spans = [(word, tag, *offsets, probability) for word, tag, offsets, probability in words]
            rows = [(text, label, f"{start}-{end}", f"{share:.1%}") for text, label, start, end, share in spans]
            heading = (example.text or "").strip() or "(no text)"
            if_empty = "no words" if self.scheme == "none" else "no entities"
            tables.append(DisplayTable(("text", "label", "characters", "probability"), rows, heading, if_empty))
        return tables

    def check_writable(self, examples: Iterable[TagExample], suffix: str) -> Iterator[TagExample]:
        """Yield the examples. Raises ValueError, for .conll, with the location of a word that columns cannot hold."""
        for example in examples:
            if suffix == self.native_suffix:
                to_conll(example.words, example.words, example.location)
            yield example

    def format_native(self, predicted: Iterable[tuple[TagExample, TagPrediction]]) -> Iterator[str]:
        """Format columns of words and tags, sentence by sentence."""
        return (to_conll(tagged.words, tagged.tags, example.location) for example, tagged in predicted)

    @property
    def _scheme(self) -> Scheme:
        if self.scheme is None:
            raise ValueError("the scheme of the tags is not known yet: call with_labels_of(training examples) first")
        return "iob1" if self.scheme == WITHOUT_PREFIX else cast(Scheme, self.scheme)

    def _normal_tags(self, example: TagExample) -> tuple[str, ...]:
        """Return a sentence's tags; tags of spans have their usual spelling."""
        tags = known_tags(example)
        if self.scheme == WITHOUT_PREFIX:
            return tuple([OUTSIDE if tag in OUTSIDES else f"I-{tag}" for tag in tags])
        return tags if self._scheme == "none" else tuple(map(normalize_tag, tags))

    def _gold(self, example: TagExample) -> tuple[str, ...]:
        """Return a sentence's tags as they are scored: in IOB2, or in BIOES if the files have it."""
        return to_canonical_scheme(self._normal_tags(example), self._scheme)

    @property
    def _learned_scheme(self) -> Scheme:
        return "bioes" if self.scores_paths and self._scheme in ("iob1", "iob2") else self._scheme

    def _targets(self, example: TagExample) -> tuple[str, ...]:
        """Return a sentence's tags as the model learns them."""
        tags = self._gold(example)
        return tags if self._learned_scheme == self._scheme else spell(find_spans(tags), len(tags), "bioes")

    def encode_labels(self, examples: Sequence[TagExample]) -> Ints:
        """Return the number of each word's tag, in the scheme that the network learns; UNSEEN without one."""
        ids = {tag: number for number, tag in enumerate(self.labels)}
        if self._scheme != "none":
            # A known type may lack a spelling in the training data, such as I-LST in CoNLL-2000: scored, never
            # predicted.
            types = {split_tag(tag)[1] for tag in self.labels} - {""}
            ids = dict.fromkeys([OUTSIDE, *spellings(types, self._learned_scheme)], UNSEEN) | ids
        canonical = [self._targets(example) for example in examples]
        try:
            return np.array([ids[tag] for tags in canonical for tag in tags], dtype=np.int64)
        except KeyError:
            example, index = next(
                (example, index)
                for example, tags in zip(examples, canonical, strict=True)
                for index, tag in enumerate(tags)
                if tag not in ids
            )
        raise _tag_error(example, index, f"it is unknown; the tags of the training data are {list_names(self.labels)}")

    def _predict(self, example: TagExample, tags: tuple[str, ...], probabilities: tuple[float, ...]) -> TagPrediction:
        """Return the tags that the model chose, in a valid form of their scheme, and the entities that they spell."""
        if self._scheme == "none":
            return TagPrediction(example.words, tags, probabilities, ())
        spans = find_spans(tags)
        text, offsets = example.text, example.offsets
        if text is None:
            text = " ".join(example.words)
            starts = [0, *accumulate(len(word) + 1 for word in example.words)]
            offsets = tuple((start, start + len(word)) for start, word in zip(starts, example.words, strict=False))
        entities = []
        for label, first, last in spans:
            start, end = offsets[first][0], offsets[last][1]
            entities.append(Entity(label, text[start:end], start, end, prod(probabilities[first : last + 1])))
        valid = spell(spans, len(tags), self._scheme)
        return TagPrediction(example.words, valid, probabilities, tuple(entities))


def _entity_like(counts: Counter[str]) -> str:
    """Return some tags of plain classes that look like entities; empty if they do not.

    Most look like B-PER or PER_b, or most words have an outside tag.
    """
    named = [tag for tag in counts if tag not in OUTSIDES]
    shaped = [tag for tag in named if normalize_tag(tag)[1:2] == "-"]
    outside = sum(counts[tag] for tag in OUTSIDES)
    if 2 * len(shaped) > len(named):
        return ", ".join(sorted(shaped)[:5])
    return ", ".join(sorted(named)[:5]) if 2 * outside > counts.total() else ""


def detect_unit(examples: Sequence[TagExample]) -> Unit:
    """Return the unit into which raw text is to be split, so that it is read as the training data were."""
    words = {word for example in examples for word in example.words}
    if any(len(word) > 1 for word in words):
        return "word"
    return "character or blank" if " " in words else "character"


def known_tags(example: TagExample) -> tuple[str, ...]:
    """Return the tags of a sentence. Raises ValueError with its location if it has none."""
    if example.tags is None:
        raise ValueError(f"{example.location}: no tags; they are needed to train and to score")
    return example.tags


def _tag_error(example: TagExample, index: int, reason: str) -> ValueError:
    """Build the error for the tag of a word; if the line looks like a comment, with the setting for comments."""
    word = example.words[index]
    hint = f"; if the line is a comment, set --comment-prefix {word.split(' ')[0]!r}" if word.startswith("#") else ""
    return ValueError(f"{example.location_of(index)}: tag {known_tags(example)[index]!r} of {word!r}: {reason}{hint}")
