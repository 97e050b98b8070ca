"""Derived splits: a share of the training examples as dev split, and a sample of a split."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from bertwright.base.example_order import permute
from bertwright.base.seeding import derive_key

E = TypeVar("E")

SPLIT_SEED = 1  # fixed, so that all seeds of a run are scored on the same dev examples


def train_validation_split(
    examples: Sequence[E], group_keys: Sequence[Hashable], validation_fraction: float
) -> tuple[list[E], list[E]]:
    """Split examples into training and validation examples, each in their original order.

    Examples with equal group keys stay in the same split. Groups are drawn in a fixed random order; a group is added to
    the validation split if that brings its size closer to `validation_fraction` of all examples. The split is never
    empty: if no group qualifies, it receives the smallest one. Raises ValueError if no examples remain for training.
    """
    indices: dict[Hashable, list[int]] = {}
    for index, key in enumerate(group_keys):
        indices.setdefault(key, []).append(index)
    groups = list(indices.values())
    wanted = validation_fraction * len(examples)
    chosen: set[int] = set()
    for number in permute(np.arange(len(groups)), len(groups), derive_key(SPLIT_SEED)):
        if abs(len(chosen) + len(groups[number]) - wanted) < abs(len(chosen) - wanted):
            chosen.update(groups[number])
    if not chosen:
        smallest = min(groups, key=len)
        chosen.update(smallest)
    if len(chosen) == len(examples):
        raise ValueError(
            f"validation_fraction = {validation_fraction}: {len(examples)} examples in {len(groups)} groups leave one "
            "split empty; a group (such as equal texts) is never split, so name --dev files"
        )
    return (
        [example for index, example in enumerate(examples) if index not in chosen],
        [example for index, example in enumerate(examples) if index in chosen],
    )


def sample_examples(examples: Sequence[E], size: int) -> Sequence[E]:
    """Return randomly chosen examples in their order; the choice does not depend on a run's seed."""
    if size >= len(examples):
        return examples
    chosen = permute(np.arange(size), len(examples), derive_key(SPLIT_SEED))
    return [examples[index] for index in np.sort(chosen)]
