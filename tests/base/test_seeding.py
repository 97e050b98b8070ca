"""Random streams: independent, and the same whatever the order of calls."""

from __future__ import annotations

import itertools

from bertwright.base.seeding import ProbeStream, Stream, TaskStream, derive_key, make_rng


def test_streams_do_not_depend_on_the_order_of_calls() -> None:
    keys = list(itertools.product(range(3), range(3)))
    forwards = {key: make_rng(1, *key).random(4).tolist() for key in keys}
    backwards = {key: make_rng(1, *key).random(4).tolist() for key in reversed(keys)}
    assert forwards == backwards
    assert len({tuple(numbers) for numbers in forwards.values()}) == len(keys)


def test_keys_have_64_bits_and_differ_between_spawn_keys_and_seeds() -> None:
    keys = {derive_key(seed, number) for seed in range(30) for number in range(30)}
    assert len(keys) == 900
    assert all(0 <= number < 2**64 for number in keys)
    assert max(keys) > 2**62


def test_stream_numbers_decide_the_bits_of_every_run() -> None:
    assert [(stream.name, int(stream)) for stream in Stream] == [
        ("ORDER", 0), ("PHASE", 1), ("SEGMENT", 2), ("MASK", 3), ("DROPOUT", 4),
    ]  # fmt: skip
    assert [int(stream) for stream in (*TaskStream, *ProbeStream)] == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert derive_key(0, Stream.DROPOUT, 5) == derive_key(0, 4, 5)
