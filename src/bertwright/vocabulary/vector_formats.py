"""Files of word vectors: GloVe's text without a header, word2vec's text and binary with one, fastText's .vec.

V words, D numbers per word. The content of a file decides its format, not its suffix:

- text: `word number … number` per line, separated by single spaces; a first line `V D` if there is a header. Text may
  be compressed (.gz, .zst, .bz2, .xz, .zip).
- word2vec binary: the line `V D`, then for each word its UTF-8 bytes, a space, D little-endian float32, and a line end
  that some programs leave out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.files import READ_SIZE, new_file, open_binary
from bertwright.text.decoding import ReadStats, TextCodec, decode_blocks
from bertwright.text.lines import split_lines
from bertwright.text.sources import COMPRESSIONS, find_file

WORDS_PER_BLOCK = 1 << 14
FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")  # FASTTEXT_FILEFORMAT_MAGIC_INT32 of fasttext.cc
HEADER = re.compile(rb"(\d+) (\d+)[ \r]*")
MAX_WIDTH = 1 << 16  # numbers per word; a larger one means that the format is another
MAX_RECORD = 4 * MAX_WIDTH + READ_SIZE  # bytes of a word and its numbers in a binary file
COPY_AGAIN = "the file is truncated; copy it again"

Vectors = npt.NDArray[np.float32]
VectorFormat = Literal["text", "word2vec-binary", "fasttext-binary"]


class VectorBlock(NamedTuple):
    """Consecutive words of a file with their vectors."""

    words: list[str]  # with a surrogate for each byte that is not UTF-8 (PEP 383)
    places: list[str]  # the place of each word for messages: "line 7"
    vectors: Vectors  # words × D


def detect_format(path: Path) -> VectorFormat:
    """Return a file's format by its first bytes."""
    if path.suffix in COMPRESSIONS:
        return "text"
    with open_binary(path) as file:
        head = file.readline(1 << 12)
        if head.startswith(FASTTEXT_MAGIC):
            return "fasttext-binary"
        header = HEADER.fullmatch(head.rstrip(b"\n"))
        if header is None:
            return "text"
        width = int(header[2])
        line = file.read(min(width, MAX_WIDTH) * 32 + (1 << 12)).partition(b"\n")[0]
    return "text" if len(line.split()) > width and _is_text(line) else "word2vec-binary"


def _is_text(line: bytes) -> bool:
    try:
        return line.decode().isprintable()
    except UnicodeDecodeError:
        return re.search(rb"(?: -?\d[\d.e+-]*){2} *\r?$", line) is not None  # the decoder will name the invalid byte


def read_text_vectors(path: Path) -> Iterator[VectorBlock]:
    """Yield the vectors of a text file, with or without a header.

    A word may contain spaces: the last D fields of a line are its numbers. Raises ValueError with the line for a line
    of another width, a field that is no number, NaN and infinity, and if the header counts other words.
    """
    blocks = decode_blocks(find_file(str(path)), TextCodec(errors="surrogateescape"), ReadStats())
    lines = split_lines(str(path), blocks)
    first = next(lines, None)
    if first is None:
        raise ValueError(f"{path}: expected word vectors, got an empty file")
    header = HEADER.fullmatch(first[1].encode(errors="replace"))
    if header is None:
        count, width = None, len(first[1].rstrip().split(" ")) - 1
        lines = chain([first], lines)
        if width < 1:
            raise ValueError(f"{path}, line 1: expected a word and its numbers, got {first[1][:40]!r}")
    else:
        count, width = map(int, header.groups())
    check_width(path, width)
    total = 0
    while batch := list(islice(lines, WORDS_PER_BLOCK)):
        words = []
        vectors = np.empty((len(batch), width), dtype=np.float32)
        for row, (number, line) in enumerate(batch):
            word, *fields = line.rstrip(" \r").rsplit(" ", width)
            try:
                numbers = list(map(float, fields))
            except ValueError:
                numbers = []
            if len(numbers) != width or (" " in word and is_number(word.rsplit(" ", 1)[1])):
                raise ValueError(_describe_line(path, number, word, fields, width))
            with np.errstate(over="ignore"):  # infinity is refused below
                vectors[row] = numbers
            words.append(word)
        block = VectorBlock(words, [f"line {number}" for number, _ in batch], vectors)
        check_block(path, block)
        total += len(batch)
        yield block
    if count is not None and total != count:
        raise ValueError(f"{path}: expected {count:,} words (line 1), got {total:,}; {COPY_AGAIN}")


def _describe_line(path: Path, number: int, word: str, fields: list[str], width: int) -> str:
    place = f"{path}, line {number}: expected a word and {width} numbers"
    if wrong := [field for field in fields if not is_number(field)]:
        return f"{place}, got {wrong[0][:40]!r}; fix the line"
    return f"{place}, got {len(fields) + word.count(' ')}; fix the line"


def is_number(text: str) -> bool:
    """Return whether `float` reads a text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_word2vec_binary(path: Path) -> Iterator[VectorBlock]:
    """Yield the vectors of a word2vec binary file.

    Raises ValueError with the byte for a file that ends early or goes on, NaN and infinity.
    """
    with open_binary(path) as file:  # no memory map: a file that becomes shorter would end the process (SIGBUS)
        line = file.readline(1 << 12)
        header = HEADER.fullmatch(line.rstrip(b"\n"))
        if header is None:
            raise ValueError(f"{path}: expected a first line with two numbers, got {line[:20]!r}")
        count, width = map(int, header.groups())
        check_width(path, width)
        records = _read_records(path, file, count, width)
        while batch := list(islice(records, WORDS_PER_BLOCK)):
            words, places, numbers = zip(*batch, strict=True)
            vectors = np.frombuffer(b"".join(numbers), dtype="<f4").astype(np.float32).reshape(len(batch), width)
            check_block(path, block := VectorBlock([*words], [*places], vectors))
            yield block


def _read_records(path: Path, file: IO[bytes], count: int, width: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield each word with its place and the bytes of its numbers."""
    content, position, offset = b"", 0, file.tell()  # what is read, where the next record is in it, and it in the file
    for number in range(1, count + 1):
        while (end := content.find(b" ", position) + 1 + 4 * width) - position <= 4 * width or end > len(content):
            more = file.read(READ_SIZE) if len(content) - position < MAX_RECORD else b""
            if not more:
                raise ValueError(f"{path}: expected {count:,} words (line 1), got {number - 1:,}; {COPY_AGAIN}")
            content, position, offset = content[position:] + more, 0, offset + position
        while content[position : position + 1] == b"\n":
            position += 1
        last = end - 4 * width
        word = content[position : last - 1].decode(errors="surrogateescape")
        yield word, f"word {number}", content[last:end]
        position = end
    rest, offset = content[position:], offset + position
    while not rest.strip(b"\n"):
        offset += len(rest)
        if not (rest := file.read(READ_SIZE)):
            return
    raise ValueError(f"{path}, byte {offset}: expected the end after {count:,} words (line 1), got more")


def check_width(path: Path, width: int) -> None:
    """Raise ValueError unless a width, numbers per word, can be one."""
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"{path}, line 1: expected from 1 to {MAX_WIDTH:,} numbers per word, got {width:,}")


def check_block(path: Path, block: VectorBlock) -> None:
    """Raise ValueError with the place of the first empty word, or number that is not finite."""
    for place, word in zip(block.places, block.words, strict=True):
        if not word:
            raise ValueError(f"{path}, {place}: expected a word before the numbers, got none; delete the line")
    wrong = np.flatnonzero(~np.isfinite(block.vectors).all(axis=1))
    if len(wrong):
        row = wrong[0]
        value = block.vectors[row][~np.isfinite(block.vectors[row])][0]
        raise ValueError(
            f"{path}, {block.places[row]}: expected finite numbers for {block.words[row]!r}, got {value}; delete it"
        )


def write_text_vectors(path: Path, words: Sequence[str], vectors: Vectors, header: bool) -> None:
    """Write a new text file: with a header as word2vec and fastText do, or without one as GloVe does.

    Nine significant digits: reading the file gives the same float32 numbers.
    """
    check_words(path, words, len(vectors))
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        if header:
            file.write(f"{len(words)} {vectors.shape[1]}\n")
        for word, vector in zip(words, vectors.tolist(), strict=True):
            file.write(f"{word} {' '.join([f'{number:.9g}' for number in vector])}\n")


def write_word2vec_binary(path: Path, words: Sequence[str], vectors: Vectors) -> None:
    """Write a new file in word2vec's binary format."""
    check_words(path, words, len(vectors))
    with new_file(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            file.write(word.encode() + b" " + vector.tobytes() + b"\n")


def check_words(path: Path, words: Sequence[str], vectors: int) -> None:
    """Raise ValueError unless there is one vector per word, and no word is empty or contains white space or NUL."""
    if len(words) != vectors:
        raise ValueError(f"{path}: expected a vector for each of {len(words):,} words, got {vectors:,}")
    for word in words:
        if not word or "\0" in word or re.search(r"[ \t\r\n]", word):
            raise ValueError(f"{path}: expected words without white space, got {word!r}")


def unit_rows(vectors: Vectors) -> Vectors:
    """Scale rows to length 1; a row of zeros stays."""
    scaled: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled
