"""Segments in numbers: shares, lengths, coverage, neighbours; truncation against the loop of Google's code."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.pretraining.segments import ExampleIndex, Segments, sample_pairs, sample_singles, truncate_pairs
from bertwright.seeding import derive_key, make_rng
from bertwright.tokenstore.store import TokenStore

ROOM = 61  # of max_length 64


def drawn(store: TokenStore, short_seq_prob: float = 0.0, epoch: int = 0, room: int = ROOM) -> Segments:
    """The pairs of one whole epoch, in document order."""
    plan = ExampleIndex.of(store, room)
    examples = np.arange(plan.examples_per_epoch)
    phases = np.full(len(examples), derive_key(1, epoch), dtype=np.uint64)
    return sample_pairs(plan, plan.locate(examples, phases, 2), short_seq_prob, make_rng(1, epoch))


def documents_of(store: TokenStore, tokens: np.ndarray) -> np.ndarray:
    return np.searchsorted(store.sentence_starts[store.document_starts], tokens, side="right") - 1


def test_a_worked_example(make_store) -> None:
    """Documents of three sentences and of one, all short: only the splits and the coin are left to chance."""
    store = make_store([[[10, 11], [12, 13], [14]], [[20, 21, 22]]])
    seen = set()
    for epoch in range(200):
        segments = drawn(store, epoch=epoch)
        for a_start, a_end, b_start, b_end, is_random_next in zip(*segments, strict=True):
            a, b = store.tokens(a_start, a_end).tolist(), store.tokens(b_start, b_end).tolist()
            seen.add((*a, 0, *b, 0, "random" if is_random_next else "next"))
    assert seen == {
        (10, 11, 0, 12, 13, 14, 0, "next"),
        (10, 11, 12, 13, 0, 14, 0, "next"),
        (10, 11, 0, 20, 21, 22, 0, "random"),
        (10, 11, 12, 13, 0, 20, 21, 22, 0, "random"),
        (20, 21, 22, 0, 10, 11, 12, 13, 14, 0, "random"),  # moved forward to give the length asked for
    }


def test_segments_hold_the_text_of_one_document_each(mixed_store) -> None:
    segments = drawn(mixed_store)
    assert (segments.a_starts < segments.a_ends).all()
    assert (segments.b_starts < segments.b_ends).all()
    for begins, ends in ((segments.a_starts, segments.a_ends), (segments.b_starts, segments.b_ends)):
        assert (documents_of(mixed_store, begins) == documents_of(mixed_store, ends - 1)).all()


def test_b_follows_a_or_comes_from_another_document(mixed_store) -> None:
    segments = drawn(mixed_store)
    same = documents_of(mixed_store, segments.a_starts) == documents_of(mixed_store, segments.b_starts)
    assert (same == ~segments.is_random_next).all()
    follows = segments.b_starts >= segments.a_ends
    assert follows[~segments.is_random_next].all()


def test_half_of_the_pairs_are_next_whatever_the_documents_sizes(mixed_store) -> None:
    sizes = np.diff(mixed_store.document_starts)
    shares: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for epoch in range(20):
        segments = drawn(mixed_store, epoch=epoch)
        sentences = sizes[documents_of(mixed_store, segments.a_starts)]
        assert segments.is_random_next[sentences == 1].all()
        for small in (True, False):
            shares[small].append(segments.is_random_next[(sentences > 1) & ((sentences < 6) == small)])
    for small in (True, False):
        flags = np.concatenate(shares[small])
        deviation = 0.5 / np.sqrt(len(flags))
        assert abs(flags.mean() - 0.5) < 4 * deviation


def test_pairs_fill_the_room_where_the_document_has_the_tokens(mixed_store) -> None:
    segments = drawn(mixed_store)
    lengths = segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts
    assert lengths.max() == ROOM
    places = mixed_store.sentence_starts[mixed_store.document_starts]
    long_document = np.diff(places)[documents_of(mixed_store, segments.a_starts)] >= 2 * ROOM
    assert (lengths[long_document & ~segments.is_random_next] == ROOM).all()
    # A short B would give the answer away. It comes short only where the drawn document itself is short.
    assert lengths[long_document & segments.is_random_next].mean() > 0.97 * ROOM


def test_a_tenth_aims_at_a_shorter_length(make_store) -> None:
    """In one-token sentences a pair is as long as it aims to be."""
    store = make_store([[[7]] * 5000, [[8]] * 5000])
    lengths = []
    for epoch in range(40):
        segments = drawn(store, short_seq_prob=0.1, epoch=epoch)
        lengths.append(segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts)
    every = np.concatenate(lengths)
    short = every[every < ROOM]
    expected = 0.1 * (1 - 1 / (ROOM - 1))  # a sixtieth of the short ones aim at the full length
    assert abs(len(short) / len(every) - expected) < 4 * np.sqrt(0.1 * 0.9 / len(every))
    assert short.min() == 2
    assert abs(short.mean() - (2 + ROOM - 1) / 2) < 4 * 17 / np.sqrt(len(short))


def test_every_document_begins_an_example_in_every_epoch(mixed_store) -> None:
    for epoch in range(3):
        begun = np.unique(documents_of(mixed_store, drawn(mixed_store, epoch=epoch).a_starts))
        assert begun.tolist() == list(range(mixed_store.num_documents))


def test_epochs_differ(mixed_store) -> None:
    one, other = drawn(mixed_store, epoch=0), drawn(mixed_store, epoch=1)
    same = (one.a_starts == other.a_starts) & (one.a_ends == other.a_ends) & (one.b_starts == other.b_starts)
    assert same.mean() < 0.25  # documents of a few sentences have no other beginning


def test_the_margins_of_a_document_are_seen_as_often_as_its_middle(make_store) -> None:
    lengths = np.random.default_rng(1).integers(5, 25, size=400)
    store = make_store([[[7] * length for length in lengths]])
    plan = ExampleIndex.of(store, ROOM)
    examples = np.arange(plan.examples_per_epoch)
    changes = np.zeros(store.num_tokens + 1)
    epochs = 300
    for epoch in range(epochs):
        chunks = plan.locate(examples, np.full(len(examples), derive_key(2, epoch), dtype=np.uint64), 1)
        segments = sample_singles(plan, chunks, 0.0, make_rng(2, epoch))
        np.add.at(changes, segments.a_starts, 1)
        np.add.at(changes, segments.a_ends, -1)
    coverage = np.cumsum(changes[:-1]) / epochs
    assert abs(coverage.mean() - 1) < 0.02
    assert coverage.min() > 0.2  # the outermost tokens are reached by chunks at the very margin alone
    assert coverage.max() < 1.8


def test_a_sentence_longer_than_an_example_is_seen_to_its_end(make_store) -> None:
    store = make_store([[[7] * 1000], [[8] * 5]])
    plan = ExampleIndex.of(store, ROOM)
    examples = np.arange(plan.examples_per_epoch)
    chunks = plan.locate(examples, np.full(len(examples), derive_key(3), dtype=np.uint64), 1)
    segments = sample_singles(plan, chunks, 0.0, make_rng(3))
    assert segments.a_ends[: round(1000 / ROOM)].max() > 1000 - ROOM
    assert (segments.a_ends - segments.a_starts)[:-1].tolist() == [ROOM] * (len(examples) - 1)


def test_a_chunk_of_one_long_sentence_still_has_a_true_next_one(make_store) -> None:
    store = make_store([[[7] * 200, [8] * 200], [[9] * 50, [10] * 50]])
    flags = [drawn(store, epoch=epoch).is_random_next for epoch in range(300)]
    share = np.concatenate(flags).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(np.concatenate(flags).size)


def test_the_only_document_gives_random_segments_from_outside_the_chunk(make_store) -> None:
    store = make_store([[[number] * 6 for number in range(10, 110)]])
    randoms = 0
    for epoch in range(50):
        segments = drawn(store, epoch=epoch)
        randoms += int(segments.is_random_next.sum())
        overlap = (segments.a_starts < segments.b_ends) & (segments.b_starts < segments.a_ends)
        assert not overlap.any()
    assert randoms > 100


def test_where_there_is_nothing_outside_b_is_always_next(make_store) -> None:
    store = make_store([[[10, 11], [12]]])
    assert not any(drawn(store, epoch=epoch).is_random_next.any() for epoch in range(50))


def test_a_random_sentence_is_any_of_the_corpus(make_store) -> None:
    """Section 3.1: "a random sentence from the corpus"; so long documents give more of them than short ones."""
    store = make_store([[[7] * 10] * 90, [[8] * 10] * 9, [[9] * 10]])
    plan = ExampleIndex.of(store, ROOM)
    chosen = []
    for epoch in range(2000):
        last = np.array([plan.examples_per_epoch - 1])
        chunks = plan.locate(last, np.array([derive_key(4, epoch)], dtype=np.uint64), 2)
        segments = sample_pairs(plan, chunks, 0.0, make_rng(4, epoch))
        chosen.append(documents_of(store, segments.b_starts)[0])
    assert abs(np.mean(np.array(chosen) == 0) - 90 / 99) < 4 * np.sqrt(0.09 * 0.91 / 2000)


def test_singles_are_runs_of_consecutive_tokens(mixed_store) -> None:
    plan = ExampleIndex.of(mixed_store, 62)
    examples = np.arange(plan.examples_per_epoch)
    chunks = plan.locate(examples, np.full(len(examples), derive_key(5), dtype=np.uint64), 1)
    segments = sample_singles(plan, chunks, 0.0, make_rng(5))
    lengths = segments.a_ends - segments.a_starts
    places = mixed_store.sentence_starts[mixed_store.document_starts]
    whole = np.diff(places)[documents_of(mixed_store, segments.a_starts)]
    assert (lengths == np.minimum(whole, 62)).all()
    assert (segments.b_starts == segments.b_ends).all()


@given(st.integers(1, 80), st.integers(1, 80), st.integers(2, 60))
def test_truncated_lengths_are_those_of_the_loop(a_length: int, b_length: int, room: int) -> None:
    a, b = list(range(a_length)), list(range(b_length))
    slowly_truncated(a, b, room, random.Random(0))
    cut = truncate_pairs(one_pair(a_length, b_length), room, make_rng(0))
    assert (cut.a_ends[0] - cut.a_starts[0], cut.b_ends[0] - cut.b_starts[0]) == (len(a), len(b))


@pytest.mark.parametrize(("a_length", "b_length"), [(40, 5), (5, 40), (30, 29)])
def test_tokens_are_cut_at_both_ends_as_by_the_loop(a_length: int, b_length: int) -> None:
    """The first token that is left has the same distribution as in the loop."""
    count, room = 3000, 20
    wide = Segments(*(np.repeat(column, count) for column in one_pair(a_length, b_length)))
    cut = truncate_pairs(wide, room, make_rng(1))
    rng, looped = random.Random(1), []
    for _ in range(count):
        a, b = list(range(a_length)), list(range(1000, 1000 + b_length))
        slowly_truncated(a, b, room, rng)
        looped.append((a[0], b[0]))
    firsts = np.array(looped)
    for drawn_firsts, expected in ((cut.a_starts, firsts[:, 0]), (cut.b_starts, firsts[:, 1])):
        deviation = max(expected.std(), 1e-9)
        assert abs(drawn_firsts.mean() - expected.mean()) < 5 * deviation * np.sqrt(2 / count) + 1e-9
        assert abs(drawn_firsts.std() - expected.std()) < 0.1 * deviation + 1e-9


def one_pair(a_length: int, b_length: int) -> Segments:
    columns = (0, a_length, 1000, 1000 + b_length)
    return Segments(*(np.array([value]) for value in columns), np.array([True]))


def slowly_truncated(a: list[int], b: list[int], room: int, rng: random.Random) -> None:
    """`truncate_seq_pair` of google-research/bert, create_pretraining_data.py."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()
