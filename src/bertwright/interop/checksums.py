"""Checksums of a model folder: `checksums.json` holds the CRC32C of each other file in the folder.

A bit that flips on a disk or in a copy would otherwise change predictions silently. Loading computes the checksums
again, at about 4 GB per second: 0.1 s for BERT base (440 MB). Folders without the file load unchecked:
other programs write none, and an owner may delete it after changing another file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import google_crc32c

from bertwright.base.files import READ_SIZE, open_binary, read_json, write_json
from bertwright.base.foreign import check_file_name
from bertwright.interop.model_files import CARD, CHECKSUMS, WEIGHTS

ALGORITHM = "crc32c"


def write_checksums(folder: Path) -> None:
    """Write the checksum of each file in a folder except its card, which its owner may edit. Call it last."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name not in (CHECKSUMS, CARD))
    write_json(folder / CHECKSUMS, {ALGORITHM: {name: compute_checksum(folder / name) for name in names}})


def check_weights(folder: Path) -> None:
    """Compare the weights with their checksum, if the folder has one. Raises ValueError for damaged weights."""
    for name, expected in read_checksums(folder).items():
        if name == WEIGHTS:
            check_file(folder / name, expected)


def check_other_files(folder: Path) -> None:
    """Compare all files except the weights with their checksums: configuration, tokenizer, task.

    Raises ValueError for a damaged or missing file.
    """
    for name, expected in read_checksums(folder).items():
        if name != WEIGHTS:
            check_file(folder / name, expected)


def read_checksums(folder: Path) -> dict[str, str]:
    """Read the checksum of each file name; none if the folder has no `checksums.json`.

    Raises ValueError for a file of another format, and for names of files in other folders.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return {}
    content = read_json(path)
    listed = content.get(ALGORITHM) if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise ValueError(
            f"{path}: expected the {ALGORITHM} of each file, got {str(content)[:60]}; restore it from a copy or "
            "delete it"
        )
    return {check_file_name(name, path): checksum for name, checksum in listed.items()}


def check_file(path: Path, expected: str) -> None:
    """Raise ValueError, naming file and checksums, if a file is missing or has another checksum."""
    listing = path.with_name(CHECKSUMS)
    if not path.is_file():
        raise ValueError(
            f"{path}: missing, but {CHECKSUMS} lists it; copy the whole folder again, or, if you have removed the file "
            f"on purpose, delete {listing}"
        )
    if (found := compute_checksum(path)) != expected:
        raise ValueError(
            f"{path}: expected {ALGORITHM} {expected} as in {CHECKSUMS}, got {found}: the file was damaged, or changed "
            f"after bertwright wrote it. If you or another program (such as transformers) changed it on purpose, "
            f"delete {listing}; otherwise copy or download the folder again"
        )


def compute_checksum(path: Path) -> str:
    """Compute the CRC32C of a file's content, eight hex digits, in constant memory."""
    checksum = 0
    with open_binary(path) as file:
        while block := file.read(READ_SIZE):
            checksum = google_crc32c.extend(checksum, block)
    return f"{checksum:08x}"


class Check(NamedTuple):
    """What loading a folder has compared."""

    text: str
    by_checksums: bool


def describe_check(folder: Path) -> Check:
    """Return what loading a model folder compares, for people."""
    if read_checksums(folder):
        return Check(f"every byte, by {CHECKSUMS}", True)
    return Check(f"shapes and formats only (no {CHECKSUMS})", False)
