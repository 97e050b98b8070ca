"""Marks and comments of CoNLL files, by the same rules for a corpus and for tagged sentences."""

from __future__ import annotations

import re

DOCUMENT_LINE = "-DOCSTART-"
DOCUMENT_COMMENT = re.compile(r"#\s+newdoc\b|#\s*begin document\b")
COMMENT = re.compile(DOCUMENT_COMMENT.pattern + r"|#\s+newpar\b|#\s*end document\b|#\s+\S+\s+=(\s|$)")


def starts_document(line: str) -> bool:
    """Return whether a line marks the start of a document."""
    return line.startswith(DOCUMENT_LINE) or DOCUMENT_COMMENT.match(line) is not None


def split_cells(line: str) -> list[str]:
    r"""Split a line at its tabs or, if it has none, at its spaces; a word may contain other white space (U+00A0).

    >>> split_cells("New\u00a0York NNP  B-LOC"), split_cells("a b\tO")
    (['New\xa0York', 'NNP', 'B-LOC'], ['a b', 'O'])
    """
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def is_comment(line: str, num_columns: int) -> bool:
    """Return whether a line of a sentence in columns is a comment; else # is a word, as in CoNLL-2000.

    `num_columns`: number of columns in the last line of its sentence.

    >>> is_comment("# id = 3", 2), is_comment("# NN", 2), is_comment("# some words", 2), is_comment("#deal NN", 2)
    (True, False, True, False)
    """
    if not line.startswith("#"):
        return False
    return bool(COMMENT.match(line)) or (line[1:2] in (" ", "\t") and len(split_cells(line)) != num_columns)
