"""Which files a corpus is made of: paths, folders, globs and dataset names become a checked, ordered list of files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, cast, get_args

from tyro.conf import Positional

from bertwright.settings import check_not_str

DocumentUnit = Literal["blank-line", "file", "line"]

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
COMPRESSIONS = (".gz", ".zst", ".bz2")
HF_SCHEME = "hf://"
NOT_SEEKABLE = "a pipe or a device, which cannot be read twice; write it to a file first"


@dataclass(frozen=True)
class CorpusSettings:
    """What the text is, and how it falls into documents and sentences."""

    inputs: Positional[tuple[str, ...]]
    """Files, folders (searched recursively, links followed, hidden names left out), globs, or hf://datasets/NAME/...
    paths: .txt, .jsonl, .csv, .tsv, .parquet, all but .parquet also as .gz, .zst or .bz2. `file=`, `line=` or
    `blank-line=` before one input overrides --document-unit for that input, as in file=books/."""

    document_unit: DocumentUnit = "blank-line"
    """What one document is in .txt input: the text between blank lines, a whole file, or a line. Next-sentence
    prediction needs documents of several sentences (paper, section A.1: "document-level corpus")."""

    column: str = "text"
    """The field or column that holds the text in .jsonl, .csv, .tsv and .parquet input; one row is one document. A .csv
    may have semicolons or tabs in place of commas, if its first line tells."""

    sentence_splitter: Literal["rules", "line"] = "rules"
    """How a document falls into sentences: by punctuation rules for English, Korean, Chinese and Japanese, or one
    sentence a line, for text that was split before."""

    encoding_errors: Literal["error", "replace"] = "error"
    """What to do about bytes that are not UTF-8: stop and say where they are, or read each as U+FFFD."""

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        if not self.inputs:
            raise ValueError("no input given: name at least one file, folder, glob or hf://datasets/... path")
        if not self.column:
            raise ValueError("column is empty: name the field that holds the text")


@dataclass(frozen=True)
class InputFile:
    """One file of the corpus, checked to exist and to have a known suffix."""

    path: str  # as messages show it: a path on this machine, or hf://…
    size: int  # bytes on disk, compressed if it is
    format: str  # its suffix; in a corpus one of FORMATS
    compression: str  # one of COMPRESSIONS, or "" for none
    document_unit: DocumentUnit  # how a .txt file falls into documents

    def local(self) -> Path:
        """Where the bytes lie on this machine; a file of the hub is fetched into its cache, once for all passes."""
        return _fetched(self.path) if self.path.startswith(HF_SCHEME) else Path(self.path)


def suffixes(path: str) -> tuple[str, str]:
    """What a file is by its name, in small letters, and how it is compressed; "" for nothing of the sort.

    >>> suffixes("a/b.train.JSONL.gz"), suffixes("hf://datasets/a/b.v1/*.conll"), suffixes("a.bz2")
    (('.jsonl', '.gz'), ('.conll', ''), ('', '.bz2'))
    """
    found = PurePath(path.lower()).suffixes
    compression = found.pop() if found and found[-1] in COMPRESSIONS else ""
    return found[-1] if found else "", compression


def open_inputs(settings: CorpusSettings, formats: Sequence[str] = FORMATS) -> list[InputFile]:
    """All files of the corpus: inputs in the order given, the files of each in sorted order.

    `formats`: the suffixes that are accepted.

    Raises ValueError for a path that does not exist, a folder or glob without files, an unknown suffix, an empty file,
    and a file that is named twice (its documents would silently count double); OSError for a folder that cannot be
    searched.
    """
    found, refused = check_inputs(settings, formats)
    for error in refused.values():
        raise error
    return found


def check_inputs(
    settings: CorpusSettings, formats: Sequence[str] = FORMATS
) -> tuple[list[InputFile], dict[str, ValueError | OSError]]:
    """The files of the corpus as `open_inputs` gives them, and the others, each with what is wrong with it.

    Raises what `open_inputs` does for inputs that are wrong themselves: that name nothing, or a file twice.
    """
    found: list[InputFile] = []
    refused: dict[str, ValueError | OSError] = {}
    named: dict[str, str] = {}
    for given in settings.inputs:
        rule, place = _override(given, settings.document_unit)
        for path in _hub_files(place) if place.startswith(HF_SCHEME) else expand_files(place):
            real = path if path.startswith(HF_SCHEME) else os.path.realpath(path)
            if real in named:
                raise ValueError(f"{path}: named twice, by {named[real]} and by {given}; its text would count double")
            named[real] = given
            try:
                found.append(_checked(path, rule, formats))
            except (ValueError, OSError) as error:
                refused[path] = error
    return found, refused


def _override(given: str, default: DocumentUnit) -> tuple[DocumentUnit, str]:
    prefix, equals, place = given.partition("=")
    if equals and prefix in get_args(DocumentUnit):
        return cast(DocumentUnit, prefix), place
    return default, given


def _checked(path: str, rule: DocumentUnit, formats: Sequence[str]) -> InputFile:
    suffix, compression = suffixes(path)
    if suffix not in formats:
        raise ValueError(
            f"{path}: unknown suffix {suffix or '(none)'}; known are {', '.join(formats)}, each but .parquet also with "
            f"{', '.join(COMPRESSIONS)} (a glob such as folder/**/*.txt leaves other files out)"
        )
    if compression and suffix == ".parquet":
        raise ValueError(f"{path}: Parquet is compressed inside; unpack this {compression} first")
    size = _size(path)
    if size == 0:
        raise ValueError(f"{path}: empty file (0 bytes); a broken download or export? Replace it or leave it out")
    return InputFile(path, size, suffix, compression, rule)


def _size(path: str) -> int:
    if not path.startswith(HF_SCHEME):
        return Path(path).stat().st_size
    with _reached(path):
        return int(_hub().info(path.removeprefix(HF_SCHEME))["size"])


def check_unique(places: Iterable[str], how: str = "") -> None:
    """Raise ValueError where two places stand for the same file; `how` tells by what. What is not there passes."""
    named: set[str] = set()
    for place in places:
        for real in resolve_files(place):
            if real in named:
                raise ValueError(f"{place}: named twice{how}; its examples would count double")
            named.add(real)


def resolve_files(place: str) -> list[str]:
    """The files that a place stands for, however it is spelled; of the hub, the place itself."""
    if place.startswith(HF_SCHEME):
        return [place]
    try:
        return [os.path.realpath(path) for path in expand_files(place)]
    except ValueError:  # whoever reads it will say so
        return []


def expand_files(place: str) -> Iterator[str]:
    """The files that a file, folder or glob of this machine stands for. Raises ValueError where there are none."""
    if not place:  # an unset variable in a script; Path would take it for the current folder
        raise ValueError("an input is empty: name a file, folder, glob or hf://datasets/... path")
    path = Path(os.path.expanduser(place))  # noqa: PTH111 (Path.expanduser raises RuntimeError for ~nobody)
    if path.is_dir():
        files = sorted(_visible_files(path))
    elif path.exists():
        files = [path]
    elif glob.has_magic(place):
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
        files = sorted(match for match in map(Path, matches) if match.is_file())
    else:
        raise ValueError(f"{place}: no such file or folder")
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise ValueError(f"{place}: {NOT_SEEKABLE}")
    if not files:
        raise ValueError(f"{place}: no files there" if path.is_dir() else f"{place}: no file matches")
    yield from map(str, files)


def _visible_files(folder: Path) -> Iterator[Path]:
    """All files below a folder and behind its links, each folder once, however many links lead there."""

    def refuse(error: OSError) -> None:
        raise error  # os.walk would leave such a folder out in silence

    seen: set[str] = set()
    for where, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(where)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in names if not name.startswith("."))


def _hub() -> Any:
    """The hub's file system; imported only where it is asked for, since it costs half a second."""
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def _hub_files(place: str) -> Iterator[str]:
    hub, pattern = _hub(), place.removeprefix(HF_SCHEME)
    with _reached(place):
        if glob.has_magic(pattern):
            names = hub.glob(pattern)
        elif not hub.exists(pattern):
            raise FileNotFoundError("no such data set, folder or file, or no right to read it")
        else:
            names = [pattern] if hub.isfile(pattern) else hub.find(pattern)
    shown = [name for name in sorted(names) if not any(part.startswith(".") for part in name.split("/"))]
    # A dataset's folder always holds its card and metadata; where data files are named by a folder, take only those.
    files = shown if glob.has_magic(pattern) or names == [pattern] else [name for name in shown if _is_data(name)]
    if not files:
        raise ValueError(f"{place}: no file with a known suffix ({', '.join(FORMATS)}) there")
    yield from (HF_SCHEME + name for name in files)


def _is_data(name: str) -> bool:
    return suffixes(name)[0] in FORMATS


def _fetched(path: str) -> Path:
    from huggingface_hub import hf_hub_download

    with _reached(path):
        place = _hub().resolve_path(path.removeprefix(HF_SCHEME))
        kind, revision = place.repo_type, place.revision
        return Path(hf_hub_download(place.repo_id, place.path_in_repo, repo_type=kind, revision=revision))


@contextmanager
def _reached(place: str) -> Iterator[None]:
    """Make one line of whatever the hub's client raises: its own errors, those of its HTTP library, and OSError."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{place}: the Hugging Face hub did not give it ({reason}); files on this machine will do"
        ) from error
