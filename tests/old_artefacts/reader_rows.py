"""Digests of the rows that each reader gives for each file of a folder.

python tests/old_artefacts/reader_rows.py FILE READER   # print the rows themselves, to compare two versions
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from private_names import (
    PUBLISHED_TASKS,
    TASK_NAMES,
    read_corpus,
    read_similarities,
    read_task_file,
    read_tokens,
    read_translations,
)

import bertwright

MAX_ROWS = 1_000
MAX_FILES = 3  # of a folder with more text files than this, such as 100 novels, only the first are read
TABLES = (".tsv", ".csv", ".txt", ".json", ".jsonl", ".parquet", ".conll", ".conllu", ".lst")
CORPORA = (".txt", ".jsonl", ".csv", ".tsv", ".conllu", ".conll", ".xml")

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in (*PUBLISHED_TASKS, *TASK_NAMES)},
    "classification without header": ("classification", {"header": False, "text": "2", "label": "1"}),
    "classification of category": ("classification", {"label": "category"}),
    "pairs of premise": ("classification", {"text": "premise", "text_pair": "hypothesis"}),
    "pairs of question1": ("classification", {"text": "question1", "text_pair": "question2", "label": "is_duplicate"}),
    "regression of sentence1": ("regression", {"text": "sentence1", "text_pair": "sentence2", "label": "score"}),
    "regression without header": ("regression", {"header": False, "text": "1", "text_pair": "2", "label": "3"}),
    "tagging of named columns": ("tagging", {"words": "word", "tags": "tag"}),
    "tagging with context": ("tagging", {"context": True}),
    "tagging of characters": ("tagging", {"unit": "character"}),
    "tagging in iob1": ("tagging", {"scheme": "iob1"}),
    "unanswerable questions": ("question-answering", {"allow_no_answer": True}),
}
"""Task and options by the name of a reader."""

Reader = Callable[[str], Iterator[Any]]


def read_vectors(path: str) -> Iterator[Any]:
    """Yield words and vectors; from a copy, because an index is written beside the file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        file = bertwright.load_vectors(copy)
        words = file.words
        return iter(list(zip(words, file.lookup(words).vectors.tolist(), strict=True)))


def list_readers(path: Path) -> dict[str, Reader]:
    """Return the readers that might read a file, by name."""
    name = path.name.removesuffix(".gz")
    suffix = Path(name).suffix
    readers: dict[str, Reader] = {}
    if suffix in TABLES and "corpora" not in path.parts:
        readers |= {reader: partial(read_task_file, *given, MAX_ROWS) for reader, given in OPTIONS.items()}
    if suffix in CORPORA:
        readers["corpus"] = read_corpus
    if name.endswith(".en") and Path(str(path).removesuffix(".en") + ".de").exists():
        readers["translations"] = read_translations
    if suffix in (".txt", ".csv", ".tab", ".tsv"):
        readers["similarities"] = read_similarities
    if suffix in (".bin", ".vec", ".h5", ".npy", ".pt") or "vectors" in name:
        readers["vectors"] = read_vectors
    return readers | ({"vocabulary": read_tokens} if "vocab" in name and suffix == ".txt" else {})


def digest_folder(folder: Path) -> dict[str, Any]:
    """Return number and digest of the rows by file and reader; readers that refuse a file are left out."""
    with contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {str(path): digest_file(path) for path in list_files(Path())}


def list_files(folder: Path) -> list[Path]:
    """Return the files that some reader might read."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    by_parent: dict[Path, int] = {}
    chosen = []
    for path in files:
        if path.name.startswith(("README", "expected")) or path.suffix in (".sh", ".py") or not list_readers(path):
            continue
        by_parent[path.parent] = by_parent.get(path.parent, 0) + 1
        if path.parent.name != "english_books" or by_parent[path.parent] <= MAX_FILES:
            chosen.append(path)
    return chosen


def digest_file(path: Path) -> dict[str, Any]:
    rows = {name: digest_rows(reader, str(path)) for name, reader in list_readers(path).items()}
    return {name: result for name, result in rows.items() if result is not None}


def digest_rows(reader: Reader, path: str) -> str | None:
    """Return the number and a digest of the first rows; None if the reader refuses the file."""
    digest, count = hashlib.sha256(), 0
    try:
        for row in islice(reader(path), MAX_ROWS + 1):
            digest.update(format_row(row).encode("utf-8", "surrogatepass"))
            count += 1
    except (ValueError, OSError):
        return None
    except Exception as error:
        return f"crash: {type(error).__name__}"
    return f"{count} rows, {digest.hexdigest()[:16]}"


def format_row(row: Any) -> str:
    return json.dumps(values_of(row), ensure_ascii=False) + "\n"


def values_of(value: Any) -> Any:
    """Return an example as JSON has it: the values of its fields in order, without their names."""
    if dataclasses.is_dataclass(value):
        return [values_of(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, np.ndarray | np.generic):
        return values_of(value.tolist())
    if isinstance(value, dict):
        return {str(name): values_of(item) for name, item in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [values_of(item) for item in value]


if __name__ == "__main__":
    file, reader_name = sys.argv[1:]
    for one in islice(list_readers(Path(os.path.relpath(file)))[reader_name](file), MAX_ROWS + 1):
        print(format_row(one), end="")
