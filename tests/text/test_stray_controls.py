"""Carriage returns alone as line ends, and NUL characters, in every reader of text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.documents import read as read_corpus
from bertwright.tables.question_files import read_questions
from bertwright.tables.tagged_sentences import read_sentences
from bertwright.tasks.classification import Classification
from bertwright.text import decoding
from bertwright.translation.parallel_text import read_lines
from bertwright.vocabulary.vector_file import load_vectors

QUESTION = {"id": "1", "context": "The mill is old .", "question": "What ?", "answers": ["mill"]}
READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "a.txt": ("An old mill .\nIt is new .\n\n\nThe river .\n", lambda path: list(read_corpus(CorpusSettings((path,))))),
    "a.tsv": ("text\tlabel\na mill\tx\nthe river\ty\n", lambda path: rows(path)),
    "a.csv": ("text,label\na mill,x\nthe river,y\n", lambda path: rows(path)),
    "a.jsonl": ('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n', lambda path: rows(path)),
    "a.conll": ("Ada B-PER\nis O\n\nTom B-PER\n", lambda path: words(path)),
    "a.en": ("a mill\nthe river\n", lambda path: read_lines(path)),
    "a.vec": ("mill 0.1 0.2\nriver 0.3 0.4\n", lambda path: load_vectors(path).vectors.tolist()),
    "q.jsonl": (
        f"{json.dumps(QUESTION)}\n{json.dumps(QUESTION)}\n",
        lambda path: [example.target for example in read_questions(path)],
    ),
}


def rows(path: str) -> list[tuple[str, str | None]]:
    return [(example.text, example.label) for example in Classification().read(path)]


def words(path: str) -> list[Any]:
    return [(sentence.words, sentence.tags) for sentence in read_sentences(path, labeled=True)]


@pytest.mark.parametrize("name", READERS)
def test_carriage_returns_alone_are_read_as_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode())
    expected = read(str(path))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    monkeypatch.setattr(decoding, "BLOCK", 200 if name == "q.jsonl" else 32)  # bytes; the first block has a line end
    with pytest.warns(UserWarning, match=rf"{name}: lines end in carriage returns alone"):
        assert read(str(path)) == expected


@pytest.mark.parametrize("name", [name for name, (text, _) in READERS.items() if "mill" in text])
def test_nul_characters_are_dropped_and_counted(tmp_path: Path, name: str) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode())
    expected = read(str(path))
    path.write_bytes(text.replace("mill", "mi\0ll").encode())
    with pytest.warns(UserWarning, match=rf"{name}: \d NUL characters? \(U\+0000\) dropped"):
        assert read(str(path)) == expected


@pytest.mark.parametrize("content", ["the old mill\n".encode("utf-16-le"), bytes(range(256)), b"a\0b\n"])
def test_files_with_many_nul_bytes_stay_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.tsv, byte \d: a NUL byte; .* binary, .* UTF-16 .*--encoding"):
        rows(str(tmp_path / "a.tsv"))
