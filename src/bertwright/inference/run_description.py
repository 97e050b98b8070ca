"""Description of a run, for `bertwright info`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertwright.base.description import Description, format_work, name_damaged_file
from bertwright.base.files import read_json
from bertwright.base.settings import read_toml
from bertwright.interop.huggingface import load_config, load_model
from bertwright.interop.model_files import is_run
from bertwright.objectives.data_settings import DataSettings
from bertwright.systems import translation_models
from bertwright.systems.registry import find_objective
from bertwright.tasks.task_folder import describe_shape, describe_task, load_task, read_task
from bertwright.training import checkpoint
from bertwright.training.metrics_log import METRICS_FILE, read_metrics


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe a run of pre-training, fine-tuning or translation; None for another folder.

    The weights of a finished run are loaded. `verify`: compare every byte of the newest checkpoint with its digest.
    """
    if not is_run(folder):
        return None
    checkpoints = checkpoint.list_checkpoints(folder / "checkpoints")
    if verify:
        checkpoint.verify_latest(folder / "checkpoints")
    settings, report, model = read_toml(folder / "settings.toml"), folder / "report.json", folder / "model"
    is_finished = model.is_dir()
    state, names = "finished" if is_finished else "not finished", [path.name for path in checkpoints] or ["none yet"]
    if report.is_file() and not is_finished and not checkpoints:  # a grid search or an experiment deletes them
        state, names = "finished, weights deleted", ["none"]
    fields = {"state": state, "checkpoints": ", ".join(names)}
    kind = "fine-tuning" if "task" in settings else "translation" if "train_source" in settings else "pre-training"
    metric = "bleu" if kind == "translation" else None
    if newest := model if is_finished else checkpoints[-1] if checkpoints else None:
        described, metric = MODELS[kind](newest)
        fields |= described
        if is_finished and kind != "translation" and load_task(model) is None:  # damaged weights raise ValueError
            load_model(model, heads="optional")
    with name_damaged_file(folder / METRICS_FILE):
        fields |= _score_fields(folder, settings, metric)
    if report.is_file():
        with name_damaged_file(report):
            work = read_json(report)
            fields["seconds of its last process"] = f"{work['seconds_of_this_process']:,.0f}"
            if {"tokens", "seconds"} <= work.keys():
                fields["trained on"] = format_work(work)
    return Description(f"{kind} run", fields, bool(checkpoints))


def _describe_pretrained(model: Path) -> tuple[dict[str, str], str | None]:
    config = load_config(model)
    return {"model": f"{describe_shape(config)}, {config.num_parameters:,} parameters"}, None


def _describe_fine_tuned(model: Path) -> tuple[dict[str, str], str | None]:
    task, fields = read_task(model), {"model": describe_shape(load_config(model))}
    return (fields, None) if task is None else (fields | describe_task(task), task.metric)


def _describe_translator(model: Path) -> tuple[dict[str, str], str | None]:
    description = translation_models.describe(model, verify=False)
    return description.fields if description else {}, "bleu"


MODELS: dict[str, Callable[[Path], tuple[dict[str, str], str | None]]] = {
    "pre-training": _describe_pretrained,
    "fine-tuning": _describe_fine_tuned,
    "translation": _describe_translator,
}


def _score_fields(run: Path, settings: Mapping[str, Any], metric: str | None) -> dict[str, str]:
    """Return the last held-out loss of pre-training, and the best dev score by a metric."""
    records, fields = read_metrics(run), dict[str, str]()
    if held_out := [record for record in records if record["kind"] == "held_out"]:
        last = held_out[-1]
        objective = find_objective(settings.get("data", {}).get("objective", DataSettings.objective))
        fields["held out"] = f"loss {last[objective.loss_metric]:.3f} after step {last['step']:,}"
    if metric is not None and (dev := [record for record in records if record["kind"] == "dev"]):
        best = max(dev, key=lambda record: float(record[metric]))
        fields["best on dev"] = f"{metric} {best[metric]:.4f} after step {best['step']:,}"
    return fields
