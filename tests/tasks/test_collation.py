"""Batches of a task: every item once per epoch, independent of micro-batches and ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertwright.models.head_spec import HeadSpec
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.collation import collate, micro_batches, step_items
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.prediction import predict_logits, prediction_batches

CONFIG = BertConfig(20, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=16)

MODEL = EncoderForTask(BertEncoder(CONFIG, seed=2), HeadSpec("sequence", 3), seed=2).eval()


def encode_randomly(lengths: list[int], sequences_per_item: int = 1) -> Encoded:
    """Return sequences of random tokens; the head reads each first token, and each item has one target."""
    rng = np.random.default_rng(0)
    number, items = len(lengths), len(lengths) // sequences_per_item
    return Encoded(
        rng.integers(5, 20, sum(lengths)).astype(np.int32),
        rng.integers(0, 2, sum(lengths)).astype(np.int8),
        np.array(lengths),
        np.arange(number) // sequences_per_item,
        np.zeros(number, np.int32),
        np.ones(number, np.int64),
        rng.integers(0, 2, items),
        np.ones(items, np.int64),
        sequences_per_item,
    )


@given(items=st.integers(1, 50), batch_size=st.integers(1, 20), seed=st.integers(0, 5))
def test_every_item_occurs_once_per_epoch(items: int, batch_size: int, seed: int) -> None:
    steps = -(-3 * items // batch_size)
    stream = np.concatenate([step_items(items, batch_size, step, seed) for step in range(steps)])
    assert all(sorted(stream[first : first + items]) == list(range(items)) for first in range(0, 3 * items, items))


def test_order_depends_on_epoch_and_seed() -> None:
    first, second = step_items(100, 100, 0, seed=0), step_items(100, 100, 1, seed=0)
    assert first.tolist() != second.tolist()
    assert first.tolist() != step_items(100, 100, 0, seed=1).tolist()


def test_collated_items_have_their_own_tokens_positions_and_targets() -> None:
    given_items = encode_randomly([3, 5, 2, 4], sequences_per_item=2)
    batch = collate(given_items, np.array([1, 0]))
    assert batch.packing.cu_seqlens.tolist() == [0, 2, 6, 9, 14]
    assert batch.input.input_ids.tolist() == [*given_items.input_ids[8:], *given_items.input_ids[:8]]
    assert batch.positions.tolist() == [0, 2, 6, 9]
    assert batch.labels.tolist() == given_items.labels[::-1].tolist()
    assert batch.num_labels == 2


def test_step_does_not_depend_on_micro_batches_or_ranks() -> None:
    """The gradient is the same for one pass, six passes, and three passes on each of two ranks, dropout included."""
    data = encode_randomly([3, 9, 4, 7, 2, 5, 8, 6])
    model = EncoderForTask(BertEncoder(CONFIG, seed=1), HeadSpec("sequence", 2), seed=1).train()

    def gradient(tokens: int, world_size: int) -> dict[str, torch.Tensor]:
        model.zero_grad()
        for rank in range(world_size):
            for batch in micro_batches(data, 3, 6, seed=0, max_tokens=tokens, shard=(rank, world_size)):
                logits = model(batch)
                (torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum") / batch.num_labels).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    whole = gradient(1_000, 1)
    assert len(micro_batches(data, 3, 6, seed=0, max_tokens=1)) == 6
    for tokens, world_size in ((1, 1), (12, 1), (12, 2), (1_000, 5)):
        for name, expected in gradient(tokens, world_size).items():
            torch.testing.assert_close(expected, whole[name], rtol=1e-4, atol=1e-6)


@given(st.lists(st.integers(1, 16), max_size=20), st.integers(1, 40))
def test_prediction_batches_have_every_item_once_within_the_budget(lengths: list[int], budget: int) -> None:
    data = encode_randomly(lengths)
    seen = []
    for items, batch in prediction_batches(MODEL, CONFIG, data, budget):
        assert batch.packing.num_tokens <= budget or len(items) == 1
        assert batch.packing.lengths.tolist() == data.lengths[items].tolist()
        seen += items.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_prediction_in_training_mode_is_rejected() -> None:
    """Turning dropout off here would change what other threads compute; one module in training mode is enough."""
    model = EncoderForTask(BertEncoder(CONFIG, seed=2), HeadSpec("sequence", 3), seed=2).eval()
    model.encoder.layers[1].train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        predict_logits(model, encode_randomly([3]))
    assert model.encoder.layers[1].training


@given(lengths=st.lists(st.integers(1, 16), min_size=1, max_size=12))
def test_outputs_do_not_depend_on_the_batch(lengths: list[int]) -> None:
    data = encode_randomly(lengths)
    found = predict_logits(MODEL, data)
    for number in range(len(lengths)):
        alone = collate(data, np.array([number]))
        with torch.inference_mode():
            expected = MODEL(alone).numpy()
        np.testing.assert_allclose(found[number : number + 1], expected, atol=1e-5)
