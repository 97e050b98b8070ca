"""Scores of int8 vectors for one query: sums of whole numbers, without a copy of the vectors in float32."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.kernels import native_library

MAX_SUM, MAX_INT8, MAX_INT16 = (1 << 31) - 1, 127, (1 << 15) - 1


class RoundedQuery(NamedTuple):
    """A query of D numbers as whole numbers times `scale`."""

    values: npt.NDArray[np.int16]
    scale: float

    @property
    def error(self) -> float:
        """Bound of the error of a dot product with a vector of length 1, by the rounding of each number."""
        return 0.5 * self.scale * math.sqrt(len(self.values))


def round_query(query: npt.NDArray[np.float32]) -> RoundedQuery:
    """Round a query to 16 bits, or to fewer if a sum of its products with int8 numbers could exceed 32 bits."""
    numbers = np.abs(query.astype(np.float64))
    largest = max(float(numbers.max(initial=0)) / MAX_INT16, (float(numbers.sum()) * MAX_INT8) / (MAX_SUM / 2))
    scale = largest or 1.0
    return RoundedQuery(np.rint(query / scale).astype(np.int16), scale)


def score_int8(query: RoundedQuery, vectors: npt.NDArray[np.int8]) -> npt.NDArray[np.float32]:
    """Compute the dot products of a query and N × D vectors, whose scales are left to the caller: N float32."""
    library = _library()
    vectors = np.ascontiguousarray(vectors, np.int8)
    if vectors.ndim != 2 or vectors.shape[1] != len(query.values):
        raise ValueError(f"int8 vectors: expected {len(query.values)} numbers each, got {vectors.shape}")
    sums = np.empty(len(vectors), np.int32)
    if library is None:
        sums[:] = vectors.astype(np.int32) @ query.values.astype(np.int32)
    else:
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (query.values, vectors, sums)]
        library.int8_scores(*pointers[:2], *vectors.shape, pointers[2])
    return sums * np.float32(query.scale)


@functools.cache
def _library() -> Any:
    library = native_library.load_library("int8_scores")
    if library is not None:
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        library.int8_scores.argtypes = [pointer, pointer, integer, integer, pointer]
        library.int8_scores.restype = None
    return library
