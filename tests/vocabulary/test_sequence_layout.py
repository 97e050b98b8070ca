"""Layouts of sequences, by hand and against a loop."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import bertwright
from bertwright.vocabulary import sequence_layout
from bertwright.vocabulary.sequence_layout import SequenceLayout

BERT = SequenceLayout(first=101, between=102, last=102)
GPT = SequenceLayout(first=7, between=8, last=9, has_types=False)


def test_bert_pairs_have_segment_types_and_a_separator_after_each_segment() -> None:
    placed = BERT.place([np.array([2, 1]), np.array([1, 0])])
    assert placed.ids.tolist() == [101, 0, 0, 102, 0, 102, 101, 0, 102, 102]
    assert placed.token_type_ids is not None
    assert placed.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1]
    assert placed.is_text.nonzero()[0].tolist() == [1, 2, 4, 7]
    assert placed.lengths.tolist() == [6, 4]
    assert [start.tolist() for start in placed.starts] == [[1, 1], [4, 3]]


def test_gpt_pairs_have_a_delimiter_and_no_segment_types() -> None:
    placed = GPT.place([np.array([1]), np.array([2])])
    assert placed.ids.tolist() == [7, 0, 8, 0, 0, 9]
    assert placed.token_type_ids is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=5), st.integers(1, 3))
def test_layout_equals_a_loop_over_sequences_and_segments(sizes: list[tuple[int, ...]], segments: int) -> None:
    ids, types, starts = [], [], []
    for size in sizes:
        sequence, kinds, begins = [BERT.first], [0], []
        for number in range(segments):
            begins.append(len(sequence))
            sequence += [0] * size[number] + [BERT.last if number == segments - 1 else BERT.between]
            kinds += [number] * (size[number] + 1)
        ids, types, starts = [*ids, *sequence], [*types, *kinds], [*starts, begins]
    placed = BERT.place([np.array([size[number] for size in sizes], dtype=np.int64) for number in range(segments)])
    assert placed.ids.tolist() == ids
    assert placed.token_type_ids is not None
    assert placed.token_type_ids.tolist() == types
    assert np.stack(placed.starts, axis=1).tolist() == starts
    assert placed.is_text.tolist() == [number == 0 for number in ids]
    assert int(placed.lengths.sum()) == len(ids)


def test_every_other_place_that_writes_special_tokens_is_named() -> None:
    named = set(re.findall(r"\w+", sequence_layout.__doc__ or ""))
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(bertwright.__file__).parent.rglob("*.py")}
    writers = {name for name, text in texts.items() if re.search(r"layout\.(first|between|last)|TemplateProc", text)}
    assert len(writers) >= 4
    unnamed = {name for name in writers if not named & set(re.findall(r"(?:class|def) (\w+)", texts[name]))}
    assert unnamed == {"marian.py"}  # writes the ids into config.json
