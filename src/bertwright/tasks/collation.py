"""Which items make up a training step: a function of (seed, step), so that a resumed run goes on to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bertwright.batching.batch import offsets_from_lengths
from bertwright.batching.permutation import permute
from bertwright.seeding import TaskStream, derive_key
from bertwright.tasks.task import Encoded, Ints, TaskBatch, collate


def step_items(items: int, batch_size: int, step: int, seed: int) -> Ints:
    """The items of step `step` (from 0): epochs follow one another without a break, each in an order of its own.

    Every step has `batch_size` items; one that an epoch cannot fill goes on with the next.

    >>> sorted(np.concatenate([step_items(6, 4, step, seed=0) for step in range(3)]).tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    numbers = np.arange(step * batch_size, (step + 1) * batch_size)
    chosen = np.empty_like(numbers)
    epochs = numbers // items
    for epoch in np.unique(epochs):
        among = epochs == epoch
        chosen[among] = permute(numbers[among] % items, items, derive_key(seed, TaskStream.ORDER, int(epoch)))
    return chosen


def micro_batches(
    encoded: Encoded, step: int, batch_size: int, seed: int, tokens: int, part: tuple[int, int] = (0, 1)
) -> list[TaskBatch]:
    """A step's items in packed batches of about `tokens` tokens at most, one at the least.

    `part`: this rank, and how many there are; together they have all items. Neither changes the step: a loss is divided
    by the count of the whole step, and dropout knows a token by its place in it.
    """
    items = step_items(encoded.num_items, batch_size, step, seed)
    first_tokens = offsets_from_lengths(encoded.item_lengths[items])
    count = int(encoded.label_counts[items].sum())
    rank, world_size = part
    begin, end = len(items) * rank // world_size, len(items) * (rank + 1) // world_size
    batches = []
    while begin < end:
        until = int(np.searchsorted(first_tokens, first_tokens[begin] + tokens, side="right")) - 1
        until = min(max(until, begin + 1), end)
        batch = collate(encoded, items[begin:until], count)
        drop, first = derive_key(seed, TaskStream.DROPOUT, step), int(first_tokens[begin])
        batches.append(replace(batch, batch=replace(batch.batch, dropout_seed=drop, first_token=first)))
        begin = until
    return batches
