"""Reading a TensorFlow bundle (`NAME.index`, `NAME.data-00000-of-00001`) without TensorFlow.

No maintained package reads one without all of TensorFlow, and the format is small: the index is one LevelDB table
(leveldb/doc/table_format.md) of protocol-buffer records (tensorflow/core/protobuf/tensor_bundle.proto) that say where
in the data files each tensor lies. Every block and every tensor is checked against its CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.interop.crc32c import crc32c, masked

FOOTER_SIZE = 48  # two block handles, padded to 40 bytes, and the magic number
MAGIC = 0xDB4775248B80FB57
TRAILER_SIZE = 5  # after each block: compression (1 byte) and checksum (4)
FLOAT32 = 1  # DT_FLOAT in tensorflow/core/framework/types.proto


class Entry(NamedTuple):
    """Where a tensor lies."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


def read_bundle(index: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The float32 tensors of a bundle whose names are wanted; the others are left unread.

    Raises ValueError, naming file and tensor, for what is damaged or missing.
    """
    records = dict(read_table(index))
    if b"" not in records:
        raise ValueError(f"{index}: no header record; this is not a TensorFlow bundle")
    header = numbers(records.pop(b""))
    shards = header.get(1, 1)
    if header.get(2):
        raise ValueError(f"{index}: written on a big-endian machine, which is not read here")
    for key, record in records.items():
        if wanted(name := key.decode()):
            entry = read_entry(record)
            yield name, read_tensor(index.with_suffix(f".data-{entry.shard:05d}-of-{shards:05d}"), name, entry)


def read_entry(record: bytes) -> Entry:
    """A BundleEntryProto."""
    given = numbers(record)
    dims = [dim for shape in messages(record, 2) for dim in messages(shape, 2)]
    shape = tuple(numbers(dim).get(1, 0) for dim in dims)
    dtype, shard, offset, size, checksum = (given.get(number, 0) for number in (1, 3, 4, 5, 6))
    return Entry(dtype, shape, shard, offset, size, checksum, sliced=bool(messages(record, 7)))


def read_tensor(path: Path, name: str, entry: Entry) -> npt.NDArray[np.float32]:
    if entry.dtype != FLOAT32 or entry.sliced:
        raise ValueError(f"{path}: {name} is not a whole float32 tensor (type {entry.dtype}); only such are read")
    if entry.size != 4 * int(np.prod(entry.shape)):
        raise ValueError(f"{path}: {name} has {entry.size} bytes, which do not fit its shape {entry.shape}")
    if not path.is_file():
        raise ValueError(f"{path}: missing, though the index names it for {name}")
    with path.open("rb") as file:
        file.seek(entry.offset)
        data = file.read(entry.size)
    if len(data) < entry.size or masked(crc32c(data)) != entry.checksum:
        raise ValueError(f"{path}: damaged at {name} (checksum); copy or download it again")
    return np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(entry.shape)


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table, in order."""
    data = path.read_bytes()
    if len(data) < FOOTER_SIZE or int.from_bytes(data[-8:], "little") != MAGIC:
        raise ValueError(f"{path}: not a whole index of a TensorFlow bundle (its last bytes are others)")
    _, place = handle(data, len(data) - FOOTER_SIZE)  # the first handle is the table's statistics
    (offset, size), _ = handle(data, place)
    for _, value in entries(block(data, offset, size, path)):
        (offset, size), _ = handle(value, 0)
        yield from entries(block(data, offset, size, path))


def block(data: bytes, offset: int, size: int, path: Path) -> bytes:
    """One block's content, checked."""
    content = data[offset : offset + size + 1]
    stored = data[offset + size + 1 : offset + size + TRAILER_SIZE]
    if len(stored) < 4 or masked(crc32c(content)) != int.from_bytes(stored, "little"):
        raise ValueError(f"{path}: damaged at byte {offset} (checksum); copy or download it again")
    if content[-1] != 0:
        raise ValueError(f"{path}: a compressed index (kind {content[-1]}), which TensorFlow's bundles do not have")
    return content[:-1]


def entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A block's records; each key is given as how much it shares with the one before it, and the rest."""
    end = len(content) - 4 - 4 * int.from_bytes(content[-4:], "little")  # before the restart points and their number
    place, key = 0, b""
    while place < end:
        shared, place = varint(content, place)
        unshared, place = varint(content, place)
        length, place = varint(content, place)
        key = key[:shared] + content[place : place + unshared]
        place += unshared
        yield key, content[place : place + length]
        place += length


def handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """A block's offset and size, and where the next thing begins."""
    offset, place = varint(data, place)
    size, place = varint(data, place)
    return (offset, size), place


def varint(data: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest first, and where the next thing begins."""
    number = shift = 0
    while data[place] & 0x80:
        number |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | data[place] << shift, place + 1


def numbers(message: bytes) -> dict[int, int]:
    """A protocol-buffer message's numeric fields; of a repeated one the last."""
    return {number: value for number, value in fields(message) if isinstance(value, int)}


def messages(message: bytes, number: int) -> list[bytes]:
    """The messages inside a message under one field number."""
    return [value for field, value in fields(message) if field == number and isinstance(value, bytes)]


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = varint(message, place)
            yield number, value
        elif kind == 2:
            length, place = varint(message, place)
            yield number, message[place : place + length]
            place += length
        else:  # fixed numbers of 8 bytes or 4
            form = {1: "<Q", 5: "<I"}[kind]
            yield number, int(struct.unpack_from(form, message, place)[0])
            place += struct.calcsize(form)
