"""Whole-or-absent writes, content digests, and the lock that keeps two runs out of one folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def _lock(descriptor: int) -> None:
        flock(descriptor, LOCK_EX | LOCK_NB)

except ImportError:  # Windows
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]


READ_SIZE = 1 << 20  # bytes a read; large enough that system calls do not show


def sync(path: Path) -> None:
    """Make a file's content or a folder's names survive a power cut: a rename lasts once its folder is flushed."""
    if sys.platform == "win32":  # opens no folders, and flushes only files that are open for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_folder(path: Path) -> None:
    """Make a folder with those above it, where it is not there. NotADirectoryError where a file is in its place."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a file, where a folder is needed", error.filename) from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; on leaving without an error it becomes `path`, else nothing is left behind."""
    ensure_folder(path.parent)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with attach_filename(path):
            yield part
            sync(part)
            part.replace(path)
            sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def attach_filename(path: Path) -> Iterator[None]:
    """Let an error of the system say which file it is about: a write to an open one, on a full disk, does not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """The same for a folder, which must not exist yet: its files are flushed, then one rename makes it appear."""
    ensure_folder(path.parent)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        for written in [*sorted(part.rglob("*")), part]:
            sync(written)
        part.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Delete a folder so that it, too, is whole or absent: a kill leaves what `remove_stale_parts` deletes."""
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    path.rename(part)
    shutil.rmtree(part)


def remove_stale_parts(folder: Path) -> None:
    """Delete what a killed process left half-written in `folder`. Call only while holding the folder's lock."""
    for part in folder.glob(".*.part-*"):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file; a broken one raises ValueError with file, place and what was found there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise ValueError(f"{path}: not readable as JSON ({error})") from None


def digest_bytes(*parts: bytes) -> str:
    """BLAKE2b (128 bit, hex) of the parts, each with its length, so that moving a boundary changes the digest."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """BLAKE2b (128 bit, hex) of a file's content, in constant memory."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(READ_SIZE):
            state.update(block)
    return state.hexdigest()


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file for this process, until it is closed; return False if another process holds the lock."""
    try:
        _lock(file.fileno())
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for this process. The lock goes with the process, so a killed one leaves nothing to clean up.

    A folder that was made for it and has stayed empty goes, too. Raises ValueError when another live process holds it.
    """
    made = not folder.exists()
    ensure_folder(folder)
    with (folder / ".lock").open("w") as file:
        if not try_lock(file):
            raise ValueError(f"{folder}: another process is writing there; wait for it, or name another folder")
        try:
            yield
        finally:
            if made and [path.name for path in folder.iterdir()] == [".lock"]:
                shutil.rmtree(folder)
