"""Columns of words and tags, as in CoNLL and CoNLL-U: files to lines, to blocks between blank lines, to sentences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mode
from typing import NamedTuple, Self

from bertwright.tables.conll_lines import (
    COMMENT,
    DOCUMENT_LINE,
    check_sentence_size,
    is_comment,
    split_cells,
    starts_document,
)
from bertwright.tables.delimited import without_blank_end
from bertwright.tables.tag_example import TagExample
from bertwright.text.decoding import read_text
from bertwright.text.lines import split_lines

SHOWN = 60  # characters of a line in a message


def to_conll(words: Sequence[str], tags: Sequence[str], location: str = "words") -> str:
    """Format a sentence as CoNLL columns: a word, a tab and its tag per line, and a blank line at the end.

    Raises ValueError with the location for a sentence without words, or a word that would be read differently.

    >>> to_conll(["Paris", "."], ["B-LOC", "O"]).split()
    ['Paris', 'B-LOC', '.', 'O']
    """
    if not words:
        raise ValueError(f"{location}: a column file has no sentences without words; write .jsonl")
    for word in words:
        mark = word.startswith(("\ufeff", DOCUMENT_LINE)) or COMMENT.match(word)  # a reader skips these
        is_padded = word != word.strip(" ") != ""  # a word of spaces alone is read as it is
        if mark or is_padded or not word or (not word.strip(" \r") and "\r" in word) or "\t" in word or "\n" in word:
            raise ValueError(f"{location}: the word {word!r} cannot be written to a column file; write .jsonl")
    return "".join([f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)]) + "\n"


class Line(NamedTuple):
    """A line of a file, numbered from 1."""

    number: int
    text: str


def read_column_lines(path: str, encoding: str) -> Iterator[Line]:
    for number, text in split_lines(path, read_text(path, encoding)):
        yield Line(number, text.rstrip("\r"))


def read_blocks(path: str, encoding: str) -> Iterator[list[Line]]:
    """Yield the lines between blank lines, which are sentences; a mark of a document is a block of its own."""
    block: list[Line] = []
    size = 0
    for line in read_column_lines(path, encoding):
        ends = not line.text.strip(" \t")
        alone = line.text.startswith(DOCUMENT_LINE)  # ends a sentence, with or without a blank line
        if (ends or alone) and block:
            yield block
            block, size = [], 0
        if alone:
            yield [line]
        elif not ends:
            block.append(line)
            size += len(line.text)
            check_sentence_size(path, line.number, len(block), size)
    if block:
        yield block


class Row(NamedTuple):
    """A line of columns."""

    number: int
    text: str
    cells: list[str]


class Column(NamedTuple):
    """A column to read."""

    number: int
    """From 0; negative: from the last, -1."""
    name: str
    """Name in messages."""
    blank: str
    """The cell that means no value."""
    spaces: bool = False
    """Whether spaces between tabs are a value: a word of a character-level corpus."""
    key: str = ""
    """Key of the value in cells such as SpaceAfter=No|NER=B-PER; a cell without it has the value O."""

    @classmethod
    def of(cls, asked: str, names: Sequence[str], path: str, blank: str = "") -> Self:
        """Find a column by its name, if columns have names, or by its number from 1 (negative: from the last)."""
        name, _, key = asked.partition(".")
        if name.lower() in names:
            return cls(names.index(name.lower()), f"column {asked}", "" if key else blank, key=key)
        try:
            number = int(asked)
        except ValueError:
            number = 0
        if number == 0:
            known = f"one of {', '.join(names)}, a key of one as in misc.NER, or " if names else ""
            raise ValueError(f"{path}: no column {asked!r}; name {known}a number from 1, or from the last, -1")
        return cls(number - 1 if number > 0 else number, f"column {asked}", blank)

    def value(self, cells: list[str]) -> str:
        cell = cells[self.number]
        if self.key:
            return dict(pair.partition("=")[::2] for pair in cell.strip(" ").split("|")).get(self.key, "O")
        return cell.strip(" ") or (cell if self.spaces else "")


def check_key(path: str, encoding: str, column: Column) -> None:
    """Raise ValueError for the column of a key that no cell of the file has."""
    lines = read_column_lines(path, encoding) if column.key else ()
    if column.key and not any(re.search(rf"[\t|]{re.escape(column.key)}=", line.text) for line in lines):
        raise ValueError(f"{path}: {column.name}: no word has {column.key}=…; name another key")


def sentences_of_columns(
    path: str, sentences: Iterable[tuple[int, list[Row]]], columns: list[Column]
) -> Iterator[TagExample]:
    """Yield a sentence for each document number and rows; `columns`: of words, and of tags if there are two.

    Raises ValueError with file and line for missing values, rows of unequal length and running text.
    """
    rows, num_trailing = list[Row](), 0
    # Of running text only the first word of each paragraph would be read: each sentence is one line without a tab.
    single_lines, num_columns = True, 0
    for document, whole_rows in sentences:
        rows = _without_blank_ends(whole_rows, len(columns))
        num_trailing += sum(map(Row.__ne__, rows, whole_rows))
        values = list(zip(*[_values(row, columns, path) for row in rows], strict=True))
        _check_num_columns(rows, path)
        single_lines = single_lines and len(rows) == 1 and "\t" not in rows[0].text
        if single_lines and num_columns not in (0, len(rows[0].cells)):
            raise _running_text_error(path, rows)
        num_columns = len(rows[0].cells)
        yield TagExample(
            words=values[0],
            tags=values[1] if len(columns) > 1 else None,
            source=path,
            lines=_compact([row.number for row in rows]),
            document=document,
        )
    if not rows:
        raise ValueError(f"{path}: no sentence in it; a broken download or export?")
    if num_trailing:
        warnings.warn(f"{path}: {num_trailing:,} lines end in blank cells, which are ignored", stacklevel=1)
    if len(columns) == 1 and single_lines and num_columns != 1:  # without tags, nothing else tells columns from text
        raise _running_text_error(path, rows)


def rows_by_sentence(
    blocks: Iterable[list[Line]], split: Callable[[list[Line]], list[Row]], comment_prefix: str | None
) -> Iterator[tuple[int, list[Row]]]:
    """Yield the rows of each sentence, without comments, and the number of its document."""
    document = 0
    for block in blocks:
        document += any(starts_document(line.text) for line in block)
        if block[0].text.startswith(DOCUMENT_LINE):
            continue
        lines = [line for line in block if not (comment_prefix and line.text.startswith(comment_prefix))]
        if lines and (rows := split(lines)):
            yield document, rows


def _running_text_error(path: str, rows: list[Row]) -> ValueError:
    return ValueError(
        f"{path}, line {rows[0].number}: running text? Expected columns of words and tags, one word per line; if "
        "sentences have one word only, separate the columns by tabs"
    )


def conllu_rows(block: list[Line]) -> list[Row]:
    """Return the words of a sentence in CoNLL-U."""
    rows = [Row(number, text, text.split("\t")) for number, text in block if not text.startswith("#")]
    return [row for row in rows if "-" not in row.cells[0] and "." not in row.cells[0]]


def column_rows(block: list[Line]) -> list[Row]:
    """Return the lines of a sentence that are no comments."""
    rows = [Row(number, text, split_cells(text)) for number, text in block]
    num_columns = len(rows[-1].cells)
    return [row for row in rows if not is_comment(row.text, num_columns)]


def _without_blank_ends(rows: list[Row], needed: int) -> list[Row]:
    """Return the rows without the cells that are blank in all rows of the sentence, after the `needed` first ones."""
    width = max(needed, *(len(without_blank_end(cells)) for _, _, cells in rows))
    return [row._replace(cells=row.cells[:width]) for row in rows]


def _values(row: Row, columns: list[Column], path: str) -> tuple[str, ...]:
    """Return the values of the given columns in one line. Raises ValueError for a missing one."""
    number, text, cells = row
    try:
        found = tuple([column.value(cells) for column in columns])
    except IndexError:
        found = ()
    if len({column.number % len(cells) for column in columns[: len(found)]}) < len(columns):  # too few, or one for both
        raise ValueError(
            f"{path}, line {number}: expected {' and '.join(column.name for column in columns)}, got "
            f"{len(cells)} column{'s' * (len(cells) != 1)}: {text[:SHOWN]!r}; choose them with --words and --tags"
            f"{_comment_hint(text)}"
        )
    for column, value in zip(columns, found, strict=True):
        if value == column.blank:
            raise ValueError(f"{path}, line {number}: no value ({value!r}) in {column.name}; fix the line")
    return found


def _check_num_columns(rows: list[Row], path: str) -> None:
    """Raise ValueError for a line with another number of columns than most lines of its sentence."""
    num_columns = mode(len(cells) for _, _, cells in rows)
    for number, text, cells in rows:
        if len(cells) != num_columns:
            raise ValueError(
                f"{path}, line {number}: expected {num_columns} columns, as in the other lines of the sentence, got "
                f"{len(cells)}: {text[:SHOWN]!r}; fix the line, or separate the columns of all lines by tabs"
                f"{_comment_hint(text)}"
            )


def _comment_hint(text: str) -> str:
    """Return a hint to the setting for comments if a line looks like one."""
    marks = re.match(r"#+", text)
    return f"; if it is a comment, set --comment-prefix {marks[0]!r}" if marks else ""


def _compact(numbers: list[int]) -> Sequence[int]:
    """Return the numbers as a range if they are consecutive, which takes less memory."""
    whole = range(numbers[0], numbers[-1] + 1)
    return whole if len(whole) == len(numbers) else tuple(numbers)
