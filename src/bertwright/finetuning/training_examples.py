"""The examples that a fine-tuned model was trained on, as its run has recorded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.base.files import read_json
from bertwright.base.settings import from_table, read_toml
from bertwright.finetuning.settings import TuningSettings
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_data import digest_files, read_splits
from bertwright.training.run_folder import DATA


def read_training_examples(model: Path) -> Mapping[str, Sequence[Any]] | None:
    """Read the examples of each split again; None unless the files are there, with the same content.

    `model`: the folder of a run of `finetune` or `grid`, or of the model in it.
    """
    run = model.parent if model.name == "model" else model
    recorded = [path for path in (run / DATA, *sorted(run.glob(f"runs/*/run/{DATA}"))) if path.is_file()]
    if not recorded or not (run / "settings.toml").is_file():
        return None
    table = read_toml(run / "settings.toml")
    try:
        task = from_table(TaskSettings, table["task"], "task")
        tuning = from_table(TuningSettings, table["tuning"], "tuning")
        if not task.files("train") or not digest_files(task).items() <= read_json(recorded[0]).items():
            return None
    except (KeyError, OSError, ValueError):  # another command's run, or files that are gone
        return None
    return read_splits(task, tuning.validation_fraction, tuning.limit)[1]
