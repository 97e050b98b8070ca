"""Estimated time of jobs, and the sizes that fit a budget.

The first job of each kind is measured with a few steps, and the others take as long.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bertwright.base.reporter import MUTE, Reporter
from bertwright.finetuning.finetune_cost import time_evaluation
from bertwright.finetuning.finetune_state import make_spec, open_run
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.run import measure_cost
from bertwright.training.context import execution_context
from bertwright.training.cost import time_steps
from bertwright.training.interrupt import until_stopped
from bertwright.trials.compose_job import ComposeJob
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.floor_jobs import FrequentAnswerJob, InitialModelJob, write_initial_model
from bertwright.trials.jobs import BestRateJob, FinetuneJob, Job, PretrainJob, ProbeJob, TaskJob, with_model_of
from bertwright.trials.levels import ExperimentLevel
from bertwright.trials.probe import measure_probe
from bertwright.trials.probe_settings import ProbeSettings

MIN_STEPS, MIN_EXAMPLES = 100, 50
SCALES = [10 ** (power / 1_000) for power in range(-5_000, 2_001)]  # factors of the limits, which a budget chooses from
PRETRAINING_SHARE = 0.5  # share of a budget that pre-training gets
UNLIMITED = 400_000  # examples that a level without limits is scaled from: MNLI, the largest task, has 392,702


class JobCost(NamedTuple):
    """Estimated seconds of a job."""

    fixed: float
    """Seconds that no size changes: to open a run, or to evaluate a pre-training."""
    training: float = 0.0
    """Seconds of all steps and predictions."""
    examples: int = 1
    """Training examples of a task."""
    limit: int | None = None
    """Limit of the examples of each split with which the job was measured."""

    @property
    def seconds(self) -> float:
        """Total."""
        return self.fixed + self.training

    def with_limit(self, limit: int | None) -> float:
        """Return the total under another limit, in proportion to the training examples.

        A task with fewer examples than the present limit was measured whole, so that a larger limit adds none.
        """
        is_cut = self.limit is not None and self.examples >= self.limit
        examples = self.examples if limit is None else limit if is_cut else min(limit, self.examples)
        return self.fixed + self.training * examples / self.examples


def estimate_costs(jobs: Sequence[Job], reporter: Reporter) -> dict[str, JobCost]:
    """Return the estimated time of each job by its key; of jobs that take as long, the first is measured.

    No files are left behind. Raises ValueError as the runs do for settings and files that are not usable.
    """
    by_kind: dict[Hashable, JobCost] = {}
    by_key: dict[str, JobCost] = {}
    with reporter.progress("measuring", len(jobs)) as advance:
        for job in until_stopped(jobs):
            kind = kind_of(job)
            if kind not in by_kind:
                by_kind[kind] = measure(job)
            by_key[job.key] = by_kind[kind]
            advance(1)
    return by_key


def kind_of(job: Job) -> Hashable:
    """Return everything in which jobs of an experiment differ and on which their time depends."""
    if isinstance(job, PretrainJob):
        return job.settings.model, job.settings.data.objective, job.settings.data.mlm_probability
    if isinstance(job, TaskJob):
        return job.kind, job.settings.task, shape_of(job)
    return job.kind


def shape_of(job: Job) -> Hashable:
    """Return the sizes of the models that a job makes or reads."""
    if isinstance(job, PretrainJob | BestRateJob | InitialModelJob):
        return job.settings.model
    layers = job.settings.lstm_layers if isinstance(job, ComposeJob) else 0
    return layers, *map(shape_of, job.parents)


def measure(job: Job) -> JobCost:
    """Estimate the time of a job from a few steps and predictions with an untrained model."""
    if isinstance(job, PretrainJob):
        cost = measure_cost(job.settings)
        return JobCost(cost.evaluation_seconds, cost.seconds - cost.evaluation_seconds)
    if isinstance(job, BestRateJob | ComposeJob | InitialModelJob | FrequentAnswerJob):
        return JobCost(0.0)  # copies files, or counts labels
    if not isinstance(job, FinetuneJob | ProbeJob):
        raise TypeError(f"{type(job).__name__}: no estimate for jobs of this class")
    with TemporaryDirectory() as folder:
        parents = [write_untrained(parent, Path(folder) / str(number)) for number, parent in enumerate(job.parents)]
        if isinstance(job, FinetuneJob):
            return measure_finetuning(replace(with_model_of(job.settings, parents), run=Path(folder) / "run"))
        return measure_probe_job(replace(with_model_of(job.settings, parents), run=Path(folder) / "run"))


def write_untrained(job: Job, run: Path) -> Path:
    """Write an untrained model with the shape of a job's model; return its run folder."""
    if isinstance(job, PretrainJob | BestRateJob):
        write_initial_model(job.settings, run / "model")
    else:
        parents = [write_untrained(parent, run / str(number)) for number, parent in enumerate(job.parents)]
        job.execute(run, parents, MUTE)
    return run


def measure_finetuning(settings: FinetuneSettings) -> JobCost:
    """Estimate the time of a fine-tuning."""
    with execution_context(settings.device) as context:
        started = time.perf_counter()
        state = open_run(settings, context, MUTE)
        opening = time.perf_counter() - started
        steps = settings.num_steps(state.train.encoded.num_items)
        seconds = steps * time_steps(make_spec(state, settings, context), context)
        # A run is opened and dev predicted twice: for its score, and for the per-example statistics.
        for split, times in ((state.dev, 2), (state.test, 1)):
            if split is not None:
                seconds += times * time_evaluation(state, split)
    return JobCost(2 * opening, seconds, len(state.train.examples), settings.tuning.limit)


def measure_probe_job(settings: ProbeSettings) -> JobCost:
    """Estimate the time of a probe."""
    cost, heads = measure_probe(settings), len(settings.seeds) * len(settings.learning_rates)
    return JobCost(cost.opening, cost.features + heads * cost.heads, cost.examples, settings.limit)


def fit_budget(
    settings: ExperimentSettings, level: ExperimentLevel, jobs: Sequence[Job], costs: dict[str, JobCost]
) -> ExperimentLevel:
    """Return the level with as many steps and examples as fit the budget; limits keep their proportion.

    `costs`: time of each job at this level, by key. Raises ValueError if the budget is too small for anything.
    """
    assert settings.budget is not None
    pretraining = [costs[job.key] for job in jobs if isinstance(job, PretrainJob)]
    tuning = [costs[job.key] for job in jobs if isinstance(job, FinetuneJob | ProbeJob)]
    seconds = 60 * settings.budget
    share, steps = 0.0, level.steps
    if pretraining:
        share = PRETRAINING_SHARE
        fixed = sum(cost.fixed for cost in pretraining)  # the number of evaluations does not depend on the steps
        steps = _round_down(level.steps * (seconds * share - fixed) / sum(cost.training for cost in pretraining))

    def tuning_seconds(scale: float) -> float:
        return sum(cost.with_limit(_scale(cost.limit, scale)) for cost in tuning)

    scale = [0.0, *SCALES][bisect(SCALES, seconds * (1 - share), key=tuning_seconds)]
    limits = [_scale(limit, scale) for limit in (level.limit, level.word_task_limit)]
    examples = min((limit for limit in limits if limit is not None), default=MIN_EXAMPLES)
    if steps < MIN_STEPS or examples < MIN_EXAMPLES:
        raise ValueError(
            f"--budget {settings.budget:g}: too little for {len(jobs)} jobs ({steps} steps and {examples} examples "
            "each); raise it, or choose fewer --tasks or --seeds"
        )
    return replace(level, steps=steps, limit=limits[0], word_task_limit=limits[1])


def _scale(limit: int | None, scale: float) -> int | None:
    """Return a limit times a factor, rounded down; None, no limit, becomes one only if the factor is below 1."""
    if limit is None and scale >= 1:
        return None
    return _round_down(scale * (UNLIMITED if limit is None else limit))


def _round_down(number: float) -> int:
    """Round down to two significant digits.

    >>> _round_down(12_345.6), _round_down(-3.0)
    (12000, 0)
    """
    if number < 1:
        return 0
    unit = 10 ** max(0, len(str(int(number))) - 2)
    return int(number // unit * unit)
