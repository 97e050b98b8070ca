"""Marks and comments of CoNLL files, by the same rules for a corpus and for tagged sentences."""

from __future__ import annotations

import re

from bertwright.text.lines import MAX_CHARACTERS

DOCUMENT_LINE = "-DOCSTART-"
MAX_LINES = 1_000_000  # limit of a sentence; each line takes some hundred bytes of memory, even if it is short
DOCUMENT_COMMENT = re.compile(r"#\s+newdoc\b|#\s*begin document\b")
COMMENT = re.compile(DOCUMENT_COMMENT.pattern + r"|#\s+newpar\b|#\s*end document\b|#\s+\S+\s+=(\s|$)")


def starts_document(line: str) -> bool:
    """Return whether a line marks the start of a document."""
    return line.startswith(DOCUMENT_LINE) or DOCUMENT_COMMENT.match(line) is not None


def check_sentence_size(path: str, number: int, lines: int, characters: int) -> None:
    """Raise ValueError for a sentence of too many lines or characters; `number` is the number of its last line."""
    if lines > MAX_LINES or characters > MAX_CHARACTERS:
        raise ValueError(
            f"{path}, line {number}: a sentence of more than {MAX_LINES:,} lines or {MAX_CHARACTERS:,} characters; put "
            "a blank line after each sentence"
        )


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
