"""A step's number → its packed batch with targets: a function of (store, settings, step), in constant time.

Every rank lays out the whole step (some 50 numbers an example) and fetches, masks and packs only its own sequences;
so all ranks know the counts by which the step's losses are divided.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertwright.batching.batch import Batch, from_flat, offsets_from_lengths
from bertwright.batching.permutation import permute, uniform
from bertwright.pretraining import masking
from bertwright.pretraining.masking import Masked, MaskingVocab
from bertwright.pretraining.segments import ExampleIndex, Segments, sample_pairs, sample_singles
from bertwright.pretraining.settings import DataSettings as DataSettings
from bertwright.seeding import derive_key, make_rng
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.tokenizer import Tokenizer

# First entry of the places that random numbers belong to.
ORDER_PLACE, PHASE_PLACE, SEGMENT_PLACE, MASK_PLACE, DROPOUT_PLACE = range(5)

# The same held-out examples and masks for every run, whatever its seed and batch size: their losses are compared.
HELD_OUT_SEED = 0
HELD_OUT_BATCH = 64

NO_ANSWERS = np.zeros(0, dtype=np.int64)

T = TypeVar("T")


@dataclass(frozen=True)
class PretrainingBatch:
    """One micro-batch: B sequences of T tokens, M of them to be predicted."""

    batch: Batch
    mlm_positions: Tensor
    """M int64, places in the batch's T tokens: whose state predicts."""
    mlm_labels: Tensor
    """M int64, the ids that are predicted."""
    nsp_labels: Tensor
    """B int64: 0, B follows A; 1, B is random (as in `transformers`). Empty where the objective has no NSP."""
    mlm_count: int
    """Predicted tokens of the whole step, all ranks and micro-batches: what the summed loss is divided by."""
    nsp_count: int
    """Next-sentence answers of the whole step; 0 where the objective has no NSP."""

    def to(self, device: torch.device | str) -> PretrainingBatch:
        """The same on another device."""
        return replace(
            self,
            batch=self.batch.to(device),
            mlm_positions=self.mlm_positions.to(device, non_blocking=True),
            mlm_labels=self.mlm_labels.to(device, non_blocking=True),
            nsp_labels=self.nsp_labels.to(device, non_blocking=True),
        )


class DataSummary(NamedTuple):
    """What a run of so many steps will see; shares and means are those of a sample of examples."""

    steps: int
    epochs: float
    """How often the corpus is gone through."""
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
            f"{self.examples_per_epoch:,} examples an epoch; {self.steps:,} steps are {self.epochs:.2f} epochs",
            f"{self.tokens_per_step:,.0f} tokens a step, {self.predictions_per_step:,.0f} of them predicted",
        ]
        if self.random_share:
            lines.append(f"second segment random in {self.random_share:.1%} of the examples")
        if self.random_share and self.one_sentence_share > 0.01:
            lines.append(
                f"{self.one_sentence_share:.1%} of the examples come from documents of one sentence, which have no "
                "next one: the answers lean to 'random'; join such documents, or use --objective mlm"
            )
        if self.random_share and self.documents == 1:
            lines.append("one document only: random segments are other places of the same document")
        return "\n".join(lines)


class _Layout(NamedTuple):
    """The examples of a step before any token is fetched."""

    segments: Segments
    lengths: np.ndarray
    """Tokens of each example, with [CLS] and [SEP]."""
    counts: np.ndarray
    """Predicted tokens of each example (at most, for whole words)."""


class _Texts(NamedTuple):
    """Some consecutive examples of a step, laid end to end, T tokens in all."""

    ids: np.ndarray
    types: np.ndarray
    lengths: np.ndarray
    is_text: np.ndarray
    """T bool: neither [CLS] nor [SEP]."""
    places: np.ndarray
    """T, each token's place in the whole step."""


class PretrainingData:
    """The examples of a token store, by step."""

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, settings: DataSettings) -> None:
        """Share the documents out into examples; takes time and memory in proportion to the number of documents.

        Raises ValueError for a store of another vocabulary, and for one too small to make examples of.
        """
        if store.header.origin.vocabulary != tokenizer.digest:
            raise ValueError(f"{store.folder}: prepared with another vocabulary; use the tokenizer beside the store")
        if store.num_sentences < settings.min_sentences:
            raise ValueError(
                f"{store.folder}: {store.num_sentences} sentence(s), next-sentence prediction needs pairs; "
                "use more text, or --objective mlm"
            )
        self.store = store
        self.settings = settings
        self._symbols = MaskingVocab.of(tokenizer)
        self._plan = ExampleIndex.of(store, settings.room)

    @property
    def examples_per_epoch(self) -> int:
        """How many examples one pass over the documents gives."""
        return self._plan.examples_per_epoch

    def batches_for_step(
        self, step: int, rank: int = 0, world_size: int = 1, micro_batch_size: int | None = None
    ) -> list[PretrainingBatch]:
        """The micro-batches of one rank in one step, each of `micro_batch_size` sequences (None: all of the rank's).

        Concatenated over micro-batches and ranks they are the same sequences with the same masks, however many.
        Raises ValueError where a rank would be left without a sequence.
        """
        self.settings.check_world_size(world_size)
        size = self.settings.batch_size
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ValueError(f"micro_batch_size is {micro_batch_size}; it needs one sequence at least")
        first, last = size * rank // world_size, size * (rank + 1) // world_size
        layout = self._layout(self.settings.seed, step, size)
        return self._batches(layout, (self.settings.seed, step), range(first, last), micro_batch_size or last - first)

    def validation_batches(self, sequences: int) -> Iterator[PretrainingBatch]:
        """Up to `sequences` examples, an epoch at most, with fixed draws, in batches of 64, for evaluation.

        `mlm_count` and `nsp_count` are those of each batch.
        """
        sequences = min(sequences, self.examples_per_epoch)
        for step, first in enumerate(range(0, sequences, HELD_OUT_BATCH)):
            size = min(HELD_OUT_BATCH, sequences - first)
            whole = self._layout(HELD_OUT_SEED, step, HELD_OUT_BATCH)
            segments = Segments(*(column[:size] for column in whole.segments))
            layout = _Layout(segments, whole.lengths[:size], whole.counts[:size])
            yield from self._batches(layout, (HELD_OUT_SEED, step), range(size), size)

    def describe(self, steps: int) -> DataSummary:
        """What a run of `train_steps` steps will see."""
        settings, plan = self.settings, self._plan
        layout = self._layout(settings.seed, 0, 4096)
        one_sentence = np.diff(plan.document_starts) == 1
        return DataSummary(
            steps=steps,
            epochs=steps * settings.batch_size / self.examples_per_epoch,
            examples_per_epoch=self.examples_per_epoch,
            documents=self.store.num_documents,
            sentences=self.store.num_sentences,
            tokens=self.store.num_tokens,
            tokens_per_step=float(layout.lengths.mean()) * settings.batch_size,
            predictions_per_step=float(layout.counts.mean()) * settings.batch_size,
            random_share=float(layout.segments.is_random.mean()),
            one_sentence_share=float(np.diff(plan.example_bounds)[one_sentence].sum() / self.examples_per_epoch),
        )

    def _layout(self, seed: int, step: int, size: int) -> _Layout:
        """Draw the `size` examples of a step."""
        settings = self.settings
        epochs, within = np.divmod(np.arange(step * size, (step + 1) * size), self.examples_per_epoch)
        examples, phase_keys = np.empty_like(within), np.empty(size, dtype=np.uint64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            examples[here] = permute(within[here], self.examples_per_epoch, derive_key(seed, ORDER_PLACE, epoch))
            phase_keys[here] = derive_key(seed, PHASE_PLACE, epoch)
        rng = make_rng(seed, SEGMENT_PLACE, step)
        if settings.objective == "mlm+nsp":
            segments = sample_pairs(
                self._plan, self._plan.chunks(examples, phase_keys, 2), settings.short_seq_prob, rng
            )
        else:
            segments = sample_singles(
                self._plan, self._plan.chunks(examples, phase_keys, 1), settings.short_seq_prob, rng
            )
        text = segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts
        lengths = text + settings.specials
        if settings.objective == "ltr":
            return _Layout(segments, lengths, lengths - 1)
        counts = masking.mask_counts(lengths, settings.specials, settings.mlm_probability, settings.max_predictions)
        return _Layout(segments, lengths, counts)

    def _batches(
        self, layout: _Layout, place: tuple[int, int], sequences: range, micro_batch_size: int
    ) -> list[PretrainingBatch]:
        """The `sequences` of a laid-out step as micro-batches; `place` is (seed, step)."""
        # Which whole words fit is known only from the tokens, and `mlm_count` is that of the whole step.
        made = range(len(layout.lengths)) if self.settings.whole_word_mask else sequences
        texts = self._texts(layout, made)
        masked = self._masked(texts, layout.counts[made.start : made.stop], derive_key(place[0], MASK_PLACE, place[1]))
        mlm_count = len(masked.positions) if self.settings.whole_word_mask else int(layout.counts.sum())
        answers = layout.segments.is_random.astype(np.int64) if self.settings.objective == "mlm+nsp" else NO_ANSWERS
        batches = []
        for first in range(sequences.start, sequences.stop, micro_batch_size):
            last = min(first + micro_batch_size, sequences.stop)
            lengths = layout.lengths[first:last]
            token = int(layout.lengths[made.start : first].sum())
            tokens = slice(token, token + int(lengths.sum()))
            chosen = slice(*np.searchsorted(masked.positions, [tokens.start, tokens.stop]))
            batch = replace(
                from_flat(masked.input_ids[tokens], texts.types[tokens], lengths),
                dropout_seed=derive_key(place[0], DROPOUT_PLACE, place[1]),
                first_token=int(texts.places[token]),
            )
            batches.append(
                PretrainingBatch(
                    batch=batch,
                    mlm_positions=torch.from_numpy(masked.positions[chosen] - token),
                    mlm_labels=torch.from_numpy(masked.labels[chosen]),
                    nsp_labels=torch.from_numpy(answers[first:last]),
                    mlm_count=mlm_count,
                    nsp_count=len(answers),
                )
            )
        return batches

    def _texts(self, layout: _Layout, sequences: range) -> _Texts:
        """Fetch sequences and lay them end to end: [CLS] A [SEP] B [SEP], or [CLS] A [SEP]."""
        here = slice(sequences.start, sequences.stop)
        a_starts, a_ends, b_starts, b_ends, _ = (column[here] for column in layout.segments)
        lengths = layout.lengths[here]
        bounds = offsets_from_lengths(lengths)
        ids = np.empty(bounds[-1], dtype=np.int64)
        is_text = np.ones(len(ids), dtype=bool)
        a_sizes = a_ends - a_starts + 2  # with [CLS] and [SEP]
        for symbol, at in (
            (self._symbols.cls_id, bounds[:-1]),
            (self._symbols.sep_id, bounds[:-1] + a_sizes - 1),
            (self._symbols.sep_id, bounds[1:] - 1),
        ):
            ids[at] = symbol
            is_text[at] = False
        ids[is_text] = self.store.gather(_interleaved(a_starts, b_starts), _interleaved(a_ends, b_ends))
        types = np.repeat(np.tile([0, 1], len(lengths)), _interleaved(a_sizes, lengths - a_sizes))
        offset = int(layout.lengths[: sequences.start].sum())
        return _Texts(ids, types, lengths, is_text, np.arange(offset, offset + len(ids)))

    def _masked(self, texts: _Texts, counts: np.ndarray, mask_key: int) -> Masked:
        if self.settings.objective == "ltr":
            return masking.causal_lm_targets(texts.ids, texts.lengths)
        scores = uniform(texts.places, derive_key(mask_key, 2))
        if self.settings.whole_word_mask:
            continues = self._symbols.continuation[texts.ids]
            positions = masking.choose_whole_words(texts.lengths, texts.is_text, continues, counts, scores)
        else:
            positions = masking.choose_tokens(texts.lengths, texts.is_text, counts, scores)
        chosen = texts.places[positions]
        return masking.mask_tokens(texts.ids, positions, chosen, self._symbols, self.settings.mask_mix, mask_key)


def _interleaved(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([first, second], axis=1).reshape(-1)


def prefetch(items: Iterable[T], depth: int = 2) -> Generator[T]:
    """The same items, made by a background thread up to `depth` ahead of who takes them.

    An exception in the making is raised where the item would have come. Closing the iterator, as leaving a loop by
    an error or Ctrl-C does, stops the thread.
    """
    made: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    slots, closing = threading.Semaphore(depth), threading.Event()

    def make() -> None:
        iterator = iter(items)
        try:
            while slots.acquire() and not closing.is_set():
                made.put(("item", next(iterator)))
        except StopIteration:
            made.put(("end", None))
        except BaseException as error:  # KeyboardInterrupt too: it belongs to who waits for the items
            made.put(("error", error))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = made.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            slots.release()
            yield value
    finally:
        closing.set()
        slots.release()
        thread.join()
