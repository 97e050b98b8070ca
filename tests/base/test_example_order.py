"""Permutations against a reference implementation; uniform numbers by counter and key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.base.example_order import ROUNDS, permute, splitmix64, uniform
from bertwright.base.seeding import derive_key

KEYS = st.integers(0, 2**64 - 1)


@given(st.integers(1, 3000), KEYS)
def test_permutation_contains_each_index_once(size: int, order_key: int) -> None:
    assert np.sort(permute(np.arange(size), size, order_key)).tolist() == list(range(size))


@given(st.integers(1, 10**12), KEYS, st.data())
def test_single_index_equals_the_reference_implementation(size: int, order_key: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    assert int(permute(np.array([index]), size, order_key)[0]) == reference_permute(index, size, order_key)


def reference_permute(index: int, size: int, order_key: int) -> int:
    """Compute the same network with Python integers, one index at a time."""
    bits = max(2, (size - 1).bit_length())
    low_bits = bits // 2
    while True:
        high, low = divmod(index, 2**low_bits)
        for number in range(ROUNDS):
            round_key = (order_key + number * 0xD1342543DE82EF95) % 2**64
            if number % 2 == 0:
                high ^= splitmix(low, round_key) % 2 ** (bits - low_bits)
            else:
                low ^= splitmix(high, round_key) % 2**low_bits
        index = high * 2**low_bits + low
        if index < size:
            return index


def splitmix(counter: int, hash_key: int) -> int:
    bits = ((counter + 1) * 0x9E3779B97F4A7C15 + hash_key) % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def test_permutations_of_a_small_range_are_equally_likely() -> None:
    seen: dict[tuple[int, ...], int] = {}
    for number in range(6000):
        order = tuple(permute(np.arange(3), 3, derive_key(1, number)).tolist())
        seen[order] = seen.get(order, 0) + 1
    # 6 orders, 1,000 each expected, standard deviation 29
    assert len(seen) == 6
    assert all(850 < count < 1150 for count in seen.values())


def test_permutations_under_two_keys_are_independent() -> None:
    one, other = permute(np.arange(10_000), 10_000, derive_key(1)), permute(np.arange(10_000), 10_000, derive_key(2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
    assert abs(np.corrcoef(one, np.arange(10_000))[0, 1]) < 0.05


def test_uniform_numbers_depend_on_counter_and_key_alone() -> None:
    together = uniform(np.arange(1000), derive_key(3))
    assert uniform(np.array([17]), derive_key(3))[0] == together[17]
    keys = np.array([derive_key(3), derive_key(4)], dtype=np.uint64)
    assert uniform(np.array([17, 17]), keys).tolist() == [together[17], uniform(np.array([17]), derive_key(4))[0]]


def test_uniform_numbers_are_uniform() -> None:
    numbers = uniform(np.arange(100_000), derive_key(5))
    assert 0 <= numbers.min() <= numbers.max() < 1
    counts = np.bincount((numbers * 100).astype(int), minlength=100)
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert 40 < chi_square < 180  # 99 degrees of freedom: mean 99, standard deviation 14
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_splitmix64_equals_the_published_values() -> None:
    # The first outputs of SplitMix64 seeded with 1234567 (Vigna's reference implementation).
    assert splitmix64(np.arange(3), 1234567).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("index", [-1, 5])
def test_index_outside_the_range_raises_an_error(index: int) -> None:
    with pytest.raises(ValueError, match="0 … 4"):
        permute(np.array([index]), 5, 1)
