"""Files in NumPy's format .npy, written in constant memory."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the bytes of a .npy file before its numbers; their count does not depend on the first length."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return header.getvalue()


def allocate_npy(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """Create a file of known length and map it into memory, to be written in any order.

    Its space on the disk is taken first, because writing to a map on a full disk kills the process (SIGBUS).
    """
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype).newbyteorder("<"), shape=shape)
    if hasattr(os, "posix_fallocate"):  # absent on macOS and Windows
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


class NpyWriter:
    """A .npy file that is written by appending; its final length is written into its header when it is closed.

    It is not a memory map, because writing to one on a full disk kills the process (SIGBUS).
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        """Prepare a file of little-endian numbers; `row_shape` is the shape of one entry of the first axis."""
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.row_shape = row_shape
        self.length = 0

    def __enter__(self) -> NpyWriter:
        self._file = self.path.open("wb")
        self._write_header()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                self._write_header()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append entries, N × `row_shape`. Raises ValueError for entries of another shape."""
        if values.shape[1:] != self.row_shape:
            raise ValueError(f"expected entries of shape {self.row_shape}, got {values.shape[1:]}")
        self._file.write(values.astype(self.dtype, copy=False).tobytes())
        self.length += len(values)

    def _write_header(self) -> None:
        self._file.write(npy_header(self.dtype, (self.length, *self.row_shape)))
