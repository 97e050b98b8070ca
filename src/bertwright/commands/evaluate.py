"""`bertwright evaluate`: score a fine-tuned model on labelled files."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from tyro.conf import Positional

from bertwright.commands.output_paths import new_file
from bertwright.console import filled_table, heading, item_progress, make_console, notice, say
from bertwright.interop.model_files import model_folder
from bertwright.io.sources import check_unique
from bertwright.settings import check_not_str
from bertwright.tasks.presets import TaskOptions
from bertwright.training.settings import DeviceSettings

if TYPE_CHECKING:
    from bertwright.inference.model import Bert
    from bertwright.models.heads import EncoderForTask
    from bertwright.tasks.task import AnyTask
    from bertwright.training.context import ExecutionContext


@dataclass(frozen=True)
class EvaluateSettings:
    """Score a fine-tuned model on labelled files with the official metric of its task."""

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    inputs: Positional[tuple[str, ...]]
    """Labelled files, in the format of the training files."""
    output: Path | None = None
    """Also write the scores to this new JSON file."""
    overrides: TaskOptions = field(default_factory=TaskOptions)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        if not self.inputs:
            raise ValueError("no file given; for example: bertwright evaluate MODEL dev.tsv")


def evaluate(settings: EvaluateSettings, console: Console | None = None) -> dict[str, float]:
    """Print the scores over the examples of all files together; return them by name.

    Raises ValueError for a model without a task, and for invalid examples.
    """
    console = console or make_console()
    check_unique(settings.inputs)
    # These import torch, which takes longer than the checks above.
    from bertwright.commands.finetune.run import find_only_class, score_table
    from bertwright.tasks.prediction import evaluate_examples
    from bertwright.tasks.presentation import score_tables, truncation_warnings
    from bertwright.training.context import execution_context

    with (
        new_file(settings.output) if settings.output else nullcontext() as temporary,
        execution_context(settings.device) as context,
    ):
        model, task, network = load_for_task(settings.model, settings.overrides, context)
        examples = [example for path in settings.inputs for example in task.read(path)]
        if not examples:
            raise ValueError(f"{settings.inputs[0]}: no examples in it")
        task.check(examples)
        encoded = task.encode(examples, model.tokenizer, labelled=False)
        with item_progress(console, "evaluating", encoded.num_items) as advance:
            result = evaluate_examples(network, task, examples, encoded, advance=advance)
        if temporary is not None:
            temporary.write_text(json.dumps(result.scores, indent=2) + "\n", encoding="utf-8")
    heading(console, f"{settings.model} on {len(examples):,} examples")
    warnings = task.warnings(examples, settings.inputs)
    warnings += truncation_warnings(task, len(examples), encoded.truncated, model.config.max_positions)
    if only := find_only_class(task, result.predictions):
        warnings.append(f"all predictions are {only!r}: the model does not tell the classes apart")
    for warning in warnings:
        notice(console, warning)
    console.print(score_table({"score": result.scores}, task.metric))
    for table in score_tables(task, examples, result.predictions):
        console.print(filled_table(table.columns, table.rows))
    if settings.output is not None:
        say(console, f"{settings.output}: scores written")
    return result.scores


def load_for_task(name: str, overrides: TaskOptions, context: ExecutionContext) -> tuple[Bert, AnyTask, EncoderForTask]:
    """Load a fine-tuned model; return it, its task with the user's options, and its network.

    Raises ValueError for a model without a task.
    """
    from bertwright.commands.finetune.setup import within_positions
    from bertwright.inference.model import load
    from bertwright.models.heads import EncoderForTask

    folder = model_folder(name)
    model = load(folder, context.device, context.dtype)
    if model.task is None or not isinstance(model.model, EncoderForTask):
        raise ValueError(f"{folder}: not fine-tuned on a task yet; bertwright finetune --model {name} …")
    task = overrides.apply_to(model.task)
    model.task = within_positions(task, overrides, model.config.max_positions)
    return model, model.task, model.model
