"""Input files: paths, folders, globs and hub names become a checked, ordered list of files."""

from __future__ import annotations

import atexit
import difflib
import glob
import os
import re
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import IO, Literal, cast, get_args

from bertwright.base import object_storage
from bertwright.base.files import attach_filename, digest_bytes, digest_file
from bertwright.base.foreign import NOT_SEEKABLE, check_regular, open_regular
from bertwright.base.object_storage import as_url
from bertwright.text.hub_files import HF_SCHEME, download_from_hub, explain_hub_errors, hub_file_system, hub_size
from bertwright.text.signatures import HEAD_BYTES, recognize

DocumentUnit = Literal["blank-line", "file", "line", "section"]

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz", ".zip")
WAYS_OUT = {  # for files that cannot be mistaken for text without markup
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as .csv"),
    **dict.fromkeys((".html", ".docx", ".pdf"), "save its text as .txt"),
    ".xml": "convert it to .jsonl, with a text and its label, or words and tags, in each line",
}
SHOWN = 8  # names in a message
STDIN = "-"  # stands for standard input on the command line


@dataclass(frozen=True)
class InputFile:
    """An input file that exists, is not empty and has a known suffix."""

    path: str  # a path on this machine, hf://… or another URL; a member of a .json or .zip file follows after #
    size: int  # bytes on disk
    format: str  # suffix, such as ".txt"
    compression: str  # one of COMPRESSIONS, or ""
    document_unit: DocumentUnit  # used for .txt files; "section" for Wikipedia dumps
    modified_ns: int = 0  # time of its last change when it was listed; 0 if unknown

    def open(self) -> IO[bytes]:
        """Open the file: of this machine, of the hub's cache, or an object as a stream."""
        url = as_url(self.path)
        return object_storage.open_stream(url) if url else open_regular(self._local_path(), buffering=0)

    @contextmanager
    def local_path(self) -> Iterator[Path]:
        """Yield a path on this machine; an object is copied for the time of the block."""
        if as_url(self.path) is None:
            yield self._local_path()
            return
        with tempfile.TemporaryDirectory(prefix="bertwright-") as folder, self.open() as source:
            copy = Path(folder) / "object"
            with attach_filename(copy), copy.open("wb") as target:
                shutil.copyfileobj(source, target, object_storage.READ_AHEAD)
            yield copy

    def _local_path(self) -> Path:
        """Return the path on this machine; download a file of the hub into its cache unless it is already there."""
        return download_from_hub(self.path) if self.path.startswith(HF_SCHEME) else Path(split_member(self.path)[0])

    def check_unchanged(self) -> None:
        """Raise ValueError if the file is no longer as it was when it was listed."""
        if self.modified_ns and _file_status(self.path) != (self.size, self.modified_ns):
            raise ValueError(f"{self.path}: changed while it was read; wait until it is complete, and start again")


EMPTY_FILE = "empty file (0 bytes)"


class EmptyFileError(ValueError):
    """The error for a file of 0 bytes, which is left out where other files can be read."""


def find_file(path: str, unit: DocumentUnit = "blank-line", suffix: str | None = None) -> InputFile:
    """Describe an existing file; `suffix`: see `format_of`."""
    base, _ = split_member(path)
    size, modified = _file_status(path)
    return InputFile(path, size, format_of(path, suffix), split_suffixes(base)[1], unit, modified)


def is_remote(path: str) -> bool:
    """Return whether a path names files that are not on this machine: of the hub, or of an object store."""
    return path.startswith(HF_SCHEME) or as_url(path) is not None


def _file_status(path: str) -> tuple[int, int]:
    """Return the size of a file and the time of its last change in ns, 0 if unknown."""
    if path.startswith(HF_SCHEME):
        return hub_size(path), 0
    if url := as_url(path):
        return object_storage.status(url)
    check_regular(local := Path(split_member(path)[0]))
    status = local.stat()
    return status.st_size, status.st_mtime_ns


def format_of(path: str, suffix: str | None = None) -> str:
    """Return the suffix of a file's format, such as ".tsv"; `suffix`: the one given by the user, such as "tsv"."""
    base, member = split_member(path)
    given, compression = split_suffixes(base)
    if suffix:
        return f".{suffix}"
    return (
        split_suffixes(zip_member(base, base, member))[0] if compression == ".zip" and Path(base).is_file() else given
    )


def split_member(path: str) -> tuple[str, str]:
    """Split data.json#dev or data.zip#dev.csv into the file and its member; the member is "" if none is named."""
    base, _, member = path.rpartition("#")
    return (base, member) if base and Path(base).is_file() and not Path(path).exists() else (path, "")


def zip_member(file: str | IO[bytes], path: str, member: str = "") -> str:
    """Return the name of a file in an archive: the one given, or the only one. `path`: its name in messages."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: not a valid .zip archive ({error}); copy it again") from None
    if len(names) == 1 and not member:
        return names[0]
    if member not in names:
        raise ValueError(f"{path}: holds {len(names)} files ({', '.join(names[:SHOWN])}); name one, as in {path}#FILE")
    return member


def split_suffixes(path: str) -> tuple[str, str]:
    """Return the suffix that names the format and the one that names the compression, in lower case; "" for none.

    A .log is text. The files of a Wikipedia dump in several files end with the range of their pages: .xml-p1p41242.

    >>> split_suffixes("a/b.train.JSONL.gz"), split_suffixes("hf://datasets/a/b.v1/*.conll"), split_suffixes("a.bz2")
    (('.jsonl', '.gz'), ('.conll', ''), ('', '.bz2'))
    >>> split_suffixes("kowiki-latest-pages-articles1.xml-p1p82407.bz2"), split_suffixes("HDFS.log.gz")
    (('.xml', '.bz2'), ('.txt', '.gz'))
    """
    suffixes = PurePath(path.lower()).suffixes
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    suffix = suffixes[-1] if suffixes else ""
    return ".txt" if suffix == ".log" else re.sub(r"^\.xml-p\d+p\d+$", ".xml", suffix), compression


def list_inputs(
    inputs: Sequence[str],
    formats: Mapping[str, bool],
    document_unit: DocumentUnit = "blank-line",
    suffix: str | None = None,
) -> list[InputFile]:
    """List all files of the inputs: inputs in the order given, the files of each in sorted order.

    Empty files beside others are left out, with a warning. `formats`: the known suffixes, and whether such a file may
    be compressed; `suffix`: the format of all files, whatever their names.
    Raises ValueError for a path that does not exist, a folder or glob without files, a suffix that is not in
    `formats`, empty files only, and a file that is named twice; OSError for a folder that cannot be searched.
    """
    readable, failed = list_readable_inputs(inputs, formats, document_unit, suffix)
    empty = [path for path, error in failed.items() if isinstance(error, EmptyFileError)]
    for path, error in failed.items():
        if path not in empty or not readable:
            raise error
    if empty:
        others = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
        warnings.warn(f"{empty[0]}{others}: empty (0 bytes), left out", stacklevel=1)
    return readable


def list_readable_inputs(
    inputs: Sequence[str],
    formats: Mapping[str, bool],
    document_unit: DocumentUnit = "blank-line",
    suffix: str | None = None,
) -> tuple[list[InputFile], dict[str, ValueError | OSError]]:
    """List the readable files of the inputs, and the errors of the other files, by path.

    Raises ValueError for inputs that name no file, or a file twice.
    """
    readable: list[InputFile] = []
    failed: dict[str, ValueError | OSError] = {}
    named: dict[str, str] = {}
    for given in inputs:
        unit, pattern = _split_override(given, document_unit)
        for path in _remote_files(pattern, formats) if is_remote(pattern) else expand_files(pattern):
            real = path if is_remote(path) else os.path.realpath(path)
            if real in named:
                raise ValueError(f"{path}: named twice, by {named[real]} and by {given}; its text would count double")
            named[real] = given
            try:
                readable.append(_check_file(path, unit, formats, suffix))
            except (ValueError, OSError) as error:
                failed[path] = error
    return readable, failed


def _split_override(given: str, default: DocumentUnit) -> tuple[DocumentUnit, str]:
    """Split `file=books/` into the document unit and the path."""
    prefix, equals, pattern = given.partition("=")
    if equals and prefix in get_args(DocumentUnit):
        return cast(DocumentUnit, prefix), pattern
    return default, given


def _check_file(path: str, unit: DocumentUnit, formats: Mapping[str, bool], suffix: str | None) -> InputFile:
    file = find_file(path, unit, suffix)
    if file.size == 0:
        raise EmptyFileError(f"{path}: {EMPTY_FILE}; replace it, or leave it out")
    if file.format not in formats and file.format in WAYS_OUT:
        raise ValueError(f"{path}: {file.format} is not read; {WAYS_OUT[file.format]}")
    if file.format not in formats:
        if not file.compression and not is_remote(path):
            with file.open() as plain:
                if known := recognize(plain.read(HEAD_BYTES)):
                    raise ValueError(f"{path}: not text but {known}")
        alone = [name for name, may_be_compressed in formats.items() if not may_be_compressed]
        each = " ".join(["each but", *alone]) if alone else "each"
        raise ValueError(
            f"{path}: unknown suffix {file.format or '(none)'}; known are {', '.join(formats)}, {each} also with "
            f"{', '.join(COMPRESSIONS)}; name the format of such files, as in --format txt (a glob such as "
            "folder/**/*.txt excludes other files)"
        )
    if unit == "section" and file.format == ".txt":
        raise ValueError(
            f"{path}: expected a Wikipedia dump (.xml) for documents of one section, got .txt; use file=, line= or "
            "blank-line="
        )
    if file.compression and not formats[file.format]:
        raise ValueError(f"{path}: {file.format} is compressed inside; unpack this {file.compression} first")
    return file


def check_unique(patterns: Iterable[str], origin: str = "") -> None:
    """Raise ValueError if two patterns name the same file; missing files are ignored.

    `origin` is appended to the message, such as " with --dev".
    """
    named: set[str] = set()
    for pattern in patterns:
        for real in resolve_files(pattern):
            if real in named:
                raise ValueError(f"{pattern}: named twice{origin}; its examples would count double")
            named.add(real)


def check_exist(patterns: Iterable[str]) -> None:
    """Raise ValueError if a pattern names no file of this machine; others are looked for when they are read."""
    for pattern in patterns:
        if not is_remote(pattern):
            list(expand_files(pattern))


def resolve_files(pattern: str) -> list[str]:
    """Return the real paths of the files that a pattern names; for remote files, the pattern itself."""
    if is_remote(pattern):
        return [pattern]
    try:
        return [os.path.realpath(path) for path in expand_files(pattern)]
    except ValueError:  # reported when the file is read
        return []


def hint_at_similar(path: Path) -> str:
    """Return the question whether the file of the same folder with the most similar name is meant, if there is one."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:  # no such folder
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def expand_files(pattern: str) -> Iterator[str]:
    """Yield the files that a file, folder or glob of this machine names; of several links to a file, the first.

    Raises ValueError if there are none.
    """
    if not pattern:  # an unset variable in a script; Path would take it for the current folder
        raise ValueError("an input is empty: name a file, folder, glob or hf://datasets/... path")
    pattern, member = split_member(pattern)
    pattern = _copy_of_stdin(sys.stdin and sys.stdin.buffer) if pattern == STDIN else pattern
    path = Path(os.path.expanduser(pattern))  # noqa: PTH111 (Path.expanduser raises RuntimeError for ~nobody)
    if path.is_dir():
        files = sorted(_visible_files(path))
    elif path.exists():
        files = [path]
    elif glob.has_magic(pattern):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        files = sorted(match for match in map(Path, matches) if match.is_file())
    else:
        raise ValueError(f"{pattern}: no such file or folder{hint_at_similar(path)}")
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise ValueError(f"{pattern}: {NOT_SEEKABLE}")
    if not files:
        raise ValueError(f"{pattern}: no files there" if path.is_dir() else f"{pattern}: no file matches")
    seen: set[str] = set()
    for file in map(str, files):
        if (real := os.path.realpath(file)) not in seen:
            seen.add(real)
            yield f"{file}#{member}" if member else file


def digest_input(path: str) -> str:
    """Return the digest of the content of all files that a path names, whatever their names; of a remote path's name.

    A member of a file has the digest of the whole file and of the member's name. Raises ValueError for no file.
    """
    if is_remote(path):
        return digest_bytes(path.encode())
    digests = []
    for base, member in map(split_member, expand_files(path)):
        digest = digest_file(Path(base))
        digests.append(digest_bytes(digest.encode(), member.encode()) if member else digest)
    return digests[0] if len(digests) == 1 else digest_bytes(*(digest.encode() for digest in digests))


@lru_cache(maxsize=1)  # several passes read the same text
def _copy_of_stdin(stream: IO[bytes] | None) -> str:
    """Copy standard input to a temporary file, which lives as long as this process, and return its path."""
    folder = Path(tempfile.mkdtemp(prefix="bertwright-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / "standard-input.txt"
    with attach_filename(copy), copy.open("wb") as target:
        if stream is not None:
            shutil.copyfileobj(stream, target)
    if not copy.stat().st_size:
        raise ValueError("standard input: expected text, got none; pipe text into the command, or name a file")
    return str(copy)


def name_stdin(inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs with the path of a copy in place of standard input, for another process."""
    pairs = [given.rpartition("=") for given in inputs]
    return tuple(
        before + equals + (next(expand_files(STDIN)) if last == STDIN else last) for before, equals, last in pairs
    )


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, following links; each folder is visited once, however many links lead to it."""

    def fail(error: OSError) -> None:
        raise error  # os.walk would silently skip such a folder

    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _remote_files(location: str, formats: Mapping[str, bool]) -> Iterator[str]:
    """Yield the files that a file, folder or glob of the hub or of an object store names."""
    url = as_url(location)
    with object_storage.explain(url) if url else explain_hub_errors(location):
        hub, pattern = object_storage.file_system(url) if url else (hub_file_system(), location.removeprefix(HF_SCHEME))
        if glob.has_magic(pattern):
            names = [name for name, status in hub.glob(pattern, detail=True).items() if status["type"] == "file"]
        elif not hub.exists(pattern):
            kind = "bucket" if url else "data set"
            raise FileNotFoundError(f"no such {kind}, folder or file, or no permission to read it")
        else:
            names = [pattern] if hub.isfile(pattern) else hub.find(pattern)
    prefix = url[: url.index("://") + 3] if url else HF_SCHEME
    names = [name for name in sorted(names) if not name.endswith("/")]  # a folder of a web console
    visible = [name for name in names if not any(label.startswith(".") for label in name.split("/"))]
    # A data set's folder also holds its card and metadata, which are read only if a glob or a path names them.
    is_exact = glob.has_magic(pattern) or names == [pattern]
    files = visible if is_exact else [name for name in visible if split_suffixes(name)[0] in formats]
    if not files:
        raise ValueError(f"{location}: no file with a known suffix ({', '.join(formats)}) there")
    yield from (prefix + name.lstrip("/" if prefix == "memory://" else "") for name in files)
