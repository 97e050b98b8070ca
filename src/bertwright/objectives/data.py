"""Pre-training examples of a token store: a step's batch is a function of (store, settings, step), in constant time.

Every rank lays out the whole step (some 50 numbers per example), but fetches and packs only its own sequences. So all
ranks know the counts by which the step's losses are divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from bertwright.base.example_order import permute
from bertwright.base.files import digest_bytes
from bertwright.base.ragged import offsets_from_lengths
from bertwright.base.seeding import Stream, derive_key, make_rng
from bertwright.objectives.masking import MaskingVocab
from bertwright.objectives.objective import B, OneSentenceError
from bertwright.objectives.segments import ExampleIndex, Segments, sample_pairs, sample_singles
from bertwright.surveying.small_corpus import MIN_ANSWERS, MIN_PREDICTIONS, accuracy_error, loss_error, max_epochs
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.sequence_layout import place_plain
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from bertwright.models.packing import TokenBatch
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.objectives.store_objective import StoreObjective

# Every run has the same validation examples and masks, whatever its seed and batch size: their losses are compared.
VALIDATION_SEED = 0
VALIDATION_BATCH = 64

ENTROPY_SAMPLE = 4_000_000  # tokens; more changes the third decimal


class StoreSummary(NamedTuple):
    """Figures of the data that a run reads; shares and means are estimated from a sample of examples."""

    steps: int
    epochs: float
    """Number of passes over the corpus."""
    examples_per_epoch: int
    documents: int
    sentences: int
    tokens: int
    tokens_per_step: float
    """With [CLS] and [SEP]."""
    predictions_per_step: float
    random_share: float = 0.0
    """Share of examples whose second segment is random (0 without next-sentence prediction)."""
    one_sentence_share: float = 0.0
    """Share of examples from documents of one sentence, which have no true next sentence."""

    def __str__(self) -> str:
        lines = [
            f"{self.documents:,} documents, {self.sentences:,} sentences, {self.tokens:,} tokens",
            f"{self.examples_per_epoch:,} examples per epoch; {self.steps:,} steps are {self.epochs:.2f} epochs",
            f"{self.tokens_per_step:,.0f} tokens per step, {self.predictions_per_step:,.0f} of them predicted",
        ]
        if self.random_share:
            lines.append(f"second segment random in {self.random_share:.1%} of the examples")
        return "\n".join(lines)

    def notices(self) -> list[str]:
        """Return problems of the data for this run, each with a fix."""
        notices = []
        if self.random_share and self.one_sentence_share > 0.01:
            notices.append(
                f"{self.one_sentence_share:.1%} of the examples come from documents of one sentence, which have no "
                "next one, so 'random' is the more frequent answer; join such documents, or use --objective mlm"
            )
        if self.random_share and self.documents == 1:
            notices.append("only one document: random segments come from other positions of the same document")
        if self.epochs > (limit := max_epochs(self.tokens)):
            notices.append(
                f"the text is read {self.epochs:,.0f} times; beyond about {limit} epochs a model mostly memorizes this "
                "amount of text: compare the losses of training and validation, and use more text or fewer steps"
            )
        return notices


class _Layout(NamedTuple):
    """Examples of a step before any token is fetched."""

    segments: Segments
    lengths: np.ndarray
    """Tokens of each example, with [CLS] and [SEP]."""
    counts: np.ndarray
    """Predicted tokens of each example; for whole words, their maximum."""


@dataclass(frozen=True)
class StepTexts:
    """Consecutive examples of a step, laid end to end, before anything is predicted: S sequences, T tokens in all."""

    ids: np.ndarray
    types: np.ndarray | None
    """T, segment types; None if the layout has none."""
    is_text: np.ndarray
    """T bool: no special token."""
    positions: np.ndarray
    """T, position of each token in the whole step."""
    lengths: np.ndarray
    """S, tokens of each sequence, with [CLS] and [SEP]."""
    counts: np.ndarray
    """S, number of predicted tokens of each sequence; for whole words, their maximum."""
    is_random_next: np.ndarray
    """S bool: segment B comes from another document."""
    is_whole: bool
    """These are all sequences of the step."""
    num_sequences: int
    """Sequences of the whole step."""
    num_predictions: int
    """Sum of the counts of the whole step."""
    mask_key: int
    """Key from which the step's random choices of tokens derive."""
    dropout_key: int
    settings: DataSettings
    vocab: MaskingVocab | None
    """Ids for masking; None for an objective that masks nothing."""

    def pack(self, sequences: range, ids: np.ndarray) -> tuple[slice, TokenBatch]:
        """Pack some sequences with the T input `ids`; return the slice of the T tokens, and the batch."""
        from bertwright.models.packing import from_flat  # imports torch, which settings do not need

        bounds = offsets_from_lengths(self.lengths)
        tokens = slice(int(bounds[sequences.start]), int(bounds[sequences.stop]))
        types = None if self.types is None else self.types[tokens]
        batch = from_flat(ids[tokens], types, self.lengths[sequences.start : sequences.stop])
        return tokens, batch.with_dropout(self.dropout_key, first_token=int(self.positions[tokens.start]))


class StoreData:
    """The part of `Examples` that follows from a token store alone."""

    store: TokenStore

    @property
    def name(self) -> str:
        return self.store.folder.name

    def digest(self) -> str:
        return digest_bytes(*(file.digest.encode() for file in self.store.header.files))

    def measure_baseline(self) -> float:
        return unigram_entropy(self.store)


class StoreExamples(StoreData, Generic[B]):
    """Examples of a token store for one sequence length, by step."""

    def __init__(
        self, store: TokenStore, tokenizer: TextTokenizer, settings: DataSettings, objective: StoreObjective[B, Any]
    ) -> None:
        """Divide the documents into examples; time and memory are proportional to the number of documents.

        Raises ValueError if the store has another vocabulary, OneSentenceError if pairs are needed and it has one
        sentence.
        """
        if store.header.provenance.vocabulary_digest != tokenizer.digest:
            raise ValueError(
                f"{store.folder}: prepared with another vocabulary; use the tokenizer in "
                f"{store.folder.parent / 'tokenizer'}"
            )
        if store.num_sentences < objective.num_segments(settings):
            raise OneSentenceError(
                f"{store.folder}: {store.num_sentences} sentence(s), --objective {objective.name} needs pairs; "
                "use more text, or --objective mlm --segments single"
            )
        segments = objective.num_segments(settings)
        if objective.has_specials and tokenizer.layout.num_specials(segments) != objective.num_specials(settings):
            raise ValueError(
                f"{store.folder}: its vocabulary has {tokenizer.layout.separators} tokens between the segments of a "
                f"pair, and --objective {objective.name} reads pairs with one; use --objective mlm --segments single"
            )
        self.store = store
        self.tokenizer = tokenizer
        self.settings = settings
        self.objective = objective
        self._place = tokenizer.layout.place if objective.has_specials else place_plain
        self._vocab = MaskingVocab.of(tokenizer) if objective.masks_tokens else None
        self._index = ExampleIndex.of(store, objective.max_num_tokens(settings))
        self.examples_per_epoch = int(self._index.document_examples[-1])
        """Number of examples in one pass over the documents."""

    def batches_for_step(
        self, step: int, rank: int = 0, world_size: int = 1, micro_batch_size: int | None = None
    ) -> list[B]:
        """Return a rank's micro-batches in a step.

        Their concatenation over micro-batches and ranks is the same, sequences and masks, for any numbers of them.
        Raises ValueError if a rank would have no sequence.
        """
        self.settings.check_world_size(world_size)
        size = self.settings.batch_size
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ValueError(f"micro_batch_size: expected at least 1, got {micro_batch_size}")
        first, last = size * rank // world_size, size * (rank + 1) // world_size
        layout = self._layout(self.settings.seed, step, size)
        return self._batches(layout, (self.settings.seed, step), range(first, last), micro_batch_size or last - first)

    def count_validation(self, sequences: int) -> tuple[int, int]:
        """Return the numbers of examples and predictions of `validation_batches`; the latter is an estimate."""
        sequences = min(sequences, self.examples_per_epoch)
        return sequences, round(sequences * self.describe(1).predictions_per_step / self.settings.batch_size)

    def describe_small_validation(self, sequences: int) -> str | None:
        available, predictions = self.count_validation(sequences)
        accuracy = self.objective.accuracy_per_sequence
        is_small = predictions < MIN_PREDICTIONS or (accuracy is not None and available < MIN_ANSWERS)
        if not is_small or available == sequences:  # the limit is then the user's setting
            return None
        errors = "" if accuracy is None else f", the {accuracy} {100 * accuracy_error(available):.1f} points"
        return (
            f"{available:,} sequences of length {self.settings.max_length} and {predictions:,} predictions in them are "
            f"too few for exact scores: the loss has a standard error of {loss_error(predictions):.2f} nats{errors}. "
            "Do not trust smaller differences; to measure them, prepare the text again with a larger --held-out."
        )

    def validation_batches(self, sequences: int, micro_batch_size: int = VALIDATION_BATCH) -> Iterator[B]:
        """Yield up to `sequences` examples, at most an epoch, with fixed masks; each batch of 64 counts as a step."""
        sequences = min(sequences, self.examples_per_epoch)
        for step, first in enumerate(range(0, sequences, VALIDATION_BATCH)):
            size = min(VALIDATION_BATCH, sequences - first)
            whole = self._layout(VALIDATION_SEED, step, VALIDATION_BATCH)
            segments = Segments(*(column[:size] for column in whole.segments))
            layout = _Layout(segments, whole.lengths[:size], whole.counts[:size])
            yield from self._batches(layout, (VALIDATION_SEED, step), range(size), micro_batch_size)

    def describe(self, steps: int) -> StoreSummary:
        settings, index = self.settings, self._index
        layout = self._layout(settings.seed, 0, 4096)
        one_sentence = np.diff(index.document_sentences) == 1
        return StoreSummary(
            steps=steps,
            epochs=steps * settings.batch_size / self.examples_per_epoch,
            examples_per_epoch=self.examples_per_epoch,
            documents=self.store.num_documents,
            sentences=self.store.num_sentences,
            tokens=self.store.num_tokens,
            tokens_per_step=float(layout.lengths.mean()) * settings.batch_size,
            predictions_per_step=float(layout.counts.mean()) * settings.batch_size,
            random_share=float(layout.segments.is_random_next.mean()),
            one_sentence_share=float(np.diff(index.document_examples)[one_sentence].sum() / self.examples_per_epoch),
        )

    def _layout(self, seed: int, step: int, size: int) -> _Layout:
        settings = self.settings
        epochs, within = np.divmod(np.arange(step * size, (step + 1) * size), self.examples_per_epoch)
        examples, phase_keys = np.empty_like(within), np.empty(size, dtype=np.uint64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            examples[here] = permute(within[here], self.examples_per_epoch, derive_key(seed, Stream.ORDER, epoch))
            phase_keys[here] = derive_key(seed, Stream.PHASE, epoch)
        num_segments = self.objective.num_segments(settings)
        starts = self._index.locate(examples, phase_keys, num_segments)
        sample = sample_pairs if num_segments == 2 else sample_singles
        segments = sample(self._index, starts, settings.short_seq_prob, make_rng(seed, Stream.SEGMENT, step))
        text = segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts
        lengths = text + self.objective.num_specials(settings)
        return _Layout(segments, lengths, self.objective.count_predictions(lengths, settings))

    def _batches(self, layout: _Layout, key: tuple[int, int], sequences: range, micro_batch_size: int) -> list[B]:
        """Pack the `sequences` of a laid-out step into micro-batches; `key` is (seed, step)."""
        needs_all = self.objective.needs_whole_step(self.settings)
        texts = self._read_texts(layout, range(len(layout.lengths)) if needs_all else sequences, key)
        first, last = (sequences.start, sequences.stop) if needs_all else (0, len(sequences))
        starts = range(first, last, micro_batch_size)
        return self.objective.make_batches(texts, [range(at, min(at + micro_batch_size, last)) for at in starts])

    def _read_texts(self, layout: _Layout, sequences: range, key: tuple[int, int]) -> StepTexts:
        here = slice(sequences.start, sequences.stop)
        a_starts, a_ends, b_starts, b_ends, is_random_next = (column[here] for column in layout.segments)
        segments = [a_ends - a_starts, b_ends - b_starts][: self.objective.num_segments(self.settings)]
        placed = self._place(segments)
        ids = placed.ids.astype(np.int64)
        ids[placed.is_text] = self.store.gather(_interleave(a_starts, b_starts), _interleave(a_ends, b_ends))
        offset, (seed, step) = int(layout.lengths[: sequences.start].sum()), key
        return StepTexts(
            ids=ids,
            types=placed.token_type_ids,
            is_text=placed.is_text,
            positions=np.arange(offset, offset + len(ids)),
            lengths=placed.lengths,
            counts=layout.counts[here],
            is_random_next=is_random_next,
            is_whole=len(sequences) == len(layout.lengths),
            num_sequences=len(layout.lengths),
            num_predictions=int(layout.counts.sum()),
            mask_key=derive_key(seed, Stream.MASK, step),
            dropout_key=derive_key(seed, Stream.DROPOUT, step),
            settings=self.settings,
            vocab=self._vocab,
        )


def _interleave(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], axis=1).reshape(-1)


def unigram_entropy(store: TokenStore) -> float:
    """Compute the entropy of the token frequencies in nats: the masked-LM loss of a model that ignores its input.

    Raises ValueError if the store has ids beyond its vocabulary.
    """
    return entropy(count_tokens(store))


def entropy(counts: np.ndarray) -> float:
    """Compute the entropy of counts in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def count_tokens(store: TokenStore) -> np.ndarray:
    """Count the tokens of each id in a sample of a store. Raises ValueError for ids beyond its vocabulary."""
    stride = max(1, store.num_tokens // ENTROPY_SAMPLE)
    counts = np.zeros(store.header.provenance.vocab_size, dtype=np.int64)
    block = 1 << 16
    for start in range(0, store.num_tokens, block * stride):
        ids = store.read_tokens(start, min(start + block, store.num_tokens))
        if ids.max(initial=0) >= len(counts):
            raise ValueError(
                f"{store.folder}: token {ids.max()} in a vocabulary of {len(counts):,}: the store is damaged; prepare "
                "the corpus again"
            )
        counts += np.bincount(ids, minlength=len(counts))
    return counts
