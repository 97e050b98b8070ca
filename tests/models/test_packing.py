"""Packed batches: hand-worked packing, offsets and positions against a loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertwright.base.ragged import offsets_from_lengths, positions_from_lengths
from bertwright.models.packing import pack


def test_pack_lays_sequences_end_to_end() -> None:
    batch = pack([np.array([2, 7, 8, 3]), np.array([2, 9, 3])], [np.array([0, 0, 1, 1]), np.array([0, 0, 0])])
    assert batch.input_ids.tolist() == [2, 7, 8, 3, 2, 9, 3]
    assert batch.token_type_ids.tolist() == [0, 0, 1, 1, 0, 0, 0]
    assert batch.packing.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert batch.packing.cu_seqlens.tolist() == [0, 4, 7]
    assert (batch.packing.max_seqlen, batch.packing.num_tokens, len(batch.packing)) == (4, 7, 2)
    assert batch.packing.cu_seqlens.dtype == torch.int32
    assert batch.input_ids.dtype == batch.token_type_ids.dtype == batch.packing.position_ids.dtype == torch.int64


def test_pack_accepts_ids_of_any_integer_type() -> None:
    assert pack([np.array([65_535], dtype=np.uint16)]).input_ids.tolist() == [65_535]


def test_to_preserves_fields_that_are_no_tensors() -> None:
    batch = pack([np.array([5])]).with_dropout(7, 9)
    moved = batch.to("meta")
    assert moved.input_ids.device.type == moved.packing.cu_seqlens.device.type == "meta"
    assert (moved.packing.max_seqlen, moved.packing.dropout_seed, moved.packing.first_token) == (1, 7, 9)


def test_empty_sequence_raises_an_error_with_its_number() -> None:
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        pack([np.array([2]), np.array([], dtype=np.int64)])


def test_token_types_of_other_lengths_raise_an_error() -> None:
    with pytest.raises(ValueError, match="lengths of the sequences"):
        pack([np.array([2, 3])], [np.array([0])])


@given(st.lists(st.integers(0, 5), max_size=20))
def test_offsets_and_positions_equal_those_of_a_loop(lengths: list[int]) -> None:
    bounds, counting = [0], []
    for length in lengths:
        bounds.append(bounds[-1] + length)
        counting += range(length)
    assert offsets_from_lengths(np.array(lengths, dtype=np.int64)).tolist() == bounds
    assert positions_from_lengths(np.array(lengths, dtype=np.int64)).tolist() == counting
