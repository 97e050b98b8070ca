"""Object stores such as s3:// and gs://, through fsspec: streamed reads, and writes that are whole or not at all.

A `Path` of a setting may hold a URL: it joins the two slashes of s3://, and `as_url` restores them.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bertwright.base.foreign import is_name_below
from bertwright.base.optional import missing_package

READ_AHEAD = 8 << 20  # bytes per request of a stream
SCHEMES = "file://, s3:// and gs://"
URL = re.compile(r"(?!hf:)([a-z][a-z0-9+.-]+):/+(?=[^/])", re.IGNORECASE)  # hf:// is the hub; one letter, a drive
INCOMPLETE = ".incomplete"  # object that is written first and deleted last
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`; gcloud auth for gs://"


def as_url(path: Path | str) -> str | None:
    """Return the URL that a path holds; None for a path on this machine.

    >>> as_url(Path("s3://bucket/store")), as_url("file:///tmp/a.txt"), as_url("a.txt"), as_url("hf://datasets/a")
    ('s3://bucket/store', 'file:///tmp/a.txt', None, None)
    """
    text = path.as_posix() if isinstance(path, Path) else path
    if (match := URL.match(text)) is None:
        return None
    slashes = ":///" if match[1] == "file" else "://"
    return match[1] + slashes + text[match.end() :]


def display(path: Path) -> str:
    """Return a path, or the URL that it holds, for people."""
    return as_url(path) or str(path)


@contextmanager
def explain(url: str) -> Iterator[None]:
    """Turn the errors of fsspec and of the stores' clients into a ValueError or OSError of one line with a way out."""
    try:
        yield
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error  # fsspec chains its own
        raise missing_package(cause.name or f"of this scheme ({error})", "scale", url) from None
    except FileNotFoundError as error:
        raise ValueError(f"{url}: no such bucket, folder or file ({_reason(error)}); check the name") from None
    except PermissionError as error:
        raise ValueError(f"{url}: access denied ({_reason(error)}); {CREDENTIALS}") from None
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise ValueError(f"{url}: unknown scheme; known are {SCHEMES}") from None
    except Exception as error:
        if type(error).__name__ in ("NoCredentialsError", "DefaultCredentialsError", "RefreshError"):
            raise ValueError(f"{url}: no credentials ({_reason(error)}); {CREDENTIALS}") from None
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise
        reason = f"the object store failed ({type(error).__name__}: {_reason(error)}); try again"
        raise OSError(errno.EIO, reason, url) from error


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return str(text).strip().splitlines()[0] if str(text).strip() else type(error).__name__


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it; call it and its methods inside `explain`."""
    import fsspec  # takes 0.1 s, which files on this machine do not need

    options = {"auto_mkdir": True} if url.startswith("file:") else {"use_listings_cache": False}
    return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]


def open_stream(url: str) -> IO[bytes]:
    """Open an object for reading; it is read ahead in blocks, and can be read from any position."""
    with explain(url):
        system, path = file_system(url)
        stream: IO[bytes] = system.open(path, "rb", block_size=READ_AHEAD, cache_type="readahead")
        return stream


def status(url: str) -> tuple[int, int]:
    """Return the size of an object and the time of its last change in ns, 0 if the store has none."""
    with explain(url):
        system, path = file_system(url)
        size = int(system.info(path)["size"])
        with suppress(NotImplementedError, KeyError):
            return size, int(system.modified(path).timestamp() * 1e6) * 1000
        return size, 0


def exists(url: str) -> bool:
    """Return whether there is an object or a whole folder with objects."""
    with explain(url):
        system, path = file_system(url)
        return bool(system.exists(path)) and not system.exists(_mark(path))


def _mark(path: str) -> str:
    """Return the name of the object that a folder has until all its objects are there."""
    return f"{path.rstrip('/')}/{INCOMPLETE}"


def list_names(url: str) -> list[str]:
    """Return the paths of all objects in a folder, relative to it, in sorted order; none if there is no such folder.

    Objects whose names end in a slash are left out: web consoles write them, without content, to show folders.
    """
    with explain(url):
        system, path = file_system(url)
        prefix = path.rstrip("/") + "/"
        names = (name.removeprefix(prefix) for name in system.find(path) if name.startswith(prefix))
        return sorted(name for name in names if name and not name.endswith("/"))


def remove(url: str) -> None:
    """Delete an object, or a folder with all its objects, if there is one."""
    with explain(url):
        system, path = file_system(url)
        if system.exists(path):
            system.rm(path, recursive=True)


@contextmanager
def new_object(url: str) -> Iterator[Path]:
    """Yield a path on this machine, whose file becomes the object when the block ends; after an error there is none."""
    with tempfile.TemporaryDirectory(prefix="bertwright-") as folder:
        temporary = Path(folder) / "object"
        temporary.touch()
        yield temporary
        with explain(url):
            system, path = file_system(url)
            _put(system, temporary, path)


@contextmanager
def new_folder(url: str) -> Iterator[Path]:
    """Yield an empty folder on this machine, whose files become objects when the block ends.

    They appear in the order in which they were written, so that a reader of the last one has all. After an error, the
    objects that have been written are deleted. After a kill, the mark of an incomplete folder is there: no reader takes
    it for the whole one, and the next writer replaces it.
    """
    with tempfile.TemporaryDirectory(prefix="bertwright-") as folder:
        yield Path(folder)
        files = sorted((path for path in Path(folder).rglob("*") if path.is_file()), key=lambda p: p.stat().st_mtime_ns)
        with explain(url):
            system, root = file_system(url)
            if system.exists(_mark(root)):
                system.rm(root, recursive=True)
            system.pipe_file(_mark(root), b"")
            written: list[str] = []
            try:
                for file in files:
                    written.append(f"{root.rstrip('/')}/{file.relative_to(folder).as_posix()}")
                    _put(system, file, written[-1])
                system.rm_file(_mark(root))
            except BaseException:
                for path in [*written, _mark(root)]:
                    with suppress(Exception):
                        system.rm_file(path)
                raise


def _put(system: Any, file: Path, path: str) -> None:
    """Upload a file; the object appears when its upload is complete."""
    with file.open("rb") as source, system.transaction, system.open(path, "wb") as target:
        shutil.copyfileobj(source, target, READ_AHEAD)


def digest_names(url: str) -> str:
    """Return a digest of the names, sizes and versions of all objects in a folder.

    Raises ValueError if it has none, or if the process that wrote them was killed before it had written all.
    """
    with explain(url):
        system, path = file_system(url)
        objects = system.find(path, detail=True)
        if not objects:
            raise FileNotFoundError("no objects there")
        if marks := [name for name in objects if PurePosixPath(name).name == INCOMPLETE]:
            raise ValueError(
                f"{url}: expected whole folders, got {marks[0]}: its upload was interrupted; run the command that "
                "writes it again"
            )
        versions = [
            (name, item["size"], str(item.get("ETag") or item.get("mtime") or item.get("created")))
            for name, item in sorted(objects.items())
        ]
    return hashlib.blake2b(f"{url} {versions}".encode(), digest_size=16).hexdigest()


def count_bytes(url: str) -> int:
    """Return the size of all objects in a folder."""
    with explain(url):
        system, path = file_system(url)
        return sum(int(item["size"]) for item in system.find(path, detail=True).values())


def check_object_names(url: str, names: Sequence[str]) -> None:
    """Raise ValueError unless all objects of a folder can be files of one folder of this machine, and nowhere else."""
    for name in names:
        if not is_name_below(name):
            raise ValueError(f"{url}: expected names of files inside this folder, got {name!r}; rename or delete it")
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    if both := sorted(folders.intersection(names)):
        raise ValueError(f"{url}: expected a file or a folder as {both[0]!r}, got both; rename or delete one")


def download(url: str, folder: Path, progress: Callable[[int], None]) -> None:
    """Copy all objects of a folder into a folder of this machine; `progress` receives the bytes since its last call.

    Raises ValueError for an object whose name leads out of the folder; then nothing is copied.
    """
    names = list_names(url)
    check_object_names(url, names)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open_stream(f"{url}/{name}") as source, (folder / name).open("wb") as target:
            while block := source.read(READ_AHEAD):
                target.write(block)
                progress(len(block))
