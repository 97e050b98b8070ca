"""Paths from elsewhere: names that a file, a folder or a bucket of somebody else contains, links, pipes and devices.

Such a path could disclose a file of this machine, overwrite one, or name a device that never ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a named pipe would wait for its writer; Windows has none
NOT_SEEKABLE = "a pipe or a device, which cannot be read twice; write it to a file first"


def is_name(name: object) -> bool:
    """Return whether a value names a file or folder of its own folder on every system."""
    if not isinstance(name, str) or not name.isprintable():
        return False
    return name not in ("", ".", "..") and {*name}.isdisjoint("/\\:\0")


def is_name_below(name: object) -> bool:
    """Return whether a value names a file or folder below its own folder on every system, with / between the parts."""
    return isinstance(name, str) and all(map(is_name, name.split("/")))


def check_file_name(name: object, listing: Path) -> str:
    """Return the name of a file that a listing in its folder contains.

    Raises ValueError, naming the listing, for a path to other folders, and for a link to them.
    """
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(f"{listing}: expected the names of files in its own folder, got {name!r}")
    check_link(listing.parent / name, listing.parent)
    return name


def check_link(path: Path, folder: Path) -> None:
    """Raise ValueError if a path inside a folder is, or lies behind, a link that leads out of the folder.

    A folder in the cache of the Hugging Face hub consists of links to `blobs`, which belongs to it.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    cache = next((above.parent for above in root.parents if above.name == "snapshots"), root)
    inside = [root, cache / "blobs"] if cache.name.startswith(("models--", "datasets--")) else [root]
    if not any(map(real.is_relative_to, inside)):
        raise ValueError(f"{path}: expected a file or folder inside {folder}, got a link to {real}; copy it there")


def check_links(folder: Path) -> None:
    """Raise ValueError for a file or folder, directly in a folder, that is a link to others."""
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_symlink():
            check_link(folder / entry.name, folder)


def check_no_link(path: Path) -> None:
    """Raise ValueError if a path is a link: in a folder from elsewhere, it could lead to any file of this machine."""
    if path.is_symlink():
        raise ValueError(
            f"{path}: expected a file or folder inside {path.parent}, got a link to {path.readlink()}; delete the link"
        )


def check_regular(path: Path) -> None:
    """Raise ValueError for a pipe or a device, which other libraries would wait for; OSError for what is not there."""
    if path.stat() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path}: {NOT_SEEKABLE}")


def open_regular(path: Path, buffering: int = -1) -> IO[bytes]:
    """Open a file of this machine for reading. Raises ValueError for a pipe or a device."""
    check_regular(path)
    return open(path, "rb", buffering, opener=lambda name, flags: os.open(name, flags | NO_WAIT))
