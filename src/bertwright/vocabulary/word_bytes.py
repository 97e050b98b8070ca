"""Words as rows of bytes, the input of ELMo (Peters et al. 2018; the ids are its released code's).

W = `WORD_BYTES` numbers per word: the mark of its beginning, its UTF-8 bytes, the mark of its end, padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WORD_BYTES = 50
BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
NUM_BYTES = 261  # the 256 bytes and the five marks
MAX_BYTES = WORD_BYTES - 2  # a longer word loses its last bytes


def word_byte_rows(words: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return the rows of words, N × W.

    >>> word_byte_rows(["né"])[0, :6].tolist()
    [258, 110, 195, 169, 259, 260]
    """
    return _rows([word.encode()[:MAX_BYTES] for word in words])


def mark_rows() -> npt.NDArray[np.int32]:
    """Return the rows of the marks before and after a text, 2 × W; each is a word of one byte that no text has."""
    return _rows([[BEGIN_TEXT], [END_TEXT]])


def _rows(words: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    rows = np.full((len(words), WORD_BYTES), PADDING, dtype=np.int32)
    rows[:, 0] = BEGIN_WORD
    for row, word in zip(rows, words, strict=True):
        row[1 : 1 + len(word)] = [*word]
        row[1 + len(word)] = END_WORD
    return rows
