"""Bytes on disk → text: decompression and UTF-8 in blocks, with messages that say where the damage is."""

from __future__ import annotations

import bz2
import codecs
import gzip
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import zstandard

from bertwright.io.sources import HF_SCHEME, NOT_SEEKABLE, InputFile, suffixes

BLOCK = 1 << 20  # bytes decoded at a time: large enough that Python's share of the work vanishes
ZSTD_WINDOW = 1 << 31  # bytes, as `zstd --long=31` of many public dumps has them; a small window takes less
ZSTD_BLOCK = 1 << 14  # compressed bytes at a time: a block may grow a thousandfold, and must still fit into memory
STDIN_NAME = "standard input"  # as messages show it
STDIN = "-"  # in place of a text or a file: read what is piped in, as other commands have it
BINARY_HEAD = 1 << 13  # a NUL this early means that the file was never text

MAGIC = {  # what plain text never starts with: every one of these would be a puzzling UTF-8 error further on
    b"\x1f\x8b": "gzip data (name it .gz)",
    b"\x28\xb5\x2f\xfd": "Zstandard data (name it .zst)",
    b"BZh": "bzip2 data (name it .bz2)",
    b"PAR1": "a Parquet file (name it .parquet)",
    b"PK\x03\x04": "a ZIP archive (unpack it)",
    b"%PDF": "a PDF (extract its text)",
    b"\xff\xfe\0\0": "UTF-32 (convert it: iconv -f UTF-32 -t UTF-8)",  # before UTF-16, which begins likewise
    b"\xff\xfe": "UTF-16 (convert it: iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16 (convert it: iconv -f UTF-16 -t UTF-8)",
}


# What becomes of bytes that are no text. Where every word counts, as in examples of a task, nothing is read as U+FFFD,
# and a message names no flag that is not there.
OnBadBytes = Literal["error", "replace", "mend"]
MEND = "mend the file, it must be UTF-8 throughout"


@dataclass
class ReadStats:
    """What was met on the way and did not stop the reading, to be reported."""

    bytes_read: int = 0  # after decompression
    invalid_sequences: int = 0  # read as U+FFFD
    first_bad: str = ""  # where the first of them stands
    null_values: int = 0  # rows without a text, left out
    empty_documents: int = 0  # rows or lines of nothing but white space, left out
    max_short_rows: int = 0  # rows with too few columns, left out
    first_short: str = ""  # where the first of them stands


def read_text(path: str) -> Iterator[str]:
    """The text of one file of any suffix, here or at hf://…, in blocks; .gz, .zst and .bz2 are unpacked.

    Raises ValueError where there is no such file, and for anything but UTF-8.
    """
    if not path.startswith(HF_SCHEME) and not Path(path).is_file():
        if Path(path).is_dir():
            raise ValueError(f"{path}: a folder; name a file in it")
        raise ValueError(f"{path}: {NOT_SEEKABLE if Path(path).exists() else 'no such file'}")
    file = InputFile(path, 0, *suffixes(path), "file")
    return decode_blocks(replace(file, size=file.local().stat().st_size), "mend", ReadStats())


def decode_blocks(
    file: InputFile,
    encoding_errors: OnBadBytes,
    findings: ReadStats,
    start: int = 0,
    end: int | None = None,
) -> Iterator[str]:
    """Give the text of a file (or of its bytes start … end, if it is not compressed) in blocks of about a megabyte.

    Raises ValueError with the byte's place and the way out for anything but UTF-8; `replace` reads such bytes as
    U+FFFD and counts them.
    """
    return _texts(file.path, _blocks(file, start, end), encoding_errors, findings, start)


def check_stdin_alone(inputs: Sequence[str]) -> None:
    """Raise ValueError where standard input is named beside files."""
    if STDIN in inputs and len(inputs) > 1:
        raise ValueError(f"{STDIN} stands for standard input, which is read alone; name the files, or pipe them in")


def read_stdin(encoding_errors: OnBadBytes, findings: ReadStats) -> Iterator[str]:
    """Give the text that is piped in, in blocks as they come; the same errors as from a file, and for no input."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; pipe text into the command, or name a file")
    stream = sys.stdin.buffer
    return _texts(STDIN_NAME, iter(lambda: stream.read(BLOCK), b""), encoding_errors, findings, 0)


def _texts(
    path: str, blocks: Iterable[bytes], encoding_errors: OnBadBytes, findings: ReadStats, offset: int
) -> Iterator[str]:
    """Blocks of bytes, the first of which stands at `offset`, as text."""
    held = b""
    for block in blocks:
        if offset == 0 and not held:
            block = _checked_head(path, block)
            offset = 3 if block.startswith(codecs.BOM_UTF8) else 0
            block = block[offset:]
        findings.bytes_read += len(block)
        data = held + block
        text, used = _decode(path, data, offset, encoding_errors, findings, final=False)
        offset, held = offset + used, data[used:]
        yield text
    if held:
        yield _decode(path, held, offset, encoding_errors, findings, final=True)[0]


def _checked_head(path: str, block: bytes) -> bytes:
    for magic, kind in MAGIC.items():
        if block.startswith(magic):
            raise ValueError(f"{path}: not text but {kind}")
    if (nul := block.find(b"\0", 0, BINARY_HEAD)) >= 0:
        raise ValueError(f"{path}, byte {nul}: a NUL byte; the file looks binary, not like UTF-8 text")
    return block


def _decode(
    path: str, data: bytes, offset: int, policy: OnBadBytes, findings: ReadStats, *, final: bool
) -> tuple[str, int]:
    try:
        text, used = codecs.utf_8_decode(data, "strict", final)
        nul = text.find("\0")
        if nul < 0:
            return text, used
        place, bad = offset + len(text[:nul].encode()), b"\0"
    except UnicodeDecodeError as error:
        place, bad = offset + error.start, data[error.start : error.end]
    where = f"{path}, byte {place}: {bad.hex(' ')} is not UTF-8 text"
    if policy != "replace":
        flag = "convert the file, or read such bytes as U+FFFD with --encoding-errors replace"
        raise ValueError(f"{where}; {MEND if policy == 'mend' else flag}")
    text, used = codecs.utf_8_decode(data, "replace", final)
    text = text.replace("\0", "\ufffd")
    findings.invalid_sequences += text.count("\ufffd") - data[:used].count(b"\xef\xbf\xbd")
    findings.first_bad = findings.first_bad or where
    return text, used


def _blocks(file: InputFile, start: int, end: int | None) -> Iterator[bytes]:
    path = file.local()
    with _readable(file):
        if file.compression == ".zst":
            yield from _zstd_blocks(path)
        elif file.compression:
            with gzip.open(path) if file.compression == ".gz" else bz2.open(path) as stream:
                while block := stream.read(BLOCK):
                    yield block
        else:
            with path.open("rb", buffering=0) as plain:
                plain.seek(start)
                left = (end if end is not None else file.size) - start
                while left > 0 and (block := plain.read(min(BLOCK, left))):
                    yield block
                    left -= len(block)


def _zstd_blocks(path: Path) -> Iterator[bytes]:
    """All frames of a .zst file; zstandard's own stream reader would take a truncated file for a whole one."""
    frame = None
    with path.open("rb") as stream:
        while data := stream.read(ZSTD_BLOCK):
            while data:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
                if block := frame.decompress(data):
                    yield block
                data = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError


@contextmanager
def _readable(file: InputFile) -> Iterator[None]:
    """Turn what the decompressors raise into one line that says what is wrong with the file."""
    try:
        yield
    except EOFError:
        raise ValueError(
            f"{file.path}: ends in the middle of its {file.compression} data; the file is truncated"
        ) from None
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{file.path}: not valid {file.compression} data ({error})") from None
    except OSError as error:
        if error.errno is not None:  # the system's own: no right to read, no such disk
            raise
        raise ValueError(f"{file.path}: not valid {file.compression} data ({error})") from None
