"""The train/validation split keeps order and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.tasks.splits import train_validation_split


@given(st.lists(st.integers(0, 9), min_size=2, max_size=50), st.floats(0.05, 0.5))
def test_split_partitions_examples_in_order_and_never_splits_a_group(keys: list[int], fraction: float) -> None:
    examples = list(enumerate(keys))
    if len(set(keys)) == 1:
        with pytest.raises(ValueError, match=f"validation_fraction = .*{len(keys)} examples in 1 groups"):
            train_validation_split(examples, keys, fraction)
        return
    train, validation = train_validation_split(examples, keys, fraction)
    assert sorted(train + validation) == examples
    assert train == sorted(train)
    assert validation == sorted(validation)
    assert validation
    assert not {key for _, key in train} & {key for _, key in validation}


def test_split_of_distinct_examples_has_the_wanted_size() -> None:
    train, validation = train_validation_split(range(1000), range(1000), 0.1)
    assert (len(train), len(validation)) == (900, 100)
    assert train_validation_split(range(1000), range(1000), 0.1) == (train, validation)
