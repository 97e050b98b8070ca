"""Planner of an experiment: the trials behind each cell of a table of the paper."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.interop.huggingface import load_config
from bertwright.interop.model_files import model_folder
from bertwright.models.representations import RepresentationName
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.task_types import TaskOptions
from bertwright.trials.composed_model import Compose, ComposeSettings
from bertwright.trials.experiment_plan import ExperimentInputs, Plan
from bertwright.trials.floors import FrequentAnswer, linear_floors
from bertwright.trials.paper_table import (
    CURVE_CHECKPOINTS,
    FEATURES,
    FLOORS,
    FREQUENT,
    PERPLEXITY,
    RANDOM,
    PaperTable,
    Row,
    at,
)
from bertwright.trials.pretrain_trials import BestRate, InitialModel, Pretrain, SameRate, with_rate
from bertwright.trials.probe_settings import ProbeSettings, ProbeTrial
from bertwright.trials.task_files import FoundTask, add_test_files, find_task
from bertwright.trials.task_trials import LastStepFinetune, Probe, digest_task_inputs
from bertwright.trials.trial import Digests, Trial

Starts = Sequence[Trial | Mapping[int, Trial] | None]
"""The models that a row starts from, one per seed of pre-training, or also of fine-tuning; None: the user's model."""

NO_DEV_SELECTION = sys.maxsize  # eval_every: score only the last step
SAVE_EVERY = 500  # steps of fine-tuning that a kill loses at most
RUN = Path("run")  # set when a trial starts
WORD_TASKS = ("tagging", "question-answering")
HEADS_ON = "conll2003"  # the task of heads on frozen features
SHORT_NAMES = {"accuracy": "acc.", "f1": "F1", "spearman": "ρ", "matthews": "MCC"}


class Planner:
    """Planner of trials that differ from each other only as a table asks."""

    def __init__(self, inputs: ExperimentInputs) -> None:
        self.inputs = inputs
        self.level = inputs.level
        self.notes: list[str] = []

    def plan(self, name: str, table: PaperTable) -> Plan:
        """Return the plan of a table. Raises ValueError if none of its tasks has files."""
        tasks = self.find_tasks(table)
        rows = at(table.rows, self)
        starts = {row: self.start(row, how) for row, how in rows.items()}
        scores = {task: self.list_scores(task, found, table.has_all_scores) for task, found in tasks.items()}
        trials = self.perplexities(starts) if table.has_perplexity else []
        for row, how in rows.items():
            chosen = [task for task in tasks if how.is_tuned and (not how.only or task in how.only)]
            for task in chosen:
                trials += spread(self.finetune(row, tasks[task], how, starts[row]), scores[task])
        trials += self.probes(rows, starts, tasks)
        for task, found in tasks.items():
            trials += spread(self.floors(found), scores[task])
        titles = {PERPLEXITY: "held-out perplexity"} if table.has_perplexity else {}
        titles |= {column: title for columns in scores.values() for column, (_, title) in columns.items()}
        if any(trial.column == FEATURES for trial in trials):
            titles[FEATURES] = f"{HEADS_ON} features F1"
        used = {trial.row for trial in trials}
        names = (*(row for row in rows if row in used and row not in FLOORS), *(row for row in FLOORS if row in used))
        claims = [
            claim if claim.columns else claim._replace(columns=tuple(tasks))
            for claim in at(table.claims, self)
            if {claim.better, claim.worse} <= {*names}
        ]
        steps = {row: (row.partition(",")[0], how.step or self.level.steps) for row, how in rows.items()}
        figures, notes = at(table.figures, self), [*self.notes, *at(table.notes, self)]
        return table.finish(
            Plan(name, table.title, titles, names, trials, claims, figures, notes, steps if table.is_curve else {})
        )

    def find_tasks(self, table: PaperTable) -> dict[str, FoundTask]:
        """Find the tasks that the user named, else the tasks of the table that have files, and note their limits.

        Raises ValueError for a named task without files, and if no task has files.
        """
        data, named, tasks = self.inputs.data, self.inputs.tasks, dict[str, FoundTask]()
        *preferred, last = table.tasks
        candidates = next((names for names in preferred if find_task(data, names[0])), last)
        max_length = self.level.max_length if table.is_curve else None
        for name in named or candidates:
            options = TaskOptions(metric=table.metrics.get(name))
            task = find_task(data, name, self.limit_length(name, max_length, options))
            if task is not None:
                tasks[name] = task
            elif named:
                raise ValueError(f"{data}: no folder with the files of {name}, such as {_example(name)}")
        if not tasks:
            names = ", ".join(candidates)
            raise ValueError(f"{data}: no files of {names}; expected for example {_example(candidates[0])}")
        self.notes += [task.note for task in tasks.values() if task.note]
        self.note_limits([*tasks], max_length)
        if table.has_all_scores:
            for name, task in tasks.items():
                tasks[name], note = add_test_files(task)
                self.notes += [note] if note else []
        return tasks

    def list_scores(self, name: str, task: FoundTask, has_all: bool) -> dict[str, tuple[str, str]]:
        """Return the score and the title of each column of a task."""
        metric = task.settings.build_task().metric
        title = f"{name} {SHORT_NAMES.get(metric, metric)}"
        columns = {name: ("dev", title)}
        if has_all and PRESETS[name].task.kind == "question-answering":
            columns[f"{name} EM"] = "exact_match", f"{name} EM"
        if has_all and task.settings.test:
            columns[f"{name} test"] = f"test_{metric}", f"{title}, test"
        return columns

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

    @property
    def num_layers(self) -> int:
        """Layers of the models, or of the user's model."""
        model = self.inputs.model
        return self.level.shape[0] if model is None else load_config(model_folder(model)).num_layers

    def describe_heads(self) -> str:
        level = self.level
        return (
            f"Heads on frozen features: a {level.lstm_layers}-layer BiLSTM of {level.lstm_size} outputs, half of them "
            'for each direction (the paper: two layers, "768-dimensional", which may also mean 768 for each '
            f"direction), and a linear layer; {level.probe_epochs} epochs, of which the best on dev counts."
        )

    @property
    def seeds(self) -> range:
        """Seeds of pre-training."""
        return range(self.level.pretraining_seeds)

    @property
    def store_digests(self) -> Digests:
        """Input digests of a trial that reads the store."""
        return (("store", self.inputs.store_digest),)

    def start(self, name: str, row: Row) -> Starts:
        """Return the models of a row, one per seed of pre-training; None if the user gave a model."""
        if self.inputs.model:
            return (None,)
        if row.is_random:
            return self.random
        trained = self.pretrain(name, row)
        level, layers = self.level, self.level.lstm_layers
        if row.has_lstm:
            return [{seed: self.compose(f"{name}, seed {seed}", (one,), layers, seed) for seed in range(level.seeds)}
                    for one in trained]  # fmt: skip
        if row.beside:
            other = self.pretrain(name, replace(row, objective=row.beside))
            return [self.compose(name, pair, 0, 0) for pair in zip(trained, other, strict=True)]
        return trained

    def compose(self, name: str, parents: tuple[Trial, ...], lstm_layers: int, seed: int) -> Compose:
        settings = ComposeSettings(lstm_layers, self.level.lstm_learning_rate, seed, self.inputs.device)
        return Compose(f"compose {name}", (), parents, settings)

    @cached_property
    def random(self) -> Starts:
        """The initial weights of the pre-trainings; None if the user gave a model."""
        if self.inputs.model:
            return (None,)
        return [
            InitialModel(f"initial weights, seed {seed}", self.store_digests, (), self.pretrain_settings(Row(), seed))
            for seed in self.seeds
        ]

    def pretrain(self, name: str, row: Row) -> list[Trial]:
        """Return the pre-trainings of a row, one per seed; all rows have the same store, steps, batch and pairs.

        If the level has several peak rates, the row has the best of them on the held-out loss of its first seed.
        """
        described = f"pre-train {row.objective}" + (f", {name}" if row.data or row.model or row.shape else "")
        rates, several = self.level.pretraining_rates, len(self.seeds) > 1
        names = [f"{described}, seed {seed}" if several else described for seed in self.seeds]
        first, *others = (self.pretrain_settings(row, seed) for seed in self.seeds)
        if len(rates) == 1:
            pairs = zip(names, (first, *others), strict=True)
            return [Pretrain(each, self.store_digests, (), with_rate(one, rates[0])) for each, one in pairs]
        tried = tuple(
            Pretrain(f"{names[0]}, rate {rate:g}", self.store_digests, (), with_rate(first, rate)) for rate in rates
        )
        best = BestRate(names[0], (), tried, tried[0].settings)
        later = zip(names[1:], others, strict=True)
        return [best, *(SameRate(each, self.store_digests, (best,), one) for each, one in later)]

    def pretrain_settings(self, row: Row, seed: int) -> PretrainSettings:
        """Return the settings of a pre-training. Of the level's model, checkpoints remain; of a variant, the last."""
        level = self.level
        model, data = level.model(row.shape or level.shape), DataSettings(
            level.max_length, level.batch_size, row.objective, "pair", level.short_seq_prob, seed=seed
        )  # fmt: skip
        varied = replace(model, **row.model), replace(data, **row.data)
        is_variant = varied != (level.model(level.shape), data) or row.is_random
        return PretrainSettings(
            run=RUN,
            store=self.inputs.store,
            steps=level.steps,
            save_every=max(1, level.steps // CURVE_CHECKPOINTS),
            keep_last=1 if is_variant else 2 * CURVE_CHECKPOINTS,  # up to 19 checkpoints if there are few steps
            eval_every=level.steps,
            model=varied[0],
            data=varied[1],
            long=level.long,
            optimizer=level.optimizer,
            device=self.inputs.device,
        )

    def perplexities(self, starts: Mapping[str, Starts]) -> list[Trial]:
        return [
            replace(start, row=row, column=PERPLEXITY, pretraining=number, score=PERPLEXITY)
            for row, trained in starts.items()
            for number, start in enumerate(trained)
            if isinstance(start, Trial)
        ]

    def floors(self, task: FoundTask) -> list[Trial]:
        """Return the trials of the floors of a task.

        The same network from random weights has the same rates, steps and seeds as the rows above it.
        """
        trials = self.finetune(RANDOM, task, Row(), self.random)
        start, name = self.random[0], task.settings.task  # whose tokenizer reads the task
        settings = self._finetune_settings(task, 0, 0.0, Row(), None)
        described, digests = f"most frequent answer of {name}", self._digest(task, start)
        parents = (start,) if isinstance(start, Trial) else ()
        if self.inputs.linear_floor:
            trials += linear_floors(settings, digests, parents, name)
        if task.settings.build_task().has_frequent_answer:
            trials.append(FrequentAnswer(described, digests, parents, settings, FREQUENT, name))
        return trials

    def finetune(self, row: str, task: FoundTask, how: Row, starts: Starts) -> list[Trial]:
        """Return the fine-tunings of a cell, one for each pre-training, seed and learning rate."""
        name, digests, trials = task.settings.task, self._digest(task, starts[0]), list[Trial]()
        for pretraining, starting in enumerate(starts):
            for seed in range(self.level.seeds):
                start = starting[seed] if isinstance(starting, Mapping) else starting
                for rate in self.level.task_recipes.get(name, self.level.recipe).learning_rates:
                    settings = self._finetune_settings(task, seed, rate, how, row if start is None else None)
                    described = f"fine-tune {row} on {name}, rate {rate:g}, seed {seed}"
                    described += f", pre-training {pretraining}" if len(starts) > 1 else ""
                    parents, place = () if start is None else (start,), (row, name, seed, pretraining, rate)
                    trials.append(LastStepFinetune(described, digests, parents, settings, *place, step=how.step))
        return trials

    def _digest(self, task: FoundTask, start: object) -> Digests:
        return digest_task_inputs(task.settings, self.inputs.model if start is None else None)

    def _finetune_settings(
        self, task: FoundTask, seed: int, rate: float, how: Row, row_of_model: str | None
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
            linear_floor=False,
            tuning=TuningSettings(
                task.validation_fraction,
                self.limit(name),
                from_scratch=row_of_model == RANDOM,
                pooling=how.pooling,
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

    def probes(
        self, rows: Mapping[str, Row], starts: Mapping[str, Starts], tasks: Mapping[str, FoundTask]
    ) -> list[Trial]:
        """Return the trials of heads on frozen models; rows of the same models have them trained by one run."""
        task, trials = tasks.get(HEADS_ON), list[Trial]()
        groups = dict[tuple[str | None, ...], dict[RepresentationName, str]]()
        for row, how in rows.items():
            if how.features is not None:
                keys = (start.key if isinstance(start, Trial) else None for start in starts[row])
                groups.setdefault(tuple(keys), {})[how.features] = row
        if task is None:
            return trials
        for cells in groups.values():
            for pretraining, start in enumerate(starts[next(iter(cells.values()))]):
                trials += self._probe(task, rows, cells, start, pretraining)
        return trials

    def _probe(
        self, task: FoundTask, rows: Mapping[str, Row], cells: Mapping[RepresentationName, str],
        start: object, pretraining: int,
    ) -> Iterator[Trial]:  # fmt: skip
        """Return the trials of one run of heads; `cells`: row of each representation."""
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
        parents = (start,) if isinstance(start, Trial) else ()
        described = f"train heads on frozen {parents[0].name if parents else settings.model}, {task.settings.task}"
        heads = Probe(described, self._digest(task, start), parents, settings, pretraining=pretraining)
        for kind, row in cells.items():
            for rate in settings.learning_rates:
                for seed in settings.seeds:
                    score, column = ProbeTrial(kind, rate, seed).name, rows[row].feature_column
                    yield replace(heads, row=row, column=column, seed=seed, learning_rate=rate, score=score)


def spread(trials: Sequence[Trial], columns: Mapping[str, tuple[str, str]]) -> list[Trial]:
    """Return trials once for each column, with its score."""
    return [replace(trial, column=column, score=score) for column, (score, _) in columns.items() for trial in trials]


def _example(name: str) -> str:
    preset = PRESETS[name]
    return f"{name}/{preset.train} and {name}/{preset.dev}"
