"""Files, folders, globs and hub datasets → a stream of documents in constant memory, whole or in addressable pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from bertwright.corpus.readers import ByteRange, Document, read_file
from bertwright.io.decoding import BLOCK, ReadStats
from bertwright.io.sources import CorpusSettings, DocumentUnit, InputFile, open_inputs

__all__ = [
    "CorpusSettings",
    "CorpusShard",
    "Document",
    "DocumentUnit",
    "InputFile",
    "ReadStats",
    "nothing_read",
    "open_inputs",
    "read",
    "read_shard",
    "shard_corpus",
]

# The readers call more things a blank line (Unicode's white space): a piece may end at fewer places than a document.
BLANK_LINE = re.compile(rb"\n[ \t\r\f\v]*+\n")
LINE_END = re.compile(rb"\n")
FILES_PER_SHARD = (
    1_000  # in one piece: to open a file takes longer than to read a small one, and workers share the opening
)


class CorpusShard(NamedTuple):
    """A share of the corpus for one worker: whole files, or a span of one. Small, picklable, the same in every run."""

    files: tuple[InputFile, ...]
    span: ByteRange  # of the only file; the default where there are several

    @property
    def size(self) -> int:
        """Bytes on disk, for progress."""
        if self.span.end is not None:
            return self.span.end - self.span.start
        return sum(file.size for file in self.files) - self.span.start


def read(
    settings: CorpusSettings, inputs: Sequence[InputFile] | None = None, findings: ReadStats | None = None
) -> Iterator[Document]:
    """Give all documents in order, in constant memory (that of the longest document or line).

    Rows without a text (null, or nothing but white space) are left out and counted in `findings`.
    Raises ValueError where the text is not what the settings say, and at the end if there was no document at all.
    """
    findings = findings or ReadStats()
    count = 0
    for file in open_inputs(settings) if inputs is None else inputs:
        for document in read_file(file, settings, findings, ByteRange()):
            count += 1
            yield document
    if not count:
        raise ValueError(nothing_read(settings, findings))


def nothing_read(settings: CorpusSettings, findings: ReadStats) -> str:
    """What to say when all pieces together hold no document."""
    return (
        f"no documents in {', '.join(settings.inputs)}: {findings.bytes_read:,} bytes, {findings.null_values:,} null "
        f"and {findings.empty_documents:,} empty values; is this the right input, and the right --column?"
    )


def read_shard(settings: CorpusSettings, piece: CorpusShard, findings: ReadStats | None = None) -> Iterator[Document]:
    """Give the documents of one piece; all pieces one after the other give what `read` gives."""
    findings = findings or ReadStats()
    for file in piece.files:
        yield from read_file(file, settings, findings, piece.span)


def shard_corpus(
    settings: CorpusSettings, target_bytes: int, inputs: Sequence[InputFile] | None = None
) -> list[CorpusShard]:
    """Share the corpus out in pieces of about `target_bytes` on disk and `FILES_PER_SHARD` files at most, in order.

    Large plain .txt and .jsonl files are cut between documents; neighbouring small files go together; a compressed
    file, a table and a document stay whole however large they are.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes is {target_bytes}, and must be at least 1")
    shares: list[CorpusShard] = []
    group: list[InputFile] = []
    size = 0  # of the group; added up anew for every file, it would take minutes for many
    for file in open_inputs(settings) if inputs is None else inputs:
        spans = _spans(file, target_bytes)
        if len(spans) == 1 and size + file.size <= target_bytes and len(group) < FILES_PER_SHARD:
            group.append(file)
            size += file.size
            continue
        if group:
            shares.append(CorpusShard(tuple(group), ByteRange()))
        group, size = ([file], file.size) if len(spans) == 1 else ([], 0)
        if len(spans) > 1:
            shares.extend(CorpusShard((file,), span) for span in spans)
    if group:
        shares.append(CorpusShard(tuple(group), ByteRange()))
    return shares


def _spans(file: InputFile, target_bytes: int) -> list[ByteRange]:
    boundary = LINE_END if file.format == ".jsonl" or file.document_unit == "line" else BLANK_LINE
    whole = file.format not in (".txt", ".jsonl") or (file.format == ".txt" and file.document_unit == "file")
    if whole or file.compression or file.size <= target_bytes:
        return [ByteRange()]
    spans: list[ByteRange] = []
    start, line = 0, 1
    with file.local().open("rb") as stream:
        while start < file.size:
            end = _next_boundary(stream, start + target_bytes, file.size, boundary)
            spans.append(ByteRange(start, end, line))
            line += _count_lines(stream, start, end)
            start = end
    return spans if len(spans) > 1 else [ByteRange()]


def _next_boundary(stream: BinaryIO, start: int, size: int, boundary: re.Pattern[bytes]) -> int:
    """Where the first boundary after `start` ends. One that lies across two blocks is missed: the next one serves."""
    while start < size:
        stream.seek(start)
        block = stream.read(BLOCK)
        if found := boundary.search(block):
            return start + found.end()
        start += len(block)
    return size


def _count_lines(stream: BinaryIO, start: int, end: int) -> int:
    stream.seek(start)
    count = 0
    while start < end and (block := stream.read(min(BLOCK, end - start))):
        count += block.count(b"\n")
        start += len(block)
    return count
