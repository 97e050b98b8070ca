"""All readers of files from elsewhere: their work grows with the size of the file, and none waits for a pipe or device.

The work is counted in executed lines of the package, which the fast test compares for n, 2 n and 4 n. Copies and
searches within one line of Python do not show there: the slow test compares processor time for larger files.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

import bertwright
from bertwright.base.files import digest_file, read_json
from bertwright.base.settings import read_toml
from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.documents import read as read_corpus
from bertwright.interop.tf_checkpoint import read_bundle
from bertwright.interop.weights import read_safetensors
from bertwright.systems.word_vectors.vector_evaluation import read_examples
from bertwright.tables.question_files import read_questions
from bertwright.tables.tagged_sentences import read_sentences
from bertwright.tasks.classification import Classification
from bertwright.tokenstore.store import sampled_digest
from bertwright.training.metrics_log import METRICS_FILE, read_metrics
from bertwright.translation.parallel_text import read_lines
from bertwright.vocabulary.byte_pair_tokenizer import read_merges
from bertwright.vocabulary.fasttext_file import FastTextFile, Subwords, write_fasttext
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.vector_file import load_vectors
from bertwright.vocabulary.wordpiece_files import read_vocab

pytestmark = pytest.mark.filterwarnings("ignore")
Reader = Callable[[str], Any]
Make = Callable[[int], str | bytes]


def classify(path: str) -> list[Any]:
    return list(Classification().read(path, labeled=True))


def tag(path: str) -> list[Any]:
    return list(read_sentences(path, labeled=True))


def ask(path: str) -> list[Any]:
    return list(read_questions(path))


def read_pairs(path: str) -> list[Any]:
    return list(read_examples(path))


def read_documents(path: str) -> list[Any]:
    return list(read_corpus(CorpusSettings((path,))))


ROW = {"text": "a", "label": "x"}
ASKED = {"context": "a b", "question": "who", "answers": ["b"]}
NUMBERS = struct.pack("<2f", 1, 2)
dump = json.dumps


def members(n: int) -> dict[str, str]:
    return {str(number): "é" for number in range(n)}


def lines(*records: Any) -> str:
    return "".join(dump(record) + "\n" for record in records)


def spans(text: str, listed: Iterable[Any]) -> str:
    return lines({"text": text, "spans": [*listed]})


def squad(n: int) -> str:
    questions = ({"id": str(i), "question": "who", "answers": [{"text": "b", "answer_start": 2}]} for i in range(n))
    return dump({"data": [{"paragraphs": [{"context": "a b", "qas": [question]} for question in questions]}]})


def story(n: int) -> str:
    consensus = {"consensus": {"s": 0, "e": 1}, "q": "who"}
    return dump({"data": [{"storyId": "1", "text": "a b", "questions": [consensus] * n, "type": "train"}]})


def word2vec(n: int) -> bytes:
    return f"{n} 2\n".encode() + b"".join(b"%d " % i + NUMBERS for i in range(n))


def fasttext(n: int) -> bytes:
    path = Path(os.environ["PYTEST_FOLDER"]) / f"{n}.made"
    model = FastTextFile([*map(str, range(n))], np.ones(n, np.int64), Subwords(3, 6, 10), np.ones((n + 10, 2)), None)
    write_fasttext(path, model)
    return path.read_bytes()


READERS: dict[str, tuple[str, Make, Reader]] = {
    "rows of .csv": ("a.csv", lambda n: "text,label\n" + "a b,x\n" * n, classify),
    "columns of a .csv": ("a.csv", lambda n: f"text,label{',' * n}\na,x\n", classify),
    "blank cells of a .csv": ("a.csv", lambda n: f"text,label\na,x{',' * n}\n", classify),
    "cells in quotes": ("a.csv", lambda n: 'text,label\n"' + 'a\n""' * n + '",x\n', classify),
    "rows of .tsv": ("a.tsv", lambda n: "text\tlabel\n" + "a b\tx\n" * n, classify),
    "short rows": ("a.tsv", lambda n: "text\tlabel\n" + "a b\n" * n, classify),
    "rows of .jsonl": ("a.jsonl", lambda n: lines(*[ROW] * n), classify),
    "members of a row": ("a.jsonl", lambda n: lines({"text": "a", "label": "x", **members(n)}), classify),
    "rows of .json": ("a.json", lambda n: dump([ROW] * n, indent=1), classify),
    "columns of .json": ("a.json", lambda n: dump({"text": ["é"] * n, "label": ["x"] * n}), classify),
    "pandas' .json": ("a.json", lambda n: dump({"text": members(n), "label": members(n)}), classify),
    "pandas' .json by row": ("a.json", lambda n: dump({f"r{i}": ROW for i in range(n)}), classify),
    "pandas' split": ("a.json", lambda n: dump({"columns": ["text", "label"], "data": [["a", "x"]] * n}), classify),
    "columns of pandas' split": ("a.json", lambda n: dump(
        {"columns": ["text", "label", *map(str, range(n))], "data": [["a", "x"] + [0] * n]}), classify),
    "a member with rows": ("a.json", lambda n: dump({"version": 1, "rows": [ROW] * n}), classify),
    "members before the rows": ("a.json", lambda n: dump(
        members(n) | {"rows": [ROW]}), classify),
    "members of lists": ("a.json", lambda n: dump({f"k{i}": [["a", "x"]] for i in range(n)}), classify),
    "rows that are lists": ("a.jsonl", lambda n: lines(*[["a", "x"]] * n), classify),
    "trees": ("a.txt", lambda n: "(1 (1 a) (0 b))\n" * n, classify),
    "a deep tree": ("a.txt", lambda n: "(1 " * n + "a" + ")" * n + "\n", classify),
    "an open tree": ("a.txt", lambda n: "(1 " + "(" * n + " a" + ")" * (n + 1) + "\n", classify),
    "a tree of spaces": ("a.txt", lambda n: "(1 (1 a)" + " " * n + "x)\n", classify),
    "first words": ("a.txt", lambda n: "__label__x a\n__label__y b\n" * n, classify),
    "labels before a text": ("a.txt", lambda n: "__label__x " * n + "a\n", classify),
    "last words": ("a.txt", lambda n: "a .@x\nb .@y\n" * n, classify),
    "marks of a last word": ("a.txt", lambda n: "a" + "@" * n + "x\nb@y\n" * 4, classify),
    "sentences of .conll": ("a.conll", lambda n: "a O\nb B-X\n\n" * n, tag),
    "words of a sentence": ("a.conll", lambda n: "a O\n" * n, tag),
    "tabs of a line": ("a.conll", lambda n: ("a\tO" + "\t" * n + "\n") * 3, tag),
    "columns of a line": ("a.conll", lambda n: ("a" + " x" * n + " O\n") * 3, tag),
    "numbered words of many columns": ("a.conll", lambda n: "1 a" + " x" * n + " O\n2 b" + " x" * n + " O\n", tag),
    "comments": ("a.conll", lambda n: ("# " + "x " * n + "\na O\n") * 2, tag),
    "spaces of a comment": ("a.conll", lambda n: "#" + " " * n + "x\na O\n", tag),
    "documents": ("a.conll", lambda n: "-DOCSTART- O\n\na O\n\n" * n, tag),
    "brackets": ("a.conll", lambda n: "a (X*\nb *)\n\n" * n, tag),
    "a tag of brackets": ("a.conll", lambda n: "a " + "(X" * n + "*" + ")" * n + "\nb *\n", tag),
    "an open tag of brackets": ("a.conll", lambda n: "a " + "(X" * n + "\nb *\n", tag),
    "language codes": ("a.conll", lambda n: "en:a O\nen:b O\n\n" * n, tag),
    "a long language code": ("a.conll", lambda n: "aa" + "-aa" * n + " O\nb O\n", tag),
    "sentences of .conllu": ("a.conllu", lambda n: ("1\ta\t_\tX" + "\t_" * 6 + "\n\n") * n, tag),
    "lists of words": ("a.jsonl", lambda n: lines({"tokens": ["a"] * n, "ner_tags": ["O"] * n}), tag),
    "spans of a text": ("a.jsonl", lambda n: spans("a " * n, ([2 * i, 2 * i + 1, "X"] for i in range(n))), tag),
    "spans that overlap": ("a.jsonl", lambda n: spans("a " * n, ([0, n - i, "X"] for i in range(n))), tag),
    "letters of a word": ("a.jsonl", lambda n: spans("a-" * n + "'" * n, ()), tag),
    "questions": ("a.json", squad, ask),
    "questions of one story": ("a.json", story, ask),
    "members of a question": ("a.jsonl", lambda n: lines(
        ASKED | members(n)), ask),
    "answers of a question": ("a.jsonl", lambda n: lines(ASKED | {"answers": ["b"] * n}), ask),
    "documents of .txt": ("a.txt", lambda n: "a b.\n\n" * n, read_documents),
    "blank lines": ("a.txt", lambda n: "a\n" + " \n" * n + "b\n", read_documents),
    "spaces of a line": ("a.txt", lambda n: "a" + " " * n + "b\n", read_documents),
    "sentences of a corpus": ("a.conllu", lambda n: ("1\ta" + "\t_" * 8 + "\n\n") * n, read_documents),
    "articles": ("a.xml", lambda n: "<mediawiki>" + "<page><title>A</title><ns>0</ns><text>A b.</text></page>\n" * n
                 + "</mediawiki>", read_documents),
    "vectors": ("a.vec", lambda n: "".join(f"w{i} 1 2\n" for i in range(n)), load_vectors),
    "numbers of a vector": ("a.vec", lambda n: "w" + " 1" * n + "\nv" + " 1" * n + "\n", load_vectors),
    "spaces in a word": ("a.vec", lambda n: "1 2\n" + "w " * n + "1 2\n", load_vectors),
    "word2vec's .bin": ("a.bin", word2vec, load_vectors),
    "a long word in word2vec's .bin": ("a.bin", lambda n: b"1 2\n" + b"w" * n + b" " + NUMBERS, load_vectors),
    "line ends in word2vec's .bin": ("a.bin", lambda n: b"1 2\n" + b"\n" * n + b"w " + NUMBERS, load_vectors),
    "fastText's .bin": ("a.bin", fasttext, load_vectors),
    "pairs of words": ("a.txt", lambda n: "a b 1\n" * n, read_pairs),
    "a long pair of words": ("a.txt", lambda n: "a b 1\n" * n + "a b" + " c" * n + "\n", read_pairs),
    "a vocabulary": ("vocab.txt", lambda n: "".join(f"w{i}\n" for i in range(n)), lambda path: read_vocab(Path(path))),
    "merges": ("merges.txt", lambda n: "a b\n" * n, lambda path: read_merges(Path(path))),
    "lines of a translation": ("a.en", lambda n: "a b\n" * n, read_lines),
    "metrics": (METRICS_FILE, lambda n: lines(*({"kind": "train", "step": i} for i in range(n))),
                lambda path: read_metrics(Path(path).parent)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def uncached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTWRIGHT_VECTOR_CACHE_GB", "0")
    monkeypatch.setenv("PYTEST_FOLDER", str(tmp_path))


def write(folder: Path, name: str, size: int) -> str:
    file, make, _ = READERS[name]
    content = make(size)
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / file)


def count_lines(read: Reader, path: str) -> int:
    """Count the lines of the package that a reader executes."""
    package, count = str(Path(bertwright.__file__).parent), 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(package) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(ValueError):
            read(path)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", READERS)
def test_work_of_a_reader_is_in_proportion_to_the_size(tmp_path: Path, name: str) -> None:
    read = READERS[name][2]
    count_lines(read, write(tmp_path, name, 1))  # what is done once per process
    one, two, four = (count_lines(read, write(tmp_path, name, size)) for size in (100, 200, 400))
    assert one > 0
    assert four - two <= 2.2 * max(two - one, 100)  # quadratic: 4 times


@pytest.mark.slow  # it compares times
@pytest.mark.parametrize("name", READERS)
def test_time_of_a_reader_is_in_proportion_to_the_size(tmp_path: Path, name: str) -> None:
    def seconds(size: int) -> float:
        path = write(tmp_path, name, size)
        start = time.process_time()
        with suppress(ValueError):
            READERS[name][2](path)
        return time.process_time() - start

    seconds(1)
    small, large = seconds(10_000), seconds(40_000)
    assert large < 10 * max(small, 0.1)  # quadratic: 16 times


OTHERS: dict[str, tuple[str, Reader]] = {
    ".parquet": ("a.parquet", classify),
    "archives": ("a.zip", classify),
    "JSON": ("a.json", lambda path: read_json(Path(path))),
    "TOML": ("a.toml", lambda path: read_toml(Path(path))),
    "weights": ("a.safetensors", lambda path: read_safetensors(Path(path))),
    "indices of TensorFlow": ("a.index", lambda path: read_bundle(Path(path))),
    "digests": ("a.txt", lambda path: digest_file(Path(path))),
    "stores": ("a.npy", lambda path: sampled_digest(Path(path))),
    "settings of a tokenizer": ("tokenizer.json", lambda path: open_tokenizer(Path(path))),
    "folders of rows": ("a.csv", lambda path: classify(str(Path(path).parent))),
    "folders of texts": ("a.txt", lambda path: read_documents(str(Path(path).parent))),
    "folders of sentences": ("a.conll", lambda path: tag(str(Path(path).parent))),
}


@pytest.fixture
def no_wait() -> Iterator[None]:
    """End a test that waits for a pipe."""

    def stop(*_: Any) -> None:
        raise TimeoutError("waits for a pipe, or reads a device without an end")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", [*READERS, *OTHERS])
def test_reader_rejects_pipes_and_devices(tmp_path: Path, name: str, kind: str) -> None:
    file, read = (READERS[name][0], READERS[name][2]) if name in READERS else OTHERS[name]
    if kind == "pipe":
        os.mkfifo(tmp_path / file)
    else:
        (tmp_path / file).symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=rf"^{tmp_path / file}: "):
        read(str(tmp_path / file))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
@pytest.mark.usefixtures("no_wait")
def test_pipe_beside_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train_text.txt").write_text("a\nb\n")
    os.mkfifo(tmp_path / "train_labels.txt")
    with pytest.raises(ValueError, match=r"train_labels\.txt: a pipe"):
        classify(str(tmp_path / "train_text.txt"))


def test_files_are_opened_for_reading_by_one_helper() -> None:
    """Outside of base/, where the helper is, and of kernels/, which reads its own sources and /proc."""
    opened = ('.open("rb"', ".read_bytes()", ".read_text(", "mmap.mmap(", "torch.load(f", "allow_pickle=True")
    root, found = Path(bertwright.__file__).parent, set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if not name.startswith(("base/", "kernels/")):
            found |= {name for mark in opened if mark in path.read_text(encoding="utf-8")}
    # The package's own code and page, the error of an own process, an own temporary folder; an advice in a message, and
    # a program that is written.
    own = {"interop/huggingface.py", "serving/http_app.py", "planning/plan.py", "estimators.py"}
    assert found == own | {"interop/weights.py", "exporting/run_program.py"}


def test_shortened_fasttext_file_is_an_error(tmp_path: Path) -> None:
    """While its words are looked up. A memory map of the file would end the process."""
    path = tmp_path / "a.bin"
    path.write_bytes(fasttext(20_000))
    vectors = load_vectors(path)
    assert vectors.lookup(["unknown"]).has_vector.all()
    os.truncate(path, path.stat().st_size // 4)
    with pytest.raises(ValueError, match=rf"^{path}: became shorter"):
        vectors.lookup(["unknown"])


def test_shortened_word2vec_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory map of the file would end the process."""
    path = tmp_path / "a.bin"
    path.write_bytes(word2vec(400_000))
    from bertwright.vocabulary import vector_formats

    check_width = vector_formats.check_width

    def shorten(*arguments: Any) -> None:
        os.truncate(path, 5_000)
        check_width(*arguments)

    monkeypatch.setattr(vector_formats, "check_width", shorten)
    with pytest.raises(ValueError, match=rf"^{path}: expected 400,000 words .* truncated"):
        load_vectors(path)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    polars.DataFrame({"text": ["a"], "label": ["x"]}).write_parquet(tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_rows_of_an_object_are_read_whatever_its_name(parquet: Path) -> None:
    assert [example.text for example in classify(f"file://{parquet}")] == ["a"]
