"""Estimated cost of fine-tuning runs, from a few steps and predictions on their data."""

from __future__ import annotations

import time

from bertwright.base.reporter import MUTE, Reporter
from bertwright.finetuning.finetune_state import FinetuneState, make_spec, open_run
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.task_data import SplitData
from bertwright.training.context import ExecutionContext
from bertwright.training.cost import CostEstimate, time_steps

REOPEN_BELOW_S = 10.0  # if a run opens faster, loading the libraries is a large share of the time
TIMED_EXAMPLES = 64  # evenly spaced examples of a split


class CostEstimator:
    """Estimator of the cost of runs that differ in batch size, epochs and rate; each measurement is made once.

    The weights do not change, but the moments of the optimizer do, so it cannot train afterwards.
    """

    def __init__(self, state: FinetuneState, context: ExecutionContext) -> None:
        self.state = state
        self.context = context
        self.dev = time_evaluation(state, state.dev) if state.dev else 0.0
        self.test = time_evaluation(state, state.test) if state.test else 0.0
        self.step_seconds: dict[int, float] = {}

    def estimate(self, settings: FinetuneSettings) -> CostEstimate:
        items, size = self.state.train.encoded.num_items, settings.batch_size
        if size not in self.step_seconds:
            self.step_seconds[size] = time_steps(make_spec(self.state, settings, self.context), self.context)
        steps, eval_steps = settings.num_steps(items), settings.eval_steps(items)
        evaluations = 1 + sum(step in eval_steps for step in range(1, steps))
        return CostEstimate(steps, steps * self.step_seconds[size] + evaluations * self.dev + self.test)


def time_evaluation(state: FinetuneState, split: SplitData) -> float:
    """Measure the prediction of a sample of a split; return the estimated seconds for the whole split."""
    sample = split.examples[:: max(1, len(split.examples) // TIMED_EXAMPLES)]
    encoded = state.task.encode(sample, state.tokenizer, labeled=False)
    started = 0.0
    for _ in range(2):  # the first pass fills caches
        started = time.perf_counter()
        evaluate_examples(state.model, state.task, sample, encoded)
    return (time.perf_counter() - started) * len(split.examples) / len(sample)


def open_timed(
    settings: FinetuneSettings, context: ExecutionContext, reporter: Reporter
) -> tuple[FinetuneState, float]:
    """Open a run; return its state and the seconds that it takes, after the libraries have been loaded."""
    started = time.perf_counter()
    state = open_run(settings, context, reporter)
    seconds = time.perf_counter() - started
    if seconds < REOPEN_BELOW_S:
        started = time.perf_counter()
        open_run(settings, context, MUTE)  # its notices have been printed
        seconds = time.perf_counter() - started
    return state, seconds
