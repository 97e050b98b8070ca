"""Pre-training batches: a function of (store, settings, step), in constant time.

Every rank lays out the whole step (some 50 numbers per example) and fetches, masks and packs only its own sequences;
so all ranks know the counts by which the step's losses are divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertwright.corpus.limits import max_epochs
from bertwright.models.packing import Packing, TokenBatch, from_flat
from bertwright.permutation import permute, uniform
from bertwright.pretraining import masking
from bertwright.pretraining.data_settings import DataSettings as DataSettings
from bertwright.pretraining.masking import Masked, MaskingVocab
from bertwright.pretraining.segments import ExampleIndex, Segments, sample_pairs, sample_singles
from bertwright.seeding import Stream, derive_key, make_rng
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.tokenizer import Tokenizer

# Every run has the same validation examples and masks, whatever its seed and batch size: their losses are compared.
VALIDATION_SEED = 0
VALIDATION_BATCH = 64

NO_ANSWERS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class PretrainingBatch:
    """A micro-batch: B sequences of T tokens, M of them to be predicted."""

    input: TokenBatch
    mlm_positions: Tensor
    """M int64, positions in the T tokens whose states predict."""
    mlm_labels: Tensor
    """M int64, the ids to predict; `IGNORED_LABEL` for predictions that `pad_batch` added."""
    nsp_labels: Tensor
    """B int64: 0, B follows A; 1, B is random (as in `transformers`). Empty if the objective has no NSP.
    `IGNORED_LABEL` for sequences that `pad_batch` added."""
    mlm_count: int
    """Predicted tokens of the whole step, all ranks and micro-batches; the summed loss is divided by it."""
    nsp_count: int
    """Next-sentence answers of the whole step; 0 if the objective has no NSP."""
    added_sequences: int = 0
    """Sequences at the end of `input` that `pad_batch` added."""
    added_predictions: int = 0
    """Predictions at the end of `mlm_positions` that `pad_batch` added."""

    @property
    def packing(self) -> Packing:
        """Packing of the input."""
        return self.input.packing

    @property
    def num_sequences(self) -> int:
        """Number of sequences without those that were added."""
        return len(self.packing) - self.added_sequences

    @property
    def num_predictions(self) -> int:
        """Number of predictions without those that were added."""
        return len(self.mlm_labels) - self.added_predictions

    def to(self, device: torch.device | str) -> PretrainingBatch:
        """Copy the batch to a device."""
        return replace(
            self,
            input=self.input.to(device),
            mlm_positions=self.mlm_positions.to(device, non_blocking=True),
            mlm_labels=self.mlm_labels.to(device, non_blocking=True),
            nsp_labels=self.nsp_labels.to(device, non_blocking=True),
        )


class DataSummary(NamedTuple):
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
    random_share: float
    """Share of examples whose second segment is random (0 without next-sentence prediction)."""
    one_sentence_share: float
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
        """Return what in the data will hurt this run, with a fix each."""
        found = []
        if self.random_share and self.one_sentence_share > 0.01:
            found.append(
                f"{self.one_sentence_share:.1%} of the examples come from documents of one sentence, which have no "
                "next one, so 'random' is the more frequent answer; join such documents, or use --objective mlm"
            )
        if self.random_share and self.documents == 1:
            found.append("only one document: random segments come from other positions of the same document")
        if self.epochs > (limit := max_epochs(self.tokens)):
            found.append(
                f"the text is read {self.epochs:,.0f} times; beyond about {limit} epochs a model mostly memorizes this "
                "amount of text: compare the losses of training and validation, and use more text or fewer steps"
            )
        return found


class _Layout(NamedTuple):
    """Examples of a step before any token is fetched."""

    segments: Segments
    lengths: np.ndarray
    """Tokens of each example, with [CLS] and [SEP]."""
    counts: np.ndarray
    """Predicted tokens of each example; the maximum of them for whole words."""


class _Texts(NamedTuple):
    """Consecutive examples of a step, packed end to end, T tokens in all."""

    ids: np.ndarray
    types: np.ndarray | None
    """T, segment types; None if the layout has none."""
    lengths: np.ndarray
    is_text: np.ndarray
    """T bool: no special token."""
    positions: np.ndarray
    """T, position of each token in the whole step."""


class PretrainingData:
    """Examples of a token store, by step."""

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, settings: DataSettings) -> None:
        """Divide the documents into examples; time and memory are proportional to the number of documents.

        Raises ValueError for a store of another vocabulary, and for one too small for examples.
        """
        if store.header.provenance.vocabulary_digest != tokenizer.digest:
            raise ValueError(
                f"{store.folder}: prepared with another vocabulary; use the tokenizer in "
                f"{store.folder.parent / 'tokenizer'}"
            )
        if store.num_sentences < settings.min_sentences:
            raise ValueError(
                f"{store.folder}: {store.num_sentences} sentence(s), next-sentence prediction needs pairs; "
                "use more text, or --objective mlm"
            )
        self.store = store
        self.settings = settings
        self._sequence_layout = tokenizer.layout
        self._vocab = MaskingVocab.of(tokenizer)
        self._index = ExampleIndex.of(store, settings.max_num_tokens)

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in one pass over the documents."""
        return self._index.examples_per_epoch

    def batches_for_step(
        self, step: int, rank: int = 0, world_size: int = 1, micro_batch_size: int | None = None
    ) -> list[PretrainingBatch]:
        """Return the micro-batches of a rank in a step, each of `micro_batch_size` sequences (None: all of the rank).

        Their concatenation over micro-batches and ranks is the same, sequences and masks, whatever their numbers.
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

    def validation_batches(
        self, sequences: int, micro_batch_size: int = VALIDATION_BATCH
    ) -> Iterator[PretrainingBatch]:
        """Yield up to `sequences` examples, at most an epoch, with fixed masks, for evaluation.

        `mlm_count` and `nsp_count` are those of each batch of 64, which is split into micro-batches.
        """
        sequences = min(sequences, self.examples_per_epoch)
        for step, first in enumerate(range(0, sequences, VALIDATION_BATCH)):
            size = min(VALIDATION_BATCH, sequences - first)
            whole = self._layout(VALIDATION_SEED, step, VALIDATION_BATCH)
            segments = Segments(*(column[:size] for column in whole.segments))
            layout = _Layout(segments, whole.lengths[:size], whole.counts[:size])
            yield from self._batches(layout, (VALIDATION_SEED, step), range(size), micro_batch_size)

    def describe(self, steps: int) -> DataSummary:
        """Summarize the data of a run of `steps` steps."""
        settings, index = self.settings, self._index
        layout = self._layout(settings.seed, 0, 4096)
        one_sentence = np.diff(index.document_starts) == 1
        return DataSummary(
            steps=steps,
            epochs=steps * settings.batch_size / self.examples_per_epoch,
            examples_per_epoch=self.examples_per_epoch,
            documents=self.store.num_documents,
            sentences=self.store.num_sentences,
            tokens=self.store.num_tokens,
            tokens_per_step=float(layout.lengths.mean()) * settings.batch_size,
            predictions_per_step=float(layout.counts.mean()) * settings.batch_size,
            random_share=float(layout.segments.is_random_next.mean()),
            one_sentence_share=float(np.diff(index.example_bounds)[one_sentence].sum() / self.examples_per_epoch),
        )

    def _layout(self, seed: int, step: int, size: int) -> _Layout:
        """Lay out the `size` examples of a step."""
        settings = self.settings
        epochs, within = np.divmod(np.arange(step * size, (step + 1) * size), self.examples_per_epoch)
        examples, phase_keys = np.empty_like(within), np.empty(size, dtype=np.uint64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            examples[here] = permute(within[here], self.examples_per_epoch, derive_key(seed, Stream.ORDER, epoch))
            phase_keys[here] = derive_key(seed, Stream.PHASE, epoch)
        rng = make_rng(seed, Stream.SEGMENT, step)
        if settings.objective == "mlm+nsp":
            segments = sample_pairs(
                self._index, self._index.locate(examples, phase_keys, 2), settings.short_seq_prob, rng
            )
        else:
            segments = sample_singles(
                self._index, self._index.locate(examples, phase_keys, 1), settings.short_seq_prob, rng
            )
        text = segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts
        lengths = text + settings.specials
        if settings.is_causal:
            return _Layout(segments, lengths, lengths - 1)
        counts = masking.mask_counts(lengths, settings.specials, settings.mlm_probability, settings.max_predictions)
        return _Layout(segments, lengths, counts)

    def _batches(
        self, layout: _Layout, key: tuple[int, int], sequences: range, micro_batch_size: int
    ) -> list[PretrainingBatch]:
        """Pack the `sequences` of a laid-out step into micro-batches; `key` is (seed, step)."""
        seed, step = key
        # With whole words, `mlm_count` of the whole step follows only from the tokens of all its sequences.
        packed = range(len(layout.lengths)) if self.settings.whole_word_mask else sequences
        texts = self._texts(layout, packed)
        masked = self._mask(texts, layout.counts[packed.start : packed.stop], derive_key(seed, Stream.MASK, step))
        mlm_count = len(masked.positions) if self.settings.whole_word_mask else int(layout.counts.sum())
        answers = (
            layout.segments.is_random_next.astype(np.int64) if self.settings.objective == "mlm+nsp" else NO_ANSWERS
        )
        batches = []
        for first in range(sequences.start, sequences.stop, micro_batch_size):
            last = min(first + micro_batch_size, sequences.stop)
            lengths = layout.lengths[first:last]
            token = int(layout.lengths[packed.start : first].sum())
            tokens = slice(token, token + int(lengths.sum()))
            chosen = slice(*np.searchsorted(masked.positions, [tokens.start, tokens.stop]))
            types = None if texts.types is None else texts.types[tokens]
            packed_tokens = from_flat(masked.input_ids[tokens], types, lengths)
            drop = derive_key(seed, Stream.DROPOUT, step)
            batches.append(
                PretrainingBatch(
                    input=packed_tokens.with_dropout(drop, first_token=int(texts.positions[token])),
                    mlm_positions=torch.from_numpy(masked.positions[chosen] - token),
                    mlm_labels=torch.from_numpy(masked.labels[chosen]),
                    nsp_labels=torch.from_numpy(answers[first:last]),
                    mlm_count=mlm_count,
                    nsp_count=len(answers),
                )
            )
        return batches

    def _texts(self, layout: _Layout, sequences: range) -> _Texts:
        """Fetch the segments of sequences and lay them out end to end."""
        here = slice(sequences.start, sequences.stop)
        a_starts, a_ends, b_starts, b_ends, _ = (column[here] for column in layout.segments)
        segments = [a_ends - a_starts, b_ends - b_starts][: self.settings.num_segments]
        placed = self._sequence_layout.place(segments)
        ids = placed.ids.astype(np.int64)
        ids[placed.is_text] = self.store.gather(_interleave(a_starts, b_starts), _interleave(a_ends, b_ends))
        offset = int(layout.lengths[: sequences.start].sum())
        positions = np.arange(offset, offset + len(ids))
        return _Texts(ids, placed.token_type_ids, placed.lengths, placed.is_text, positions)

    def _mask(self, texts: _Texts, counts: np.ndarray, mask_key: int) -> Masked:
        if self.settings.is_causal:
            return masking.causal_lm_targets(texts.ids, texts.lengths, self.settings.objective == "rtl")
        scores = uniform(texts.positions, derive_key(mask_key, 2))
        if self.settings.whole_word_mask:
            continues = self._vocab.continuation[texts.ids]
            positions = masking.choose_whole_words(texts.lengths, texts.is_text, continues, counts, scores)
        else:
            positions = masking.choose_tokens(texts.lengths, texts.is_text, counts, scores)
        chosen = texts.positions[positions]
        return masking.mask_tokens(texts.ids, positions, chosen, self._vocab, self.settings.mask_mix, mask_key)


def _interleave(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], axis=1).reshape(-1)
