"""Estimated time of a grid, from a few steps and predictions on its data."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from rich.console import Console

from bertwright.commands.finetune.run import FinetuneRun, make_training
from bertwright.commands.finetune.settings import FinetuneSettings
from bertwright.commands.finetune.setup import FinetuneState, SplitData, open_run
from bertwright.commands.grid.settings import GridSettings, Trial
from bertwright.console import silent_console
from bertwright.tasks.prediction import evaluate_examples
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.fit import train_until_stopped
from bertwright.training.optimizer import AdamW, OptimizerSettings

TIMED_STEPS = 3  # per batch size, after one step that fills caches
NOOP_OPTIMIZER = OptimizerSettings(learning_rate=1e-12)  # the rate does not change a step's time; this one is safe
REOPEN_BELOW_S = 10.0  # seconds to open a run, of which loading the libraries is a large share
TIMED_EXAMPLES = 64  # evenly spaced examples of a split


class CostEstimate(NamedTuple):
    """Estimated steps and seconds of some runs."""

    steps: int
    seconds: float


def estimate_cost(settings: GridSettings, trials: Sequence[Trial], console: Console) -> CostEstimate:
    """Estimate the time of trials by a few steps and predictions on the real data; print a summary of the first one.

    Nothing is written. Raises ValueError as `finetune` does for unusable settings and files, and if there is no dev
    split to select by.
    """
    with execution_context(settings.device) as context:
        first = replace(settings.finetune_settings(trials[0]), run=settings.run)  # a folder without checkpoints
        state, opening = _open_timed(first, context, console)
        if state.dev is None:
            raise ValueError("no dev split to select by: name labelled files with --dev, or set --validation-fraction")
        FinetuneRun(state, first, context, console).print_summary()
        dev, test = (time_evaluation(state, split) if split else 0.0 for split in (state.dev, state.test))
        items, step_seconds = state.train.encoded.num_items, dict[int, float]()
        total_steps, seconds = 0, 0.0
        for trial in trials:
            one = settings.finetune_settings(trial)
            if one.batch_size not in step_seconds:
                step_seconds[one.batch_size] = time_steps(state, one, context)
            steps, eval_steps = one.num_steps(items), one.eval_steps(items)
            evaluations = 1 + sum(step in eval_steps for step in range(1, steps))
            total_steps += steps
            seconds += opening + steps * step_seconds[one.batch_size] + evaluations * dev + test
    return CostEstimate(total_steps, seconds)


def _open_timed(settings: FinetuneSettings, context: ExecutionContext, console: Console) -> tuple[FinetuneState, float]:
    """Open a run; return its state and the seconds that it takes, after the libraries have been loaded."""
    started = time.perf_counter()
    state = open_run(settings, context, console)
    seconds = time.perf_counter() - started
    if seconds < REOPEN_BELOW_S:
        started = time.perf_counter()
        open_run(settings, context, silent_console())  # its notices have been printed
        seconds = time.perf_counter() - started
    return state, seconds


def time_steps(state: FinetuneState, settings: FinetuneSettings, context: ExecutionContext) -> float:
    """Return the median seconds per optimizer step of a run, measured on a copy of its model."""
    model = copy.deepcopy(state.model)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    copied = replace(state, model=model, optimizer=AdamW(trained, NOOP_OPTIMIZER))
    training = make_training(copied, replace(settings, optimizer=NOOP_OPTIMIZER), context)
    with closing(train_until_stopped(training, context, ())) as reports:
        seconds = [report.seconds for report in islice(reports, 1 + TIMED_STEPS)]
    return statistics.median(seconds[1:] or seconds)


def time_evaluation(state: FinetuneState, split: SplitData) -> float:
    """Return the seconds that predicting a split takes."""
    sample = split.examples[:: max(1, len(split.examples) // TIMED_EXAMPLES)]
    encoded = state.task.encode(sample, state.tokenizer, labelled=False)
    started = 0.0
    for _ in range(2):  # the first pass fills caches
        started = time.perf_counter()
        evaluate_examples(state.model, state.task, sample, encoded)
    return (time.perf_counter() - started) * len(split.examples) / len(sample)
