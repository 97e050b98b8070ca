"""Running text for recurrent language models: a step continues every stream where the step before it ended.

All documents of a token store, each between two special tokens, form a circle. An epoch divides it into B streams of
equal length, from a start that depends on the epoch, and reads all streams side by side. A step's text is a function of
(store, settings, step), in constant time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.base.ragged import Ints
from bertwright.base.seeding import Stream, derive_key
from bertwright.objectives.data import StoreData, StoreSummary
from bertwright.surveying.small_corpus import MIN_PREDICTIONS, loss_error
from bertwright.tokenstore.store import TokenStore

if TYPE_CHECKING:
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.vocabulary.tokenizer import TextTokenizer

# AWD-LSTM, section 5: a step's length varies by up to 5 tokens, and 5 % of the steps are half as long.
LENGTH_SPREAD = 5
SHORT_SHARE = 0.05
VALIDATION_STREAMS = 16
VALIDATION_SEED = 0


class StreamText(NamedTuple):
    """The text of some streams in a step."""

    ids: np.ndarray
    """S × (N + 1): each token but the last one in the order of reading predicts the next one."""
    streams: slice
    """These streams among all of the step."""
    num_streams: int
    """B, streams of the step."""
    is_start: bool
    """The streams start here, from a state of 0."""
    dropout_key: int


class Streams(StoreData):
    """The streams of a store for one set of settings."""

    def __init__(
        self, store: TokenStore, tokenizer: TextTokenizer, settings: DataSettings, is_reversed: bool = False
    ) -> None:
        """Raise ValueError for a store that has no two tokens for each stream. `tokenizer`: the store's.

        `is_reversed`: the circle is read from its end; the tokens of a step keep the order of the text.
        """
        self.store, self.settings, self.is_reversed = store, settings, is_reversed
        self.first, self.last = tokenizer.layout.first, tokenizer.layout.last
        self._document_tokens = store.sentence_starts[store.document_starts].astype(np.int64)
        # Begin of each document in the circle: two special tokens for each document before it.
        self._document_places = self._document_tokens + 2 * np.arange(len(self._document_tokens))
        self.size = int(self._document_places[-1])
        if self.size < 2 * settings.batch_size:
            raise ValueError(
                f"{store.folder}: {self.size:,} tokens with the marks of documents are too few for batch_size = "
                f"{settings.batch_size} streams; lower it, or use more text"
            )

    @property
    def examples_per_epoch(self) -> int:
        """Number of sequences in one pass over the text."""
        return self.steps_per_epoch * self.settings.batch_size

    @property
    def steps_per_epoch(self) -> int:
        mean = self.settings.max_length * (1 - SHORT_SHARE / 2)
        return max(1, round(self._stream_length(self.settings.batch_size) / mean))

    def _stream_length(self, streams: int) -> int:
        return (self.size - 1) // streams

    def bounds(self, epoch: int) -> Ints:
        """Return the begin of each step of an epoch within a stream, and the end of the last one.

        Lengths are drawn, and then stretched so that all steps together read the whole stream.
        """
        steps, length = self.steps_per_epoch, self.settings.max_length
        draws = uniform(np.arange(2 * steps), derive_key(self.settings.seed, Stream.SEGMENT, epoch))
        base = np.where(draws[:steps] < SHORT_SHARE, length / 2, length)
        lengths = np.maximum(base + LENGTH_SPREAD * (2 * draws[steps:] - 1), 1)
        ends = np.cumsum(lengths)
        inner = np.round(ends / ends[-1] * self._stream_length(self.settings.batch_size))
        return np.concatenate([[0], inner]).astype(np.int64)

    def read_step(self, step: int, streams: range) -> StreamText:
        settings = self.settings
        epoch, within = divmod(step, self.steps_per_epoch)
        begin, end = self.bounds(epoch)[within : within + 2].tolist()
        start = float(uniform(np.zeros(1, np.int64), derive_key(settings.seed, Stream.PHASE, epoch))[0])
        starts = int(start * self.size) + np.array(streams) * self._stream_length(settings.batch_size) + begin
        return StreamText(
            self.read(starts, max(end - begin, 1) + 1),
            slice(streams.start, streams.stop),
            settings.batch_size,
            within == 0,
            derive_key(settings.seed, Stream.DROPOUT, step),
        )

    def read_validation(self, sequences: int) -> Iterator[StreamText]:
        """Yield the text from its begin in streams side by side, up to a number of sequences of the full length."""
        streams = min(VALIDATION_STREAMS, self.size // 2)
        length = min(self._stream_length(streams), -(-sequences // streams) * self.settings.max_length)
        starts = np.arange(streams) * self._stream_length(streams)
        for begin in range(0, length, self.settings.max_length):
            end = min(begin + self.settings.max_length, length)
            yield StreamText(self.read(starts + begin, end - begin + 1), slice(0, streams), streams, begin == 0, 0)

    def read(self, starts: Ints, length: int) -> np.ndarray:
        """Read tokens of the circle: S starts, in the order of reading → S × length int64."""
        starts = -starts - length if self.is_reversed else starts
        places = (starts[:, None] + np.arange(length)).reshape(-1) % self.size
        documents = np.searchsorted(self._document_places, places, side="right") - 1
        within = places - self._document_places[documents]
        is_first, is_last = within == 0, places + 1 == self._document_places[documents + 1]
        ids = np.where(is_first, self.first, self.last)
        is_text = ~(is_first | is_last)
        tokens = (self._document_tokens[documents] + within - 1)[is_text]
        ids[is_text] = self.store.gather(tokens, tokens + 1)
        return ids.reshape(len(starts), length)

    def describe(self, steps: int) -> StoreSummary:
        tokens = self._stream_length(self.settings.batch_size) / self.steps_per_epoch * self.settings.batch_size
        return StoreSummary(
            steps=steps,
            epochs=steps / self.steps_per_epoch,
            examples_per_epoch=self.examples_per_epoch,
            documents=self.store.num_documents,
            sentences=self.store.num_sentences,
            tokens=self.store.num_tokens,
            tokens_per_step=tokens,
            predictions_per_step=tokens,
        )

    def describe_small_validation(self, sequences: int) -> str | None:
        if self.size >= MIN_PREDICTIONS:
            return None
        return (
            f"{self.size:,} predictions are too few for an exact loss: its standard error is "
            f"{loss_error(self.size):.2f} nats. To measure smaller differences, prepare the text again with a larger "
            "--held-out."
        )
