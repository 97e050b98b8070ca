"""Reading and writing a TensorFlow checkpoint (`NAME.index`, `NAME.data-00000-of-00001`) without TensorFlow.

No maintained package does it without all of TensorFlow, and the format is small: the index is a LevelDB table
(leveldb/doc/table_format.md) of protocol-buffer records (tensorflow/core/protobuf/tensor_bundle.proto), which name
file, offset and size of each tensor. Every block and every tensor is compared with its CRC32C.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.files import atomic_file, masked_crc32c, open_binary, read_bytes

HANDLES_SIZE = 40  # two block handles, padded
FOOTER_SIZE = HANDLES_SIZE + 8  # and the magic number
MAGIC = 0xDB4775248B80FB57
TRAILER_SIZE = 5  # after each block: compression (1 byte) and checksum (4)
FLOAT32 = 1  # DT_FLOAT in tensorflow/core/framework/types.proto
VARINT, BYTES, FIXED32 = 0, 2, 5  # wire types of protocol buffers: integers, strings or messages, 4 bytes
FIXED_FORMATS = {1: "<Q", FIXED32: "<I"}  # the types of fixed size, as formats of `struct`
MAX_SHIFT = 63  # bits of the largest number
UNCOMPRESSED = b"\0"


class Entry(NamedTuple):
    """The record of a tensor in the index."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


class Bundle(NamedTuple):
    """The index of a checkpoint."""

    path: Path
    entries: dict[str, Entry]
    num_shards: int

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield name and values of tensors; the rest is not read.

        Raises ValueError, naming file and tensor, for damaged or missing files and for tensors that are not float32.
        """
        for name in names:
            entry = self.entries[name]
            data = self.path.with_suffix(f".data-{entry.shard:05d}-of-{self.num_shards:05d}")
            yield name, read_tensor(data, name, entry)


def read_bundle(path: Path) -> Bundle:
    """Read the index of a checkpoint. Raises ValueError, naming the file, if it is damaged."""
    try:
        records = dict(read_table(path))
        header = parse_ints(records.pop(b"")) if b"" in records else None
        entries = {key.decode(): parse_entry(record) for key, record in records.items()}
    except (IndexError, KeyError, struct.error, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: damaged, or not the index of a TensorFlow checkpoint ({error!r}); copy or download it again"
        ) from None
    if header is None:
        raise ValueError(f"{path}: no header record; this is not the index of a TensorFlow checkpoint")
    if header.get(2):
        raise ValueError(f"{path}: written on a big-endian machine, which is not supported")
    return Bundle(path, entries, header.get(1, 1))


def parse_entry(record: bytes) -> Entry:
    values = parse_ints(record)
    dims = [dim for shape in parse_messages(record, 2) for dim in parse_messages(shape, 2)]
    shape = tuple(parse_ints(dim).get(1, 0) for dim in dims)
    dtype, shard, offset, size, checksum = (values.get(number, 0) for number in (1, 3, 4, 5, 6))
    return Entry(dtype, shape, shard, offset, size, checksum, sliced=bool(parse_messages(record, 7)))


def read_tensor(path: Path, name: str, entry: Entry) -> npt.NDArray[np.float32]:
    """Read a tensor from a data file. Raises ValueError, naming file and tensor, if it is damaged or not float32."""
    if entry.dtype != FLOAT32 or entry.sliced:
        kind = f"a slice of type {entry.dtype}" if entry.sliced else f"type {entry.dtype}"
        raise ValueError(f"{path}: {name}: expected a whole tensor of type {FLOAT32} (float32), got {kind}")
    if entry.size != 4 * math.prod(entry.shape):
        raise ValueError(f"{path}: {name}: expected 4 bytes per value of shape {entry.shape}, got {entry.size} bytes")
    if not path.is_file():
        raise ValueError(f"{path}: missing, but the index names it for {name}")
    with open_binary(path) as file:
        # A damaged index may name more bytes than memory or the file has.
        if entry.offset + entry.size <= path.stat().st_size:
            file.seek(entry.offset)
            data = file.read(entry.size)
        else:
            data = b""
    if len(data) < entry.size or masked_crc32c(data) != entry.checksum:
        raise ValueError(f"{path}: truncated or damaged at {name} (checksum); copy or download it again")
    return np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(entry.shape)


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a LevelDB table, in order. Raises ValueError for a damaged file."""
    data = read_bytes(path) if path.is_file() else b""
    if len(data) < FOOTER_SIZE or int.from_bytes(data[-8:], "little") != MAGIC:
        raise ValueError(f"{path}: truncated, or not the index of a TensorFlow checkpoint; copy or download it again")
    _, offset = read_handle(data, len(data) - FOOTER_SIZE)  # skips the handle of the table's statistics
    (index_offset, index_size), _ = read_handle(data, offset)
    for _, value in read_entries(read_block(data, index_offset, index_size, path)):
        (block_offset, block_size), _ = read_handle(value, 0)
        yield from read_entries(read_block(data, block_offset, block_size, path))


def read_block(data: bytes, offset: int, size: int, path: Path) -> bytes:
    """Return a block's content. Raises ValueError, naming `path` and offset, if its checksum differs."""
    content = data[offset : offset + size + 1]
    stored = data[offset + size + 1 : offset + size + TRAILER_SIZE]
    if len(stored) < 4 or masked_crc32c(content) != int.from_bytes(stored, "little"):
        raise ValueError(f"{path}: damaged at byte {offset} (checksum); copy or download it again")
    if content[-1:] != UNCOMPRESSED:
        raise ValueError(
            f"{path}: compressed (type {content[-1]}), which the index of a TensorFlow checkpoint never is"
        )
    return content[:-1]


def read_entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block; it stores how many bytes a key shares with the previous key, and the rest."""
    end = len(content) - 4 - 4 * int.from_bytes(content[-4:], "little")  # before the restart points and their number
    offset, key = 0, b""
    while offset < end:
        shared, offset = read_varint(content, offset)
        unshared, offset = read_varint(content, offset)
        length, offset = read_varint(content, offset)
        key = key[:shared] + content[offset : offset + unshared]
        offset += unshared
        yield key, content[offset : offset + length]
        offset += length


def read_handle(data: bytes, offset: int) -> tuple[tuple[int, int], int]:
    block_offset, offset = read_varint(data, offset)
    block_size, offset = read_varint(data, offset)
    return (block_offset, block_size), offset


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a number stored in groups of seven bits, lowest first, and the offset after it."""
    number = shift = 0
    while data[offset] & 0x80:
        if shift > MAX_SHIFT:
            raise OverflowError(f"a number of more than 64 bits at byte {offset}")
        number |= (data[offset] & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
    return number | data[offset] << shift, offset + 1


def parse_ints(message: bytes) -> dict[int, int]:
    """Return the integers of a protocol-buffer message by field number; of a repeated field, the last one."""
    return {number: value for number, value in parse_fields(message) if isinstance(value, int)}


def parse_messages(message: bytes, number: int) -> list[bytes]:
    """Return the messages nested in a message under a field number."""
    return [value for field, value in parse_fields(message) if field == number and isinstance(value, bytes)]


def parse_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    offset = 0
    while offset < len(message):
        tag, offset = read_varint(message, offset)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            value, offset = read_varint(message, offset)
            yield number, value
        elif wire_type == BYTES:
            length, offset = read_varint(message, offset)
            yield number, message[offset : offset + length]
            offset += length
        else:
            fixed = FIXED_FORMATS[wire_type]
            yield number, int(struct.unpack_from(fixed, message, offset)[0])
            offset += struct.calcsize(fixed)


def write_bundle(index: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write tensors as an index and one data file next to it; each file is whole or absent, the index comes last."""
    records = [(b"", format_int(1, 1) + format_bytes(3, format_int(1, 1)))]  # BundleHeaderProto: one file, version 1
    with atomic_file(index.with_suffix(".data-00000-of-00001")) as temporary, temporary.open("wb") as file:
        for name in sorted(tensors):
            data = tensors[name].astype("<f4", copy=False).tobytes()
            records.append((name.encode(), format_entry(tensors[name].shape, file.tell(), data)))
            file.write(data)
    with atomic_file(index) as temporary:
        temporary.write_bytes(format_table(records))


def format_entry(shape: Sequence[int], offset: int, data: bytes) -> bytes:
    """Format a BundleEntryProto of a float32 tensor in the first data file."""
    dims = b"".join(format_bytes(2, format_int(1, size)) for size in shape)
    checksum = format_varint(6 << 3 | FIXED32) + struct.pack("<I", masked_crc32c(data))
    return format_int(1, FLOAT32) + format_bytes(2, dims) + format_int(4, offset) + format_int(5, len(data)) + checksum


def format_table(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Format a LevelDB table of one data block; the keys of the records ascend."""
    data = format_block(records)
    handles = [format_handle(0, data)]
    for block in (format_block([]), format_block([(records[-1][0], handles[0])])):  # statistics: none; block index
        handles.append(format_handle(len(data), block))
        data += block
    return data + b"".join(handles[1:]).ljust(HANDLES_SIZE, b"\0") + MAGIC.to_bytes(8, "little")


def format_block(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Format a block with its trailer. Keys are stored whole, so every record is a restart point of binary search."""
    entries = [
        format_varint(0) + format_varint(len(key)) + format_varint(len(value)) + key + value for key, value in records
    ]
    restarts = [*accumulate(map(len, entries), initial=0)][: len(entries)]
    content = b"".join(entries) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + UNCOMPRESSED
    return content + struct.pack("<I", masked_crc32c(content))


def format_handle(offset: int, block: bytes) -> bytes:
    """Format the offset of a block and the size of its content without the trailer."""
    return format_varint(offset) + format_varint(len(block) - TRAILER_SIZE)


def format_int(number: int, value: int) -> bytes:
    """Format an integer field of a protocol-buffer message; 0 is the default and is omitted."""
    return format_varint(number << 3 | VARINT) + format_varint(value) if value else b""


def format_bytes(number: int, value: bytes) -> bytes:
    """Format a field of a protocol-buffer message that is a string or a message."""
    return format_varint(number << 3 | BYTES) + format_varint(len(value)) + value


def format_varint(number: int) -> bytes:
    """Format a number in groups of seven bits, lowest first; all but the last have the high bit set.

    >>> format_varint(300).hex()
    'ac02'
    """
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
