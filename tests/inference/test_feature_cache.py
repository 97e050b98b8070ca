"""Features: the states they should be, computed once, and never taken for another's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertwright.batching.batch import from_flat
from bertwright.inference import feature_cache
from bertwright.inference.feature_cache import Features, cached_features, example_rows, word_features
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder
from bertwright.models.initialization import initialize
from bertwright.tasks.task import Encoded

InterruptedIn = Callable[..., AbstractContextManager[list[Any]]]
CONFIG = BertConfig(vocab_size=40, hidden_size=8, num_layers=4, num_heads=2, intermediate_size=16, max_positions=24)
COUNTS = ([2, 3], [4], [], [1], [2, 2])  # rows of each sequence of each example; the third has no sequence


def make_encoder(seed: int = 1) -> BertEncoder:
    encoder = BertEncoder(CONFIG)
    initialize(encoder, std=0.3, seed=seed)
    return encoder.eval()


def make_encoded(counts: tuple[list[int], ...] = COUNTS, width: int = 1) -> Encoded:
    """Sequences of random tokens, each with as many rows as asked for, at places of its own, and a target a row."""
    rng = np.random.default_rng(0)
    position_counts = np.array([count for example in counts for count in example], dtype=np.int64)
    lengths = position_counts + rng.integers(2, 8, len(position_counts))
    rows = [
        np.sort(rng.choice(length, count, replace=False))
        for length, count in zip(lengths, position_counts, strict=True)
    ]
    return Encoded(
        input_ids=rng.integers(5, 40, lengths.sum()).astype(np.int32),
        token_type_ids=rng.integers(0, 2, lengths.sum()).astype(np.int8),
        lengths=lengths,
        example_ids=np.repeat(np.arange(len(counts)), [len(example) for example in counts]),
        positions=np.concatenate(rows).astype(np.int32),
        position_counts=position_counts,
        labels=rng.integers(0, 3, position_counts.sum()),
        label_counts=position_counts.reshape(-1, width).sum(1),
        sequences_per_item=width,
    )


@torch.inference_mode()
def all_states(encoder: BertEncoder, encoded: Encoded) -> np.ndarray:
    """R × (L + 1) × H, one sequence after another."""
    found = []
    for number, length in enumerate(encoded.lengths):
        tokens = slice(encoded.starts[number], encoded.starts[number + 1])
        batch = from_flat(encoded.input_ids[tokens], encoded.token_type_ids[tokens], np.array([length]))
        places = encoded.positions[encoded.position_starts[number] : encoded.position_starts[number + 1]]
        found.append(torch.stack(encoder.hidden_states(batch), dim=1)[places.astype(np.int64)])
    return torch.cat(found).numpy()


@pytest.fixture
def encoder() -> BertEncoder:
    return make_encoder()


@pytest.fixture
def encoded() -> Encoded:
    return make_encoded()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "BLOCK_ROWS", 4)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many sequences the encoder was given, block by block."""
    given_to: list[int] = []
    whole = feature_cache.predict_logits

    def counted(
        model: feature_cache.EncoderForTask, part: Encoded, advance: Callable[[int], None] | None
    ) -> np.ndarray:
        given_to.append(len(part.lengths))
        return whole(model, part, advance)

    monkeypatch.setattr(feature_cache, "predict_logits", counted)
    return given_to


def content(found: Features) -> np.ndarray:
    rows = np.arange(len(found.stored[0]))
    return found.take(rows, found.header.layers).numpy()


@pytest.mark.parametrize("layers", [(0,), (4,), (2,), (0, 3), (1, 2, 3, 4), (0, 1, 2, 3, 4)])
def test_features_are_the_encoders_hidden_states(encoder: BertEncoder, encoded: Encoded, layers: tuple[int, ...]):
    expected = all_states(encoder, encoded)[:, layers]
    found = word_features(encoder, encoded, len(COUNTS), layers)
    assert [one.shape for one in found] == [(sum(counts), len(layers), 8) for counts in COUNTS]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)


def test_on_disk_they_are_the_same_to_eleven_bits(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks):
    expected = all_states(encoder, encoded)
    found = cached_features(encoder, encoded, (0, 2, 4), tmp_path / "train")
    np.testing.assert_allclose(content(found), expected[:, (0, 2, 4)], rtol=2**-11, atol=1e-5)
    chosen = np.array([9, 0, 5])
    taken = found.take(chosen, (4, 0))
    assert taken.dtype == torch.float32
    np.testing.assert_allclose(taken.numpy(), expected[chosen][:, (4, 0)], rtol=2**-11, atol=1e-5)


def test_what_stands_above_the_highest_layer_is_not_computed(encoder: BertEncoder, encoded: Encoded):
    with torch.no_grad():
        for layer in encoder.layers[2:]:
            layer.output.weight.fill_(torch.nan)
    assert all(np.isfinite(one).all() for one in word_features(encoder, encoded, len(COUNTS), (1, 2)))


@pytest.mark.parametrize("training", [False, True])
def test_the_encoder_is_left_as_it_was(encoder: BertEncoder, encoded: Encoded, training: bool):
    encoder.train(training)
    first, second = (word_features(encoder, encoded, len(COUNTS), (4,)) for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))  # no dropout
    assert all(module.training == training for module in encoder.modules())


def test_rows_of_an_example_lie_together(encoded: Encoded):
    assert example_rows(encoded, len(COUNTS)).tolist() == [0, 5, 9, 9, 10, 14]


def test_a_second_call_computes_nothing(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int]):
    first = content(cached_features(encoder, encoded, (1, 4), tmp_path / "train"))
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()}
    assert computed == [6]
    relabelled = replace(encoded, labels=encoded.labels + 1)
    again = cached_features(make_encoder(), relabelled, (4,), tmp_path / "train")
    assert computed == [6]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()} == times
    assert np.array_equal(content(again), first)


def test_layers_are_added_and_none_is_lost(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int]):
    cached_features(encoder, encoded, (1, 4), tmp_path / "train")
    found = cached_features(encoder, encoded, (0, 1), tmp_path / "train")
    assert found.header.layers == (0, 1, 4)
    np.testing.assert_allclose(content(found), all_states(encoder, encoded)[:, (0, 1, 4)], rtol=2**-11, atol=1e-5)
    cached_features(encoder, encoded, (0, 4), tmp_path / "train")
    assert computed == [6, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "train"]


def changed(encoded: Encoded, name: str) -> Encoded:
    """One number of what the encoder is given is another."""
    array = getattr(encoded, name).copy()
    array[0] = array[0] + 1 if name != "token_type_ids" else 1 - array[0]
    return replace(encoded, **{name: array})


def test_other_features_are_refused(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    cached_features(encoder, encoded, (4,), tmp_path / "train")
    for name in ("input_ids", "token_type_ids", "positions"):
        with pytest.raises(ValueError, match=r"train: holds features of other data, .*; delete it, or name another"):
            cached_features(encoder, changed(encoded, name), (4,), tmp_path / "train")
    cut_elsewhere = replace(encoded, lengths=encoded.lengths + np.array([1, -1, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="of other data"):
        cached_features(encoder, cut_elsewhere, (4,), tmp_path / "train")
    rounded = make_encoder()
    rounded.compute_dtype = torch.bfloat16
    for other in (make_encoder(seed=2), rounded):
        with pytest.raises(ValueError, match="holds features of another model or number type"):
            cached_features(other, encoded, (4,), tmp_path / "train")


def test_a_killed_computation_goes_on(
    encoder: BertEncoder,
    encoded: Encoded,
    tmp_path: Path,
    small_blocks,
    computed: list[int],
    interrupted_in: InterruptedIn,
):
    whole = content(cached_features(encoder, encoded, (2, 4), tmp_path / "whole"))
    computed.clear()
    with interrupted_in(feature_cache, "predict_logits", 3) as calls:
        cached_features(encoder, encoded, (2, 4), tmp_path / "train")
    blocks = [len(part.lengths) for _, part, _ in calls]
    assert not (tmp_path / "train").exists()
    done: list[int] = []
    found = cached_features(encoder, encoded, (2, 4), tmp_path / "train", done.append)
    assert sum(computed) == sum(done) == 6
    assert done[0] == sum(blocks) > 0
    assert np.array_equal(content(found), whole)


def test_what_another_computation_left_unfinished_is_not_gone_on_with(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks, interrupted_in: InterruptedIn
):
    with interrupted_in(feature_cache, "predict_logits", 2):
        cached_features(make_encoder(seed=2), encoded, (4,), tmp_path / "train")
    found = cached_features(encoder, encoded, (4,), tmp_path / "train")
    np.testing.assert_allclose(content(found), all_states(encoder, encoded)[:, (4,)], rtol=2**-11, atol=1e-5)


@given(st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=2), min_size=1, max_size=8), st.integers(1, 9))
def test_blocks_hold_every_item_whole(counts: list[list[int]], rows: int):
    """Two sequences an item, some without rows: no item is cut in two, and no block has much more than it should."""
    if not any(map(sum, counts)):
        counts.append([1, 0])
    encoded = make_encoded(tuple(counts), width=2)
    before, feature_cache.BLOCK_ROWS = feature_cache.BLOCK_ROWS, rows
    try:
        bounds = feature_cache._blocks(encoded)
    finally:
        feature_cache.BLOCK_ROWS = before
    assert bounds == sorted({*bounds})
    assert (bounds[0], bounds[-1]) == (0, len(counts))
    of_items = np.array(counts).sum(1)
    assert all(of_items[first:last].sum() < rows + 12 for first, last in pairwise(bounds))
    parts = [feature_cache._part(encoded, 2 * first, 2 * last) for first, last in pairwise(bounds)]
    assert np.array_equal(np.concatenate([part.positions for part in parts]), encoded.positions)
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), encoded.input_ids)
    assert sum(part.num_items for part in parts) == encoded.num_items


def test_damage_is_told(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    folder = tmp_path / "train"
    cached_features(encoder, encoded, (2, 4), folder)
    file = folder / "layer-02.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged .*; delete"):
        cached_features(encoder, encoded, (4,), folder)
    np.save(file, np.zeros((3, 8), dtype=np.float16))
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged \(176 bytes, 352 expected\); delete"):
        cached_features(encoder, encoded, (4,), folder)
    file.write_bytes(whole.replace(b"<f2", b"<i2"))
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged \(float16 \[14, 8\] expected\); delete"):
        cached_features(encoder, encoded, (4,), folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged \(not there\)"):
        cached_features(encoder, encoded, (4,), folder)
    (tmp_path / "mine").mkdir()
    without_layers = '{"model": "a", "data": "b", "layers": []}'
    for header in (None, "{", '{"model": "a", "data": "b", "layers": "ab"}', without_layers, "[]"):
        if header is not None:
            (tmp_path / "mine" / "header.json").write_text(header)
        with pytest.raises(
            ValueError, match=r"mine: no folder of features \(header\.json .*; delete it, or name another"
        ):
            cached_features(encoder, encoded, (4,), tmp_path / "mine")


def test_other_numbers_than_those_written_are_refused(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks
):
    """Zeros that a power cut left, and two layers in each other's place: nothing else would notice them."""
    folder = tmp_path / "train"
    cached_features(encoder, encoded, (2, 4), folder)
    one, other = folder / "layer-02.npy", folder / "layer-04.npy"
    first, second = one.read_bytes(), other.read_bytes()
    for damaged in ((first[:-16] + bytes(16), second), (second, first)):
        one.write_bytes(damaged[0])
        other.write_bytes(damaged[1])
        with pytest.raises(ValueError, match="train: not the numbers that were written; delete the folder"):
            cached_features(encoder, encoded, (4,), folder)
    one.write_bytes(first)
    other.write_bytes(second)
    cached_features(encoder, encoded, (4,), folder)
    for text in ("99", "null", '["a"]'):
        (folder / "blocks.json").write_text(text)
        with pytest.raises(ValueError, match="train: not the numbers that were written; delete the folder"):
            cached_features(encoder, encoded, (4,), folder)
    (folder / "blocks.json").unlink()
    with pytest.raises(ValueError, match=r"train: no blocks\.json with the digests of its numbers; delete the folder"):
        cached_features(encoder, encoded, (4,), folder)


@pytest.mark.parametrize("damage", ["zeros", "cut", "blocks", "other blocks", "header", "head of a layer", "gone"])
def test_what_is_left_damaged_is_computed_again(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks, interrupted_in: InterruptedIn, damage: str
):
    whole = content(cached_features(encoder, encoded, (2, 4), tmp_path / "whole"))
    with interrupted_in(feature_cache, "predict_logits", 3):
        cached_features(encoder, encoded, (2, 4), tmp_path / "train")
    left = tmp_path / ".train.unfinished"
    file = left / "layer-02.npy"
    if damage == "zeros":  # of the second block
        with file.open("r+b") as opened:
            opened.seek(-9 * 8 * 2, 2)
            opened.write(bytes(4 * 8 * 2))
    elif damage == "head of a layer":
        file.write_bytes(file.read_bytes().replace(b"'descr'", b"'descr("))
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "gone":
        file.unlink()
    else:
        text = {"blocks": "99", "other blocks": '[1, {}, "x"]', "header": "["}[damage]
        (left / ("header.json" if damage == "header" else "blocks.json")).write_text(text)
    done: list[int] = []
    assert np.array_equal(content(cached_features(encoder, encoded, (2, 4), tmp_path / "train", done.append)), whole)
    assert sum(done) == 6
    assert (done[0] > 0) == (damage == "zeros")  # the first block is whole


def test_a_disk_without_room_is_told_before_anything_is_computed(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: .*layer-02\.npy"):
        cached_features(encoder, encoded, (2, 4), tmp_path / "train")
    assert computed == []
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_states_beyond_float16_are_refused(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    with torch.no_grad():
        encoder.layers[1].output_norm.bias[3] = 1e6
    with pytest.raises(ValueError, match="beyond float16's range: are its weights whole"):
        cached_features(encoder, encoded, (2,), tmp_path / "train")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_layers_that_are_not_there_are_refused(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    for layers in ((), (5,), (-1,), (2, 1), (3, 3)):
        with pytest.raises(ValueError, match=r"ascending numbers from 0 \(embeddings\) to 4 are needed"):
            cached_features(encoder, encoded, layers, tmp_path / "train")
