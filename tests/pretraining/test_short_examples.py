"""Short examples: their share in Google's code, simulated, beside that of `short_seq_prob` here (decision 1).

`create_pretraining_data.py` draws a target length per pass over a document. `simulate_pass` repeats its walk over the
sentences, of which only the lengths matter.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

from bertwright.base.seeding import derive_key, make_rng
from bertwright.objectives.segments import ExampleIndex, sample_pairs

PASSES = 10  # `dupe_factor`


class Example(NamedTuple):
    """An example of Google's code."""

    has_short_target: bool
    num_tokens: int
    """Of both segments, without [CLS] and [SEP]."""


def simulate_pass(documents: list[list[int]], number: int, max_num_tokens: int, rng: random.Random) -> list[Example]:
    """Return the examples of a pass over a document, given the lengths of all documents' sentences.

    Sentences are collected up to the target length, which is short in a tenth of the passes. The first ones, up to a
    random boundary, are A. B is the others or, with probability 1/2 and if there are no others, text of another
    document from a random sentence on; the walk then continues with the others.
    """
    lengths = documents[number]
    has_short_target = rng.random() < 0.1
    target = rng.randint(2, max_num_tokens) if has_short_target else max_num_tokens
    examples, begin, end = [], 0, 0
    while end < len(lengths):
        end += 1
        if end < len(lengths) and sum(lengths[begin:end]) < target:
            continue
        boundary = rng.randint(begin + 1, end - 1) if end - begin > 1 else end
        a, b = sum(lengths[begin:boundary]), sum(lengths[boundary:end])
        if boundary == end or rng.random() < 0.5:
            b = random_segment(documents, number, target - a, rng)
            end = boundary
        examples.append(Example(has_short_target, min(a + b, max_num_tokens)))
        begin = end
    return examples


def random_segment(documents: list[list[int]], number: int, wanted: int, rng: random.Random) -> int:
    """Return the tokens of a random B: whole sentences of another document up to the wanted number, at least one."""
    other = documents[rng.choice([index for index in range(len(documents)) if index != number])]
    tokens = 0
    for length in other[rng.randrange(len(other)) :]:
        tokens += length
        if tokens >= wanted:
            break
    return tokens


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Lengths of the sentences of 80 documents, with the means of English Wikipedia's: 200 sentences of 31 tokens."""
    rng = np.random.default_rng(0)
    return [np.ceil(rng.gamma(2.5, 31 / 2.5, 1 + rng.poisson(200))).astype(int).tolist() for _ in range(80)]


def simulate(documents: list[list[int]], max_num_tokens: int) -> list[Example]:
    rng = random.Random(0)
    return [
        example
        for _ in range(PASSES)
        for number in range(len(documents))
        for example in simulate_pass(documents, number, max_num_tokens, rng)
    ]


def share_below(max_num_tokens: int, num_tokens: np.ndarray) -> float:
    return float((num_tokens < max_num_tokens).mean())


def test_simulated_passes_over_four_sentences_have_the_probabilities_worked_by_hand() -> None:
    """Sentences of 10 tokens and a target of 20: an example takes two; a random B (1/2) puts the second one back.

    With r sentences left, N(1) = 1; N(2) = 1 or 1 + N(1); N(3) = 1 + N(1) or 1 + N(2); N(4) = 1 + N(2) or 1 + N(3).
    """
    rng = random.Random(0)
    walks = [simulate_pass([[10] * 4, [10] * 4], 0, 20, rng) for _ in range(20_000)]
    walks = [walk for walk in walks if not walk[0].has_short_target]
    assert {example.num_tokens for walk in walks for example in walk} == {20}
    for count, probability in ((2, 1 / 4), (3, 5 / 8), (4, 1 / 8)):
        share = np.mean([len(walk) == count for walk in walks])
        assert abs(share - probability) < 4 * np.sqrt(probability * (1 - probability) / len(walks))


@pytest.mark.parametrize(("max_length", "expected"), [(128, 0.18), (512, 0.24)])
def test_short_tenth_of_the_passes_gives_more_than_a_tenth_of_the_examples(
    documents: list[list[int]], max_length: int, expected: float
) -> None:
    examples = simulate(documents, max_length - 3)
    share = np.mean([example.has_short_target for example in examples])
    assert share == pytest.approx(expected, abs=0.03)


def test_short_seq_prob_of_a_fifth_gives_the_share_of_google_at_128_tokens(make_store, documents) -> None:
    expected = share_below(125, np.array([example.num_tokens for example in simulate(documents, 125)]))
    store = make_store([[[7] * length for length in document] for document in documents])
    index = ExampleIndex.of(store, 125)
    examples = np.arange(index.document_examples[-1])
    shares = {}
    for short_seq_prob in (0.1, 0.2):
        phases = np.full(len(examples), derive_key(1, 0), dtype=np.uint64)
        found = sample_pairs(index, index.locate(examples, phases, 2), short_seq_prob, make_rng(1, 0))
        lengths = found.a_ends - found.a_starts + found.b_ends - found.b_starts
        shares[short_seq_prob] = share_below(125, lengths)
    assert shares[0.1] < 0.65 * expected
    assert shares[0.2] == pytest.approx(expected, abs=0.02)
