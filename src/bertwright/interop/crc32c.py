"""CRC-32C (Castagnoli), with which TensorFlow guards its checkpoints, in numpy.

A CRC's register is linear over GF(2): data is cut into lanes, all lanes step through their bytes side by side from an
empty register, and the lanes' registers are then joined in pairs by "so many zero bytes later", a 32 × 32 bit matrix.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

POLYNOMIAL = 0x82F63B78  # reflected
ONES = 0xFFFFFFFF  # what the register starts from, and is inverted with at the end
MOST_LANES = 1 << 16  # their registers fit into the cache


def byte_table() -> Words:
    """The register that each of the 256 bytes leaves behind."""
    table: Words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


TABLE = byte_table()
BITS: Words = np.uint32(1) << np.arange(32, dtype=np.uint32)  # the unit matrix, a column a bit


def times(matrix: Words, registers: Words) -> Words:
    """Matrix (32 columns) times each register."""
    result = np.zeros_like(registers)
    for bit, column in enumerate(matrix):
        result ^= np.where(registers >> np.uint32(bit) & np.uint32(1), column, np.uint32(0))
    return result


def zero_bytes(count: int) -> Words:
    """The matrix that takes a register over `count` zero bytes, by repeated squaring."""
    result, power = BITS, TABLE[BITS & 255] ^ (BITS >> 8)
    while count:
        if count & 1:
            result = times(power, result)
        power, count = times(power, power), count >> 1
    return result


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """The checksum of bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    size = len(data)
    lanes = min(1 << max(size // 64, 1).bit_length() - 1, MOST_LANES)
    width = -(-size // lanes)
    grid = np.zeros(lanes * width, dtype=np.uint8)  # zeros in front leave an empty register empty
    grid[lanes * width - size :] = np.frombuffer(data, dtype=np.uint8)
    registers = np.zeros(lanes, dtype=np.uint32)
    for column in np.ascontiguousarray(grid.reshape(lanes, width).T):
        registers = TABLE[(registers ^ column) & 255] ^ (registers >> 8)
    step = zero_bytes(width)
    while len(registers) > 1:
        registers = times(step, registers[::2]) ^ registers[1::2]
        step = times(step, step)
    start = times(zero_bytes(size), np.array([ONES], dtype=np.uint32))
    return int(registers[0] ^ start[0]) ^ ONES


def masked(checksum: int) -> int:
    """How TensorFlow and LevelDB store a checksum, so that data which holds checksums does not weaken it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & ONES
