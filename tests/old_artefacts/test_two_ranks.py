"""Each kind of run computes on two ranks what it computes alone, or says in one sentence that it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from artefacts import RUNS, Artefact, check_command, run_command, unpack_all

from bertwright.training.metrics_log import read_metrics
from harness import run_on_ranks

pytestmark = pytest.mark.slow

ONE_PROCESS = ("ulmfit", "transformer", "mt-lstm")
"""Kinds that torchrun cannot start: steps that carry a state, and translation."""
BATCH_NORM = ("ulmfit-classification", "bcn")
"""Kinds whose rows are normalized by the statistics of their rank's rows, so that losses are only similar."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all artefacts."""
    path = tmp_path_factory.mktemp("ranks")
    unpack_all(path)
    return path


def losses(run: Path) -> list[dict[str, Any]]:
    """Return the records of the training steps."""
    return [record for record in read_metrics(run) if record["kind"] == "train"]


@pytest.mark.parametrize("artefact", RUNS, ids=lambda artefact: artefact.name)
def test_two_ranks_compute_the_same_as_one(artefact: Artefact, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    alone, together = folder / "alone" / artefact.name, folder / "together" / artefact.name
    ended = run_on_ranks(2, run_command, *artefact.command, "--run", str(together))
    if artefact.name in ONE_PROCESS:
        assert {code for code, _ in ended.values()} == {2}
        return
    assert {code for code, _ in ended.values()} == {0}, ended
    check_command(*artefact.command, "--run", str(alone))
    assert losses(alone)
    tolerance = 0.15 if artefact.name in BATCH_NORM else 1e-4
    for one, two in zip(losses(alone), losses(together), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=tolerance)
        if artefact.name not in BATCH_NORM:
            assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)
