"""Estimated time of jobs, from a few steps and predictions on their data with an untrained model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bertwright.console import ProgressCallback, silent_console
from bertwright.experiments.composition import compose
from bertwright.experiments.jobs import ComposeJob, FinetuneJob, Job, PretrainJob, ProbeJob, sequence_losses
from bertwright.finetuning.finetune_cost import time_evaluation
from bertwright.finetuning.finetune_state import make_spec
from bertwright.finetuning.finetune_state import open_run as open_finetuning
from bertwright.finetuning.head_training import HeadData, HeadHyperParams, score
from bertwright.finetuning.head_training import make_spec as make_head_spec
from bertwright.finetuning.probe import open_probe
from bertwright.inference.feature_cache import load_or_compute_features
from bertwright.interop.huggingface import save_model
from bertwright.models.feature_head import FeatureHead
from bertwright.pretraining.pretrain_state import open_run as open_pretraining
from bertwright.pretraining.run import measure_cost
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.task_data import SplitData
from bertwright.training.context import execution_context
from bertwright.training.cost import time_steps
from bertwright.vocabulary.tokenizer import Tokenizer

TIMED_EXAMPLES = 64  # of a probe, and of the last evaluation of a pre-training


class SplitCost(NamedTuple):
    """Seconds that the examples of a split take, in training or in prediction, or the steps of a pre-training."""

    seconds: float
    examples: int


class JobCost(NamedTuple):
    """Estimated seconds of a job."""

    fixed: float
    """To open a run; the evaluations of a pre-training, whose number does not depend on its steps."""
    splits: tuple[SplitCost, ...] = ()

    @property
    def seconds(self) -> float:
        """Total."""
        return self.fixed + sum(split.seconds for split in self.splits)

    def with_limit(self, before: int | None, after: int | None) -> float:
        """Return the total under another limit of the examples of each split.

        A split with fewer examples than `before` was measured whole, so that a larger limit adds none.
        """
        seconds = self.fixed
        for split in self.splits:
            is_cut = before is not None and split.examples >= before
            chosen = split.examples if after is None else after if is_cut else min(after, split.examples)
            seconds += split.seconds * chosen / split.examples
        return seconds


def estimate_costs(jobs: Sequence[Job], advance: ProgressCallback) -> dict[str, JobCost]:
    """Return the estimated time of each job by its key; jobs of the same kind, shape and data are measured once.

    No files are left behind. `advance` receives the number of jobs done. Raises ValueError as the runs do for
    settings and files that are not usable.
    """
    found: dict[str, JobCost] = {}
    with TemporaryDirectory() as folder:
        clock = _Clock(Path(folder))
        for job in jobs:
            found[job.key] = clock.measure(job)
            advance(1)
    return found


class _Clock:
    """Measurements of kinds of jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[object, JobCost] = {}

    def measure(self, job: Job) -> JobCost:
        """Return the time of a job; measure it unless a job that takes as long has been measured."""
        shape = self._shape(job)
        # What the time does not depend on is made equal, so that one measurement serves for all such jobs.
        if isinstance(job, PretrainJob):
            data = replace(job.settings.data, mask_mix=(1.0, 0.0, 0.0))
            return self._once(("pretrain", shape, data, job.settings.steps), lambda: _pretraining_cost(job.settings))
        if isinstance(job, ComposeJob):
            return JobCost(0.0)  # a copy of files
        if isinstance(job, FinetuneJob):
            tuning = replace(job.settings.tuning, lstm_lr_scale=1.0)
            optimizer = replace(job.settings.optimizer, learning_rate=1e-12)
            one = replace(job.settings, seed=0, tuning=tuning, optimizer=optimizer)
            return self._once((one, shape), lambda: self._finetuning_cost(job))
        assert isinstance(job, ProbeJob)
        return self._once((job.settings, shape), lambda: self._probe_cost(job))

    def _once(self, kind: object, measure: Callable[[], JobCost]) -> JobCost:
        if kind not in self.found:
            self.found[kind] = measure()
        return self.found[kind]

    def _shape(self, job: Job) -> object:
        """Return everything about a job's model that its time depends on."""
        if isinstance(job, PretrainJob):
            return job.settings.model, job.settings.data.objective == "rtl"
        layers = job.settings.lstm_layers if isinstance(job, ComposeJob) else 0
        return (layers, *map(self._shape, job.parents))

    def _model(self, job: Job) -> str:
        """Return a folder with an untrained model such as the one that the job starts from."""
        return str(self._untrained_model(job.parents[0])) if job.parents else str(job.settings.model)

    def _untrained_model(self, job: Job) -> Path:
        """Return a folder with an untrained model such as the job's."""
        folder = self.folder / str(hash(self._shape(job)))
        if folder.exists():
            return folder
        if isinstance(job, ComposeJob):
            models = [self._untrained_model(parent) for parent in job.parents]
            compose(folder, models, job.settings.lstm_layers, job.settings.seed)
            return folder
        assert isinstance(job, PretrainJob)
        assert job.settings.store is not None
        tokenizer = Tokenizer.load(job.settings.store / "tokenizer")
        is_reversed = job.settings.data.objective == "rtl"
        config = job.settings.model.config(tokenizer.vocab_size, is_reversed, is_reversed)
        save_model(folder, job.settings.model.new_model(config, seed=0), tokenizer)
        return folder

    def _finetuning_cost(self, job: FinetuneJob) -> JobCost:
        settings = replace(job.settings, run=self.folder / "run", model=self._model(job))
        with execution_context(settings.device) as context:
            started = time.perf_counter()
            state = open_finetuning(settings, context, silent_console())
            opening = time.perf_counter() - started
            assert state.dev is not None
            steps = settings.num_steps(state.train.encoded.num_items)
            training = steps * time_steps(make_spec(state, settings, context), context)
            splits = [SplitCost(training, len(state.train.examples))]
            # A run is opened and dev predicted twice: for its score, and for the per-example statistics.
            for split, times in ((state.dev, 2), (state.test, 1)):
                if split is not None:
                    splits.append(SplitCost(times * time_evaluation(state, split), len(split.examples)))
        return JobCost(2 * opening, tuple(splits))

    def _probe_cost(self, job: ProbeJob) -> JobCost:
        settings = replace(job.settings, run=self.folder / "probe", model=self._model(job))
        with execution_context(settings.device) as context, TemporaryDirectory() as folder:
            started = time.perf_counter()
            run = open_probe(settings, context, silent_console())
            opening = time.perf_counter() - started
            examples = run.splits[0].examples[:TIMED_EXAMPLES]
            split = SplitData("train", examples, run.task.encode(examples, run.tokenizer))
            layers = sorted({layer for name in run.representations for layer in run.layers(name)})
            started = time.perf_counter()
            features = load_or_compute_features(run.encoder, split.encoded, layers, Path(folder) / "f", pooled=False)
            computing = (time.perf_counter() - started) / len(examples)
            seconds = [computing * len(one.examples) for one in run.splits]
            heads = len(settings.seeds) * len(settings.learning_rates)
            # dev once more for the per-example statistics
            passes = {"train": settings.epochs, "dev": settings.epochs + 1, "test": 1}
            for name in run.representations:
                head = FeatureHead(run.head_config(name)).to(context.device)
                data = HeadData(split, features, run.layers(name), context.device)
                hyper = HeadHyperParams(
                    settings.epochs, settings.batch_size, settings.dropout, settings.learning_rates[0], 0
                )
                step = time_steps(make_head_spec(head, run.task, {"train": data}, hyper), context)
                started = time.perf_counter()
                score(head, run.task, data)
                scoring = (time.perf_counter() - started) / len(examples)
                for number, one in enumerate(run.splits):
                    per_example = step / settings.batch_size if one.name == "train" else scoring
                    seconds[number] += heads * passes[one.name] * per_example * len(one.examples)
        counts = [len(one.examples) for one in run.splits]
        return JobCost(opening, tuple(starmap(SplitCost, zip(seconds, counts, strict=True))))


def _pretraining_cost(settings: PretrainSettings) -> JobCost:
    cost = measure_cost(settings)
    with execution_context(settings.device) as context, TemporaryDirectory() as folder:
        started = time.perf_counter()
        state = open_pretraining(replace(settings, run=Path(folder), resume=True), context, silent_console())
        opening = time.perf_counter() - started
        started = time.perf_counter()
        timed = len(sequence_losses(state, TIMED_EXAMPLES, context.device))
        seconds = time.perf_counter() - started
    last = seconds / timed * min(settings.eval_sequences, state.held_out[0].examples_per_epoch)
    fixed = 2 * opening + cost.evaluation_seconds + last
    return JobCost(fixed, (SplitCost(cost.seconds - cost.evaluation_seconds, settings.steps),))


def total_seconds(jobs: Sequence[Job], costs: Mapping[str, JobCost]) -> float:
    """Return the estimated time of some jobs, one after the other."""
    return sum(costs[job.key].seconds for job in jobs)
