"""Documents of a corpus, as a stream in constant memory: of the whole corpus, or of one shard of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Literal, NamedTuple

from bertwright.base.settings import Positional, check_not_str
from bertwright.corpus.conll import conll_documents
from bertwright.corpus.wikipedia import read_articles, read_namespaces
from bertwright.tables.row_formats import CORPUS_ROWS, WHOLE, ByteRange, read_file_rows
from bertwright.tables.schema import TableSchema
from bertwright.text.decoding import (
    BLOCK,
    FIX_CORPUS,
    EncodingErrors,
    ReadStats,
    TextCodec,
    check_encoding,
    check_format,
    decode_blocks,
    is_splittable,
)
from bertwright.text.lines import MAX_CHARACTERS, group_units, split_lines, too_long
from bertwright.text.sources import DocumentUnit, InputFile, list_inputs, list_readable_inputs

CONLL_FORMATS = (".conllu", ".conll")
DUMP_FORMAT = ".xml"  # suffix of Wikipedia dumps
CORPUS_FORMATS = CORPUS_ROWS | dict.fromkeys((*CONLL_FORMATS, DUMP_FORMAT), True)  # whether they may be compressed
CONLL_VERSION = 2  # raised with every change of what is read from .conllu and .conll; a token store records it
FILES_PER_SHARD = 1_000  # opening a small file takes longer than reading it, and workers share the opening

BLANK_LINE = re.compile(r"\n\s*\n")
# A subset of the blank lines of BLANK_LINE: a shard may end at fewer positions than a document.
BLANK_LINE_BYTES = re.compile(rb"\n[ \t\r\f\v]*+\n")
LINE_END = re.compile(rb"\n")
PAGE_END = re.compile(rb"</page>[ \t\r]*\n")


@dataclass(frozen=True, kw_only=True)
class CorpusFormat:
    """Decoding of input files, and their division into documents and sentences."""

    document_unit: DocumentUnit = "blank-line"
    """Extent of a document in .txt input: the text between blank lines, a whole file, or a line. Next-sentence
    prediction needs documents of several sentences (paper, section 3.1: "document-level corpus"). A document of a
    Wikipedia dump is an article or, with "section", a section of an article."""

    document_start: str | None = None
    """Regular expression of Python. A line that matches it from its start begins a new document within the extent of
    --document-unit, such as "(CHAPTER|Chapter) [IVXLC0-9]+" for the chapters of a novel: with a few long documents,
    next-sentence prediction learns the documents. Not for .conllu and .conll input. Unset: none."""

    column: str = "text"
    """Field or column with the text in .jsonl, .csv, .tsv and .parquet input; each row is a document. A .csv may use
    semicolons or tabs instead of commas if its first line shows it."""

    sentence_splitter: Literal["rules", "line"] = "rules"
    """How a document is split into sentences: by punctuation rules for English, Korean, Chinese and Japanese, or by
    lines, if each is a sentence already, as .conllu and .conll input always is."""

    encoding: str = "utf-8"
    """Encoding of all input but .parquet, such as utf-8, latin-1, cp949, euc-kr, gb18030, shift_jis or utf-16."""

    encoding_errors: EncodingErrors = "strict"
    """On bytes that are invalid in the encoding: stop with their location, or replace each by U+FFFD."""

    def __post_init__(self) -> None:
        if not self.column:
            raise ValueError("column is empty: name the field that holds the text")
        check_encoding(self.encoding)
        if self.document_start is not None:
            try:
                pattern = re.compile(self.document_start)
            except re.error as error:
                raise ValueError(
                    f"document_start: expected a regular expression, got {self.document_start!r} ({error})"
                ) from None
            if pattern.match("") is not None:
                raise ValueError(f"document_start: {self.document_start!r} matches an empty line; give a longer one")

    @property
    def codec(self) -> TextCodec:
        """Encoding and treatment of invalid bytes."""
        return TextCodec(self.encoding, self.encoding_errors, FIX_CORPUS)


@dataclass(frozen=True)
class CorpusSettings(CorpusFormat):
    """Input files, and how their text is divided into documents and sentences."""

    inputs: Positional[tuple[str, ...]]
    """Files, folders (searched recursively, following links, without hidden names), globs,
    hf://datasets/NAME/... paths, or URLs of object storage such as s3://BUCKET/books: .txt, .jsonl, .csv, .tsv,
    .parquet, .conllu, .conll, .xml (Wikipedia dumps such as pages-articles.xml.bz2: the running text of each article),
    all but .parquet also as .gz, .zst, .bz2, .xz or .zip. `file=`, `line=`, `blank-line=` or `section=` before an input
    overrides --document-unit for it, as in file=books/. With -, standard input, which is copied to a temporary file."""

    format: str | None = None
    """Format of all inputs, whatever their suffixes: txt, jsonl, csv, tsv, parquet, conllu, conll or xml."""

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        check_format(self.format, CORPUS_FORMATS)
        if not self.inputs:
            raise ValueError("no input given: name at least one file, folder, glob or hf://datasets/... path")
        super().__post_init__()


class Document(NamedTuple):
    """A text of sentences that belong together in order."""

    text: str  # lines end in \n, a blank line ends a paragraph; no white space at the ends, never empty
    has_sentence_lines: bool = False  # each line is a sentence, whatever the sentence splitter of the corpus


class CorpusShard(NamedTuple):
    """A slice of the corpus for one worker: whole files, or a byte range of one. The same in every run."""

    files: tuple[InputFile, ...]
    span: ByteRange  # a part of the only file; the default if there are several

    @property
    def name(self) -> str:
        """Name in messages."""
        first, *more_files = (file.path for file in self.files)
        return first + (f" and {len(more_files):,} more files" if more_files else "")

    @property
    def size(self) -> int:
        """Bytes on disk, for progress."""
        if self.span.end is not None:
            return self.span.end - self.span.start
        return sum(file.size for file in self.files)


def list_corpus_files(settings: CorpusSettings) -> list[InputFile]:
    """List the files of a corpus; raises the errors of `text.sources.list_inputs`."""
    return list_inputs(settings.inputs, CORPUS_FORMATS, settings.document_unit, settings.format)


def text_size(files: Sequence[InputFile]) -> int | None:
    """Return the bytes of the text in some files; None if only unpacking them would show it."""
    if any(file.compression or not CORPUS_FORMATS[file.format] for file in files):
        return None
    return sum(file.size for file in files)


def list_readable_corpus_files(settings: CorpusSettings) -> tuple[list[InputFile], dict[str, ValueError | OSError]]:
    """List the readable files of a corpus, and the errors of the other files, by path."""
    return list_readable_inputs(settings.inputs, CORPUS_FORMATS, settings.document_unit, settings.format)


def read(
    settings: CorpusSettings, inputs: Sequence[InputFile] | None = None, stats: ReadStats | None = None
) -> Iterator[Document]:
    """Yield all documents in order, in the memory of the longest document or line.

    Rows without a text (null, or white space alone) are skipped and counted in `stats`.
    Raises ValueError if the text contradicts the settings, and at the end if there was no document at all.
    """
    stats, count = stats or ReadStats(), 0
    files = list_corpus_files(settings) if inputs is None else inputs
    for document in read_shard(settings, CorpusShard(tuple(files), WHOLE), stats):
        count += 1
        yield document
    if not count:
        raise ValueError(describe_empty_corpus(settings, stats))


def describe_empty_corpus(settings: CorpusSettings, stats: ReadStats) -> str:
    return (
        f"no documents in {', '.join(settings.inputs)}: {stats.bytes_read:,} bytes, {stats.null_values:,} null and "
        f"{stats.empty_documents:,} empty values; check the input and --column"
    )


def read_shard(settings: CorpusSettings, shard: CorpusShard, stats: ReadStats | None = None) -> Iterator[Document]:
    """Yield the documents of a shard; all shards in order yield what `read` yields."""
    stats = stats or ReadStats()
    for file in shard.files:
        yield from _read_file(file, settings, stats, shard.span)


def shard_corpus(
    settings: CorpusSettings, target_bytes: int, inputs: Sequence[InputFile] | None = None
) -> list[CorpusShard]:
    """Divide the corpus into shards of about `target_bytes` on disk and at most `FILES_PER_SHARD` files, in order.

    Large uncompressed .txt, .jsonl and .xml files are split between documents; adjacent small files share a shard.
    Compressed files, tables and documents are never split.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes: expected at least 1, got {target_bytes}")
    shards: list[CorpusShard] = []
    group: list[InputFile] = []
    size = 0  # running total of the group: summing for each file would be quadratic
    for file in list_corpus_files(settings) if inputs is None else inputs:
        spans = _split_file(file, target_bytes, settings.encoding)
        if len(spans) == 1 and size + file.size <= target_bytes and len(group) < FILES_PER_SHARD:
            group.append(file)
            size += file.size
            continue
        if group:
            shards.append(CorpusShard(tuple(group), WHOLE))
        group, size = ([file], file.size) if len(spans) == 1 else ([], 0)
        if len(spans) > 1:
            shards.extend(CorpusShard((file,), span) for span in spans)
    if group:
        shards.append(CorpusShard(tuple(group), WHOLE))
    return shards


def _split_file(file: InputFile, target_bytes: int, encoding: str) -> list[ByteRange]:
    """Return byte ranges of about `target_bytes` that end between documents; one for a file that is not split."""
    text_ends = {"line": LINE_END, "file": None}
    boundaries = {
        ".txt": text_ends.get(file.document_unit, BLANK_LINE_BYTES),
        ".jsonl": LINE_END,
        DUMP_FORMAT: PAGE_END,
    }
    boundary = boundaries.get(file.format)
    if boundary is None or file.compression or file.size <= target_bytes or not is_splittable(encoding):
        return [WHOLE]
    spans: list[ByteRange] = []
    start, line = 0, 1
    with file.open() as stream:
        while start < file.size:
            end = _next_boundary(stream, start + target_bytes, file.size, boundary)
            spans.append(ByteRange(start, end, line))
            line += _count_lines(stream, start, end)
            start = end
    return spans if len(spans) > 1 else [WHOLE]


def _next_boundary(stream: IO[bytes], start: int, size: int, boundary: re.Pattern[bytes]) -> int:
    """Return the end of the first boundary after `start`; one that crosses two blocks is missed."""
    while start < size:
        stream.seek(start)
        block = stream.read(BLOCK)
        if found := boundary.search(block):
            return start + found.end()
        start += len(block)
    return size


def _count_lines(stream: IO[bytes], start: int, end: int) -> int:
    stream.seek(start)
    count = 0
    while start < end and (block := stream.read(min(BLOCK, end - start))):
        count += block.count(b"\n")
        start += len(block)
    return count


# --- one file, by format


def _read_file(file: InputFile, settings: CorpusSettings, stats: ReadStats, span: ByteRange) -> Iterator[Document]:
    """Yield the documents of a file, or of a byte range that starts and ends between documents."""
    whole = _tidy(file, stats, _read_texts(file, settings, stats, span))
    if settings.document_start is None or file.format in CONLL_FORMATS:
        return whole
    return split_documents(whole, re.compile(settings.document_start))


def split_documents(documents: Iterable[Document], start: re.Pattern[str]) -> Iterator[Document]:
    r"""Split documents before each line that the pattern matches from its start.

    >>> whole = Document("Title\nCHAPTER I\nIt was.\nCHAPTER II\nThe end.")
    >>> [part.text for part in split_documents([whole], re.compile("CHAPTER"))]
    ['Title', 'CHAPTER I\nIt was.', 'CHAPTER II\nThe end.']
    """
    for document in documents:
        lines = document.text.split("\n")
        starts = [0, *(number for number, line in enumerate(lines) if number and start.match(line)), len(lines)]
        for begin, end in pairwise(starts):
            if text := "\n".join(lines[begin:end]).strip():
                yield document._replace(text=text)


def _read_texts(file: InputFile, settings: CorpusSettings, stats: ReadStats, span: ByteRange) -> Iterator[str]:
    """Yield the text of each document of a file, by its format and document unit; texts may be empty."""
    if file.format not in (".txt", *CONLL_FORMATS, DUMP_FORMAT):
        return _rows(file, settings, stats, span)
    blocks = decode_blocks(file, settings.codec, stats, span.start, span.end)
    if file.format == DUMP_FORMAT:
        is_complete = span.end in (None, file.size)
        namespaces = read_namespaces(next(iter(decode_blocks(file, settings.codec, ReadStats())), ""))
        articles = read_articles(file.path, blocks, span.line, is_complete, namespaces, stats)
        if file.document_unit == "section":
            return (section for sections in articles for section in sections or [""])
        return ("\n\n".join(sections) for sections in articles)
    if file.format in CONLL_FORMATS:
        return conll_documents(file, split_lines(file.path, blocks, span.line))
    if file.document_unit == "line":
        return (line for _, line in split_lines(file.path, blocks, span.line))
    if file.document_unit == "file":
        message = too_long(file.path, "file", "split it, or use --document-unit blank-line or line")
        return group_units(blocks, lambda block: 0, MAX_CHARACTERS, message)
    hint = "if each line is a document, use --document-unit line; else put blank lines between documents"
    runs = group_units(blocks, _paragraph_end, MAX_CHARACTERS, too_long(file.path, "paragraph", hint))
    return (text for run in runs for text in BLANK_LINE.split(run))


def _tidy(file: InputFile, stats: ReadStats, texts: Iterable[str]) -> Iterator[Document]:
    r"""Strip the texts, convert line ends to \n and skip empty texts."""
    for text in texts:
        tidy = text.strip()
        if tidy:
            whole = tidy.replace("\r\n", "\n") if "\r" in tidy else tidy
            yield Document(whole, file.format in CONLL_FORMATS)
        elif file.format != ".txt":  # an empty text of a .txt file is a blank line
            stats.empty_documents += 1


def _rows(file: InputFile, settings: CorpusSettings, stats: ReadStats, span: ByteRange) -> Iterator[str]:
    """Yield the text of each row; nulls are skipped and counted."""
    columns = TableSchema((settings.column,), hint="choose one with --column")
    for _, (value,) in read_file_rows(file, columns, settings.codec, stats, span):
        if value is None:
            stats.null_values += 1
        else:
            yield value


def _paragraph_end(block: str) -> int:
    if found := block.rfind("\n\n") + 1:
        return found + 1
    ends = [match.end() for match in BLANK_LINE.finditer(block)]  # Windows line ends, spaces on the blank line
    return ends[-1] if ends else 0
