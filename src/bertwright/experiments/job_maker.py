"""Maker of the jobs and the trials of an experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bertwright.experiments.jobs import FinetuneJob, Job, PretrainJob, ProbeJob, digest_task_inputs
from bertwright.experiments.levels import ExperimentLevel, Shape
from bertwright.experiments.table_plan import Trial
from bertwright.experiments.task_files import FoundTask, find_task
from bertwright.finetuning.probe_settings import ProbeSettings, ProbeTrial
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.models.representations import RepresentationName
from bertwright.pretraining.data_settings import DataSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings

Objective = Literal["mlm+nsp", "mlm", "ltr", "rtl"]
Mix = tuple[float, float, float]

PAPER_MIX: Mix = (0.8, 0.1, 0.1)
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
        """Return the options of a task with its lengths reduced to `max_length`, or to the level's for tagging."""
        length, task = max_length or self.tagging_length(name), PRESETS[name].task
        if length is None:
            return options
        limited = task.limited_to(length)
        query = limited.max_query_length if isinstance(limited, QuestionAnswering) else None
        return replace(options, max_length=limited.max_length, max_query_length=query)

    def note_limits(self, tasks: Sequence[str], max_length: int | None) -> None:
        """Note for the report what the vocabulary and the level take away from tasks."""
        if self.inputs.lowercase and (cased := [name for name in tasks if PRESETS[name].task.kind == "tagging"]):
            self.notes.append(
                f"The vocabulary is uncased, so that the model cannot see the capital letters of {', '.join(cased)}; "
                "the paper tags with a cased model (section 5.3)."
            )
        short = [name for name in tasks if max_length or self.tagging_length(name)]
        if short and self.level.long.long_ratio:
            self.notes.append(
                f"Sequences of {', '.join(short)} have up to {max_length or self.level.tagging_length} tokens, since "
                "the positions after it are trained in the last tenth of the steps alone."
            )

    def tagging_length(self, task: str) -> int | None:
        """Return the longest sequence of a tagging task on a model that the level pre-trains; None: no limit."""
        is_limited = PRESETS[task].task.kind == "tagging" and self.inputs.model is None
        return self.level.tagging_length if is_limited else None

    def pretrain(
        self, name: str, objective: Objective, shape: Shape | None = None, mask_mix: Mix = PAPER_MIX
    ) -> PretrainJob:
        """Return a pre-training; all have the same store, steps, batch and initial weights."""
        level, inputs = self.level, self.inputs
        shape = shape or level.shape
        is_variant = mask_mix != PAPER_MIX or shape != level.shape
        every = max(1, level.steps // CURVE_CHECKPOINTS)
        rate = level.wide_learning_rates.get(shape[1], level.optimizer.learning_rate)
        settings = PretrainSettings(
            run=RUN,
            store=inputs.store,
            steps=level.steps,
            save_every=every,
            keep_last=1 if is_variant else 2 * CURVE_CHECKPOINTS,  # up to 19 checkpoints if there are few steps
            eval_every=every,
            model=level.model(shape),
            data=DataSettings(level.max_length, level.batch_size, objective, mask_mix=mask_mix),
            long=level.long,
            optimizer=replace(level.optimizer, learning_rate=rate),
            device=inputs.device,
        )
        return PretrainJob(f"pre-train {name}", (("store", inputs.store_digest),), (), settings)

    def start(self) -> Job | None:
        """Return the pre-training of tables 1 and 7; None if a model folder is given."""
        return None if self.inputs.model else self.pretrain("mlm+nsp", "mlm+nsp")

    def finetune(
        self, row: str, column: str, task: FoundTask, parent: Job | Mapping[int, Job] | None, step: int | None = None
    ) -> list[Trial]:
        """Return the fine-tunings of a cell, one for each seed and learning rate.

        `parent`: the job whose model, or its checkpoint after `step`, is fine-tuned, or one for each seed; None: the
        model folder that the user gave.
        """
        level, name = self.level, task.settings.task
        recipe = level.task_recipes.get(name, level.recipe)
        trials = []
        digests = digest_task_inputs(task.settings, self.inputs.model if parent is None else None)
        for seed in range(level.seeds):
            start = parent[seed] if isinstance(parent, Mapping) else parent
            for rate in recipe.learning_rates:
                settings = FinetuneSettings(
                    run=RUN,
                    task=task.settings,
                    model=self.inputs.model,
                    epochs=recipe.epochs,
                    batch_size=recipe.batch_size,
                    seed=seed,
                    eval_every=NO_DEV_SELECTION,
                    save_every=SAVE_EVERY,
                    tuning=TuningSettings(task.validation_fraction, self.limit(name), dropout=0.1),
                    optimizer=replace(paper_optimizer(), learning_rate=rate),
                    device=self.inputs.device,
                )
                described = f"fine-tune {row} on {name}, rate {rate:g}, seed {seed}"
                job = FinetuneJob(described, digests, parents_of(start), settings, step)
                trials.append(Trial(row, column, seed, rate, job, "dev", "dev"))
        return trials

    def limit(self, task: str) -> int | None:
        """Return the number of examples of each split of a task; None: all."""
        is_word_task = PRESETS[task].task.kind in WORD_TASKS
        return self.level.word_task_limit if is_word_task else self.level.limit

    def probe(
        self, cells: Mapping[RepresentationName, tuple[str, str]], task: FoundTask, parent: Job | None, name: str
    ) -> list[Trial]:
        """Return the trials of heads on a frozen model, the job's or the user's.

        `cells`: row and column of each representation; `name`: the model's name.
        """
        level = self.level
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
        digests = digest_task_inputs(task.settings, None if parent else self.inputs.model)
        job = ProbeJob(described, digests, parents_of(parent), settings)
        return [
            Trial(row, column, seed, rate, job, score := ProbeTrial(representation, rate, seed).name, score)
            for representation, (row, column) in cells.items()
            for rate in settings.learning_rates
            for seed in settings.seeds
        ]


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
