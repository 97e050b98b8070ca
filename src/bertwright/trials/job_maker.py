"""Maker of the jobs and the trials of an experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.models.representations import RepresentationName
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.masking import Mix
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.floor_jobs import FrequentAnswerJob, InitialModelJob
from bertwright.trials.jobs import (
    BestRateJob,
    Digests,
    FinetuneJob,
    Job,
    PretrainJob,
    ProbeJob,
    SameRateJob,
    digest_task_inputs,
    with_rate,
)
from bertwright.trials.levels import ExperimentLevel, Shape
from bertwright.trials.probe_settings import ProbeSettings, ProbeTrial
from bertwright.trials.table_plan import FREQUENT, RANDOM, Trial
from bertwright.trials.task_files import FoundTask, find_task

Objective = Literal["mlm+nsp", "mlm", "ltr", "rtl"]
Starts = tuple[Job | None, ...]
"""The models that a row starts from, one per seed of pre-training; None: the model folder that the user gave."""

PAPER_MIX: Mix = DataSettings.mask_mix
CURVE_CHECKPOINTS = 10  # evenly spaced checkpoints of a pre-training, which figure 5 shows
NO_DEV_SELECTION = sys.maxsize  # eval_every: score only the last step
SAVE_EVERY = 500  # steps of fine-tuning that a kill loses at most
RUN = Path("run")  # set when a job starts
WORD_TASKS = ("tagging", "question-answering")
ACCURACY = {"mrpc": "accuracy"}  # metric in tables 5 and 6; table 1 has F1
UNTRAINED_POOLER = (
    "Only next-sentence prediction trains the pooler; after the other objectives, sentence tasks start from its "
    "initial weights."
)


@dataclass(frozen=True)
class ExperimentInputs:
    """Model sizes, files and device of an experiment."""

    level: ExperimentLevel
    store: Path | None
    store_digest: str
    data: Path
    lowercase: bool
    """Whether the vocabulary is lower-case."""
    tasks: tuple[str, ...]
    """Names of presets; empty: the tasks of the paper's table."""
    device: DeviceSettings
    model: str | None = None
    """Model folder of tables 1 and 7, in place of a pre-training."""


class JobMaker:
    """Maker of jobs that differ from each other only as an experiment asks."""

    def __init__(self, inputs: ExperimentInputs) -> None:
        self.inputs = inputs
        self.level = inputs.level
        self.notes: list[str] = []

    @property
    def has_mnli(self) -> bool:
        """True if MNLI has files; SST-2 stands for it otherwise."""
        return find_task(self.inputs.data, "mnli") is not None

    def find_tasks(
        self, candidates: Sequence[str], metrics: Mapping[str, str] | None = None, max_length: int | None = None
    ) -> dict[str, FoundTask]:
        """Find the tasks that the user named, else the tasks of `candidates` that have files, and note their limits.

        `metrics`: metrics of tasks that replace their own. `max_length`: longest sequence, if below the task's own.
        Raises ValueError for a named task without files, and if no candidate has files.
        """
        data, named, tasks = self.inputs.data, self.inputs.tasks, dict[str, FoundTask]()
        for name in named or candidates:
            metric = (metrics or {}).get(name)
            task = find_task(data, name, self.limit_length(name, max_length, TaskOptions(metric=metric)))
            if task is not None:
                tasks[name] = task
            elif named:
                raise ValueError(f"{data}: no folder with the files of {name}, such as {_example(name)}")
        if not tasks:
            names = ", ".join(candidates)
            raise ValueError(f"{data}: no files of {names}; expected for example {_example(candidates[0])}")
        self.notes += [task.note for task in tasks.values() if task.note]
        self.note_limits([*tasks], max_length)
        return tasks

    def limit_length(self, name: str, max_length: int | None, options: TaskOptions) -> TaskOptions:
        """Return the options of a task with its lengths reduced to `max_length`, or to the level's positions.

        Windows of question answering then overlap by half, so that an answer in one of them has context.
        """
        length, task = max_length or self.trained_length, PRESETS[name].task
        if length is None or length >= task.max_length:
            return options
        limited = task.limited_to(length)
        if not isinstance(limited, QuestionAnswering):
            return replace(options, max_length=limited.max_length)
        stride = min(limited.doc_stride, length // 2)
        return replace(
            options, max_length=length, max_query_length=min(limited.max_query_length, length // 4), doc_stride=stride
        )

    @property
    def trained_length(self) -> int | None:
        """Longest sequence in fine-tuning: all positions that most steps of pre-training read; None: no limit."""
        is_short = self.level.max_length == self.level.max_positions and self.inputs.model is None
        return self.level.max_length if is_short else None

    def note_limits(self, tasks: Sequence[str], max_length: int | None) -> None:
        """Note for the report what the vocabulary and the level take away from tasks."""
        if self.inputs.lowercase and (cased := [name for name in tasks if PRESETS[name].task.kind == "tagging"]):
            self.notes.append(
                f"The vocabulary is uncased, so that the model cannot see the capital letters of {', '.join(cased)}; "
                "the paper tags with a cased model (section 5.3)."
            )
        if length := max_length or self.trained_length:
            windows = ""
            if any(PRESETS[name].task.kind == "question-answering" for name in tasks):
                windows = f" Questions read windows of {length} tokens, one every {min(128, length // 2)} tokens."
            self.notes.append(
                f"Fine-tuning reads sequences of up to {length} tokens, whose positions all steps of pre-training "
                f"train.{windows}"
            )

    def pretrain(
        self,
        name: str,
        objective: Objective,
        shape: Shape | None = None,
        data: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
    ) -> tuple[Job, ...]:
        """Return the pre-trainings of a row, one per seed; all rows have the same store, steps, batch and pairs.

        If the level has several peak rates, the row has the best of them on the held-out loss of its first seed.
        `data`, `model`: settings of the examples and of the model in which the row differs.
        """
        level, is_variant = self.level, bool(data or model or (shape or self.level.shape) != self.level.shape)
        jobs = list[Job]()
        for seed in self.seeds:
            described = f"pre-train {name}" + (f", seed {seed}" if len(self.seeds) > 1 else "")
            settings = self._pretrain_settings(objective, seed, shape or level.shape, is_variant)
            data_settings, shaped = replace(settings.data, **(data or {})), replace(settings.model, **(model or {}))
            settings = replace(settings, data=data_settings, model=shaped)
            jobs.append(self._repeat(described, settings, jobs[0]) if jobs else self._best_rate(described, settings))
        return tuple(jobs)

    @property
    def seeds(self) -> range:
        """Seeds of pre-training."""
        return range(self.level.pretraining_seeds)

    @property
    def store_digests(self) -> Digests:
        """Input digests of a job that reads the store."""
        return (("store", self.inputs.store_digest),)

    def _best_rate(self, described: str, settings: PretrainSettings) -> Job:
        """Return a pre-training at the best of the level's rates."""
        jobs = [
            PretrainJob(f"{described}, rate {rate:g}", self.store_digests, (), with_rate(settings, rate))
            for rate in self.level.pretraining_rates
        ]
        return jobs[0] if len(jobs) == 1 else BestRateJob(described, (), tuple(jobs), jobs[0].settings)

    def _repeat(self, described: str, settings: PretrainSettings, first: Job) -> Job:
        """Return a pre-training with another seed at the rate of the first one."""
        if isinstance(first, BestRateJob):
            return SameRateJob(described, self.store_digests, (first,), settings)
        return PretrainJob(described, self.store_digests, (), with_rate(settings, self.level.pretraining_rates[0]))

    def _pretrain_settings(self, objective: Objective, seed: int, shape: Shape, is_variant: bool) -> PretrainSettings:
        """Return what all pre-trainings share. The checkpoints of a variant are deleted."""
        level = self.level
        every = max(1, level.steps // CURVE_CHECKPOINTS)
        return PretrainSettings(
            run=RUN,
            store=self.inputs.store,
            steps=level.steps,
            save_every=every,
            keep_last=1 if is_variant else 2 * CURVE_CHECKPOINTS,  # up to 19 checkpoints if there are few steps
            eval_every=level.steps,
            model=level.model(shape),
            data=DataSettings(level.max_length, level.batch_size, objective, "pair", level.short_seq_prob, seed=seed),
            long=level.long,
            optimizer=level.optimizer,
            device=self.inputs.device,
        )

    def start(self) -> Starts:
        """Return the pre-trainings of tables 1 and 7; None for each if a model folder is given."""
        return (None,) if self.inputs.model else self.pretrain("mlm+nsp", "mlm+nsp")

    def start_random(self, shape: Shape | None = None) -> Starts:
        """Return the initial weights of the pre-trainings; None if a model folder is given."""
        if self.inputs.model:
            return (None,)
        settings = [self._pretrain_settings("mlm+nsp", seed, shape or self.level.shape, True) for seed in self.seeds]
        return tuple(
            InitialModelJob(f"initial weights, seed {one.data.seed}", self.store_digests, (), one) for one in settings
        )

    def floors(self, tasks: Mapping[str, FoundTask]) -> list[Trial]:
        """Return the trials of both floors in the columns of tasks.

        The same network from random weights has the same rates, steps and seeds as the rows above it.
        """
        start = self.start_random()
        trials = [trial for name, task in tasks.items() for trial in self.finetune(RANDOM, name, task, start)]
        for name, task in tasks.items():
            if task.settings.build_task().has_frequent_answer:
                trials.append(self.most_frequent(name, task, start[0]))
        return trials

    def most_frequent(self, column: str, task: FoundTask, start: Job | None) -> Trial:
        """Return the trial of the most frequent answer; `start`: a model whose tokenizer reads the task."""
        name = task.settings.task
        digests = digest_task_inputs(task.settings, self.inputs.model if start is None else None)
        settings = self._finetune_settings(task, 0, 0.0, False, None)
        job = FrequentAnswerJob(f"most frequent answer of {name}", digests, parents_of(start), settings)
        return Trial(FREQUENT, column, 0, 0.0, job, "dev", "dev")

    def finetune(
        self,
        row: str,
        column: str,
        task: FoundTask,
        starts: Starts | Sequence[Mapping[int, Job]],
        step: int | None = None,
        pooling: str | None = None,
    ) -> list[Trial]:
        """Return the fine-tunings of a cell, one for each pre-training, seed and learning rate.

        `starts`: the jobs whose models, or their checkpoints after `step`, are fine-tuned, or one for each seed of
        fine-tuning; None: the model folder that the user gave.
        """
        level, name = self.level, task.settings.task
        recipe = level.task_recipes.get(name, level.recipe)
        trials = []
        digests = digest_task_inputs(task.settings, self.inputs.model if starts[0] is None else None)
        for pretraining, starting in enumerate(starts):
            for seed in range(level.seeds):
                start = starting[seed] if isinstance(starting, Mapping) else starting
                for rate in recipe.learning_rates:
                    settings = self._finetune_settings(task, seed, rate, row == RANDOM and start is None, pooling)
                    described = f"fine-tune {row} on {name}, rate {rate:g}, seed {seed}"
                    if len(starts) > 1:
                        described += f", pre-training {pretraining}"
                    job = FinetuneJob(described, digests, parents_of(start), settings, step)
                    trials.append(Trial(row, column, seed, rate, job, "dev", "dev", pretraining))
        return trials

    def _finetune_settings(
        self, task: FoundTask, seed: int, rate: float, from_scratch: bool, pooling: str | None
    ) -> FinetuneSettings:
        """Return the settings of a fine-tuning; its model is set when it starts, unless the user gave a folder."""
        name = task.settings.task
        recipe = self.level.task_recipes.get(name, self.level.recipe)
        return FinetuneSettings(
            run=RUN,
            task=task.settings,
            model=self.inputs.model,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            seed=seed,
            eval_every=NO_DEV_SELECTION,
            save_every=SAVE_EVERY,
            tuning=TuningSettings(
                task.validation_fraction,
                self.limit(name),
                from_scratch=from_scratch,
                pooling=pooling,
                head_init="random",
                dropout=0.1,
            ),
            optimizer=replace(self.level.tuning_optimizer, learning_rate=rate or paper_optimizer().learning_rate),
            device=self.inputs.device,
        )

    def limit(self, task: str) -> int | None:
        """Return the number of examples of each split of a task; None: all."""
        is_word_task = PRESETS[task].task.kind in WORD_TASKS
        return self.level.word_task_limit if is_word_task else self.level.limit

    def probe(
        self, cells: Mapping[RepresentationName, tuple[str, str]], task: FoundTask, starts: Starts, name: str
    ) -> list[Trial]:
        """Return the trials of heads on frozen models, the jobs' or the user's.

        `cells`: row and column of each representation; `name`: the models' name.
        """
        level, trials = self.level, list[Trial]()
        for pretraining, start in enumerate(starts):
            settings = ProbeSettings(
                run=RUN,
                task=task.settings,
                model=self.inputs.model,
                validation_fraction=task.validation_fraction,
                limit=self.limit(task.settings.task),
                representations=tuple(cells),
                seeds=tuple(range(level.seeds)),
                epochs=level.probe_epochs,
                lstm_size=level.lstm_size,
                lstm_layers=level.lstm_layers,
                device=self.inputs.device,
            )
            described = f"train heads on frozen {name}, {task.settings.task}"
            digests = digest_task_inputs(task.settings, None if start else self.inputs.model)
            job = ProbeJob(described, digests, parents_of(start), settings)
            trials += [
                Trial(row, column, seed, rate, job, score := ProbeTrial(kind, rate, seed).name, score, pretraining)
                for kind, (row, column) in cells.items()
                for rate in settings.learning_rates
                for seed in settings.seeds
            ]
        return trials


def describe_heads(level: ExperimentLevel) -> str:
    """Return a sentence on the heads on frozen features."""
    return (
        f"Heads on frozen features: a {level.lstm_layers}-layer BiLSTM of {level.lstm_size} outputs, half of them for "
        'each direction (the paper: two layers, "768-dimensional", which may also mean 768 for each direction), and a '
        f"linear layer; {level.probe_epochs} epochs, of which the best on dev counts."
    )


def parents_of(parent: Job | None) -> tuple[Job, ...]:
    """Return the parents of a job that starts from a job's model, or from none."""
    return () if parent is None else (parent,)


def _example(name: str) -> str:
    preset = PRESETS[name]
    return f"{name}/{preset.train} and {name}/{preset.dev}"
