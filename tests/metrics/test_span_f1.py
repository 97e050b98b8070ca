"""Spans of tags against a naive matcher and `seqeval`; schemes hand-worked."""

from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bertwright.metrics.span_f1 import SpanScore, accuracy, span_scores
from bertwright.tables.tag_schemes import detect_scheme, find_invalid_tag, find_spans, to_canonical_scheme

IOB = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-A-B"]
BIOES = [*IOB, "E-PER", "S-PER", "E-LOC", "S-LOC"]
SEQUENCES = st.lists(st.sampled_from(BIOES), max_size=10)
IOB_SEQUENCES = st.lists(st.sampled_from(IOB), max_size=10)


def naive(tags: list[str]) -> set[tuple[str, int, int]]:
    """Return every maximal range of words of one type in which only the first tag begins and only the last ends."""

    def begins(index: int) -> bool:
        """Apply conlleval's startOfChunk: B and S always; else after O, after an end, or after another type."""
        tag, last = tags[index], tags[index - 1] if index else "O"
        return tag != "O" and (tag[0] in "BS" or last == "O" or last[0] in "ES" or last[2:] != tag[2:])

    return {
        (tags[first][2:], first, last)
        for first in range(len(tags))
        for last in range(first, len(tags))
        if begins(first)
        and all(tags[index] != "O" and not begins(index) for index in range(first + 1, last + 1))
        and (last + 1 == len(tags) or tags[last + 1] == "O" or begins(last + 1))
    }


@given(tags=SEQUENCES)
def test_spans_equal_those_of_seqeval_and_of_a_naive_matcher(tags):
    found = [tuple(span) for span in find_spans(tags)]
    assert found == get_entities(list(tags))
    assert len(set(found)) == len(found)
    assert set(found) == naive(tags)


@given(tags=st.lists(st.sampled_from([*"OBIES"]), max_size=10))
def test_bare_prefixes_are_spans_of_one_type(tags):
    named = [tag if tag == "O" else f"{tag}-_" for tag in tags]
    assert find_spans(tags) == find_spans(named)
    assert [tuple(span) for span in find_spans(tags)] == get_entities(tags)
    bare = to_canonical_scheme(tags, "iob1")
    assert [tag if tag == "O" else f"{tag}-_" for tag in bare] == [*to_canonical_scheme(named, "iob1")]
    assert to_canonical_scheme(["L" if tag == "E" else "U" if tag == "S" else tag for tag in tags], "bioes") == tuple(
        tags
    )


def test_tags_without_prefix_count_as_outside():
    """Example: [PAD] and X, old tags of padding and of inner tokens; only seqeval makes spans of them."""
    gold, found = [["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "[PAD]"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert span_scores(gold, found) == (SpanScore(1.0, 1.0, 1.0, 1), {"PER": SpanScore(1.0, 1.0, 1.0, 1)})
    assert span_scores(gold, [["X", "[CLS]", "B-PER"]]).total == SpanScore(0.0, 0.0, 0.0, 1)
    assert span_scores(gold, [["O-X", "PER-B", "B-PER"]]).total == SpanScore(0.0, 0.0, 0.0, 1)
    assert span_scores([["B", "I", "O", "B"]], [["B", "I", "O", "O"]]).types == {"_": SpanScore(1.0, 0.5, 2 / 3, 2)}


def test_ill_formed_predictions_are_read_as_by_conlleval():
    assert [tuple(span) for span in find_spans(["I-PER", "O", "B-PER", "I-LOC", "I-LOC", "B-LOC"])] == [
        ("PER", 0, 0),
        ("PER", 2, 2),
        ("LOC", 3, 4),
        ("LOC", 5, 5),
    ]
    assert [tuple(span) for span in find_spans(["E-PER", "I-PER", "E-PER", "B-LOC", "O"])] == [
        ("PER", 0, 0),
        ("PER", 1, 2),
        ("LOC", 3, 3),
    ]


@given(tags=IOB_SEQUENCES)
def test_iob1_and_iob2_spell_the_same_spans(tags):
    iob2 = to_canonical_scheme(tags, "iob1")
    assert find_spans(iob2) == find_spans(tags)
    assert find_invalid_tag(iob2, "iob2") is None
    starts = {span.first for span in find_spans(tags)}
    assert [tag[0] == "B" for tag in iob2] == [index in starts for index in range(len(tags))]


@pytest.mark.parametrize(
    ("sequences", "scheme"),
    [
        ([["B-PER", "I-PER", "O"], ["O", "B-LOC", "B-LOC"]], "iob2"),
        ([["I-PER", "I-PER", "O"], ["I-LOC", "B-LOC"]], "iob1"),
        ([["B-PER", "O"], ["I-LOC"]], "iob1"),  # an error, or iob1: both are read in the same way
        ([["B-PER", "E-PER", "O"]], "bioes"),
        ([["U-PER", "O"]], "bioes"),
        ([["NOUN", "X", "PUNCT"]], "none"),
        ([["O", "PER", "PER"]], "none"),
        ([["N------S1R", "S----3MS1-", "I---------"]], "none"),  # Arabic treebank
        ([["B-X", "I-X"]], "iob2"),
        ([["O", "O"]], "none"),
        ([["B-PER", "O"], ["PER"]], "iob2"),
        ([["B", "I", "O"], ["O"]], "iob2"),
        ([["I", "O"]], "iob1"),
        ([["B", "E", "O", "S"]], "bioes"),
        ([["B", "NN", "O"]], "none"),
        ([["S", "L", "O"]], "none"),
        ([["B", "I"]], "none"),  # segmented words: every letter is in a span
        ([], "none"),
    ],
)
def test_schemes_are_detected(sequences, scheme):
    assert detect_scheme(sequences) == scheme


@pytest.mark.parametrize(
    ("tags", "scheme", "index", "reason"),
    [
        (["B-PER", "PER"], "iob2", 1, "expected a tag of iob2: O, B-…, I-…"),
        (["O", "X-PER"], "iob1", 1, "expected a tag of iob1: O, B-…, I-…"),
        (["B-", "O"], "bioes", 0, "expected a tag of bioes: O, B-…, I-…, E-…, S-…, L-…, U-…"),
        (["E-PER"], "iob2", 0, "expected a tag of iob2"),
        (["O", "I-PER"], "iob2", 1, "a span of iob2 begins with B-; in --scheme iob1"),
        (["B-LOC", "I-PER"], "iob2", 1, "a span of iob2 begins with B-"),
    ],
)
def test_invalid_tag_is_found(tags, scheme, index, reason):
    fault = find_invalid_tag(tags, scheme)
    assert fault is not None
    assert fault.word_index == index
    assert fault.reason.startswith(reason)
    assert find_invalid_tag(tags, "none") is None


def test_span_scores_hand_worked():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O", "B-ORG"]]
    predicted = [["I-PER", "I-PER", "O", "B-ORG"], ["B-LOC", "O", "O"]]
    total, types = span_scores(gold, predicted)
    assert total == SpanScore(2 / 3, 1 / 2, pytest.approx(4 / 7), 4)
    assert types == {
        "LOC": SpanScore(1.0, 0.5, pytest.approx(2 / 3), 2),
        "ORG": SpanScore(0.0, 0.0, 0.0, 1),
        "PER": SpanScore(1.0, 1.0, 1.0, 1),
    }
    assert accuracy(gold, predicted) == pytest.approx(4 / 7)


def test_span_scores_equal_those_of_a_naive_matcher():
    draw = random.Random(0)
    gold = [draw.choices(IOB, k=draw.randrange(8)) for _ in range(40)]
    predicted = [[tag if draw.random() < 0.7 else draw.choice(IOB) for tag in tags] for tags in gold]
    there = {(number, *span) for number, tags in enumerate(gold) for span in naive(tags)}
    found = {(number, *span) for number, tags in enumerate(predicted) for span in naive(tags)}
    total, types = span_scores(gold, predicted)
    hits = len(there & found)
    assert total.support == len(there)
    assert total.precision == pytest.approx(hits / len(found))
    assert total.recall == pytest.approx(hits / len(there))
    assert total.f1 == pytest.approx(2 * hits / (len(found) + len(there)))
    for name, score in types.items():
        mine, theirs = ({span for span in side if span[1] == name} for side in (there, found))
        assert score.support == len(mine)
        assert score.f1 == pytest.approx(2 * len(mine & theirs) / (len(mine) + len(theirs)))


def test_scores_without_spans_are_zero_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gold, predicted in ([["O"]], [["O"]]), ([["B-A"]], [["O"]]), ([["O"]], [["B-A"]]), ([], []):
            assert span_scores(gold, predicted).total[:3] == (0, 0, 0)


def test_sequences_of_unequal_length_are_rejected():
    with pytest.raises(ValueError, match="1 tag sequences, but predictions for 2"):
        span_scores([["O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="sequence 1 has 1 tags, but 2 predicted"):
        accuracy([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(ValueError, match="no word to score"):
        accuracy([[]], [[]])
