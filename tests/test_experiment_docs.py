"""docs/experiments.md: each cell of its tables, and each verdict, is the one of its result file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def docs() -> Any:
    path = ROOT / "bench" / "experiment_docs.py"
    if not path.is_file():
        pytest.skip(f"{path}: not in this distribution")
    spec = importlib.util.spec_from_file_location("experiment_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_cell_of_the_docs_is_that_of_its_file(docs: Any) -> None:
    outcome = docs.check_docs(docs.DOCS.read_text(encoding="utf-8"))
    assert outcome.mismatches == []
    assert outcome.cells >= 214
    assert outcome.unknown_verdicts == ()
    assert outcome.verdicts


def test_a_changed_cell_and_a_cell_without_a_result_are_found(docs: Any) -> None:
    text = docs.DOCS.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| fine-tuned | 79.4"))
    changed = text.replace(row, row.replace("79.4", "79.5"))
    (mismatch,) = docs.check_docs(changed).mismatches
    assert (mismatch.row, mismatch.column, mismatch.docs, mismatch.file) == (
        "fine-tuned", "conll2003", "79.5 ± 0.3", "79.4 ± 0.3"
    )  # fmt: skip
    empty = text.replace(row, row.replace("79.4 ± 0.3 (5) ", ""))
    assert [mismatch.docs for mismatch in docs.check_docs(empty).mismatches] == [""]


def test_a_changed_loss_of_a_pre_training_is_found(docs: Any) -> None:
    text = docs.DOCS.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| mlm+nsp, seed 0 | 6.512 |"))
    (mismatch,) = docs.check_docs(text.replace(row, row.replace("6.512", "6.412"))).mismatches
    assert mismatch[1:] == ("mlm+nsp, seed 0", "held-out loss at 0.0005", "6.412", "6.512")


def test_a_changed_verdict_is_found(docs: Any) -> None:
    text = docs.DOCS.read_text(encoding="utf-8")
    verdict = next(line for file, line in docs.list_verdicts(text) if docs.read_sentences(file))
    changed = verdict.replace("pre-trainings each", "pre-training each")
    outcome = docs.check_docs(text.replace(verdict, changed))
    assert outcome.unknown_verdicts == (changed,)
    assert outcome.verdicts == docs.check_docs(text).verdicts - 1
