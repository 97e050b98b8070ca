"""One file → documents, for each format, in constant memory."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from bertwright.corpus.decoding import Findings, decoded
from bertwright.corpus.inputs import CorpusSettings, InputFile

LIMIT = 1 << 28  # characters in one document, line or field; beyond it the file is hardly what it is taken for
TABLE_ROWS = 1024  # rows of a Parquet file held at a time

BLANK_LINE = re.compile(r"\n\s*\n")
SURROGATE = re.compile("[\ud800-\udfff]")


class Document(NamedTuple):
    """One document: sentences of the same document follow one another, sentences of different ones do not."""

    text: str  # lines end in \n, a blank line ends a paragraph, no white space at the ends, never empty
    source: str  # file:line (file:row in a Parquet file), for messages


class Span(NamedTuple):
    """The part of a file to read: bytes start … end (None: to its end), of which the first stands on line `line`."""

    start: int = 0
    end: int | None = None
    line: int = 1


def read_file(file: InputFile, settings: CorpusSettings, findings: Findings, span: Span) -> Iterator[Document]:
    """Give the documents of one file, or of a span of it that starts and ends between documents."""
    if file.format == ".parquet":
        return _parquet(file, settings, findings)
    blocks = decoded(file, settings.on_bad_bytes, findings, span.start, span.end)
    if file.format == ".jsonl":
        return _json_lines(file, settings, findings, _lines(file, blocks, span.line))
    if file.format in (".csv", ".tsv"):
        return _table(file, settings, findings, _lines(file, blocks, 1))
    if file.documents == "line":
        return _kept(file, findings, _lines(file, blocks, span.line))
    if file.documents == "file":
        return _kept(file, findings, _whole(file, blocks))
    return _kept(file, findings, _paragraphs(file, blocks, span.line))


def _kept(file: InputFile, findings: Findings, numbered: Iterable[tuple[int, str]]) -> Iterator[Document]:
    """Tidy documents: line ends made \\n, white space at the ends and empty documents left out."""
    for line, text in numbered:
        tidy = text.strip()
        if tidy:
            yield Document(tidy.replace("\r\n", "\n") if "\r" in tidy else tidy, f"{file.path}:{line}")
        elif file.format != ".txt":  # there it is a blank line, which is no document
            findings.empty_documents += 1


# --- text in blocks → runs that end where a line or a paragraph ends


def _runs(file: InputFile, blocks: Iterable[str], last_end: Callable[[str], int], unit: str) -> Iterator[str]:
    """Cut a stream of blocks where `last_end` says; a unit longer than a block is collected piece by piece."""
    held: list[str] = []
    size = 0
    for block in blocks:
        end = last_end(block)
        if end:
            yield "".join([*held, block[:end]])
            held, size = [], 0
        held.append(block[end:])
        size += len(block) - end
        if size > LIMIT:
            raise ValueError(f"{file.path}: a {unit} of more than {LIMIT:,} characters; {_WAY_OUT[unit]}")
    if size:
        yield "".join(held)


_WAY_OUT = {
    "line": "is this the right format? Break it into lines first",
    "paragraph": "nothing but single line ends? Try --documents line, or put blank lines between documents",
    "file": "split it, or read it with --documents blank-line or line",
}


def _line_end(block: str) -> int:
    return block.rfind("\n") + 1


def _paragraph_end(block: str) -> int:
    if found := block.rfind("\n\n") + 1:
        return found + 1
    ends = [match.end() for match in BLANK_LINE.finditer(block)]  # Windows line ends, spaces on the blank line
    return ends[-1] if ends else 0


def _lines(file: InputFile, blocks: Iterable[str], number: int) -> Iterator[tuple[int, str]]:
    for run in _runs(file, blocks, _line_end, "line"):
        lines = run.split("\n")  # not splitlines, which also breaks at \x0b, \x1c, U+2028 and more
        if not lines[-1]:
            lines.pop()
        yield from enumerate(lines, number)
        number += len(lines)


def _paragraphs(file: InputFile, blocks: Iterable[str], line: int) -> Iterator[tuple[int, str]]:
    for run in _runs(file, blocks, _paragraph_end, "paragraph"):
        start = 0
        for end in (*(match.end() for match in BLANK_LINE.finditer(run)), len(run)):
            text = run[start:end]
            yield line + text.count("\n", 0, len(text) - len(text.lstrip())), text
            line += text.count("\n")
            start = end


def _whole(file: InputFile, blocks: Iterable[str]) -> Iterator[tuple[int, str]]:
    yield from ((1, text) for text in _runs(file, blocks, lambda block: 0, "file"))


# --- rows


def _json_lines(
    file: InputFile, settings: CorpusSettings, findings: Findings, lines: Iterable[tuple[int, str]]
) -> Iterator[Document]:
    def values() -> Iterator[tuple[int, str]]:
        for number, line in lines:
            if not line or line.isspace():
                continue
            place = f"{file.path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than Python reads
                raise ValueError(f"{place}: not valid JSON ({error})") from None
            if not isinstance(record, dict):
                raise ValueError(f"{place}: a JSON object expected, {type(record).__name__} found")
            if settings.column not in record:
                raise ValueError(_no_column(place, settings.column, list(record)))
            value = record[settings.column]
            if value is None:
                findings.null_values += 1
            elif not isinstance(value, str):
                raise ValueError(f"{place}: a string expected in {settings.column!r}, {type(value).__name__} found")
            else:
                # A JSON string can spell half a surrogate pair, which no encoding of Unicode can hold.
                yield number, _whole_pairs(value, place, settings, findings) if "\\u" in line else value

    return _kept(file, findings, values())


def _whole_pairs(value: str, place: str, settings: CorpusSettings, findings: Findings) -> str:
    if not (half := SURROGATE.search(value)):
        return value
    where = f"{place}: \\u{ord(half[0]):04x} is half a surrogate pair"
    if settings.on_bad_bytes == "error":
        raise ValueError(f"{where}; mend the file, or read it as U+FFFD with --on-bad-bytes replace")
    value, count = SURROGATE.subn("\ufffd", value)
    findings.bad_sequences += count
    findings.first_bad = findings.first_bad or where
    return value


def _table(
    file: InputFile, settings: CorpusSettings, findings: Findings, lines: Iterable[tuple[int, str]]
) -> Iterator[Document]:
    """CSV with quoting (a field may hold line ends); TSV without: there a quote is a plain character, as IANA has it
    and as GLUE and NSMC are written."""
    tabs = file.format == ".tsv"
    csv.field_size_limit(LIMIT)  # the module's own limit of 131,072 characters is less than a long article
    rows = csv.reader(
        (f"{line}\n" for _, line in lines),
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )

    def values() -> Iterator[tuple[int, str]]:
        header = next(rows, [])
        if settings.column not in header:
            raise ValueError(_no_column(f"{file.path}, line 1", settings.column, header))
        if header.count(settings.column) > 1:
            raise ValueError(f"{file.path}, line 1: {settings.column!r} names several columns; rename all but one")
        column, first = header.index(settings.column), rows.line_num + 1
        for row in rows:
            if row and len(row) != len(header):
                raise ValueError(
                    f"{file.path}, line {first}: {len(header)} columns expected ({', '.join(header)}), {len(row)} found"
                )
            if row:
                yield first, row[column]
            first = rows.line_num + 1

    try:
        yield from _kept(file, findings, values())
    except csv.Error as error:
        way_out = "a carriage return alone? End lines with \\n" if "new-line" in str(error) else "is a quote left open?"
        raise ValueError(f"{file.path}, line {rows.line_num}: {error}; {way_out}") from None


def _parquet(file: InputFile, settings: CorpusSettings, findings: Findings) -> Iterator[Document]:
    import polars  # costs 0.2 s and threads, which workers on text files need not pay

    def values() -> Iterator[tuple[int, str]]:
        table = polars.scan_parquet(file.local())
        columns = table.collect_schema()
        if settings.column not in columns:
            raise ValueError(_no_column(file.path, settings.column, columns.names()))
        if columns[settings.column] not in (polars.String, polars.Null):
            raise ValueError(f"{file.path}: strings expected in {settings.column!r}, {columns[settings.column]} found")
        first = 1
        for batch in table.select(settings.column).collect_batches(chunk_size=TABLE_ROWS):
            for number, value in enumerate(batch[settings.column], first):
                findings.bytes_read += len(value) if value else 0
                if value is None:
                    findings.null_values += 1
                else:
                    yield number, value
            first += len(batch)

    try:
        yield from _kept(file, findings, values())
    except polars.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{file.path}: not a readable Parquet file ({reason})") from None


def _no_column(place: str, column: str, found: list[str]) -> str:
    return f"{place}: no column {column!r}; found are {', '.join(found) or 'none'} (choose one with --column)"
