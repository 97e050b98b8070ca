"""Running text in streams: every token is read once an epoch, and each step continues the one before it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from bertwright.objectives.data_settings import DataSettings
from bertwright.systems.ulmfit.streams import Streams
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

SETTINGS = DataSettings(max_length=16, batch_size=3, objective="recurrent", seed=5)
Maker = Callable[[list[list[list[int]]]], TokenStore]


@pytest.fixture
def streams(mixed_store: TokenStore, tokenizer: Tokenizer) -> Streams:
    return Streams(mixed_store, tokenizer, SETTINGS)


def read_epoch(streams: Streams, epoch: int) -> np.ndarray:
    """Read an epoch stream by stream, without the last target of each step: S × N."""
    first = epoch * streams.steps_per_epoch
    steps = range(first, first + streams.steps_per_epoch)
    return np.concatenate([streams.read_step(step, range(3)).ids[:, :-1] for step in steps], 1)


def test_documents_stand_between_their_marks(make_store: Maker, tokenizer: Tokenizer) -> None:
    streams = Streams(make_store([[[11, 12], [13]], [[21]]]), tokenizer, SETTINGS)
    begin, end = tokenizer.layout.first, tokenizer.layout.last
    circle = [begin, 11, 12, 13, end, begin, 21, end]
    assert streams.read(np.array([0, 6]), 5).tolist() == [circle[:5], [21, end, *circle[:3]]]


def test_an_epoch_reads_each_token_once_and_the_next_one_starts_elsewhere(streams: Streams) -> None:
    epoch = read_epoch(streams, 0)
    left_over = streams.size - epoch.size  # the streams have one length, and the last target is beyond them
    assert 0 < left_over <= 3
    whole = np.sort(streams.read(np.array([0]), streams.size)[0])
    counts = np.bincount(whole, minlength=1005) - np.bincount(epoch.reshape(-1), minlength=1005)
    assert counts.min() == 0
    assert counts.sum() == left_over
    assert not np.array_equal(read_epoch(streams, 1)[:, :50], epoch[:, :50])


def test_steps_continue_each_other_and_only_the_first_of_an_epoch_starts(streams: Streams) -> None:
    steps = [streams.read_step(step, range(3)) for step in range(streams.steps_per_epoch + 1)]
    assert [step.is_start for step in steps] == [True, *[False] * (len(steps) - 2), True]
    for before, after in pairwise(steps[:-1]):
        assert before.ids[:, -1].tolist() == after.ids[:, 0].tolist()
    lengths = np.array([step.ids.shape[1] - 1 for step in steps])
    assert set(lengths) <= set(range(2, 23))
    assert np.median(lengths) == pytest.approx(16, abs=2)
    assert 0.01 < (lengths <= 10).mean() < 0.1  # half as long


def test_a_step_is_a_function_of_its_number_and_its_streams(streams: Streams) -> None:
    whole, part = streams.read_step(7, range(3)), streams.read_step(7, range(1, 2))
    assert part.ids.tolist() == whole.ids[1:2].tolist()
    assert (part.streams, part.num_streams, part.dropout_key) == (slice(1, 2), 3, whole.dropout_key)


def test_validation_reads_the_text_from_its_begin_in_streams_of_full_steps(streams: Streams) -> None:
    parts = [*streams.read_validation(sequences=32)]
    assert [part.ids.shape for part in parts] == [(16, 17)] * 2
    assert [part.is_start for part in parts] == [True, False]
    length = (streams.size - 1) // 16
    joined = np.concatenate([part.ids[:, :-1] for part in parts], 1)
    assert joined.tolist() == streams.read(np.arange(16) * length, 32).tolist()


def test_reversed_streams_read_the_circle_from_its_end_in_the_order_of_the_text(
    streams: Streams, mixed_store: TokenStore, tokenizer: Tokenizer
) -> None:
    backward = Streams(mixed_store, tokenizer, streams.settings, is_reversed=True)
    circle = streams.read(np.zeros(1, np.int64), streams.size)[0]
    for step in range(3):
        own, other = backward.read_step(step, range(2)), streams.read_step(step, range(2))
        doubled = np.concatenate([circle, circle])
        for row, mirrored in zip(own.ids, other.ids, strict=True):
            text = row.tolist()
            assert any(doubled[at : at + len(text)].tolist() == text for at in range(streams.size))
            assert len(text) == len(mirrored)
    first, second = (backward.read_step(step, range(1)).ids[0] for step in range(2))
    assert second[-1] == first[0]  # the next step lies before this one, and they share the token between them


def test_too_many_streams_are_an_error(make_store: Maker, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="batch_size = 3") as error:
        Streams(make_store([[[11, 12]]]), tokenizer, SETTINGS)
    assert "4 tokens" in str(error.value)
