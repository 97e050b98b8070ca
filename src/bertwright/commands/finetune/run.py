"""Fine-tuning, assembled: a pre-trained model and a task's files in, a run folder out.

RUN/settings.toml    the settings in force          RUN/metrics.jsonl, tensorboard/, scores.png
RUN/checkpoints/     whole or absent, the newest    RUN/best/     the checkpoint with the best dev score so far
RUN/model/           the result, a Hugging Face folder with task.json    RUN/report.json   what came out, in numbers
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bertwright.commands.finetune.setup import (
    RESUME_OVERRIDES,
    FinetuneSettings,
    FinetuneState,
    SplitData,
    begin,
    notes,
    open_run,
)
from bertwright.console import heading, item_progress, key_value_table, make_table, notice, say
from bertwright.files import atomic_folder, remove_folder, write_json
from bertwright.tasks.collation import micro_batches
from bertwright.tasks.prediction import EvaluationResult, evaluate_examples
from bertwright.tasks.presentation import format_percent, report_fields
from bertwright.tasks.task import TaskBatch
from bertwright.tasks.task_io import AnyTask, TaskModel, load_task, write_task_folder
from bertwright.training import checkpoint, schedules
from bertwright.training.context import ExecutionContext, default_micro_batch_tokens
from bertwright.training.interrupt import graceful_shutdown, train_until_stopped
from bertwright.training.loop import LossModule, LossOutput, StepReport, check_finite_weights
from bertwright.training.metrics_log import METRICS_FILE, MetricLogger, plot_metrics, progress
from bertwright.training.run_directory import finished_model, locked_run, resume_command


def finetune(
    settings: FinetuneSettings,
    console: Console | None = None,
    examples: Mapping[str, Sequence[Any]] | None = None,
    passing: bool = False,
) -> Path:
    """Run or resume fine-tuning; returns the finished model's folder (on ranks but the first, the run's).

    `examples`: those of "train" and, if there are any, "dev" and "test", in place of the files that the settings name.
    `passing`: the run's folder will go away, so nothing is plotted there, nobody is pointed to it, and other ranks, if
    there are any, take no part.
    Ctrl-C and SIGTERM finish the step in hand and save it before they raise KeyboardInterrupt. Raises ValueError
    for settings, files and checkpoints that do not fit, DivergedError for numbers that are not finite, OSError for
    a disk that fails; the newest checkpoint is whole in every case.
    """
    console = console or Console()
    with locked_run(settings, RESUME_OVERRIDES, alone=passing) as place:
        if finished := finished_model(settings, place, console):
            return finished
        opened = open_run(settings, place, console, examples)
        run = Run(**vars(opened), settings=settings, place=place, console=console, passing=passing)
        if place.is_main_process:
            begin(settings)
        folder = run.carry_out()
        if place.is_main_process and not passing:
            run.tell_what_is_left()
        return folder


@dataclass
class Run(FinetuneState):
    """An opened run being carried out at a place."""

    settings: FinetuneSettings
    place: ExecutionContext
    console: Console
    passing: bool = False

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return max(1, math.ceil(self.settings.epochs * self.train.encoded.num_items / self.settings.batch_size))

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows this step: the last one, and the first that completes another epoch."""
        if step == self.steps:
            return True
        if every := self.settings.eval_every:
            return step % every == 0
        batch, items = self.settings.batch_size, self.train.encoded.num_items
        return step * batch // items > (step - 1) * batch // items

    def carry_out(self) -> Path:
        """The remaining steps, with everything around them."""
        started = time.perf_counter()
        if not self.place.is_main_process:
            with graceful_shutdown() as received:  # Ctrl-C reaches every rank; all must come to the same last step
                for _ in self.reports(received):
                    pass
            return self.settings.run
        self.announce()
        journal = MetricLogger(self.settings.run, self.optimizer.steps, evaluation="dev")
        self.drop_later_bests()
        self.hold_best_to(journal)
        with closing(journal), progress(self.console) as live, graceful_shutdown() as received:
            self.follow(journal, live, received)
            if received:
                self.save(journal)
                done = f"step {self.optimizer.steps:,} is saved"
                raise KeyboardInterrupt(f"{done}; go on with: {resume_command(self.settings, 'finetune', self.place)}")
        return self.finish(journal, time.perf_counter() - started)

    def follow(self, journal: MetricLogger, live: Progress, received: list[int]) -> None:
        """Step by step: log, evaluate, save."""
        settings = self.settings
        line = live.add_task("", total=self.steps, completed=self.optimizer.steps, figures="")
        window: list[StepReport] = []
        spoken = time.perf_counter()
        for report in self.reports(received):
            step, last = report.step, report.step == self.steps
            due = self.is_due(step)
            saving = step % settings.save_every == 0 if settings.save_every else due
            window.append(report)
            if last or saving or step % settings.log_every == 0:
                figures = _figures(window)
                window = []
                journal.write("train", step, figures)
                live.update(line, figures=f"loss {figures['loss']:.3f} {figures['tokens_per_second']:,.0f} tok/s")
                if not self.console.is_terminal and time.perf_counter() - spoken > 30:
                    say(self.console, f"step {step:,} of {self.steps:,}: loss {figures['loss']:.3f}")
                    spoken = time.perf_counter()
            live.update(line, completed=step)
            if due:
                self.evaluate(journal, live)
            if saving:
                self.save(journal)
        if window:  # interrupted: what is saved now ends a line of the journal, as every checkpoint does
            journal.write("train", window[-1].step, _figures(window))

    def reports(self, received: list[int]) -> Iterator[StepReport]:
        """The steps still to be done, on every rank; ends early, on all ranks alike, once a signal was received."""
        objective: LossModule[TaskBatch] = LossModule(self.model, self.compute)
        warmup = round(self.settings.optimizer.warmup_ratio * self.steps)
        rate = partial(
            schedules.linear_warmup_decay, peak=self.settings.optimizer.learning_rate, warmup=warmup, total=self.steps
        )
        return train_until_stopped(
            received, objective, self.batches(self.optimizer.steps), self.optimizer, rate, self.place
        )

    def batches(self, first: int) -> Iterator[list[TaskBatch]]:
        """This rank's micro-batches of step `first` and all after it, on the device."""
        tokens, part = (
            default_micro_batch_tokens(self.place, self.model.config),
            (self.place.rank, self.place.world_size),
        )
        for step in range(first, self.steps):
            made = micro_batches(self.train.encoded, step, self.settings.batch_size, self.settings.seed, tokens, part)
            yield [batch.to(self.place.device) for batch in made]

    def compute(self, batch: TaskBatch) -> LossOutput:
        """One micro-batch's share of the step's loss, and what the journal sums up."""
        logits = self.model(batch.batch, batch.positions)
        loss = self.task.loss(logits, batch, self.settings.label_smoothing) / max(batch.num_labels, 1)
        device = logits.device
        tokens = torch.full((), float(batch.batch.num_tokens), device=device)
        sequences = torch.full((), float(len(batch.batch)), device=device)
        return LossOutput(loss, {"loss": loss.detach(), "tokens": tokens, "sequences": sequences})

    def announce(self) -> None:
        """What is about to happen, before it takes its time."""
        config = self.model.config
        parts = [part for part in (self.train, self.dev, self.test) if part]
        names = self.task.label_names
        labels = {"labels": f"{len(names)}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"} if names else {}
        self.console.print(
            key_value_table(
                {"task": f"{self.settings.task.task} ({self.task.kind}), best by {self.task.metric}"}
                | labels
                | {"model": f"{config}, {config.num_parameters:,} parameters, from {self.settings.model}"}
                | {part.name: _described(part) for part in parts}
                | {"steps": f"{self.steps:,}, each of {self.settings.batch_size}; {self.settings.epochs:g} epochs"}
                | {"place": str(self.place)}
            )
        )
        for note in notes(self.task, self.settings.task, parts, config.max_positions):
            notice(self.console, note)
        if self.dev and self.settings.validation_fraction and not self.settings.task.files("dev"):
            dev, both = len(self.dev.examples), len(self.dev.examples) + len(self.train.examples)
            if not 0.5 < dev / both / self.settings.validation_fraction < 2:
                found = f"{dev:,} of {both:,} examples ({dev / both:.1%}) are set aside as dev"
                notice(self.console, f"{found}: what belongs together, such as equal texts, is not parted")
        if self.dev is None and not self.passing:
            notice(
                self.console,
                "no dev examples: the last weights are the result (--dev FILE, or --validation-fraction 0.1)",
            )
        if self.optimizer.steps:
            say(self.console, f"Resuming after step {self.optimizer.steps:,}")

    def evaluate(self, journal: MetricLogger, live: Progress) -> None:
        """Score the model on dev; the best so far is kept as a checkpoint of its own."""
        if self.dev is None or self.optimizer.steps in journal.evaluations:
            return
        line = live.add_task("", total=self.dev.encoded.num_items, figures="on dev")
        advance = partial(live.advance, line)
        found = evaluate_examples(
            self.model, self.task, self.dev.examples, self.dev.encoded, tune=True, advance=advance
        )
        live.remove_task(line)
        before = [record[self.task.metric] for record in journal.evaluations.values()]
        best = not before or found.scores[self.task.metric] > max(before)
        journal.write("dev", self.optimizer.steps, found.scores)
        if best:
            write = partial(self.write_model, task=found.task)
            # What it outdoes goes with the next checkpoint: a run killed before that goes on from where it was best.
            keep = 1 if self.passing else sys.maxsize  # which nobody goes on with
            checkpoint.save(self.settings.run / "best", self.optimizer.steps, write, {}, keep=keep)
        epoch = self.optimizer.steps * self.settings.batch_size / self.train.encoded.num_items
        say(
            self.console,
            f"dev after step {self.optimizer.steps:,} (epoch {epoch:.1f}): {format_scores(found.scores)}{' *' if best else ''}",
        )

    def save(self, journal: MetricLogger) -> None:
        """A whole checkpoint of this step; the journal reaches the disk first."""
        journal.flush()
        folder = self.settings.run / "checkpoints"
        write = partial(self.write_model, task=self.task)
        checkpoint.save(folder, self.optimizer.steps, write, self.optimizer.state(), keep=1)
        for outdone in checkpoint.list_checkpoints(self.settings.run / "best")[:-1]:
            remove_folder(outdone)

    def write_model(self, folder: Path, task: AnyTask) -> None:
        check_finite_weights(self.model, self.optimizer.steps)
        write_task_folder(folder, TaskModel(self.model, task), self.tokenizer)

    def drop_later_bests(self) -> None:
        """What a killed run found best beyond its last checkpoint is found again."""
        for path in checkpoint.list_checkpoints(self.settings.run / "best"):
            if checkpoint.step_of(path) > self.optimizer.steps:
                remove_folder(path)

    def hold_best_to(self, journal: MetricLogger) -> None:
        """Raise ValueError where the best weights so far are not those that the journal knows as the best."""
        best, last = checkpoint.latest(self.settings.run / "best"), self.settings.run / "checkpoints"
        scores = {step: record[self.task.metric] for step, record in journal.evaluations.items()}
        known = max(scores, key=lambda step: scores[step], default=None)  # of equal ones the first
        if known == (best and checkpoint.step_of(best)):
            return
        if best is None:
            lost, left = (
                f"the weights of step {known:,}, the best on dev, are gone",
                checkpoint.list_checkpoints(last)[-1],
            )
        else:
            lost, left = f"{METRICS_FILE} does not tell the scores of the best weights, {best.name}", best
        raise ValueError(f"{self.settings.run}: {lost}; start anew in another folder, or use {left} as it is")

    def finish(self, journal: MetricLogger, seconds: float) -> Path:
        """Take the best weights, score them on test, write plot, report and model, and show what came out."""
        check_finite_weights(self.model, self.optimizer.steps)
        run, folder = self.settings.run, self.settings.run / "model"
        best = checkpoint.latest(run / "best")
        if best is not None and (found := load_task(best)):
            self.model.load_state_dict(found.model.state_dict())
            self.task = found.task
        best_step = checkpoint.step_of(best) if best else self.optimizer.steps
        results: dict[str, dict[str, float]] = {}
        if self.dev is not None:  # scored already, when it was found best
            record = journal.evaluations[best_step]
            results["dev"] = {name: value for name, value in record.items() if name not in ("kind", "step")}
        if self.test is not None:
            results["test"] = self.score(self.test).scores
        if not self.passing:
            plot_metrics(run, run / "scores.png", (("loss", "training loss"), (self.task.metric, self.task.metric)))
        outcome = {
            "task": self.settings.task.task,
            "metric": self.task.metric,
            "steps": self.optimizer.steps,
            "best_step": best_step,
            "seconds_of_this_process": seconds,
            "scores": results,
        } | report_fields(self.task, self.train.examples)
        write_json(run / "report.json", outcome)
        with atomic_folder(folder) as part:  # last of all: its presence says that the run is finished
            self.write_model(part, self.task)
        if results:
            heading(self.console, f"Scores after step {best_step:,}")
            self.console.print(score_table(results, self.task.metric))
        return folder

    def tell_what_is_left(self) -> None:
        """Where to find what came out, and what to do with it."""
        run = self.settings.run
        for name, path in {
            "model": run / "model",
            "plot": run / "scores.png",
            "all figures": run / METRICS_FILE,
        }.items():
            say(self.console, f"{name:<12} {path}")
        model = shlex.quote(str(run / "model"))
        say(self.console, f"try it       bertwright predict {model} --inputs FILE --output FILE")

    def score(self, part: SplitData) -> EvaluationResult:
        with item_progress(self.console, f"scoring {part.name}", part.encoded.num_items) as advance:
            return evaluate_examples(self.model, self.task, part.examples, part.encoded, advance=advance)


def score_table(results: Mapping[str, Mapping[str, float]], metric: str) -> Table:
    """Scores by name, one column a part of the data; the metric that chose comes first."""
    table = make_table("", *results)
    names = dict.fromkeys(name for found in results.values() for name in found)
    for name in sorted(names, key=lambda name: name != metric):
        table.add_row(name.replace("_", " "), *(shown(found.get(name), name) for found in results.values()))
    return table


def shown(score: float | None, name: str = "") -> str:
    """A share, or a correlation, as a percentage with two decimals, as papers print it; an error as it is.

    >>> shown(0.92204), shown(None), shown(3.012, "mse")
    ('92.20', '', '3.012')
    """
    if score is None:
        return ""
    return f"{score:.4g}" if name == "mse" else format_percent(score)


def format_scores(scores: Mapping[str, float]) -> str:
    """The first scores, for a line of text.

    >>> format_scores({"f1": 0.9, "accuracy": 0.95})
    'f1 90.00, accuracy 95.00'
    """
    return ", ".join(f"{name.replace('_', ' ')} {shown(value, name)}" for name, value in list(scores.items())[:4])


def _described(part: SplitData) -> str:
    encoded = part.encoded
    mean = len(encoded.input_ids) / max(len(encoded.lengths), 1)
    return f"{len(part.examples):,} examples, {len(encoded.lengths):,} sequences of {mean:.0f} tokens on average"


def _figures(window: list[StepReport]) -> dict[str, float]:
    """Some steps in numbers."""
    seconds = sum(report.seconds for report in window)
    return {
        "loss": sum(report.sums["loss"] for report in window) / len(window),
        "learning_rate": window[-1].learning_rate,
        "gradient_norm": window[-1].gradient_norm,
        "tokens_per_second": sum(report.sums["tokens"] for report in window) / seconds,
        "sequences_per_second": sum(report.sums["sequences"] for report in window) / seconds,
    }
