"""The files of one path, and what their names and the names beside them say: labels, or that it is a retrieval set."""

from __future__ import annotations

import glob
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from bertwright.text.sources import (
    COMPRESSIONS,
    WAYS_OUT,
    InputFile,
    expand_files,
    format_of,
    is_remote,
    list_inputs,
    split_suffixes,
)

LABEL_FILE = re.compile(r"(.+)[-_.](labels?|targets?)(\.\w+)*")  # train-labels.lst beside train.jsonl or train_text.txt
TEXT_FILE_END = re.compile(r"[-_.](texts?|sentences?|data|inputs?)$")
SUFFIXES = re.compile(rf"(\.(txt|tsv|csv|jsonl|json|parquet))?({'|'.join(map(re.escape, COMPRESSIONS))})?$")
SPLIT_NAME = re.compile("train.*|dev.*|val|valid.*|test.*")
BARE_LABELS = re.compile(r"(labels?|targets?)(\.\w+)*")  # beside one of these texts, such as seq.in
BARE_TEXTS = frozenset({"seq.in", "text", "texts", "sentence", "sentences", "data", "input", "inputs"})
NUMBERED = re.compile(r"\d[\d_.-]*")  # names of files that hold one text each
MAPPING = "mapping.txt"  # numbers and names of the labels in files beside it, as in TweetEval
CORPUS, QRELS = "corpus.jsonl", "qrels"  # documents and folder of judgements, in BEIR's layout
UNLABELED = frozenset({"unsup", "unlabeled", "unlabelled"})  # folders of texts without a class, as in IMDB's


@dataclass(frozen=True)
class Neighbours:
    """The files of a path, sorted by what their names say; made once per path."""

    tables: tuple[InputFile, ...]
    """The files without those that hold labels."""
    label_files: dict[str, str]
    """The file with the labels of a table, by the path of the table."""
    classes: dict[str, str]
    """The class that each of several files is named after: its folder if these differ, or else its own name."""
    in_folders: bool
    """Whether a folder is a class, so that a .txt file is one text."""
    left_out: frozenset[str]
    """The other files, which have the name of a file with labels."""
    labels_read: set[str] = field(default_factory=set)
    """Files with labels that a table was read with."""


def list_neighbours(files: Sequence[InputFile], is_table: Callable[[InputFile], bool]) -> Neighbours:
    """Sort the files of a path by their names.

    `is_table`: whether a file has all columns, so that it is a table whatever its name.

    >>> files = [InputFile(f"a/rt.{name}", 1, ".txt", "", "file") for name in ("pos", "neg")]
    >>> list_neighbours(files, is_table=lambda file: False).classes
    {'a/rt.pos': 'pos', 'a/rt.neg': 'neg'}
    """
    paths = {file: PurePath(file.path) for file in files}
    stems: dict[tuple[PurePath, str], str] = {}
    for folder in {path.parent for path in paths.values()}:
        for entry in sorted(Path(folder).iterdir()) if Path(folder).is_dir() else ():
            if found := LABEL_FILE.fullmatch(entry.name):
                stems.setdefault((folder, found[1]), str(entry))
            elif BARE_LABELS.fullmatch(entry.name):
                stems.update(((folder, stem), str(entry)) for stem in BARE_TEXTS if (folder, stem) not in stems)
    named_like_labels = {*stems.values()}
    named_like_labels |= {str(Path(path).with_name(MAPPING)) for path in named_like_labels}
    tables = tuple(file for file in files if len(files) == 1 or file.path not in named_like_labels or is_table(file))
    table_paths = {file.path for file in tables}
    beside = {file: stems.get((paths[file].parent, TEXT_FILE_END.sub("", _stem(paths[file])))) for file in tables}
    label_files = {file.path: place for file, place in beside.items() if place and place not in table_paths}
    folders = {paths[file].parent for file in tables}
    is_numbered = len(tables) > 1 and all(NUMBERED.fullmatch(_stem(paths[file])) for file in tables)
    in_folders = len(folders) > 1 or is_numbered
    if in_folders:
        names = [paths[file].parent.name for file in tables]
    else:
        parts = [_stem(paths[file]).split(".") for file in tables]
        common = {n for n in range(min(map(len, parts), default=0)) if len({part[n] for part in parts}) == 1}
        names = [".".join([part for n, part in enumerate(cells) if n not in common]) for cells in parts]
    is_classes = (len(set(names)) > 1 or is_numbered) and not any(map(SPLIT_NAME.fullmatch, names))
    classes = {file.path: name for file, name in zip(tables, names, strict=True)} if is_classes else {}
    left_out = frozenset({file.path for file in files} - table_paths)
    return Neighbours(tables, label_files, classes, in_folders, left_out)


def list_labeled_inputs(path: str, formats: Mapping[str, bool], suffix: str | None) -> list[InputFile]:
    """List the files of a path with labels as `list_inputs` does, and a folder per class as it is published.

    Beside folders of texts, whatever their suffix, other files and texts without a class are left out, with a warning.
    Files without a suffix, or all with foreign ones, are texts.
    """
    is_set = Path(path).is_dir() or glob.has_magic(path)
    if suffix or is_remote(path) or not (is_set or (Path(path).is_file() and not split_suffixes(path)[0])):
        return list_inputs([path], formats=formats, suffix=suffix)
    paths = [*expand_files(path)]
    tables = [name for name in paths if format_of(name) in formats and format_of(name) != ".txt"]
    foreign = [name for name in paths if format_of(name) not in (*formats, *WAYS_OUT)]
    below = [name for name in paths if PurePath(name).parent != PurePath(path)] if Path(path).is_dir() else []
    if len({PurePath(name).parent for name in below}) > 1 and not tables:
        chosen = [name for name in below if PurePath(name).parent.name.lower() not in UNLABELED]
        texts, unknown = {*chosen}, {*foreign}  # sets: there may be many thousand files
        if left_out := [name for name in paths if name not in texts]:
            others = f" and {len(left_out) - 1:,} more files" if len(left_out) > 1 else ""
            warnings.warn(f"{left_out[0]}{others}: in no folder of a class, left out", stacklevel=1)
        paths, foreign = chosen, [name for name in chosen if name in unknown]
    elif len(foreign) < len(paths):
        foreign = []
    return list_inputs(paths, formats=formats, suffix="txt" if foreign else None)


def join_as_glob(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a glob of exactly these files, as the shell may have expanded it; else the paths as they are.

    Retrieval sets stay apart: each has documents and queries of its own.
    """
    parts = [PurePath(path).parts for path in paths]
    if len(paths) < 2 or len({*map(len, parts)}) > 1:
        return tuple(paths)
    if any(is_remote(path) or find_retrieval_folder(path) for path in paths):
        return tuple(paths)
    pattern = str(PurePath(*map(_pattern_of, zip(*parts, strict=True))))
    matches = sorted(glob.glob(pattern))  # noqa: PTH207
    return (pattern,) if matches == sorted(map(str, map(PurePath, paths))) else tuple(paths)


def is_retrieval_folder(path: str) -> bool:
    """Return whether a path is a folder with a file of documents."""
    return find_compressed(Path(path), CORPUS) is not None


def find_retrieval_folder(path: str) -> tuple[Path, str] | None:
    """Return the folder and the split of a path: a folder, whose split is then "test", or a file of judgements in it.

    None for other paths.
    """
    given = Path(path)
    if is_retrieval_folder(path):
        return given, "test"
    if given.parent.name == QRELS and is_retrieval_folder(str(given.parents[1])):
        return given.parents[1], given.name.partition(".tsv")[0]
    return None


def find_compressed(folder: Path, name: str) -> str | None:
    """Return a file of the folder, also compressed; None if there is none."""
    found = (folder / f"{name}{suffix}" for suffix in ("", *COMPRESSIONS))
    return next((str(path) for path in found if path.is_file()), None)


def _pattern_of(names: tuple[str, ...]) -> str:
    """Return the pattern of what names have in common at their ends.

    >>> _pattern_of(("train_a.txt", "train_b.txt")), _pattern_of(("a", "a"))
    ('train_*.txt', 'a')
    """
    if len({*names}) == 1:
        return glob.escape(names[0])
    shortest = min(map(len, names))
    start = next((names[0][:n] for n in range(shortest, 0, -1) if len({name[:n] for name in names}) == 1), "")
    left = range(shortest - len(start), 0, -1)
    end = next((names[0][-n:] for n in left if len({name[-n:] for name in names}) == 1), "")
    return f"{glob.escape(start)}*{glob.escape(end)}"


def _stem(path: PurePath) -> str:
    return SUFFIXES.sub("", path.name)
