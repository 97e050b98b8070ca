"""Feature caches: correct states, computed once, and never used for another model or other data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.inference import feature_cache
from bertwright.inference.feature_cache import (
    Features,
    LayerStates,
    compute_word_features,
    example_state_starts,
    load_or_compute_features,
)
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.packing import from_flat
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks import prediction
from bertwright.tasks.encoded import Encoded

InterruptedIn = Callable[..., AbstractContextManager[list[Any]]]
CONFIG = BertConfig(vocab_size=40, hidden_size=8, num_layers=4, num_heads=2, intermediate_size=16, max_positions=24)
COUNTS = ([2, 3], [4], [], [1], [2, 2])  # states of each sequence of each example; the third has no sequence


def make_encoder(seed: int = 1) -> BertEncoder:
    encoder = BertEncoder(CONFIG)
    initialize(encoder, truncated_normal(0.3), seed=seed)
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
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "BATCH_TOKENS", {"cpu": 12})


@pytest.fixture(name="computed")
def count_computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of sequences that the encoder reads in each call."""
    counts: list[int] = []
    original = feature_cache.prediction_batches

    def count(model: LayerStates, config: BertConfig, encoded: Encoded) -> Iterator[Any]:
        counts.append(len(encoded.lengths))
        return original(model, config, encoded)

    monkeypatch.setattr(feature_cache, "prediction_batches", count)
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
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_batches
):
    expected = all_states(encoder, encoded)
    found = load_or_compute_features(LayerStates(encoder, (0, 2, 4)), encoded, tmp_path / "train")
    np.testing.assert_allclose(content(found), expected[:, (0, 2, 4)], rtol=2**-11, atol=1e-5)
    chosen = np.array([9, 0, 5])
    taken = found.take(chosen, (4, 0))
    assert taken.dtype == torch.float32
    np.testing.assert_allclose(taken.numpy(), expected[chosen][:, (4, 0)], rtol=2**-11, atol=1e-5)


def test_items_of_two_sequences_are_written_in_their_places(encoder: BertEncoder, tmp_path: Path, small_batches):
    encoded = make_encoded(([2, 3], [6, 0], [0, 1], [2, 2]), sequences_per_item=2)
    found = load_or_compute_features(LayerStates(encoder, (4,)), encoded, tmp_path / "train")
    np.testing.assert_allclose(content(found), all_states(encoder, encoded)[:, (4,)], rtol=2**-11, atol=1e-5)


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
    first = content(load_or_compute_features(LayerStates(encoder, (1, 4)), encoded, tmp_path / "train"))
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()}
    assert computed == [6]
    relabeled = replace(encoded, labels=encoded.labels + 1)
    again = load_or_compute_features(LayerStates(make_encoder(), (4,)), relabeled, tmp_path / "train")
    assert computed == [6]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "train").iterdir()} == times
    assert np.array_equal(content(again), first)


def test_more_layers_are_added_to_a_cache(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, computed: list[int]):
    load_or_compute_features(LayerStates(encoder, (1, 4)), encoded, tmp_path / "train")
    found = load_or_compute_features(LayerStates(encoder, (0, 1)), encoded, tmp_path / "train")
    assert found.header.layers == (0, 1, 4)
    np.testing.assert_allclose(content(found), all_states(encoder, encoded)[:, (0, 1, 4)], rtol=2**-11, atol=1e-5)
    load_or_compute_features(LayerStates(encoder, (0, 4)), encoded, tmp_path / "train")
    assert computed == [6, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "train"]


def change(encoded: Encoded, name: str) -> Encoded:
    """Change one number of an array."""
    array = getattr(encoded, name).copy()
    array[0] = array[0] + 1 if name != "token_type_ids" else 1 - array[0]
    return replace(encoded, **{name: array})


def test_features_of_another_model_or_other_data_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    load_or_compute_features(LayerStates(encoder, (4,)), encoded, tmp_path / "train")
    for name in ("input_ids", "token_type_ids", "positions"):
        with pytest.raises(ValueError, match=r"train: holds features of other data, .*; delete it, or choose"):
            load_or_compute_features(LayerStates(encoder, (4,)), change(encoded, name), tmp_path / "train")
    cut_elsewhere = replace(encoded, lengths=encoded.lengths + np.array([1, -1, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="of other data"):
        load_or_compute_features(LayerStates(encoder, (4,)), cut_elsewhere, tmp_path / "train")
    rounded = make_encoder()
    rounded.compute_dtype = torch.bfloat16
    for other in (make_encoder(seed=2), rounded):
        with pytest.raises(ValueError, match="features of another model"):
            load_or_compute_features(LayerStates(other, (4,)), encoded, tmp_path / "train")


def test_interrupted_computation_leaves_nothing_behind(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, small_batches, interrupted_in: InterruptedIn
):
    with interrupted_in(LayerStates, "predict_batch", 3):
        load_or_compute_features(LayerStates(encoder, (2, 4)), encoded, tmp_path / "train")
    assert [path.name for path in tmp_path.iterdir()] in ([], [".lock"])
    done: list[int] = []
    load_or_compute_features(LayerStates(encoder, (2, 4)), encoded, tmp_path / "train", done.append)
    assert sum(done) == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda layer: layer.unlink(),
        lambda layer: layer.write_bytes(layer.read_bytes()[:-3]),
        lambda layer: layer.write_bytes(layer.read_bytes()[:-16] + bytes(16)),  # zeros, as after a power cut
        lambda layer: layer.write_bytes((layer.parent / "layer-04.npy").read_bytes()),
        lambda layer: layer.write_bytes(layer.read_bytes().replace(b"<f2", b"<i2")),
        lambda layer: layer.write_bytes(layer.read_bytes().replace(b"'descr'", b"'descr(")),
        lambda layer: np.save(layer, np.zeros((3, 8), dtype=np.float16)),
    ],
    ids=["absent", "truncated", "zeros", "another layer", "integers", "no header", "other shape"],
)
def test_damaged_states_are_rejected(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, damage: Callable[[Path], object]
):
    load_or_compute_features(LayerStates(encoder, (2, 4)), encoded, tmp_path / "train")
    damage(tmp_path / "train" / "layer-02.npy")
    with pytest.raises(ValueError, match=r"train: .*damaged.*; delete the folder"):
        load_or_compute_features(LayerStates(encoder, (4,)), encoded, tmp_path / "train")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "{",
        "[]",
        '{"model": "a", "data": "b", "layers": "ab", "states": ""}',
        '{"model": "a", "data": "b", "layers": [], "states": ""}',
        '{"model": "a", "data": "b", "layers": [2]}',
    ],
)
def test_folder_without_a_header_is_left_alone(
    encoder: BertEncoder, encoded: Encoded, tmp_path: Path, header: str | None
):
    (tmp_path / "mine").mkdir()
    if header is not None:
        (tmp_path / "mine" / "features.json").write_text(header)
    with pytest.raises(ValueError, match=r"mine: not a folder of features \(features\.json .*; delete it, or choose"):
        load_or_compute_features(LayerStates(encoder, (4,)), encoded, tmp_path / "mine")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_full_disk_is_one_clear_error(encoder: BertEncoder, encoded: Encoded, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(feature_cache, "_layer_file", lambda *_: Path("/dev/full"))
    with pytest.raises(OSError, match=r"No space left on device: .*train"):
        load_or_compute_features(LayerStates(encoder, (2, 4)), encoded, tmp_path / "train")
    assert [path.name for path in tmp_path.iterdir()] in ([], [".lock"])


def test_states_beyond_float16_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    with torch.no_grad():
        encoder.layers[1].output_norm.bias[3] = 1e6
    with pytest.raises(ValueError, match="exceed float16's range; are its weights damaged"):
        load_or_compute_features(LayerStates(encoder, (2,)), encoded, tmp_path / "train")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_unknown_layers_are_rejected(encoder: BertEncoder, encoded: Encoded, tmp_path: Path):
    for layers in ((), (5,), (-1,), (2, 1), (3, 3)):
        with pytest.raises(ValueError, match=r"layers: expected ascending numbers from 0 \(embeddings\) to 4"):
            load_or_compute_features(LayerStates(encoder, layers), encoded, tmp_path / "train")
