"""Labels that are no column of a table: in a file beside it, in the names of files, or the first words of lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from bertwright.io.decoding import ReadStats, TextCodec, decode_blocks
from bertwright.io.lines import split_lines
from bertwright.io.schema import Row
from bertwright.io.sources import COMPRESSIONS, InputFile, find_file

LABEL_FILE = re.compile(r"(.+)[-_.](labels?|targets?)(\.\w+)*")  # train-labels.lst beside train.jsonl or train_text.txt
TEXT_FILE_END = re.compile(r"[-_.](texts?|sentences?|data|inputs?)$")
SUFFIXES = re.compile(rf"(\.(txt|tsv|csv|jsonl|json|parquet))?({'|'.join(map(re.escape, COMPRESSIONS))})?$")
SPLIT_NAME = re.compile("train.*|dev.*|val|valid.*|test.*")
FASTTEXT = "__label__"  # before each label in the files of fastText
LABEL_WORD = re.compile(rf"{FASTTEXT}\S+|[A-Z]{{2,}}[\w:.-]*|[+-]?\d+")
SHOWN_LINES = 1_000  # lines that show whether their first words are labels


@dataclass(frozen=True)
class LabelPlaces:
    """The places of labels for the files of one path, by the path of the table."""

    tables: tuple[InputFile, ...]
    """The files without those that hold labels."""
    label_files: dict[str, str]
    classes: dict[str, str]
    """The class that each of several files is named after: its folder if these differ, or else its own name."""
    in_folders: bool
    """Whether a folder is a class, so that a .txt file is one text."""


def find_labels(files: Sequence[InputFile]) -> LabelPlaces:
    """Find the places of labels by the names of files.

    >>> places = find_labels([InputFile(f"a/rt.{name}", 1, ".txt", "", "file") for name in ("pos", "neg")])
    >>> places.classes
    {'a/rt.pos': 'pos', 'a/rt.neg': 'neg'}
    """
    paths = {file: PurePath(file.path) for file in files}
    stems: dict[tuple[PurePath, str], str] = {}
    for folder in {path.parent for path in paths.values()}:
        for entry in sorted(Path(folder).iterdir()) if Path(folder).is_dir() else ():
            if found := LABEL_FILE.fullmatch(entry.name):
                stems.setdefault((folder, found[1]), str(entry))
    tables = tuple(file for file in files if len(files) == 1 or file.path not in stems.values())
    beside = {file: stems.get((paths[file].parent, TEXT_FILE_END.sub("", _stem(paths[file])))) for file in tables}
    label_files = {file.path: place for file, place in beside.items() if place and place != file.path}
    folders = {paths[file].parent for file in tables}
    if len(folders) > 1:
        names = [paths[file].parent.name for file in tables]
    else:
        parts = [_stem(paths[file]).split(".") for file in tables]
        common = {n for n in range(min(map(len, parts), default=0)) if len({part[n] for part in parts}) == 1}
        names = [".".join([part for n, part in enumerate(cells) if n not in common]) for cells in parts]
    is_classes = len(set(names)) > 1 and not any(map(SPLIT_NAME.fullmatch, names))
    classes = {file.path: name for file, name in zip(tables, names, strict=True)} if is_classes else {}
    return LabelPlaces(tables, label_files, classes, len(folders) > 1)


def _stem(path: PurePath) -> str:
    return SUFFIXES.sub("", path.name)


def read_lines(path: str | InputFile, codec: TextCodec) -> list[tuple[int, str]]:
    """Return number and text of the lines of a file that are not blank."""
    file = find_file(path) if isinstance(path, str) else path
    lines = ((n, line.strip()) for n, line in split_lines(file.path, decode_blocks(file, codec, ReadStats())))
    return [(number, line) for number, line in lines if line]


def join_labels(rows: Iterable[Row], label_file: str, codec: TextCodec, table: str) -> Iterator[Row]:
    """Add the lines of a file with labels to the rows of a table. Raises ValueError unless both have equally many."""
    labels = read_lines(label_file, codec)
    count = 0
    for count, (number, values) in enumerate(rows, 1):
        yield number, (*values, labels[count - 1][1] if count <= len(labels) else None)
    if count != len(labels):
        raise ValueError(f"{label_file}: expected {count:,} labels, one per row of {table}, got {len(labels):,}")


def split_labels(lines: Sequence[tuple[int, str]]) -> list[Row] | None:
    """Split lines into text and label, which is the first word or what is before a tab; None if these are no labels.

    They are if all look like it, or if they repeat (line 1, which may be a header, included), as few words of texts.

    >>> split_labels([(1, "__label__a x y"), (2, "__label__b z")])
    [(1, ('x y', 'a')), (2, ('z', 'b'))]
    >>> split_labels(list(enumerate("pos good;neg bad;pos fine;neg no".split(";"))))[0]
    (0, ('good', 'pos'))
    >>> split_labels(list(enumerate("A mill;The river;A bridge;It was old;He came".split(";"))))
    """
    parts = [(number, line.split("\t" if "\t" in line else None, 1)) for number, line in lines]
    words = Counter(cells[0] for _, cells in islice(parts, SHOWN_LINES))
    total, singles = words.total(), sum(count == 1 for count in words.values())
    repeats = 1 < len(words) <= total / 2 and singles <= total / 10 and words[parts[0][1][0]] > 1
    is_labeled = bool(words) and (repeats or all(map(LABEL_WORD.fullmatch, words)))
    if not is_labeled or any(len(cells) < 2 or "\t" in cells[1] for _, cells in parts):
        return None
    return [(number, (text, label.removeprefix(FASTTEXT))) for number, (label, text) in parts]
