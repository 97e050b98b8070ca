"""Random numbers belong to a place."""

from __future__ import annotations

import itertools

from bertwright.seeding import derive_key, make_rng


def test_a_place_has_its_own_numbers_in_whatever_order_it_is_asked() -> None:
    places = list(itertools.product(range(3), range(3)))
    forwards = {place: make_rng(1, *place).random(4).tolist() for place in places}
    backwards = {place: make_rng(1, *place).random(4).tolist() for place in reversed(places)}
    assert forwards == backwards
    assert len({tuple(numbers) for numbers in forwards.values()}) == len(places)


def test_keys_are_64_bits_and_differ_between_places_and_seeds() -> None:
    keys = {derive_key(seed, place) for seed in range(30) for place in range(30)}
    assert len(keys) == 900
    assert all(0 <= number < 2**64 for number in keys)
    assert max(keys) > 2**62
