"""A folder of two small tasks, and settings of experiments of a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_experiments import Make, run_experiment, sentences

from bertwright.trials.experiment_settings import ExperimentSettings
from helpers import CPU


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, review_files: Path) -> Path:
    """Return a folder with the files of two published tasks."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("train", "dev"):
        path = folder / "glue" / "SST-2" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((review_files / f"{name}.tsv").read_text().replace("text\tlabel", "sentence\tlabel"))
    (folder / "conll2003").mkdir()
    for seed, name in enumerate(("train", "valid")):
        (folder / "conll2003" / f"{name}.txt").write_text(sentences(60, seed))
    return folder


@pytest.fixture(scope="session")
def make(store: Path, data: Path) -> Make:
    """Return settings of an experiment of a few seconds, any field changed by name."""

    def build(work: Path, name: str = "table5", **changes: Any) -> ExperimentSettings:
        fields: dict[str, Any] = {
            "store": store,
            "data": data,
            "seeds": 2,
            "steps": 10,
            "limit": 24,
            "word_task_limit": 16,
            "device": CPU,
        }
        if "model" in changes:  # then nothing is pre-trained
            fields |= {"store": None, "steps": None}
        return ExperimentSettings(**({"experiment": name, "work": work} | fields | changes))

    return build


@pytest.fixture(scope="session")
def finished_run(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExperimentSettings, str]:
    """Return table 5, run without interruption, and its output."""
    settings = make(tmp_path_factory.mktemp("experiment") / "work")
    return settings, run_experiment(settings, columns=140)
