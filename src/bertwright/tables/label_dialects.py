"""Labels that are no column: in a file beside the table, in the names of files, or within the lines of a text file."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from bertwright.tables.neighbours import MAPPING, Neighbours
from bertwright.tables.schema import LocatedRows, Location, MissingColumnError, Row, TableSchema, leave_out_rows
from bertwright.text.decoding import read_texts
from bertwright.text.sources import InputFile, find_file

HEAD_LINES = 1_000  # lines that show what a file is
SHOWN = 60  # characters of a line in a message
FASTTEXT = "__label__"  # before each label in the files of fastText
MORE_LABELS = re.compile(rf"(?:{FASTTEXT}[^ ]*(?: |$))*")
LABEL_WORD = re.compile(rf"{FASTTEXT}\S+|[A-Z]{{2,}}[\w:.-]*|[+-]?\d+")
TEXT_FILE = re.compile(r"(^|[-_.])(texts?|sentences?)(\.\w+)*$")  # a text per line, whatever tabs it has
LABEL_MARK = "@"  # before the label at the end of each line in the Financial PhraseBank
TREE = re.compile(r"\(([^()\s]+) (\(.*\)|\S+)\)")
ANSWER, REJECTED = "answer", ("reject", "ignore")  # what an annotator of Prodigy said of an example
OF_PRODIGY = frozenset({ANSWER, "_input_hash"})
ANNOTATIONS = "annotations"  # column of Label Studio
LEAF = re.compile(r"\([^()\s]+ ([^()\s]+)\)")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "\\/": "/", "\\*": "*"}
OF_ANNOTATION = frozenset({"annotator", "annotation_id", "created_at", "updated_at", "lead_time"})  # of Label Studio
Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class UnlabeledFile:
    """A file that lacks the column with labels, and its neighbours."""

    file: InputFile
    schema: TableSchema
    neighbours: Neighbours
    missing: MissingColumnError
    """The error about the column, with the columns that it has, if they are known."""
    read_columns: Callable[[TableSchema], Iterator[Row]]
    """A function that returns its rows as a table."""

    @property
    def label_file(self) -> str | None:
        return self.neighbours.label_files.get(self.file.path)

    @property
    def class_name(self) -> str | None:
        """The class that the file or its folder is named after; None if one of its columns may be the label."""
        has_texts_only = self.holds_texts or {*self.missing.columns} <= {*self.schema.texts, "id"}
        return self.neighbours.classes.get(self.file.path) if has_texts_only and not self.label_file else None

    @cached_property
    def head(self) -> list[tuple[int, str]]:
        """The first lines of a file whose lines may be texts."""
        is_text = self.file.format in (".txt", ".tsv") and len(self.schema.texts) == 1
        return list(islice(read_texts(self.file, self.schema.encoding), HEAD_LINES)) if is_text else []

    @property
    def holds_texts(self) -> bool:
        """Whether the file, or each line, is a text, because no tabs separate columns."""
        is_text_file = self.label_file and TEXT_FILE.search(PurePath(self.file.path).name)
        is_named = is_text_file and not {*self.schema.texts} & {*self.missing.columns}
        has_tabs = any("\t" in line for _, line in self.head)
        return bool(self.head) and (self.is_whole_text or bool(is_named) or not has_tabs)

    @property
    def is_whole_text(self) -> bool:
        """Whether the file is one text, because folders are classes."""
        return self.neighbours.in_folders and not self.label_file

    @property
    def labels_in_lines(self) -> list[tuple[int, str]]:
        """The first lines, if only these can hold the labels: a few texts may begin or end alike by chance."""
        return [] if self.label_file or self.class_name else self.head

    def lines(self) -> Lines:
        """Yield number and text of the lines that are not blank; a short file is read once, with its head."""
        is_short = 0 < len(self.head) < HEAD_LINES
        return iter(self.head) if is_short else read_texts(self.file, self.schema.encoding)

    def read_table(self) -> Iterator[Row]:
        """Return its rows as a table without labels."""
        names = tuple(name for name in self.schema.values if name != self.schema.label)
        return self.read_columns(replace(self.schema, values=names))

    def texts(self) -> Iterator[Row]:
        """Yield the texts of each example: of the whole file if folders are classes, of a line, or of a table's row."""
        if not self.holds_texts:
            return self.read_table()
        if self.is_whole_text:
            return iter([(1, ("\n".join([line for _, line in self.lines()]),))])
        return ((number, (line,)) for number, line in self.lines())

    def split_lines(self, split: Callable[[str], tuple[str, Any] | None], expected: str) -> Iterator[Row]:
        """Yield text and label of each line as `split` returns them. Raises ValueError where it returns None."""
        for number, line in self.lines():
            if (parts := split(line)) is None:
                raise ValueError(
                    f"{self.file.path}, line {number}: expected {expected}, as in the lines before, got "
                    f"{line[:SHOWN]!r}; fix the line, or read the file as it stands with --dialect plain"
                )
            yield number, parts


# Labels in the names of files, and in files beside the table


def join_labels(file: UnlabeledFile) -> Iterator[Row]:
    """Add the lines of the file with labels to the rows. Raises ValueError unless both have equally many."""
    path, labels, count = file.label_file, list[tuple[int, str]](), 0
    is_labeled = file.schema.label in file.schema.values
    if is_labeled:
        if path is None:
            raise ValueError(f"{file.file.path}: no file with labels beside it, such as train-labels.txt; add it")
        labels = list(read_texts(find_file(path), file.schema.encoding))
    file.neighbours.labels_read.add(path or "")
    names = _read_mapping(path, {label for _, label in labels}, file) if path and is_labeled else {}
    for count, (number, values) in enumerate(file.texts(), 1):
        yield number, (*values, names.get(labels[count - 1][1], labels[count - 1][1]) if count <= len(labels) else None)
    if is_labeled and count != len(labels):
        raise ValueError(f"{path}: expected {count:,} labels, one per row of {file.file.path}, got {len(labels):,}")


def _read_mapping(path: str, labels: set[str], file: UnlabeledFile) -> dict[str, str]:
    """Return the names of labels in a file beside them, if it has all: a number, a tab and a name per line."""
    beside = Path(path).with_name(MAPPING)
    if not beside.is_file():
        return {}
    file.neighbours.labels_read.add(str(beside))
    lines = read_texts(find_file(str(beside)), file.schema.encoding)
    names = {cells[0]: cells[1].strip() for _, line in lines if len(cells := line.split(None, 1)) == 2}
    if not labels <= names.keys() or len({*names.values()}) < len(names):
        return {}
    warnings.warn(f"{beside}: the labels of {path} have the names in it", stacklevel=1)
    return names


def find_classes(file: UnlabeledFile, in_folders: bool) -> str | bool:
    """Return the classes that files, or else their folders, are named after, True if these have no names, or False."""
    is_named = file.class_name is not None and file.neighbours.in_folders == in_folders
    return is_named and (", ".join(dict.fromkeys(file.neighbours.classes.values())) or True)


def add_class(file: UnlabeledFile) -> Iterator[Row]:
    """Add the class that a file is named after to its rows."""
    if (name := file.class_name) is None:
        raise ValueError(f"{file.file.path}: its name or folder tells no class; name a folder or glob with all classes")
    return ((number, (*values, name)) for number, values in file.texts())


# Labels as annotation tools write them


def find_annotations(file: UnlabeledFile) -> tuple[tuple[str, ...], str] | None:
    """Return the columns of the texts and of what an annotator said of them; None if the file has none."""
    names = [name.removesuffix(".choices") for name in file.missing.columns]
    texts = tuple(text if text in names else f"data.{text}" for text in file.schema.texts)
    if not {*texts} <= {*names}:
        return None
    if ANNOTATIONS in names and file.file.format in (".json", ".jsonl"):
        return texts, ANNOTATIONS
    if "accept" in names:
        return texts, "accept"
    if {file.schema.label, *OF_PRODIGY} <= {*names}:
        return texts, file.schema.label
    if any(name.startswith("cats.") for name in names):
        return texts, "cats"
    others = [name for name in names if name not in {*texts, *OF_ANNOTATION, "id"}]
    return (texts, others[0]) if OF_ANNOTATION & {*names} and len(others) == 1 else None


def name_annotations(file: UnlabeledFile) -> str | None:
    """Return the column of the annotations for people; None if the file has none."""
    return (found := find_annotations(file)) and repr(found[1])


def read_annotations(file: UnlabeledFile) -> Iterator[Row]:
    """Yield the texts and their labels, a list unless a column has a single one; rows that were rejected are left out.

    Raises the error about the missing column if the file has no such annotations.
    """
    is_labeled = file.schema.label in file.schema.values
    if (found := find_annotations(file)) is None:
        if is_labeled:
            raise file.missing
        found = file.schema.texts, file.schema.texts[0]  # texts alone, to predict
    texts, label = found
    has_answer = is_labeled and label in ("accept", file.schema.label) and ANSWER in file.missing.columns
    is_binary = has_answer and label != "accept"
    others = tuple(name for name in file.schema.values if name != file.schema.label)
    values = (*others, label, *((ANSWER,) * has_answer))
    rows = file.read_columns(replace(file.schema, texts=texts, values=values))
    if has_answer:
        marks = REJECTED[1:] if is_binary else REJECTED
        rows = leave_out_rows(rows, file.file.path, ANSWER, marks, " or ".join(marks))
    elif is_labeled and label == ANNOTATIONS:
        rows = leave_out_unannotated(rows, file.file.path)
    place = len(texts) + len(others)
    if is_binary:
        rows = _join_decisions(rows, len(texts), file)
    for number, row in rows:
        yield number, (*row[:place], labels_of_annotation(row[place]))


def leave_out_unannotated(rows: LocatedRows[Location], path: str) -> LocatedRows[Location]:
    """Yield the rows of Label Studio, with True added, whose last value has an annotation that was not cancelled."""
    marked = ((location, _mark_annotated(values)) for location, values in rows)
    return leave_out_rows(marked, path, ANNOTATIONS, (False,), "empty or cancelled")


def _mark_annotated(values: tuple[Any, ...]) -> tuple[Any, ...]:
    last = values[-1]
    is_empty = isinstance(last, list) and all(isinstance(one, dict) and one.get("was_cancelled") for one in last)
    return (*values, not is_empty)


def _join_decisions(rows: Iterator[Row], texts: int, file: UnlabeledFile) -> Iterator[Row]:
    """Yield each text of Prodigy's binary annotations once, with the labels that were accepted; all are in memory.

    If there is a single label, a text for which it was rejected has the class `not LABEL`; else it has no label.
    """
    labels, found = dict[str, None](), dict[tuple[str, ...], tuple[Any, tuple[Any, ...], list[str]]]()
    for number, (*values, label, answer) in rows:
        if not isinstance(label, str):
            got = f"expected a label that the {ANSWER!r} accepts or rejects, got {type(label).__name__}"
            raise ValueError(
                f"{file.file.path}, line {number}: {got}; fix the row, or read all as they stand: --dialect plain"
            )
        labels[label] = None
        accepted = found.setdefault(tuple(values[:texts]), (number, tuple(values), []))[2]
        accepted += [label] if answer == "accept" and label not in accepted else []
    other = [f"not {label}" for label in labels] if len(labels) == 1 else []
    for number, row, accepted in found.values():
        yield number, (*row, accepted or other)


def labels_of_annotation(value: Any) -> Any:
    """Return the labels of Label Studio's first annotation that was not cancelled, or of spaCy's probabilities.

    >>> labels_of_annotation({"good": 1.0, "bad": 0.0}), labels_of_annotation({"choices": ["good"]})
    (['good'], ['good'])
    """
    if isinstance(value, str) and value.startswith('{"choices"'):  # in a .csv, of several labels
        value = json.loads(value)
    if isinstance(value, dict) and isinstance(value.get("cats"), dict):
        value = value["cats"]
    if isinstance(value, dict):
        return value["choices"] if "choices" in value else [name for name, share in value.items() if share >= 0.5]
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return value
    valid = (item.get("result", []) for item in value if not item.get("was_cancelled"))
    results = (item.get("value", {}).get("choices", []) for item in next(valid, []))
    return [choice for choices in results for choice in choices]


# Labels within lines


def split_tree(line: str) -> tuple[str, str] | None:
    """Return the words of a tree and the label of its root; None for another line."""
    if line.count("(") != line.count(")") or not (tree := TREE.fullmatch(line)):
        return None
    text = " ".join(LEAF.findall(line))
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return text, tree[1]


def are_trees(file: UnlabeledFile) -> bool:
    lines = file.labels_in_lines
    return bool(lines) and all(split_tree(line) for _, line in lines)


def split_last(line: str) -> tuple[str, str] | None:
    """Return what is before the last @ and the word after it; None for another line."""
    text, _, label = line.rpartition(LABEL_MARK)
    return (text.rstrip(), label) if text and label and not re.search(r"\s", label) else None


def have_labels_last(file: UnlabeledFile) -> bool:
    """Return whether lines end in few different words after @."""
    parts = [split_last(line) for _, line in file.labels_in_lines]
    labels = {part[1] for part in parts if part}
    return None not in parts and 1 < len(labels) <= len(parts) / 2


def split_first(line: str) -> tuple[str, Any] | None:
    """Return the text and the label, which is the first word or what is before a tab; fastText's may be several."""
    label, *rest = _cut_first(line)
    if not rest or "\t" in rest[0]:
        return None
    (text,) = rest
    more = MORE_LABELS.match(text) if label.startswith(FASTTEXT) else None
    labels = [name.removeprefix(FASTTEXT) for name in (label, *(more[0].split() if more else ()))]
    return text[more.end() :] if more else text, labels if len(labels) > 1 else labels[0]


def have_labels_first(file: UnlabeledFile) -> bool:
    """Return whether all first words look like labels, or repeat (also in line 1, a header?) as few words of texts."""
    lines = [line for _, line in file.labels_in_lines]
    words = Counter(_cut_first(line)[0] for line in lines)
    total, singles = words.total(), sum(count == 1 for count in words.values())
    repeats = 1 < len(words) <= total / 2 and singles <= total / 10 and words[_cut_first(lines[0])[0]] > 1
    is_labeled = bool(words) and (repeats or all(map(LABEL_WORD.fullmatch, words)))
    return is_labeled and not are_trees(file) and all(map(split_first, lines))


def _cut_first(line: str) -> list[str]:
    return line.split("\t" if "\t" in line else None, 1)
