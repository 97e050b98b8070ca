"""One file → documents, for each format, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertwright.io.decoding import ReadStats, decode_blocks
from bertwright.io.sources import CorpusSettings, InputFile
from bertwright.io.tables import LIMIT, ByteRange, TableSchema, iter_rows, lines, split_at

__all__ = ["ByteRange", "Document", "read_file"]

BLANK_LINE = re.compile(r"\n\s*\n")


class Document(NamedTuple):
    """One document: sentences of the same document follow one another, sentences of different ones do not."""

    text: str  # lines end in \n, a blank line ends a paragraph, no white space at the ends, never empty
    source: str  # file:line (file:row in a Parquet file), for messages


def read_file(file: InputFile, settings: CorpusSettings, findings: ReadStats, span: ByteRange) -> Iterator[Document]:
    """Give the documents of one file, or of a span of it that starts and ends between documents."""
    if file.format != ".txt":
        return _kept(file, findings, _rows(file, settings, findings, span))
    blocks = decode_blocks(file, settings.encoding_errors, findings, span.start, span.end)
    if file.document_unit == "line":
        return _kept(file, findings, lines(file.path, blocks, span.line))
    if file.document_unit == "file":
        return _kept(file, findings, _whole(file, blocks))
    return _kept(file, findings, _paragraphs(file, blocks, span.line))


def _kept(file: InputFile, findings: ReadStats, numbered: Iterable[tuple[int, str]]) -> Iterator[Document]:
    """Tidy documents: line ends made \\n, white space at the ends and empty documents left out."""
    for line, text in numbered:
        tidy = text.strip()
        if tidy:
            yield Document(tidy.replace("\r\n", "\n") if "\r" in tidy else tidy, f"{file.path}:{line}")
        elif file.format != ".txt":  # there it is a blank line, which is no document
            findings.empty_documents += 1


def _rows(file: InputFile, settings: CorpusSettings, findings: ReadStats, span: ByteRange) -> Iterator[tuple[int, str]]:
    """One text a row, in the column that the settings name; nulls are left out and counted."""
    columns = TableSchema((settings.column,), hint="choose one with --column")
    for number, (value,) in iter_rows(file, columns, settings.encoding_errors, findings, span):
        if value is None:
            findings.null_values += 1
        else:
            yield number, value


def _paragraphs(file: InputFile, blocks: Iterable[str], line: int) -> Iterator[tuple[int, str]]:
    hint = "nothing but single line ends? Try --document-unit line, or put blank lines between documents"
    for run in split_at(blocks, _paragraph_end, LIMIT, _too_long(file, "paragraph", hint)):
        start = 0
        for end in (*(match.end() for match in BLANK_LINE.finditer(run)), len(run)):
            text = run[start:end]
            yield line + text.count("\n", 0, len(text) - len(text.lstrip())), text
            line += text.count("\n")
            start = end


def _paragraph_end(block: str) -> int:
    if found := block.rfind("\n\n") + 1:
        return found + 1
    ends = [match.end() for match in BLANK_LINE.finditer(block)]  # Windows line ends, spaces on the blank line
    return ends[-1] if ends else 0


def _whole(file: InputFile, blocks: Iterable[str]) -> Iterator[tuple[int, str]]:
    too_long = _too_long(file, "file", "split it, or read it with --document-unit blank-line or line")
    yield from ((1, text) for text in split_at(blocks, lambda block: 0, LIMIT, too_long))


def _too_long(file: InputFile, unit: str, hint: str) -> str:
    return f"{file.path}: a {unit} of more than {LIMIT:,} characters; {hint}"
