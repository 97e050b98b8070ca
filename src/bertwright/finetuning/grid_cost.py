"""Estimated cost of a grid, from a few steps and predictions on its data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from bertwright.console import silent_console
from bertwright.finetuning.finetune_cost import CostEstimator
from bertwright.finetuning.finetune_state import FinetuneState, open_run
from bertwright.finetuning.grid_settings import GridSettings, Trial
from bertwright.finetuning.run import FinetuneRun
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.cost import CostEstimate

REOPEN_BELOW_S = 10.0  # seconds to open a run, of which loading the libraries is a large share


def estimate_cost(settings: GridSettings, trials: Sequence[Trial], console: Console) -> CostEstimate:
    """Estimate the cost of trials by a few steps and predictions on the real data; print a summary of the first one.

    Nothing is written. Raises ValueError as `finetune` does for unusable settings and files, and if there is no dev
    split to select by.
    """
    with execution_context(settings.device) as context:
        first = replace(settings.finetune_settings(trials[0]), run=settings.run)  # a folder without checkpoints
        state, opening = _open_timed(first, context, console)
        if state.dev is None:
            raise ValueError("no dev split to select by: name labeled files with --dev, or set --validation-fraction")
        FinetuneRun(state, first, context, console).print_summary()
        estimator = CostEstimator(state, context)
        costs = [estimator.estimate(settings.finetune_settings(trial)) for trial in trials]
    return CostEstimate(sum(one.steps for one in costs), sum(opening + one.seconds for one in costs))


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
