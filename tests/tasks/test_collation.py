"""Batches of a task: every item once an epoch, whatever the cut into micro-batches and ranks."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import EncoderForTask
from bertwright.tasks.collation import collate, micro_batches, step_items
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.task import Encoded

CONFIG = BertConfig(20, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=16)


def encoded(lengths: list[int], width: int = 1) -> Encoded:
    """Sequences of random tokens; the head reads each first token, and each item has one target."""
    rng = np.random.default_rng(0)
    number, items = len(lengths), len(lengths) // width
    return Encoded(
        rng.integers(5, 20, sum(lengths)).astype(np.int32),
        rng.integers(0, 2, sum(lengths)).astype(np.int8),
        np.array(lengths),
        np.arange(number) // width,
        np.zeros(number, np.int32),
        np.ones(number, np.int64),
        rng.integers(0, 2, items),
        np.ones(items, np.int64),
        width,
    )


@given(items=st.integers(1, 50), batch_size=st.integers(1, 20), seed=st.integers(0, 5))
def test_every_item_comes_once_an_epoch(items: int, batch_size: int, seed: int) -> None:
    steps = -(-3 * items // batch_size)
    stream = np.concatenate([step_items(items, batch_size, step, seed) for step in range(steps)])
    assert all(sorted(stream[first : first + items]) == list(range(items)) for first in range(0, 3 * items, items))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second = step_items(100, 100, 0, seed=0), step_items(100, 100, 1, seed=0)
    assert first.tolist() != second.tolist()
    assert first.tolist() != step_items(100, 100, 0, seed=1).tolist()


def test_taken_items_keep_their_own_tokens_rows_and_targets() -> None:
    given_items = encoded([3, 5, 2, 4], width=2)
    batch = collate(given_items, np.array([1, 0]))
    assert batch.batch.cu_seqlens.tolist() == [0, 2, 6, 9, 14]
    assert batch.batch.input_ids.tolist() == [*given_items.input_ids[8:], *given_items.input_ids[:8]]
    assert batch.positions.tolist() == [0, 2, 6, 9]
    assert batch.labels.tolist() == given_items.labels[::-1].tolist()
    assert batch.num_labels == 2


def test_a_step_does_not_depend_on_micro_batches_or_ranks() -> None:
    """Dropout included: the same gradient whether a step is one pass, six passes, or three passes on each of two."""
    data = encoded([3, 9, 4, 7, 2, 5, 8, 6])
    model = EncoderForTask(BertEncoder(CONFIG, seed=1), HeadSpec("sequence", 2), seed=1).train()

    def gradient(tokens: int, world_size: int) -> dict[str, torch.Tensor]:
        model.zero_grad()
        for rank in range(world_size):
            for batch in micro_batches(data, 3, 6, seed=0, max_tokens=tokens, shard=(rank, world_size)):
                logits = model(batch.batch, batch.positions)
                (torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum") / batch.num_labels).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    whole = gradient(1_000, 1)
    assert len(micro_batches(data, 3, 6, seed=0, max_tokens=1)) == 6
    for tokens, world_size in ((1, 1), (12, 1), (12, 2), (1_000, 5)):
        for name, expected in gradient(tokens, world_size).items():
            torch.testing.assert_close(expected, whole[name], rtol=1e-4, atol=1e-6)


@given(lengths=st.lists(st.integers(1, 16), min_size=1, max_size=12))
def test_outputs_are_those_of_each_sequence_alone(lengths: list[int]) -> None:
    data = encoded(lengths)
    model = EncoderForTask(BertEncoder(CONFIG, seed=2), HeadSpec("sequence", 3), seed=2).train()
    found = predict_logits(model, data)
    assert model.training  # as before
    model.eval()
    for number in range(len(lengths)):
        alone = collate(data, np.array([number]))
        with torch.inference_mode():
            expected = model(alone.batch, alone.positions).numpy()
        np.testing.assert_allclose(found[number : number + 1], expected, atol=1e-5)
