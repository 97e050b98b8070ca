"""Feature caches: correct states, computed once, and never used for another model or other data."""

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

from bertwright.inference import feature_cache
from bertwright.inference.feature_cache import (
    Features,
    compute_word_features,
    example_state_starts,
    load_or_compute_features,
)
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder
from bertwright.models.initialization import initialize
from bertwright.models.packing import from_flat
from bertwright.tasks.task import Encoded

InterruptedIn = Callable[..., AbstractContextManager[list[Any]]]
CONFIG = BertConfig(vocab_size=40, hidden_size=8, num_layers=4, num_heads=2, intermediate_size=16, max_positions=24)
COUNTS = ([2, 3], [4], [], [1], [2, 2])  # states of each sequence of each example; the third has no sequence


def make_encoder(seed: int = 1) -> BertEncoder:
    encoder = BertEncoder(CONFIG)
    initialize(encoder, std=0.3, seed=seed)
    return encoder.eval()


def make_encoded(counts: tuple[list[int], ...] = COUNTS, sequences_per_item: int = 1) -> Encoded:
    """Build sequences of random tokens, each with `counts` labeled states at random positions."""
    rng = np.random.default_rng(0)
    position_counts = np.array([count for example in counts for count in example], dtype=np.int64)
    lengths = position_counts + rng.integers(2, 8, len(position_counts))
    positions = [
        np.sort(rng.choice(length, count, replace=False))
        for length, count in zip(lengths, position_counts, strict=True)
    ]
    return Encoded(
        input_ids=rng.integers(5, 40, lengths.sum()).astype(np.int32),
        token_type_ids=rng.integers(0, 2, lengths.sum()).astype(np.int8),
        lengths=lengths,
        example_ids=np.repeat(np.arange(len(counts)), [len(example) for example in counts]),
        positions=np.concatenate(positions).astype(np.int32),
        position_counts=position_counts,
        labels=rng.integers(0, 3, position_counts.sum()),
        label_counts=position_counts.reshape(-1, sequences_per_item).sum(1),
        sequences_per_item=sequences_per_item,
    )


@torch.inference_mode()
def all_states(encoder: BertEncoder, encoded: Encoded) -> np.ndarray:
    """Compute the states R × (L + 1) × H one sequence after another."""
    found = []
    for number, length in enumerate(encoded.lengths):
        tokens = slice(encoded.starts[number], encoded.starts[number + 1])
        batch = from_flat(encoded.input_ids[tokens], encoded.token_type_ids[tokens], np.array([length]))
        positions = encoded.positions[encoded.position_starts[number] : encoded.position_starts[number + 1]]
        found.append(torch.stack(encoder.hidden_states(batch), dim=1)[positions.astype(np.int64)])
    return torch.cat(found).numpy()


@pytest.fixture
def encoder() -> BertEncoder:
    return make_encoder()


@pytest.fixture(name="encoded")
def random_input() -> Encoded:
    return make_encoded()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "BLOCK_STATES", 4)


@pytest.fixture(name="computed")
def count_computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the number of sequences that the encoder reads, block by block."""
    counts: list[int] = []
    original = feature_cache.predict_logits

    def count(model: feature_cache.EncoderForTask, chunk: Encoded, advance: Callable[[int], None] | None) -> np.ndarray:
        counts.append(len(chunk.lengths))
        return original(model, chunk, advance)

    monkeypatch.setattr(feature_cache, "predict_logits", count)
    return counts


def content(found: Features) -> np.ndarray:
    rows = np.arange(len(found.stored[0]))
    return found.take(rows, found.header.layers).numpy()


@pytest.mark.parametrize("layers", [(0,), (4,), (2,), (0, 3), (1, 2, 3, 4), (0, 1, 2, 3, 4)])
def test_features_are_the_encoders_hidden_states(encoder: BertEncoder, encoded: Encoded, layers: tuple[int, ...]):
    expected = all_states(encoder, encoded)[:, layers]
    found = compute_word_features(encoder, encoded, len(COUNTS), layers)
    assert [one.shape for one in found] == [(sum(counts), len(layers), 8) for counts in COUNTS]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)


def test_features_on_disk_are_equal_to_eleven_bits(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks
):
    expected = all_states(encoder, encoded)
    found = load_or_compute_features(encoder, encoded, (0, 2, 4), tmp_path / "train")
    np.testing.assert_allclose(content(found), expected[:, (0, 2, 4)], rtol=2**-11, atol=1e-5)
    chosen = np.array([9, 0, 5])
    taken = found.take(chosen, (4, 0))
    assert taken.dtype == torch.float32
    np.testing.assert_allclose(taken.numpy(), expected[chosen][:, (4, 0)], rtol=2**-11, atol=1e-5)


def test_layers_above_the_last_one_asked_for_are_not_computed(encoder: BertEncoder, encoded: Encoded):
    with torch.no_grad():
        for layer in encoder.layers[2:]:
            layer.output.weight.fill_(torch.nan)
    assert all(np.isfinite(one).all() for one in compute_word_features(encoder, encoded, len(COUNTS), (1, 2)))


def test_encoder_in_training_mode_is_rejected_and_stays_in_it(encoder: BertEncoder, encoded: Encoded):
    encoder.train()
    with pytest.raises(ValueError, match="training mode"):
        compute_word_features(encoder, encoded, len(COUNTS), (4,))
    assert all(module.training for module in encoder.modules())


def test_states_of_an_example_are_contiguous(encoded: Encoded):
    assert example_state_starts(encoded, len(COUNTS)).tolist() == [0, 5, 9, 9, 10, 14]


def test_second_call_computes_nothing(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int]):
    first = content(load_or_compute_features(encoder, encoded, (1, 4), tmp_path / "train"))
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()}
    assert computed == [6]
    relabeled = replace(encoded, labels=encoded.labels + 1)
    again = load_or_compute_features(make_encoder(), relabeled, (4,), tmp_path / "train")
    assert computed == [6]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()} == times
    assert np.array_equal(content(again), first)


def test_more_layers_are_added_to_a_cache(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int]):
    load_or_compute_features(encoder, encoded, (1, 4), tmp_path / "train")
    found = load_or_compute_features(encoder, encoded, (0, 1), tmp_path / "train")
    assert found.header.layers == (0, 1, 4)
    np.testing.assert_allclose(content(found), all_states(encoder, encoded)[:, (0, 1, 4)], rtol=2**-11, atol=1e-5)
    load_or_compute_features(encoder, encoded, (0, 4), tmp_path / "train")
    assert computed == [6, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "train"]


def change(encoded: Encoded, name: str) -> Encoded:
    """Change one number of an array."""
    array = getattr(encoded, name).copy()
    array[0] = array[0] + 1 if name != "token_type_ids" else 1 - array[0]
    return replace(encoded, **{name: array})


def test_features_of_another_model_or_other_data_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    load_or_compute_features(encoder, encoded, (4,), tmp_path / "train")
    for name in ("input_ids", "token_type_ids", "positions"):
        with pytest.raises(ValueError, match=r"train: holds features of other data, .*; delete it, or choose"):
            load_or_compute_features(encoder, change(encoded, name), (4,), tmp_path / "train")
    cut_elsewhere = replace(encoded, lengths=encoded.lengths + np.array([1, -1, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="of other data"):
        load_or_compute_features(encoder, cut_elsewhere, (4,), tmp_path / "train")
    rounded = make_encoder()
    rounded.compute_dtype = torch.bfloat16
    for other in (make_encoder(seed=2), rounded):
        with pytest.raises(ValueError, match="features of another model"):
            load_or_compute_features(other, encoded, (4,), tmp_path / "train")


def test_killed_computation_is_resumed(
    encoder: BertEncoder,
    encoded: Encoded,
    tmp_path: Path,
    small_blocks,
    computed: list[int],
    interrupted_in: InterruptedIn,
):
    whole = content(load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "whole"))
    computed.clear()
    with interrupted_in(feature_cache, "predict_logits", 3) as calls:
        load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "train")
    blocks = [len(chunk.lengths) for _, chunk, _ in calls]
    assert not (tmp_path / "train").exists()
    done: list[int] = []
    found = load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "train", done.append)
    assert sum(computed) == sum(done) == 6
    assert done[0] == sum(blocks) > 0
    assert np.array_equal(content(found), whole)


def test_unfinished_computation_of_another_model_is_not_resumed(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks, interrupted_in: InterruptedIn
):
    with interrupted_in(feature_cache, "predict_logits", 2):
        load_or_compute_features(make_encoder(seed=2), encoded, (4,), tmp_path / "train")
    found = load_or_compute_features(encoder, encoded, (4,), tmp_path / "train")
    np.testing.assert_allclose(content(found), all_states(encoder, encoded)[:, (4,)], rtol=2**-11, atol=1e-5)


@given(st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=2), min_size=1, max_size=8), st.integers(1, 9))
def test_blocks_split_no_item(counts: list[list[int]], rows: int):
    """Two sequences per item, some without states: blocks have whole items and about the right size."""
    if not any(map(sum, counts)):
        counts.append([1, 0])
    encoded = make_encoded(tuple(counts), sequences_per_item=2)
    before, feature_cache.BLOCK_STATES = feature_cache.BLOCK_STATES, rows
    try:
        bounds = feature_cache._block_bounds(encoded)
    finally:
        feature_cache.BLOCK_STATES = before
    assert bounds == sorted({*bounds})
    assert (bounds[0], bounds[-1]) == (0, len(counts))
    of_items = np.array(counts).sum(1)
    assert all(of_items[first:last].sum() < rows + 12 for first, last in pairwise(bounds))
    chunks = [feature_cache._slice_sequences(encoded, 2 * first, 2 * last) for first, last in pairwise(bounds)]
    assert np.array_equal(np.concatenate([chunk.positions for chunk in chunks]), encoded.positions)
    assert np.array_equal(np.concatenate([chunk.input_ids for chunk in chunks]), encoded.input_ids)
    assert sum(chunk.num_items for chunk in chunks) == encoded.num_items


def test_damaged_files_are_named(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    folder = tmp_path / "train"
    load_or_compute_features(encoder, encoded, (2, 4), folder)
    file = folder / "layer-02.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged .*; delete"):
        load_or_compute_features(encoder, encoded, (4,), folder)
    np.save(file, np.zeros((3, 8), dtype=np.float16))
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged \(expected 352 bytes, got 176\); delete"):
        load_or_compute_features(encoder, encoded, (4,), folder)
    file.write_bytes(whole.replace(b"<f2", b"<i2"))
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged \(expected float16 \[14, 8\]\); delete"):
        load_or_compute_features(encoder, encoded, (4,), folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"layer-02\.npy: damaged \(expected 352 bytes, got 0\)"):
        load_or_compute_features(encoder, encoded, (4,), folder)
    (tmp_path / "mine").mkdir()
    without_layers = '{"model": "a", "data": "b", "layers": []}'
    for header in (None, "{", '{"model": "a", "data": "b", "layers": "ab"}', without_layers, "[]"):
        if header is not None:
            (tmp_path / "mine" / "header.json").write_text(header)
        with pytest.raises(ValueError, match=r"mine: not a folder of features \(header\.json .*; delete it, or choose"):
            load_or_compute_features(encoder, encoded, (4,), tmp_path / "mine")


def test_damaged_features_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks):
    """Zeros after a power cut, and two layers swapped: only the digests show it."""
    folder = tmp_path / "train"
    load_or_compute_features(encoder, encoded, (2, 4), folder)
    one, other = folder / "layer-02.npy", folder / "layer-04.npy"
    first, second = one.read_bytes(), other.read_bytes()
    for damaged in ((first[:-16] + bytes(16), second), (second, first)):
        one.write_bytes(damaged[0])
        other.write_bytes(damaged[1])
        with pytest.raises(ValueError, match=r"train: .*damaged.*; delete the folder"):
            load_or_compute_features(encoder, encoded, (4,), folder)
    one.write_bytes(first)
    other.write_bytes(second)
    load_or_compute_features(encoder, encoded, (4,), folder)
    for text in ("99", "null", '["a"]'):
        (folder / "blocks.json").write_text(text)
        with pytest.raises(ValueError, match=r"train: .*damaged.*; delete the folder"):
            load_or_compute_features(encoder, encoded, (4,), folder)
    (folder / "blocks.json").unlink()
    with pytest.raises(ValueError, match=r"train: blocks\.json, .*, is missing; delete the folder"):
        load_or_compute_features(encoder, encoded, (4,), folder)


@pytest.mark.parametrize("damage", ["zeros", "cut", "blocks", "other blocks", "header", "start of a layer", "absent"])
def test_damaged_unfinished_computation_is_computed_again(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_blocks, interrupted_in: InterruptedIn, damage: str
):
    whole = content(load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "whole"))
    with interrupted_in(feature_cache, "predict_logits", 3):
        load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "train")
    left = tmp_path / ".train.unfinished"
    file = left / "layer-02.npy"
    if damage == "zeros":  # of the second block
        with file.open("r+b") as opened:
            opened.seek(-9 * 8 * 2, 2)
            opened.write(bytes(4 * 8 * 2))
    elif damage == "start of a layer":
        file.write_bytes(file.read_bytes().replace(b"'descr'", b"'descr("))
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "absent":
        file.unlink()
    else:
        text = {"blocks": "99", "other blocks": '[1, {}, "x"]', "header": "["}[damage]
        (left / ("header.json" if damage == "header" else "blocks.json")).write_text(text)
    done: list[int] = []
    assert np.array_equal(
        content(load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "train", done.append)), whole
    )
    assert sum(done) == 6
    assert (done[0] > 0) == (damage == "zeros")  # the first block is intact


def test_full_disk_is_noticed_before_anything_is_computed(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: .*layer-02\.npy"):
        load_or_compute_features(encoder, encoded, (2, 4), tmp_path / "train")
    assert computed == []
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_states_beyond_float16_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    with torch.no_grad():
        encoder.layers[1].output_norm.bias[3] = 1e6
    with pytest.raises(ValueError, match="exceed float16's range; are its weights damaged"):
        load_or_compute_features(encoder, encoded, (2,), tmp_path / "train")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_unknown_layers_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    for layers in ((), (5,), (-1,), (2, 1), (3, 3)):
        with pytest.raises(ValueError, match=r"layers: expected ascending numbers from 0 \(embeddings\) to 4"):
            load_or_compute_features(encoder, encoded, layers, tmp_path / "train")
