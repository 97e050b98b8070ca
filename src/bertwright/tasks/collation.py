"""Collation: items to packed batches. A step's items are a function of (seed, step), so that runs resume exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertwright.base.example_order import permute
from bertwright.base.ragged import flat_ranges, offsets_from_lengths
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.tasks.encoded import Encoded, Ints

if TYPE_CHECKING:
    from bertwright.models.encoder import EncoderConfig
    from bertwright.models.heads import TaskBatch


def check_segments(token_type_ids: npt.NDArray[np.integer] | None, config: EncoderConfig) -> None:
    """Raise ValueError for sequences of two segments if the model has one segment embedding only."""
    if token_type_ids is not None and token_type_ids.max(initial=0) >= config.type_vocab_size:
        raise ValueError(
            f"type_vocab_size = {config.type_vocab_size}: the model has one segment embedding, and pairs of texts need "
            "two; choose another model"
        )


def collate(encoded: Encoded, items: Ints, num_labels: int | None = None) -> TaskBatch:
    """Pack items into one batch. `num_labels`: labels of the whole step, by default of these items."""
    import torch

    from bertwright.models.heads import TaskBatch
    from bertwright.models.packing import make_input

    sequences = encoded.sequences(items)
    lengths = encoded.lengths[sequences]
    tokens = flat_ranges(encoded.starts[sequences], lengths)
    counts = encoded.position_counts[sequences]
    positions = encoded.positions[encoded.rows(items)]
    sequence_offsets = np.repeat(offsets_from_lengths(lengths)[:-1], counts)
    types = encoded.token_type_ids
    labels = encoded.labels[flat_ranges(encoded.label_starts[items], encoded.label_counts[items])]
    return TaskBatch(
        make_input(encoded.input_ids[tokens], None if types is None else types[tokens], lengths),
        torch.from_numpy(positions + sequence_offsets),
        counts,
        torch.from_numpy(labels),
        len(labels) if num_labels is None else num_labels,
    )


def step_items(num_items: int, batch_size: int, step: int, seed: int) -> Ints:
    """Return the items of a step (from 0). Every epoch has its own random order.

    Every step has `batch_size` items; the first step of an epoch may begin with the last items of the previous epoch.

    >>> sorted(np.concatenate([step_items(6, 4, step, seed=0) for step in range(3)]).tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    numbers = np.arange(step * batch_size, (step + 1) * batch_size)
    chosen = np.empty_like(numbers)
    epochs = numbers // num_items
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        key = derive_key(seed, TaskStream.ORDER, int(epoch))
        chosen[in_epoch] = permute(numbers[in_epoch] % num_items, num_items, key)
    return chosen


def micro_batches(
    encoded: Encoded, step: int, batch_size: int, seed: int, max_tokens: int, shard: tuple[int, int] = (0, 1)
) -> list[TaskBatch]:
    """Collate the items of `step_items` as `split_step` does."""
    return split_step(encoded, step_items(encoded.num_items, batch_size, step, seed), step, seed, max_tokens, shard)


def split_step(
    encoded: Encoded, items: Ints, step: int, seed: int, max_tokens: int, shard: tuple[int, int] = (0, 1)
) -> list[TaskBatch]:
    """Collate the items of a step into packed batches of at most `max_tokens` tokens, or of one longer item.

    `shard`: rank and world size; the ranks together have all items. Neither argument changes the step: its loss is
    divided by the number of labels of the whole step, and dropout depends on a token's offset in the whole step.
    """
    first_tokens = offsets_from_lengths(encoded.item_lengths[items])
    num_labels = int(encoded.label_counts[items].sum())
    num_sequences = int(encoded.item_counts[items].sum())
    num_next_tokens = int(first_tokens[-1]) - num_sequences
    rank, world_size = shard
    begin, end = len(items) * rank // world_size, len(items) * (rank + 1) // world_size
    batches = []
    while begin < end:
        until = int(np.searchsorted(first_tokens, first_tokens[begin] + max_tokens, side="right")) - 1
        until = min(max(until, begin + 1), end)
        batch = collate(encoded, items[begin:until], num_labels)
        drop, first = derive_key(seed, TaskStream.DROPOUT, step), int(first_tokens[begin])
        dropped = batch.input.with_dropout(drop, first)
        batches.append(replace(batch, input=dropped, num_next_tokens=num_next_tokens, num_sequences=num_sequences))
        begin = until
    return batches
