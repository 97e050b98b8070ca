"""Atomic writes, content digests, and the lock that gives one process the sole use of a folder."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertwright.base import object_storage
from bertwright.base.foreign import NO_WAIT, check_no_link, open_regular
from bertwright.base.object_storage import as_url, display

if TYPE_CHECKING:
    from matplotlib.figure import Figure

try:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def _lock(descriptor: int) -> None:
        flock(descriptor, LOCK_EX | LOCK_NB)

except ImportError:  # Windows
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]


READ_SIZE = 1 << 20  # bytes per read; large enough that system calls take no noticeable time
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # raised by flock on some network file systems
LOCK_FILE = ".lock"  # marks folders that one process at a time writes to
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | NO_WAIT  # Windows has neither
WAIT_S = 0.5  # seconds until a process looks again for the copy that another process makes
TAKEN = (errno.ENOTEMPTY, errno.EEXIST)  # raised by the rename of a folder if the new name exists


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C as LevelDB and TensorFlow store it: masked, because a CRC of data with CRCs would be weak."""
    import google_crc32c

    checksum: int = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk: a rename needs its folder flushed to survive a power cut."""
    if sys.platform == "win32":  # opens no folders, and flushes only files that are open for writing
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_folder(path: Path) -> None:
    """Create a folder and its parents unless they exist. Raises NotADirectoryError if one of them is a file."""
    if as_url(path):  # an object store has no folders
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a file, but a folder is needed", error.filename) from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes `path` when the block ends; after an error nothing is left behind."""
    if url := as_url(path):
        with object_storage.new_object(url) as temporary, attach_filename(temporary):
            yield temporary
        return
    ensure_folder(path.parent)
    temporary = _temporary(path)
    try:
        with attach_filename(path):
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode
            yield temporary
            if temporary.stat().st_mode != mode:  # safetensors gives the owner alone access, whatever the umask says
                temporary.chmod(mode)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def attach_filename(path: Path) -> Iterator[None]:
    """Add a file name to an OSError without one, such as after a write to an open file on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (None, errno.EAGAIN) and error.filename is None:  # EAGAIN: no more processes
            error.filename = str(path)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which becomes `path` when the block ends; after an error nothing is left behind.

    Raises ValueError if another process has created `path` in the meantime.
    """
    if url := as_url(path):
        with object_storage.new_folder(url) as temporary, attach_filename(temporary):
            yield temporary
            check_absent(path)
        return
    ensure_folder(path.parent)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        with attach_filename(path):
            yield temporary
            mode = temporary.stat().st_mode & 0o666
            for written in [*sorted(temporary.rglob("*")), temporary]:
                if written.is_file() and written.stat().st_mode & 0o777 != mode:  # as in atomic_file
                    written.chmod(mode)
                sync(written)
            try:
                temporary.rename(path)
            except OSError as error:
                if error.errno in TAKEN:
                    check_absent(path)
                raise
            sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, atomically."""
    with atomic_file(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a run's name in a script that no font has
        figure.savefig(temporary, dpi=130, format="png")


def remove_folder(path: Path) -> None:
    """Delete a folder atomically: rename it, then delete its files.

    An interrupted call leaves a temporary, which `remove_stale_parts` deletes.
    """
    if url := as_url(path):
        object_storage.remove(url)
        return
    temporary = _temporary(path)
    path.rename(temporary)
    _remove(temporary)


def remove_stale_parts(folder: Path) -> None:
    """Delete all temporaries in a folder that this process has locked."""
    for temporary in folder.glob(".*.part-*"):
        _remove(temporary)


def _temporary(path: Path) -> Path:
    """Return this process's temporary name for a path, and delete the temporaries of the same path by dead processes.

    Nothing has the name on return: a link that a foreign folder contains would lead the write elsewhere.
    The name holds the process id and a number for the machine: processes of other machines may write to a shared disk.
    """
    host = zlib.crc32(f"{platform.node()} {_process_namespace()}".encode())
    if sys.platform != "win32":  # where os.kill ends the process
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.part-*-{host}"):
            process = leftover.name.rpartition(".part-")[2].partition("-")[0]
            if process.isdecimal() and not _is_alive(int(process)):
                _remove(leftover)
    temporary = path.with_name(f".{path.name}.part-{os.getpid()}-{host}")
    _remove(temporary)
    return temporary


def _process_namespace() -> str:
    """Name what process ids are relative to: containers on one host may share its name, but not its processes."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux, or no /proc
        return ""


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _remove(temporary: Path) -> None:
    if temporary.is_dir() and not temporary.is_symlink():
        shutil.rmtree(temporary)
    else:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding=encoding, newline="\n")  # the same bytes on all systems


def write_json(path: Path, value: Any) -> None:
    """Write a value as an indented JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_bytes(path: Path) -> bytes:
    """Read a file of this machine or an object. Raises ValueError for a pipe or a device."""
    with open_binary(path) as file:
        return file.read()


def read_utf8(path: Path) -> str:
    r"""Read a text file; its lines end in \n. Raises ValueError with the file and the byte for other encodings."""
    try:
        return read_bytes(path).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}; restore the file") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises ValueError with the file, the line and the parser's reason if it is not JSON."""
    text = read_utf8(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits; brackets nested too deeply
        raise ValueError(f"{path}: not readable as JSON ({error})") from None


def digest_bytes(*strings: bytes | memoryview) -> str:
    """Return the BLAKE2b digest (128 bits, hex) of byte strings and their lengths: (ab, c) differs from (a, bc)."""
    state = hashlib.blake2b(digest_size=16)
    for string in strings:
        state.update(len(string).to_bytes(8, "little"))
        state.update(string)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """Return the BLAKE2b digest (128 bits, hex) of a file's content, in constant memory."""
    state = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(READ_SIZE):
            state.update(block)
    return state.hexdigest()


def user_cache() -> Path:
    """Return the user's cache folder. Raises RuntimeError for a user without a home folder."""
    if chosen := os.environ.get("BERTWRIGHT_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertwright"


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed; return False if another process has locked it."""
    try:
        _lock(file.fileno())
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


def open_to_append(path: Path) -> IO[str]:
    """Open a text file to append lines, creating it if it is absent. Raises ValueError for a link, pipe or device."""
    check_no_link(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: expected a file, got a folder, pipe or device; delete it")
    return open(
        path, "a", encoding="utf-8", buffering=1, opener=lambda name, flags: os.open(name, flags | NO_FOLLOW, 0o666)
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, creating it if it is absent. The lock ends with the process, even a killed one.

    A folder that was created and locked here and is still empty in the end is deleted. Raises ValueError if another
    process has locked the folder, OSError if its file system has no locks. Object stores have no locks: processes that
    write there the same do no harm.
    """
    if as_url(folder):
        yield
        return
    is_new = not folder.exists()
    with ExitStack() as after_closing, lock_if_free(folder) as is_locked:
        if not is_locked:
            raise ValueError(f"{folder}: another process is writing there; wait for it, or choose another folder")
        try:
            yield
        finally:
            if is_new and [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                if sys.platform == "win32":  # deletes no open file
                    after_closing.callback(shutil.rmtree, folder)
                else:
                    shutil.rmtree(folder)


@contextmanager
def lock_if_free(folder: Path) -> Iterator[bool]:
    """Lock a folder until the block ends, and yield True; yield False if another process has locked it.

    Raises OSError, with the folder and what to do, if its file system has no locks.
    """
    ensure_folder(folder)
    with open_to_append(folder / LOCK_FILE) as file:
        try:
            is_locked = try_lock(file)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            reason = f"its file system has no file locks ({error.strerror}); choose a folder on another disk"
            raise OSError(error.errno, reason, str(folder)) from None
        yield is_locked


def exists(path: Path) -> bool:
    """Return whether there is a file or folder, on this machine or in an object store."""
    url = as_url(path)
    return object_storage.exists(url) if url else path.exists()


def open_binary(path: Path) -> IO[bytes]:
    """Open a file of this machine or an object for reading. Raises ValueError for a pipe or a device."""
    url = as_url(path)
    return object_storage.open_stream(url) if url else open_regular(path)


def local_folder(path: Path, progress: Callable[[int], None] = lambda _: None) -> Path:
    """Return a folder of this machine: the given one, or a copy of an object store's, made once in the user's cache.

    If several processes need the copy, one makes it, and the others wait. `progress` receives the number of bytes
    copied since its last call.
    """
    if (url := as_url(path)) is None:
        return path
    copy = user_cache() / "objects" / object_storage.digest_names(url) / path.name
    while not copy.exists():
        with lock_if_free(copy.parent) as is_locked:
            if is_locked and not copy.exists():
                remove_stale_parts(copy.parent)
                with attach_filename(copy), atomic_folder(copy) as temporary:
                    object_storage.download(url, temporary, progress)
        if not is_locked:
            time.sleep(WAIT_S)
    return copy


def check_absent(path: Path) -> None:
    """Raise ValueError if a result would replace something."""
    url = as_url(path)
    if object_storage.exists(url) if url else os.path.lexists(path):
        raise ValueError(f"{display(path)}: already exists; choose another path, or delete it")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes `path` when the block ends.

    Raises OSError before the work if the file cannot be written, and ValueError if the path is "-", exists, or has been
    written by another process in the meantime.
    """
    if path == Path("-"):
        raise ValueError("-: expected the name of a file; this result is not written to standard output")
    check_absent(path)
    with atomic_file(path) as temporary:
        yield temporary
        check_absent(path)
