"""Estimated time of jobs: the first job of each kind is measured with a few steps, and the others take as long."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bertwright.console import ProgressCallback, silent_console
from bertwright.experiments.ablations import ComposeJob
from bertwright.experiments.jobs import FinetuneJob, Job, PretrainJob, ProbeJob, TaskJob, with_model_of
from bertwright.finetuning.finetune_cost import time_evaluation
from bertwright.finetuning.finetune_state import make_spec, open_run
from bertwright.finetuning.probe import open_probe, probe
from bertwright.finetuning.probe_settings import ProbeSettings
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import save_model
from bertwright.pretraining.run import measure_cost
from bertwright.training.context import execution_context
from bertwright.training.cost import time_steps
from bertwright.vocabulary.tokenizer import Tokenizer

TIMED_EXAMPLES = 64  # examples of each split with which heads on frozen features are timed


class SplitCost(NamedTuple):
    """Seconds that the examples of a split take, in training or in prediction, or the steps of a pre-training."""

    seconds: float
    examples: int


class JobCost(NamedTuple):
    """Estimated seconds of a job."""

    fixed: float
    """Seconds to open a run; of a pre-training, its evaluations, whose number does not depend on its steps."""
    splits: tuple[SplitCost, ...] = ()
    limit: int | None = None
    """Limit of the examples of each split with which the job was measured."""

    @property
    def seconds(self) -> float:
        """Total."""
        return self.fixed + sum(split.seconds for split in self.splits)

    def with_limit(self, limit: int | None) -> float:
        """Return the total under another limit.

        A split with fewer examples than the present limit was measured whole, so that a larger limit adds none.
        """
        seconds = self.fixed
        for split in self.splits:
            is_cut = self.limit is not None and split.examples >= self.limit
            examples = split.examples if limit is None else limit if is_cut else min(limit, split.examples)
            seconds += split.seconds * examples / split.examples
        return seconds


def estimate_costs(jobs: Sequence[Job], advance: ProgressCallback) -> dict[str, JobCost]:
    """Return the estimated time of each job by its key; of jobs that take as long, the first is measured.

    No files are left behind. `advance` receives the number of jobs done. Raises ValueError as the runs do for
    settings and files that are not usable.
    """
    by_kind: dict[Hashable, JobCost] = {}
    by_key: dict[str, JobCost] = {}
    for job in jobs:
        kind = kind_of(job)
        if kind not in by_kind:
            by_kind[kind] = measure(job)
        by_key[job.key] = by_kind[kind]
        advance(1)
    return by_key


def kind_of(job: Job) -> Hashable:
    """Return everything in which jobs of an experiment differ and on which their time depends."""
    if isinstance(job, PretrainJob):
        return job.settings.model, job.settings.data.objective
    if isinstance(job, TaskJob):
        return job.kind, job.settings.task, shape_of(job)
    return job.kind


def shape_of(job: Job) -> Hashable:
    """Return the sizes of the models that a job makes or reads."""
    if isinstance(job, PretrainJob):
        return job.settings.model
    layers = job.settings.lstm_layers if isinstance(job, ComposeJob) else 0
    return layers, *map(shape_of, job.parents)


def measure(job: Job) -> JobCost:
    """Estimate the time of a job from a few steps and predictions with an untrained model."""
    if isinstance(job, PretrainJob):
        cost = measure_cost(job.settings)
        steps = SplitCost(cost.seconds - cost.evaluation_seconds, job.settings.steps)
        return JobCost(cost.evaluation_seconds, (steps,))
    if not isinstance(job, FinetuneJob | ProbeJob):
        return JobCost(0.0)  # a copy of files
    with TemporaryDirectory() as folder:
        parents = [write_untrained(parent, Path(folder) / str(number)) for number, parent in enumerate(job.parents)]
        if isinstance(job, FinetuneJob):
            return measure_finetuning(replace(with_model_of(job.settings, parents), run=Path(folder) / "run"))
        return measure_probe(replace(with_model_of(job.settings, parents), run=Path(folder) / "run"))


def write_untrained(job: Job, run: Path) -> Path:
    """Write an untrained model with the shape of a job's model; return its run folder."""
    if isinstance(job, PretrainJob):
        assert job.settings.store is not None
        tokenizer = Tokenizer.load(job.settings.store / "tokenizer")
        model = job.settings.objective.new_model(job.settings.model, tokenizer.vocab_size, seed=0)
        save_model(run / "model", model, tokenizer)
    else:
        parents = [write_untrained(parent, run / str(number)) for number, parent in enumerate(job.parents)]
        job.execute(run, parents, silent_console())
    return run


def measure_finetuning(settings: FinetuneSettings) -> JobCost:
    """Estimate the time of a fine-tuning."""
    with execution_context(settings.device) as context:
        started = time.perf_counter()
        state = open_run(settings, context, silent_console())
        opening = time.perf_counter() - started
        steps = settings.num_steps(state.train.encoded.num_items)
        training = steps * time_steps(make_spec(state, settings, context), context)
        splits = [SplitCost(training, len(state.train.examples))]
        # A run is opened and dev predicted twice: for its score, and for the per-example statistics.
        for split, times in ((state.dev, 2), (state.test, 1)):
            if split is not None:
                splits.append(SplitCost(times * time_evaluation(state, split), len(split.examples)))
    return JobCost(2 * opening, tuple(splits), settings.tuning.limit)


def measure_probe(settings: ProbeSettings) -> JobCost:
    """Estimate the time of a probe: one more seed gives the time of a head, and the rest is that of the features."""
    started = time.perf_counter()
    with execution_context(settings.device) as context:
        examples = len(open_probe(settings, context, silent_console()).splits[0].examples)
    opening, seconds = time.perf_counter() - started, []
    sample = replace(settings, learning_rates=settings.learning_rates[:1], limit=min(examples, TIMED_EXAMPLES))
    for seeds in ((0,), (0, 1)):
        started = time.perf_counter()
        probe(replace(sample, run=settings.run / str(len(seeds)), seeds=seeds), silent_console())
        seconds.append(time.perf_counter() - started)
    head = max(0.0, seconds[1] - seconds[0])
    features = max(0.0, seconds[0] - head)
    heads = len(settings.seeds) * len(settings.learning_rates)
    per_example = (features + heads * head) / min(examples, TIMED_EXAMPLES)
    return JobCost(opening, (SplitCost(examples * per_example, examples),), settings.limit)


def total_seconds(jobs: Sequence[Job], costs: Mapping[str, JobCost]) -> float:
    """Return the estimated time of some jobs, one after the other."""
    return sum(costs[job.key].seconds for job in jobs)
