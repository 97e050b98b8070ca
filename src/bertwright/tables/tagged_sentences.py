"""Sentences of tagged words, read from columns as in CoNLL, from CoNLL-U, and from rows of lists or texts."""

from __future__ import annotations

import glob
import re
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from bertwright.tables.char_spans import count_in_characters, parse_spans
from bertwright.tables.conll_columns import (
    Column,
    Line,
    Row,
    check_key,
    column_rows,
    conllu_rows,
    read_blocks,
    read_column_lines,
    rows_by_sentence,
    sentences_of_columns,
)
from bertwright.tables.conll_lines import DOCUMENT_LINE, split_cells
from bertwright.tables.dialects import PLAIN, recognize
from bertwright.tables.label_dialects import ANNOTATIONS, ANSWER, OF_PRODIGY, REJECTED, leave_out_unannotated
from bertwright.tables.row_formats import LIST_FORMATS, read_file_rows
from bertwright.tables.schema import TableSchema, leave_out_rows
from bertwright.tables.standoff import PUBTATOR_TEXT, texts_of_annotations
from bertwright.tables.tables import column_names, read_rows
from bertwright.tables.tag_example import TagExample
from bertwright.tables.word_dialects import PLAIN_LISTS, RowColumns, are_brackets, cells_of, without_brackets
from bertwright.tables.word_tables import WordColumns, find_word_columns, join_words
from bertwright.text.decoding import ReadStats, TextCodec
from bertwright.text.sources import expand_files, find_file, format_of, is_remote

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
UNSPECIFIED = "_"  # an unspecified value in CoNLL-U
SHOWN = 60  # characters of a line in a message
TAG_FILES = {"in": "out", "words": "tags", "sentences": "labels"}  # the file beside one with a sentence per line
HEAD_SENTENCES = 20  # sentences that show which columns hold words and tags


@dataclass(frozen=True)
class ColumnFormat:
    """Where a file has its words and tags."""

    words: str | None = None
    """Name or number of the column; None: the format's own, or recognized."""
    tags: str | None = None
    """As `words`."""
    comment_prefix: str | None = None
    """Beginning of lines that are comments, too."""
    encoding: str = "utf-8"
    suffix: str | None = None
    """The format, such as conllu, whatever the file's suffix."""
    dialect: str | None = None
    """Name of the layout; None: recognized, unless the columns are named."""

    def schema(self, names: tuple[str, ...] = ()) -> TableSchema:
        return TableSchema((), names, encoding=self.encoding, suffix=self.suffix, dialect=self.dialect)


def read_sentences(path: str, labeled: bool, columns: ColumnFormat = ColumnFormat()) -> Iterator[TagExample]:
    """Read the sentences of a file or glob, in order, in constant memory; with `labeled`, also their tags.

    - `.conllu`: columns by name or number (form, upos). Multiword ranges (1-2) and empty nodes (1.1) are skipped;
      `# newdoc` starts a document.
    - `.jsonl`, `.json` and `.parquet`: lists of strings by field (words, tags); or a text, which is split into words,
      and its entities as spans of characters (see `char_spans`). Each row is a document of its own. A glob may name
      several such files. Numbers in a .parquet of the hub become the tags that its metadata names.
    - a table with a word per row, if its first line (or in .jsonl its row) names columns of words, tags and sentences.
    - a .txt with brat's .ann beside it, and PubTator's files: an example per line of text.
    - any other suffix, in one or several files: columns separated by tabs, or else by spaces, by number from 1
      or, negative, from the last (1, -1); a blank line ends a sentence and `-DOCSTART-` starts a document. Between tabs
      a space is a word. Comments are `# key = value`, `# newdoc`, `#begin document`, `#end document`, and a line that
      starts with # and white space and has another number of columns than its sentence's last line; else # is a word,
      as in CoNLL-2000.

    Files of rows and of columns may be in one of the layouts of the table of dialects.

    Every format except .parquet may be compressed, or hf://datasets/….
    Raises ValueError with file and line for invalid input: missing columns or values, lists of unequal length, bytes
    that are invalid in the encoding, no sentence at all.
    """
    is_set = Path(path).is_dir() or glob.has_magic(path)
    files = texts_of_annotations([*expand_files(path)] if is_set and not is_remote(path) else [path])
    form = format_of(files[0], columns.suffix)
    if form in LIST_FORMATS:
        return _from_rows(path, labeled, columns)
    if len(files) > 1:
        return _of_several(files, labeled, columns)
    if form == ".conllu":
        return _read_conllu(files[0], labeled, columns)
    file = WordFile(files[0], labeled, columns)
    _ = file.columns  # raises for names of columns, whatever the layout
    if form == ".csv" and (file.table is None or columns.dialect == PLAIN):  # its lines would become words
        raise ValueError(
            f"{path}: sentences are read from .jsonl, .json, .parquet, .conllu, columns of words and tags such as "
            ".conll, and a .csv whose first line names columns, such as sentence_id,word,tag; convert the file"
        )
    place = str(Path(file.path).parent) if file.annotations else file.path  # one warning for all files
    dialect = recognize("words", file, place, columns.dialect)
    return dialect.rows(file) if dialect else file.read()


def _read_conllu(path: str, labeled: bool, given: ColumnFormat) -> Iterator[TagExample]:
    columns = [Column.of(given.words or "form", CONLLU_COLUMNS, path)]
    columns += [Column.of(given.tags or "upos", CONLLU_COLUMNS, path, UNSPECIFIED)] * labeled
    for column in columns:
        check_key(path, given.encoding, column)
    blocks = read_blocks(path, given.encoding)
    return sentences_of_columns(path, rows_by_sentence(blocks, conllu_rows, given.comment_prefix), columns)


@dataclass(frozen=True)
class WordFile:
    """A file with words and tags in columns, in a table, in a text with spans, or beside a file with its tags."""

    path: str
    labeled: bool
    """Whether tags are read."""
    given: ColumnFormat

    def read_lines(self, path: str) -> Iterator[Line]:
        """Yield the lines of this file, or of one beside it."""
        return read_column_lines(path, self.given.encoding)

    @cached_property
    def first_line(self) -> str:
        return next(self.read_lines(self.path), Line(1, "")).text

    @cached_property
    def is_csv(self) -> bool:
        return format_of(self.path, self.given.suffix) == ".csv"

    @cached_property
    def table(self) -> WordColumns | None:
        """The columns of a table with a word per row, if the first line names them."""
        names = column_names(self.path, self.given.schema()) if self.is_csv else split_cells(self.first_line)
        return find_word_columns(names, self.given.words, self.given.tags)

    @cached_property
    def tag_file(self) -> str | None:
        """The file with the tags of a file of sentences, such as seq.out beside seq.in."""
        name = Path(self.path).name
        for words, tags in TAG_FILES.items():
            beside = Path(self.path).with_name(re.sub(rf"(?<![^._-]){words}(?![^._-])", tags, name))
            if beside.name != name and Path(self.path).is_file() and beside.is_file():
                return str(beside)
        return None

    @cached_property
    def annotations(self) -> str | None:
        """The .ann beside a .txt, with entities as brat writes them."""
        beside = Path(self.path).with_suffix(".ann")
        return str(beside) if self.path.endswith(".txt") and beside.is_file() else None

    @property
    def is_pubtator(self) -> bool:
        return PUBTATOR_TEXT.fullmatch(self.first_line) is not None

    # Columns

    @cached_property
    def columns(self) -> tuple[Column, Column]:
        """The columns of words and tags that the user named, else the first and the last one."""
        named = self.given if self.table is None else ColumnFormat()  # a header's names are no numbers
        words = Column.of(named.words or "1", (), self.path)._replace(spaces=True)
        return words, Column.of(named.tags or "-1", (), self.path)

    @cached_property
    def _sentences(self) -> Iterator[tuple[int, list[Row]]]:
        """Document and rows of each sentence after `_first`; the file is read once."""
        return rows_by_sentence(read_blocks(self.path, self.given.encoding), column_rows, self.given.comment_prefix)

    @cached_property
    def _first(self) -> list[tuple[int, list[Row]]]:
        """The first sentences; none if the file has another form or its tags are elsewhere."""
        has_columns = not (self.tag_file or self.table or self.annotations or self.is_pubtator)
        return list(islice(self._sentences, HEAD_SENTENCES)) if has_columns else []

    @cached_property
    def head(self) -> list[list[list[str]]]:
        """The cells of the lines of the first sentences."""
        return [[row.cells for row in rows] for _, rows in self._first]

    @property
    def is_unnamed(self) -> bool:
        """Whether the file has columns, and the user has not named the one with the words."""
        return not self.given.words and bool(self.head)

    @cached_property
    def rows(self) -> list[list[str]]:
        return [cells for sentence in self.head for cells in sentence]

    @cached_property
    def width(self) -> int:
        """Columns that all lines have."""
        return min(map(len, self.rows), default=0)

    def cells(self, column: int) -> list[str]:
        """Return the cells of a column in the lines that have it."""
        return cells_of(self.rows, column)

    def counts_words(self, column: int, start: int) -> bool:
        """Return whether a column numbers the words of each sentence from `start` on, also in one of several words."""
        numbered = (enumerate(sentence, start) for sentence in self.head)
        return any(len(sentence) > 1 for sentence in self.head) and all(
            cells[column] == str(number) for sentence in numbered for number, cells in sentence
        )

    def read(self, words: int | None = None, tags: int | None = None) -> Iterator[TagExample]:
        """Read the sentences from these columns, from 0, unless the user named others."""
        columns = [
            column if named or n is None else column._replace(number=n, name=f"column {n + (n >= 0)}")
            for column, named, n in zip(self.columns, (self.given.words, self.given.tags), (words, tags), strict=True)
        ]
        return sentences_of_columns(self.path, chain(self._first, self._sentences), columns[: 1 + self.labeled])

    def read_from(self, words: int | None = None, tags: int | None = None) -> Iterator[TagExample]:
        """Read from these columns, unless the user named others; tags in brackets become IOB2."""
        examples, chosen = self.read(words, tags), self.columns[1].number if self.given.tags or tags is None else tags
        return map(without_brackets, examples) if self.labeled and are_brackets(self.cells(chosen)) else examples

    # A table with a word per row, of cells in quotes (.csv) or columns as in CoNLL

    def read_table(self) -> Iterator[TagExample]:
        """Yield the sentences of a table. Raises ValueError if its first line does not name the columns."""
        if self.table is None or (self.labeled and self.table.tag is None):
            raise ValueError(
                f"{self.path}, line 1: expected columns such as sentence_id, word and tag; name them with --tags"
            )
        names, lines = self.table.names(self.labeled), self.read_lines(self.path)
        if self.is_csv:
            file, codec = find_file(self.path, suffix=self.given.suffix), TextCodec(self.given.encoding)
            rows: Iterable[tuple[int, Sequence[Any]]] = read_file_rows(
                file, self.given.schema(names), codec, ReadStats()
            )
        else:
            header = split_cells(next(lines).text)
            columns = [Column(header.index(name), f"column {name}", "") for name in names]
            rows = ((line.number, _cells_of_line(line, columns, self.path)) for line in lines)
        return join_words(self.path, self.labeled, self.table.sentence is not None, rows)


def _cells_of_line(line: Line, columns: list[Column], path: str) -> list[str]:
    cells = split_cells(line.text)
    if not any(map(str.strip, cells)) or line.text.startswith(DOCUMENT_LINE):
        return [line.text.strip(), *[""] * (len(columns) - 1)]
    if len(cells) <= max(column.number for column in columns):
        raise ValueError(
            f"{path}, line {line.number}: expected {columns[-1].name}, got {line.text[:SHOWN]!r}; fix the line"
        )
    return [column.value(cells) for column in columns]


def _of_several(files: Sequence[str], labeled: bool, columns: ColumnFormat) -> Iterator[TagExample]:
    """Read the sentences of several column files; each file begins a document."""
    document = 0
    for path in files:
        before = document
        for sentence in read_sentences(path, labeled, columns):
            document = before + sentence.document
            yield replace(sentence, document=document)
        document += 1


def with_document_context(sentences: Iterable[TagExample], words: int) -> Iterator[TagExample]:
    """Add to each sentence about `words` words of its document on either side, as far as the document has them.

    Whole sentences are added, by reference. Only the needed window of a document is in memory.
    """
    for _, document in groupby(sentences, key=lambda sentence: sentence.document):
        yield from _add_context(document, words)


def _add_context(document: Iterator[TagExample], words: int) -> Iterator[TagExample]:
    before: deque[tuple[str, ...]] = deque()
    ahead: deque[TagExample] = deque()
    words_before = words_ahead = 0
    while True:
        while not ahead or words_ahead - len(ahead[0].words) < words:
            if (following := next(document, None)) is None:
                break
            ahead.append(following)
            words_ahead += len(following.words)
        if not ahead:
            return
        sentence = ahead.popleft()
        words_ahead -= len(sentence.words)
        yield replace(sentence, before=tuple(before), after=tuple([other.words for other in ahead]))
        before.append(sentence.words)
        words_before += len(sentence.words)
        while words_before - len(before[0]) >= words:
            words_before -= len(before.popleft())


# Rows of lists


def _from_rows(path: str, labeled: bool, columns: ColumnFormat) -> Iterator[TagExample]:
    words, tags = columns.words, columns.tags
    names = [] if words and tags else column_names(path, columns.schema())
    present = frozenset([*names, *(name.partition(".")[0] for name in names)])  # spans may be an object's members
    if (table := find_word_columns(names, words, tags)) and table.sentence and (labeled <= bool(table.tag)):
        asked = replace(columns.schema(table.names(labeled)), allow_nulls=True)
        rows = read_rows(path, asked)
        if isinstance(next(rows)[1][0], str):  # else rows of lists
            numbered = ((number, values) for number, (_, values) in enumerate(read_rows(path, asked), 1))
            yield from join_words(path, labeled, True, numbered)
            return
    given, pair = RowColumns(present, words, tags), PLAIN_LISTS[0]
    if not given.first(PLAIN_LISTS) and (dialect := recognize("fields", given, path, columns.dialect)):
        pair = dialect.rows(given)
    fields = (words or pair[0], tags or pair[1])[: 1 + labeled]
    of_snips = present == {"data"}  # pieces of texts; seq.in and seq.out have the same
    hint = "of SNIPS? Use its seq.in with seq.out beside it" if of_snips else "choose them with --words and --tags"
    schema = replace(columns.schema(fields), hint=hint)
    of_prodigy = labeled and present >= OF_PRODIGY
    if of_prodigy:
        schema = replace(schema, values=(*fields, ANSWER))
    rows = read_rows(path, schema)
    if of_prodigy:
        rows = leave_out_rows(rows, path, ANSWER, REJECTED, " or ".join(REJECTED))
    elif fields == ("data.text", ANNOTATIONS):
        rows = leave_out_unannotated(rows, path)
    counted, odd, has_spans = Counter[str](), "", False
    for document, (location, values) in enumerate(rows):
        example = _row_example(values[: len(fields)], fields, location, counted)
        has_spans = has_spans or example.spans != ()
        odd = odd or (f"{location}: {str(values[1])[:SHOWN]}" if example.spans == () and values[1] else "")
        yield replace(example, document=document)
    if odd and not has_spans:
        warnings.warn(f"{path}: no entity is understood, such as {odd}", stacklevel=1)
    for name in counted.keys() - {"characters"}:
        text = f"the spans of {counted[name]:,} texts count {name}; converted to characters"
        warnings.warn(f"{path}: {text}", stacklevel=1)


def _row_example(values: Sequence[Any], fields: Sequence[str], location: str, counted: Counter[str]) -> TagExample:
    if isinstance(values[0], str):
        example, where = TagExample.from_text(values[0], source=location), f"{location}: {fields[-1]!r}"
        if len(fields) == 1:
            return example
        spans, name = count_in_characters(values[0], parse_spans(values[1], where), example.offsets, where)
        counted[name] += 1
        return replace(example, spans=tuple(spans)).split_into("word")
    for name, value in zip(fields, values, strict=True):
        _check_strings(value, name, location)
    tags = tuple(values[1]) if len(fields) > 1 else None
    if blank := [number for number, tag in enumerate(tags or (), 1) if tag.strip() != tag or not tag]:
        tag = (tags or ())[blank[0] - 1]
        raise ValueError(f"{location}: number {blank[0]} in {fields[1]!r}: expected a tag without spaces, got {tag!r}")
    return TagExample(tuple(values[0]), tags, source=location)


def _check_strings(values: Any, name: str, location: str) -> None:
    """Raise ValueError for anything but a list of strings.

    Numbers without names in the file's metadata are rejected, too: taken for plain classes, the tags of entities would
    be scored word by word, nearly all of them O, which looks good.
    """
    hint = ""
    if isinstance(values, list):
        if all(isinstance(value, str) for value in values):
            return
        if None in values:
            hint = f"; number {values.index(None) + 1} is missing (null): fill it in"
        elif all(isinstance(value, int) for value in values):
            hint = "; the file has no names for these numbers: write tags as text (B-PER, O)"
    raise ValueError(f"{location}: expected a list of strings in {name!r}, got {str(values)[:SHOWN]!r}{hint}")
