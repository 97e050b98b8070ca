"""Errors of workers: they keep their class, message and fields on their way to the process that started the worker."""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertwright
from bertwright.cli.main import run
from bertwright.executors.worker import make_portable

PACKAGE = Path(bertwright.__file__).parent


def exception_classes() -> Iterator[type[Exception]]:
    """Yield all classes of the package whose bases are exceptions or warnings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if any(base.endswith(("Error", "Exception", "Warning")) for base in bases):
                name = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
                yield getattr(importlib.import_module(f"bertwright.{name}"), node.name)  # type: ignore[attr-defined]


def test_every_exception_of_the_package_survives_pickling() -> None:
    classes = [*exception_classes()]
    assert len(classes) >= 8
    for cls in classes:
        given = ["a.csv: expected X, got Y"]
        if inspect.isfunction(cls.__init__):  # not a builtin class's
            given += ["field"] * (len(inspect.signature(cls).parameters) - 1)
        error = cls(*given)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (cls, given[0], vars(error))
        assert isinstance(error, RuntimeError) or make_portable(error) is error  # type: ignore[arg-type]


class StrangeError(OSError):
    """An error as packages for the web have: made from an answer, and with a lock inside."""

    def __init__(self, message: str, answer: object) -> None:
        super().__init__(message)
        self.answer = answer


class UnreadableError(ValueError):
    """An error that cannot be made again from its arguments."""

    def __init__(self, message: str, answer: object) -> None:
        super().__init__(message)


def test_error_that_cannot_be_pickled_keeps_its_message() -> None:
    for error in (StrangeError("a.csv: no answer", lambda: None), UnreadableError("a.csv: no answer", 0)):
        copy = pickle.loads(pickle.dumps(make_portable(error)))
        assert str(copy) == "a.csv: no answer"
        assert isinstance(copy, type(error).__base__)
    named = OSError(errno.ENOSPC, "disk is full", "a.csv")
    assert make_portable(named) is named


@pytest.mark.parametrize(
    "command",
    [
        "prepare {b} --vocabulary {vocabulary} --store {out} --workers 2",
        "prepare {a} {b} --vocabulary {vocabulary} --store {out}",
        "vocabulary {a} {b} --output {out} --size 120 --workers 2",
        "survey {b} --workers 2",
        "plan --text {b} --hours 1 --gpu h100",
    ],
)
def test_missing_column_that_a_worker_finds_is_one_message(
    command: str, tmp_path: Path, vocabulary_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("text\nThe bear sees the wolf.\n")
    (tmp_path / "b.csv").write_text("txt\nThe crow sees the hare.\n")
    named = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv", "vocabulary": vocabulary_folder, "out": tmp_path / "out"}
    assert run(command.format(**named).split()) == 2
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    message = (printed.err + printed.out).replace("\n", " ")
    assert f"{tmp_path / 'b.csv'}, line 1: no column 'text'; did you mean" in message
    assert "txt" in message
