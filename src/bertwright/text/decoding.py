"""Text from bytes: decompression and decoding in blocks, with errors that name the file and the byte."""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import re
import sys
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Literal, NamedTuple

from bertwright.base.foreign import NOT_SEEKABLE
from bertwright.base.object_storage import as_url, explain
from bertwright.base.optional import needs
from bertwright.base.settings import did_you_mean
from bertwright.text.lines import split_lines
from bertwright.text.signatures import recognize
from bertwright.text.sources import (
    STDIN,
    InputFile,
    expand_files,
    find_file,
    hint_at_similar,
    is_remote,
    split_member,
    zip_member,
)

BLOCK = 1 << 20  # bytes per read; large enough that Python's overhead is negligible
ZSTD_WINDOW = 1 << 31  # bytes, as in public dumps made with `zstd --long=31`; smaller windows take less memory
ZSTD_READ = 1 << 13  # bytes per call of the decompressor; each 4 of them may hold 128 KiB, so memory stays below 300 MB
STDIN_NAME = "standard input"  # the name in messages
BINARY_HEAD = 1 << 13  # bytes that show whether a file with NUL among them is binary
CONTROLS = bytes({*range(32)} - {*b"\t\n\v\f\r"})  # bytes that text rarely has
BINARY_SHARE = 0.08  # of such bytes in the head of a file with NUL; UTF-16 has more, too

WIDE_MAGIC = {  # first bytes of encodings that are mistaken for UTF-8
    b"\xff\xfe\0\0": "UTF-32",  # before UTF-16, whose mark is a prefix of it
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

FIX_FILE = "fix the file, or give its encoding with --encoding"
FIX_INPUT = "convert the text to UTF-8"
FIX_CORPUS = "give the encoding with --encoding, or read such bytes as U+FFFD with --encoding-errors replace"

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair; text that contains one cannot be encoded

EncodingErrors = Literal["strict", "replace"]


@dataclass(frozen=True)
class TextCodec:
    """Encoding of a text and what happens to bytes that are not valid in it."""

    encoding: str = "utf-8"
    errors: EncodingErrors | Literal["surrogateescape"] = "strict"
    """strict: raise ValueError. replace: read each invalid sequence as U+FFFD and count it. surrogateescape: read each
    invalid byte as a surrogate (PEP 383)."""
    hint: str = FIX_FILE
    """Advice at the end of the error message."""

    @property
    def is_utf8(self) -> bool:
        """True for UTF-8 with or without a byte order mark."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig")

    @property
    def is_wide(self) -> bool:
        """True for UTF-16 and UTF-32, whose texts are full of NUL bytes."""
        return codecs.lookup(self.encoding).name.startswith(("utf-16", "utf-32"))


@dataclass
class ReadStats:
    """Counts of what was read and of defects that did not stop the reading."""

    bytes_read: int = 0  # after decompression
    invalid_sequences: int = 0  # read as U+FFFD
    dropped_nuls: int = 0  # NUL characters
    first_invalid: str = ""  # location and bytes of the first of them
    null_values: int = 0  # skipped rows without a text
    empty_documents: int = 0  # skipped rows or lines of white space
    short_rows: int = 0  # skipped rows with too few columns
    first_short_row: str = ""  # location of the first of them
    dropped_sentences: int = 0  # of Wikipedia, with a template or a formula whose words are not known
    unknown_words: Counter[str] = field(default_factory=Counter)  # names of the templates, by dropped sentences

    def add(self, later: ReadStats) -> None:
        for item in fields(self):
            value, more = getattr(self, item.name), getattr(later, item.name)
            setattr(self, item.name, value or more if isinstance(value, str) else value + more)


def is_splittable(encoding: str) -> bool:
    """Return whether a file in this encoding can be split at line ends without decoding it.

    >>> [is_splittable(name) for name in ("utf-8", "latin-1", "cp949", "utf-16", "cp037", "iso2022_jp")]
    [True, True, True, False, False, False]
    """
    stateful = re.match("utf_?-?7|iso2022|hz", codecs.lookup(encoding).name)
    return not stateful and "\n\n".encode(encoding).removeprefix(codecs.BOM_UTF8) == b"\n\n"


def check_format(name: str | None, formats: Collection[str]) -> None:
    """Raise ValueError unless the name is None or one of the formats, without its dot."""
    if name is not None and f".{name}" not in formats:
        raise ValueError(f"format is {name!r}: {did_you_mean(name, [suffix[1:] for suffix in formats])}")


def check_encoding(name: str) -> None:
    """Raise ValueError unless Python knows the encoding, and it is one of text."""
    try:
        "".encode(name)
        codecs.lookup(name)
    except (LookupError, ValueError):
        raise ValueError(
            f"encoding is {name!r}: expected a text encoding that Python knows, such as utf-8, latin-1 or cp949"
        ) from None


def read_text(path: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the text of one file in blocks.

    The path may be hf://… or - for standard input, the file compressed, and the suffix before that any.

    Raises ValueError if there is no such file, or if it is not in the encoding.
    """
    path = next(expand_files(path)) if path == STDIN else path
    base, _ = split_member(path)
    if not is_remote(path) and not Path(base).is_file():
        if Path(path).is_dir():
            raise ValueError(f"{path}: expected a file, got a folder; give a file in it")
        if {*path} & {*"*?"} and not Path(path).exists():
            raise ValueError(f"{path}: expected a file, got a pattern; name each file")
        missing = f"no such file{hint_at_similar(Path(path))}"
        raise ValueError(f"{path}: {NOT_SEEKABLE if Path(path).exists() else missing}")
    return decode_blocks(find_file(path), TextCodec(encoding), ReadStats())


def read_texts(file: InputFile, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank, without the white space around it."""
    lines = split_lines(file.path, decode_blocks(file, TextCodec(encoding), ReadStats()))
    stripped = ((number, line.strip()) for number, line in lines)
    return ((number, line) for number, line in stripped if line)


def decode_blocks(
    file: InputFile, codec: TextCodec, stats: ReadStats, start: int = 0, end: int | None = None
) -> Iterator[str]:
    """Yield the text of a file, or of its bytes `start` to `end` if it is not compressed, in blocks of about 1 MB.

    NUL characters are dropped, and carriage returns are line ends in a file whose first block has no others; a warning
    says so. Raises ValueError with the byte's location for bytes that are invalid in the encoding, unless the codec
    replaces them.
    """
    return _decode_all(file.path, _read_blocks(file, start, end), codec, stats, start)


def check_stdin_alone(inputs: Sequence[str]) -> None:
    """Raise ValueError if the inputs are standard input and files."""
    if STDIN in inputs and len(inputs) > 1:
        raise ValueError(
            f"{STDIN}: expected no inputs besides standard input, got {len(inputs) - 1}; give files only, or pipe "
            "everything in"
        )


def read_stdin(codec: TextCodec) -> Iterator[str]:
    """Yield the text of standard input in blocks of 1 MB; raises the errors of `decode_blocks`."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; pipe text into the command, or give a file")
    stream = sys.stdin.buffer
    return _decode_all(STDIN_NAME, iter(lambda: stream.read(BLOCK), b""), codec, ReadStats(), 0)


def _decode_all(path: str, blocks: Iterable[bytes], codec: TextCodec, stats: ReadStats, offset: int) -> Iterator[str]:
    """Decode consecutive blocks; the first one starts at byte `offset` of the file."""
    incremental = codecs.getincrementaldecoder("utf-8" if codec.is_utf8 else codec.encoding)("strict")
    decoder = _BlockDecoder(path, codec, incremental, stats)
    is_head = is_first = offset == 0
    nuls_before = stats.dropped_nuls
    line_ends: io.IncrementalNewlineDecoder | None = None
    for block in blocks:
        if is_head:
            _check_head(path, block, codec)
            if codec.is_utf8 and block.startswith(codecs.BOM_UTF8):
                block, offset = block[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
            is_head = False
        stats.bytes_read += len(block)
        text = decoder.decode(block, offset)
        if is_first and "\r" in text[:-1] and "\n" not in text:  # the last one may be half of \r\n
            warnings.warn(f"{path}: lines end in carriage returns alone, read as line ends", stacklevel=1)
            line_ends = io.IncrementalNewlineDecoder(None, translate=True)
        text = line_ends.decode(text) if line_ends else text
        # utf-16 reads the byte order mark itself, utf-16-le takes it for a character.
        yield text.removeprefix("\ufeff") if codec.is_wide and is_first else text
        offset, is_first = offset + len(block), False
    rest = decoder.decode(b"", offset, final=True)
    if rest := line_ends.decode(rest, final=True) if line_ends else rest:
        yield rest
    if nuls := stats.dropped_nuls - nuls_before:
        warnings.warn(f"{path}: {nuls:,} NUL character{'s' * (nuls > 1)} (U+0000) dropped", stacklevel=1)


def _check_head(path: str, block: bytes, codec: TextCodec) -> None:
    for magic, kind in ({} if codec.is_wide else WIDE_MAGIC).items():
        if block.startswith(magic):
            way_out = f"; {FIX_INPUT}" if codec.hint == FIX_INPUT else f" (read it with --encoding {kind.lower()})"
            raise ValueError(f"{path}: not text but {kind}{way_out}")
    if known := recognize(block):
        raise ValueError(f"{path}: not text but {known}")
    head = block[:BINARY_HEAD]
    if not codec.is_wide and (nul := head.find(0)) >= 0:
        controls = len(head) - len(head.translate(None, CONTROLS))
        if controls > BINARY_SHARE * len(head):
            wide = FIX_INPUT if codec.hint == FIX_INPUT else "give its --encoding"
            raise ValueError(
                f"{path}, byte {nul}: a NUL byte; the file is binary, not text, or UTF-16 ({wide}); from a text, "
                "remove them with tr -d '\\000'"
            )


class _BlockDecoder(NamedTuple):
    path: str
    codec: TextCodec
    decoder: codecs.IncrementalDecoder
    """Decoder in mode strict; it saves an unfinished character for the next block."""
    stats: ReadStats

    def decode(self, block: bytes, offset: int, final: bool = False) -> str:
        """Decode a block that starts at byte `offset` of the file; `final`: no block follows.

        NUL characters are dropped and counted. Invalid sequences raise ValueError, or are replaced by U+FFFD and
        counted, as the codec says.
        """
        decoder, codec = self.decoder, self.codec
        state = decoder.getstate()
        start = offset - len(state[0])
        try:
            return self._without_nuls(decoder.decode(block, final))
        except UnicodeDecodeError as error:
            location, invalid = start + error.start, bytes(error.object[error.start : error.end])
            problem = f"{invalid.hex(' ')} is not {'UTF-8' if codec.is_utf8 else codec.encoding} text"
        except UnicodeError as error:  # UTF-16 without a byte order mark
            raise ValueError(f"{self.path}, byte {start}: {error}; give the byte order, as in utf-16-le") from None
        problem = f"{self.path}, byte {location}: {problem}"
        if codec.errors == "strict":
            raise ValueError(f"{problem}; {codec.hint}")
        decoder.setstate(state)
        decoder.errors = codec.errors
        text = self._without_nuls(decoder.decode(block, final))
        decoder.errors = "strict"
        in_text = (state[0] + block).count("\ufffd".encode()) if codec.is_utf8 else 0
        self.stats.invalid_sequences += text.count("\ufffd") - in_text
        self.stats.first_invalid = self.stats.first_invalid or problem
        return text

    def _without_nuls(self, text: str) -> str:
        if "\0" not in text:
            return text
        self.stats.dropped_nuls += text.count("\0")
        return text.replace("\0", "")


def _read_blocks(file: InputFile, start: int, end: int | None) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in blocks of at most BLOCK bytes."""
    url = as_url(file.path)
    with explain(url) if url else nullcontext(), _explain_damage(file), file.open() as plain:
        if file.compression == ".zst":
            yield from _read_zstd_blocks(plain)
        elif file.compression:
            with _decompress(file, plain) as stream:
                while block := stream.read(BLOCK):
                    yield block
        else:
            plain.seek(start)
            left = (end if end is not None else file.size) - start
            while left > 0 and (block := plain.read(min(BLOCK, left))):
                yield block
                left -= len(block)
            if left > 0:
                raise ValueError(f"{file.path}: became shorter while it was read; start again when it is complete")
    file.check_unchanged()


def _decompress(file: InputFile, plain: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    """Decompress an open file of any compression but Zstandard."""
    if file.compression == ".zip":
        base, member = split_member(file.path)
        return zipfile.ZipFile(plain).open(zip_member(plain, base, member))
    if file.compression == ".gz":
        return gzip.open(plain)
    return bz2.open(plain) if file.compression == ".bz2" else lzma.open(plain)


def _read_zstd_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of all frames of a .zst file. Raises EOFError if the last one is truncated."""
    with needs("fast", "a .zst file"):
        import zstandard
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame = decompressor.decompressobj()
    try:
        while data := frame.unused_data or file.read(ZSTD_READ):
            frame = decompressor.decompressobj() if frame.eof else frame
            plain = frame.decompress(data)
            yield from (plain[start : start + BLOCK] for start in range(0, len(plain), BLOCK))
    except zstandard.ZstdError as error:
        raise zlib.error(str(error)) from None  # as the other formats report damage
    if not frame.eof:
        raise EOFError


@contextmanager
def _explain_damage(file: InputFile) -> Iterator[None]:
    """Turn the errors of the decompressors into a ValueError with the file's name."""
    try:
        yield
    except EOFError:
        raise ValueError(
            f"{file.path}: truncated, ends in the middle of its {file.compression} data; copy it again"
        ) from None
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError) as error:  # encrypted
        raise ValueError(f"{file.path}: not valid {file.compression} data ({error})") from None
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # an error of the system: no permission, a failing disk
            raise  # EINVAL: a damaged archive names a place before its start
        raise ValueError(f"{file.path}: not valid {file.compression} data ({error})") from None
