"""Segments: shares, lengths, coverage, order; truncation against the loop of Google's code."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.base.seeding import derive_key, make_rng
from bertwright.objectives.segments import ExampleIndex, Segments, sample_pairs, sample_singles, truncate_pairs
from bertwright.tokenstore.store import TokenStore

MAX_NUM_TOKENS = 61  # of max_length 64


def sample_epoch(
    store: TokenStore, short_seq_prob: float = 0.0, epoch: int = 0, max_num_tokens: int = MAX_NUM_TOKENS
) -> Segments:
    """Sample the pairs of a whole epoch, in document order."""
    plan = ExampleIndex.of(store, max_num_tokens)
    examples = np.arange(plan.document_examples[-1])
    phases = np.full(len(examples), derive_key(1, epoch), dtype=np.uint64)
    return sample_pairs(plan, plan.locate(examples, phases, 2), short_seq_prob, make_rng(1, epoch))


def documents_of(store: TokenStore, tokens: np.ndarray) -> np.ndarray:
    return np.searchsorted(store.sentence_starts[store.document_starts], tokens, side="right") - 1


def test_pairs_of_short_documents_equal_those_worked_by_hand(make_store) -> None:
    """Documents of three sentences and of one, all short: only the splits and the order are random."""
    store = make_store([[[10, 11], [12, 13], [14]], [[20, 21, 22]]])
    seen = set()
    for epoch in range(200):
        segments = sample_epoch(store, epoch=epoch)
        for a_start, a_end, b_start, b_end, is_random_next in zip(*segments, strict=True):
            a, b = store.read_tokens(a_start, a_end).tolist(), store.read_tokens(b_start, b_end).tolist()
            seen.add((*a, 0, *b, 0, "random" if is_random_next else "next"))
    assert seen == {
        (10, 11, 0, 12, 13, 14, 0, "next"),
        (10, 11, 12, 13, 0, 14, 0, "next"),
        (10, 11, 0, 20, 21, 22, 0, "random"),
        (10, 11, 12, 13, 0, 20, 21, 22, 0, "random"),
        (20, 21, 22, 0, 10, 11, 12, 13, 14, 0, "random"),  # moved forward to give the length asked for
    }


def test_segment_is_text_of_one_document(mixed_store) -> None:
    segments = sample_epoch(mixed_store)
    assert (segments.a_starts < segments.a_ends).all()
    assert (segments.b_starts < segments.b_ends).all()
    for begins, ends in ((segments.a_starts, segments.a_ends), (segments.b_starts, segments.b_ends)):
        assert (documents_of(mixed_store, begins) == documents_of(mixed_store, ends - 1)).all()


def test_b_follows_a_or_comes_from_another_document(mixed_store) -> None:
    segments = sample_epoch(mixed_store)
    same = documents_of(mixed_store, segments.a_starts) == documents_of(mixed_store, segments.b_starts)
    assert (same == ~segments.is_random_next).all()
    follows = segments.b_starts >= segments.a_ends
    assert follows[~segments.is_random_next].all()


def test_half_of_the_pairs_are_next_for_documents_of_all_sizes(mixed_store) -> None:
    sizes = np.diff(mixed_store.document_starts)
    shares: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for epoch in range(20):
        segments = sample_epoch(mixed_store, epoch=epoch)
        sentences = sizes[documents_of(mixed_store, segments.a_starts)]
        assert segments.is_random_next[sentences == 1].all()
        for small in (True, False):
            shares[small].append(segments.is_random_next[(sentences > 1) & ((sentences < 6) == small)])
    for small in (True, False):
        flags = np.concatenate(shares[small])
        deviation = 0.5 / np.sqrt(len(flags))
        assert abs(flags.mean() - 0.5) < 4 * deviation


def test_pairs_have_the_maximum_length_if_the_document_has_the_tokens(mixed_store) -> None:
    segments = sample_epoch(mixed_store)
    lengths = segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts
    assert lengths.max() == MAX_NUM_TOKENS
    positions = mixed_store.sentence_starts[mixed_store.document_starts]
    long_document = np.diff(positions)[documents_of(mixed_store, segments.a_starts)] >= 2 * MAX_NUM_TOKENS
    assert (lengths[long_document & ~segments.is_random_next] == MAX_NUM_TOKENS).all()
    # A short B would give the answer away. It comes short only where the sample_epoch document itself is short.
    assert lengths[long_document & segments.is_random_next].mean() > 0.97 * MAX_NUM_TOKENS


def test_a_tenth_of_the_examples_has_a_shorter_target_length(make_store) -> None:
    """With sentences of one token, a pair has exactly its target length."""
    store = make_store([[[7]] * 5000, [[8]] * 5000])
    lengths = []
    for epoch in range(40):
        segments = sample_epoch(store, short_seq_prob=0.1, epoch=epoch)
        lengths.append(segments.a_ends - segments.a_starts + segments.b_ends - segments.b_starts)
    every = np.concatenate(lengths)
    short = every[every < MAX_NUM_TOKENS]
    expected = 0.1 * (1 - 1 / (MAX_NUM_TOKENS - 1))  # a sixtieth of the short ones aim at the full length
    assert abs(len(short) / len(every) - expected) < 4 * np.sqrt(0.1 * 0.9 / len(every))
    assert short.min() == 2
    assert abs(short.mean() - (2 + MAX_NUM_TOKENS - 1) / 2) < 4 * 17 / np.sqrt(len(short))


def test_each_document_has_an_example_in_each_epoch(mixed_store) -> None:
    for epoch in range(3):
        begun = np.unique(documents_of(mixed_store, sample_epoch(mixed_store, epoch=epoch).a_starts))
        assert begun.tolist() == list(range(mixed_store.num_documents))


def test_epochs_differ(mixed_store) -> None:
    one, other = sample_epoch(mixed_store, epoch=0), sample_epoch(mixed_store, epoch=1)
    same = (one.a_starts == other.a_starts) & (one.a_ends == other.a_ends) & (one.b_starts == other.b_starts)
    assert same.mean() < 0.25  # documents of a few sentences have no other beginning


def test_margins_of_a_document_are_as_frequent_as_its_middle(make_store) -> None:
    lengths = np.random.default_rng(1).integers(5, 25, size=400)
    store = make_store([[[7] * length for length in lengths]])
    plan = ExampleIndex.of(store, MAX_NUM_TOKENS)
    examples = np.arange(plan.document_examples[-1])
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


def test_sentence_longer_than_an_example_is_read_to_its_end(make_store) -> None:
    store = make_store([[[7] * 1000], [[8] * 5]])
    plan = ExampleIndex.of(store, MAX_NUM_TOKENS)
    examples = np.arange(plan.document_examples[-1])
    chunks = plan.locate(examples, np.full(len(examples), derive_key(3), dtype=np.uint64), 1)
    segments = sample_singles(plan, chunks, 0.0, make_rng(3))
    assert segments.a_ends[: round(1000 / MAX_NUM_TOKENS)].max() > 1000 - MAX_NUM_TOKENS
    assert (segments.a_ends - segments.a_starts)[:-1].tolist() == [MAX_NUM_TOKENS] * (len(examples) - 1)


def test_example_of_one_long_sentence_has_a_true_next_one(make_store) -> None:
    store = make_store([[[7] * 200, [8] * 200], [[9] * 50, [10] * 50]])
    flags = [sample_epoch(store, epoch=epoch).is_random_next for epoch in range(300)]
    share = np.concatenate(flags).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(np.concatenate(flags).size)


def test_single_document_gives_random_segments_outside_the_example(make_store) -> None:
    store = make_store([[[number] * 6 for number in range(10, 110)]])
    randoms = 0
    for epoch in range(50):
        segments = sample_epoch(store, epoch=epoch)
        randoms += int(segments.is_random_next.sum())
        overlap = (segments.a_starts < segments.b_ends) & (segments.b_starts < segments.a_ends)
        assert not overlap.any()
    assert randoms > 100


def test_segment_b_is_always_next_if_nothing_is_outside_the_example(make_store) -> None:
    store = make_store([[[10, 11], [12]]])
    assert not any(sample_epoch(store, epoch=epoch).is_random_next.any() for epoch in range(50))


def test_random_sentences_of_the_corpus_are_equally_likely(make_store) -> None:
    """Section 3.1: "a random sentence from the corpus"; so long documents give more of them than short ones."""
    store = make_store([[[7] * 10] * 90, [[8] * 10] * 9, [[9] * 10]])
    plan = ExampleIndex.of(store, MAX_NUM_TOKENS)
    chosen = []
    for epoch in range(2000):
        last = np.array([plan.document_examples[-1] - 1])
        chunks = plan.locate(last, np.array([derive_key(4, epoch)], dtype=np.uint64), 2)
        segments = sample_pairs(plan, chunks, 0.0, make_rng(4, epoch))
        chosen.append(documents_of(store, segments.b_starts)[0])
    assert abs(np.mean(np.array(chosen) == 0) - 90 / 99) < 4 * np.sqrt(0.09 * 0.91 / 2000)


def test_singles_are_consecutive_tokens(mixed_store) -> None:
    plan = ExampleIndex.of(mixed_store, 62)
    examples = np.arange(plan.document_examples[-1])
    chunks = plan.locate(examples, np.full(len(examples), derive_key(5), dtype=np.uint64), 1)
    segments = sample_singles(plan, chunks, 0.0, make_rng(5))
    lengths = segments.a_ends - segments.a_starts
    positions = mixed_store.sentence_starts[mixed_store.document_starts]
    whole = np.diff(positions)[documents_of(mixed_store, segments.a_starts)]
    assert (lengths == np.minimum(whole, 62)).all()
    assert (segments.b_starts == segments.b_ends).all()


@given(st.integers(1, 80), st.integers(1, 80), st.integers(2, 60))
def test_truncated_lengths_equal_those_of_the_loop(a_length: int, b_length: int, max_num_tokens: int) -> None:
    a, b = list(range(a_length)), list(range(b_length))
    reference_truncate(a, b, max_num_tokens, random.Random(0))
    cut = truncate_pairs(one_pair(a_length, b_length), max_num_tokens, make_rng(0))
    assert (cut.a_ends[0] - cut.a_starts[0], cut.b_ends[0] - cut.b_starts[0]) == (len(a), len(b))


@pytest.mark.parametrize(("a_length", "b_length"), [(40, 5), (5, 40), (30, 29)])
def test_truncation_at_both_ends_has_the_distribution_of_the_loop(a_length: int, b_length: int) -> None:
    """The first remaining token has the same distribution as in the loop."""
    count, max_num_tokens = 3000, 20
    wide = Segments(*(np.repeat(column, count) for column in one_pair(a_length, b_length)))
    cut = truncate_pairs(wide, max_num_tokens, make_rng(1))
    rng, looped = random.Random(1), []
    for _ in range(count):
        a, b = list(range(a_length)), list(range(1000, 1000 + b_length))
        reference_truncate(a, b, max_num_tokens, rng)
        looped.append((a[0], b[0]))
    firsts = np.array(looped)
    for drawn_firsts, expected in ((cut.a_starts, firsts[:, 0]), (cut.b_starts, firsts[:, 1])):
        deviation = max(expected.std(), 1e-9)
        assert abs(drawn_firsts.mean() - expected.mean()) < 5 * deviation * np.sqrt(2 / count) + 1e-9
        assert abs(drawn_firsts.std() - expected.std()) < 0.1 * deviation + 1e-9


def one_pair(a_length: int, b_length: int) -> Segments:
    columns = (0, a_length, 1000, 1000 + b_length)
    return Segments(*(np.array([value]) for value in columns), np.array([True]))


def reference_truncate(a: list[int], b: list[int], max_num_tokens: int, rng: random.Random) -> None:
    """Truncate as `truncate_seq_pair` in create_pretraining_data.py of google-research/bert."""
    while len(a) + len(b) > max_num_tokens:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()
