"""What a fine-tuned model is worth on labelled examples."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro.conf import Positional

from bertwright.commands.finetune.run import score_table
from bertwright.commands.finetune.setup import within_positions
from bertwright.commands.output_paths import new_file
from bertwright.console import filled_table, heading, item_progress, make_console, notice, say
from bertwright.inference.model import Bert, load
from bertwright.interop.model_files import model_folder
from bertwright.io.sources import check_unique
from bertwright.models.heads import EncoderForTask
from bertwright.settings import check_not_str
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.presentation import score_tables, truncation_warnings
from bertwright.tasks.presets import TaskOptions
from bertwright.tasks.task_io import AnyTask
from bertwright.training.context import execution_context
from bertwright.training.settings import DeviceSettings


@dataclass(frozen=True)
class EvaluateSettings:
    """Score a fine-tuned model on labelled files with the official metric of its task."""

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    inputs: Positional[tuple[str, ...]]
    """Labelled files, in the form of the training files."""
    output: Path | None = None
    """Write the scores to this new JSON file, too."""
    overrides: TaskOptions = field(default_factory=TaskOptions)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        if not self.inputs:
            raise ValueError("no file given; for example: bertwright evaluate MODEL dev.tsv")


def evaluate(settings: EvaluateSettings, console: Console | None = None) -> dict[str, float]:
    """Print the scores of all files together; returns them by name.

    Raises ValueError for a model without a task, and for examples that are not as they should be.
    """
    console = console or make_console()
    check_unique(settings.inputs)
    with (
        new_file(settings.output) if settings.output else nullcontext() as part,
        execution_context(settings.device) as place,
    ):
        model, task, network = load_for_task(settings.model, settings.overrides, place)
        examples = [example for path in settings.inputs for example in task.read(path)]
        if not examples:
            raise ValueError(f"{settings.inputs[0]}: no examples in it")
        task.check(examples)
        encoded = task.encode(examples, model.tokenizer, labelled=False)
        with item_progress(console, "evaluating", encoded.num_items) as advance:
            found = evaluate_examples(network, task, examples, encoded, advance=advance)
        if part is not None:
            part.write_text(json.dumps(found.scores, indent=2) + "\n", encoding="utf-8")
    heading(console, f"{settings.model} on {len(examples):,} examples")
    notes = task.warnings(examples, settings.inputs)
    for note in notes + truncation_warnings(task, len(examples), encoded.truncated, model.config.max_positions):
        notice(console, note)
    console.print(score_table({"score": found.scores}, task.metric))
    for one in score_tables(task, examples, found.predictions):
        console.print(filled_table(one.columns, one.rows))
    if settings.output is not None:
        say(console, f"{settings.output}: scores written")
    return found.scores


def load_for_task(name: str, overrides: TaskOptions, place: Any) -> tuple[Bert, AnyTask, EncoderForTask]:
    """A fine-tuned model, its task as the user wants it read, and its network. ValueError for one without a task."""
    folder = model_folder(name)
    model = load(folder, place.device, place.dtype)
    if model.task is None or not isinstance(model.model, EncoderForTask):
        raise ValueError(f"{folder}: not fine-tuned on a task yet; bertwright finetune --model {name} …")
    task = overrides.apply_to(model.task)
    model.task = within_positions(task, overrides, model.config.max_positions)
    return model, model.task, model.model
