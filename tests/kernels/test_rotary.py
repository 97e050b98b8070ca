"""Rotary positions: the native kernel against its reference, and the property of rotations."""

from __future__ import annotations

import pytest
import torch
from gradients import with_gradients
from torch import Tensor

from bertwright.kernels import reference
from bertwright.kernels.rotary import rotate, rotation_tables

POSITIONS = torch.tensor([0, 1, 2, 3, 0, 1, 17, 30])


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def reference_rotate(qkv: Tensor) -> Tensor:
    tables = rotation_tables(10_000.0, qkv.shape[-1], 31, torch.device("cpu"))
    return reference.rotate(qkv, *(table[POSITIONS] for table in tables))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 8, 20, 64])
def test_rotation_equals_its_reference(size: int, dtype: torch.dtype) -> None:
    qkv = random(8, 3, 2, size, dtype=dtype)
    got = with_gradients(lambda x: rotate(x, POSITIONS, 31, 10_000.0), qkv)
    torch.testing.assert_close(got, with_gradients(reference_rotate, qkv))
    assert torch.equal(got[0][:, 2], qkv[:, 2])


def test_scores_of_rotated_vectors_depend_on_their_distance() -> None:
    qkv = random(1, 3, 1, 16).expand(8, 3, 1, 16)
    query, key, _ = rotate(qkv, POSITIONS, 31, 10_000.0).unbind(1)
    scores = (query[:, 0] @ key[:, 0].T).tolist()
    assert scores[0][1] == pytest.approx(scores[2][3], abs=1e-5)
    assert scores[0][1] != pytest.approx(scores[0][2], abs=1e-2)


def test_positions_beyond_the_tables_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected ids from 0 to 29, got 0 to 30"):
        rotate(random(8, 3, 2, 8), POSITIONS, 30, 10_000.0)
