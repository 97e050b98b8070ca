"""A grid of fine-tuning runs: every rate, batch size and number of epochs, with every seed; dev chooses (paper, A.3).

RUN/settings.toml   the settings in force          RUN/results.jsonl   one line for each run that is done
RUN/runs/NAME/      every run, as `finetune` leaves it, with log.txt; weights that cannot be chosen any more are deleted
RUN/report.json     what came out, in numbers      RUN/model/          the chosen model
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bertwright.commands.finetune.run import Run, finetune, format_scores, score_table, shown
from bertwright.commands.finetune.setup import (
    FinetuneSettings,
    SplitData,
    check_data_unchanged,
    digests,
    open_run,
    start_digest,
)
from bertwright.commands.grid.settings import (
    FREE,
    GridSettings,
    HyperParams,
    SettingSummary,
    Trial,
    TrialResult,
    in_order,
    live_candidates,
    rank_settings,
    read_results,
    row,
    write_results,
)
from bertwright.console import heading, item_progress, key_value_table, make_table, notice, say
from bertwright.files import atomic_folder, lock_folder, read_json, remove_folder, remove_stale_parts, write_json
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.settings import write_settings
from bertwright.tasks.prediction import evaluate_examples
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.loop import DivergedError
from bertwright.training.optimizer import OptimizerSettings
from bertwright.training.run_directory import check_run_directory

TIMED_STEPS = 3  # behind an estimate, for each batch size, after one step that warms caches up
NOOP_OPTIMIZER = OptimizerSettings(
    learning_rate=1e-12
)  # a step takes as long at any rate, and none diverges at this one
REOPEN_BELOW_S = 10.0  # seconds to open a run, beside which loading the libraries shows
TIMED_EXAMPLES = 64  # behind the estimate of an evaluation, spread over all of them


def grid(settings: GridSettings, console: Console | None = None) -> Path | None:
    """Run or resume a grid; returns the chosen model's folder, None where only the plan was asked for.

    Ctrl-C and SIGTERM save the run in hand before they raise KeyboardInterrupt. A run that diverges is recorded as
    such, and the grid goes on. Raises ValueError and OSError as `finetune` does, DivergedError when every run diverged.
    """
    console = console or Console()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "a grid is one process, not torchrun's several; give every GPU a grid of its own, with a part "
            "of --learning-rates"
        )
    if settings.dry_run:
        check_run_directory(settings, FREE)
        found = _Grid(settings, console)
        found.announce(found.pending())
        return None
    with lock_folder(settings.run):
        check_run_directory(settings, FREE)
        found = _Grid(settings, console)
        pending = found.pending()
        found.announce(pending)
        # Also where a grid is gone on with: weights that --keep-all keeps must outlast the next stop, too.
        in_force = replace(settings, resume=False)
        write_settings(settings.run / "settings.toml", in_force, "bertwright grid: the settings in force")
        try:
            return found.carry_out(pending)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{len(found.outcomes)} of {len(settings.trials())} runs are done; go on with: "
                f"bertwright grid --run {shlex.quote(str(settings.run))} --resume"
            ) from None


class _Grid:
    """A grid being carried out."""

    def __init__(self, settings: GridSettings, console: Console) -> None:
        self.settings = settings
        self.console = console
        self.results = settings.run / "results.jsonl"
        self.outcomes = read_results(self.results, settings.trials())

    @property
    def metric(self) -> str:
        """The score that chooses, as the runs found it: of tags that spell no spans it is accuracy, never f1."""
        ended = next((outcome for outcome in self.outcomes if outcome.failure is None), None)
        if ended is None:
            return self.settings.task.build_task().metric
        metric: str = read_json(self.settings.finetuning(ended.trial).run / "report.json")["metric"]
        return metric

    def pending(self) -> list[Trial]:
        """The runs that are not done."""
        done = {outcome.trial for outcome in self.outcomes}
        return [trial for trial in self.settings.trials() if trial not in done]

    def announce(self, pending: list[Trial]) -> None:
        """What is about to happen, and how long it will take."""
        settings = self.settings
        if not pending:
            say(self.console, f"{settings.run}: all {len(self.outcomes)} runs are done")
            return
        heading(self.console, f"Grid of {len(settings.trials())} runs; the first of those to be done:")
        plan = estimate_cost(settings, pending, self.console)
        self.console.print(
            key_value_table(
                {
                    "rates": ", ".join(f"{rate:g}" for rate in settings.learning_rates),
                    "batch sizes": ", ".join(map(str, settings.batch_sizes)),
                    "epochs": ", ".join(f"{epochs:g}" for epochs in settings.epochs),
                    "seeds": str(settings.seeds),
                    "runs to be done": f"{len(pending)}, of {plan.steps:,} steps in all",
                    "estimated time": format_duration(plan.seconds),
                }
            )
        )

    def carry_out(self, pending: list[Trial]) -> Path:
        """Every run that is not done, then the choice."""
        self.prune()
        with item_progress(self.console, "runs", len(pending)) as advance:
            for trial in pending:
                self.hold_to_data()
                outcome = self.carried_out(trial)
                self.outcomes = in_order([*self.outcomes, outcome], self.settings.trials())
                write_results(self.results, self.outcomes)
                self.prune()
                done = f"{len(self.outcomes)} of {len(self.settings.trials())}"
                said = (
                    f"diverged: {outcome.failure}" if outcome.failure else f"dev {format_scores(outcome.scores['dev'])}"
                )
                say(self.console, f"{done:>9}  {trial.name}  {said}")
                advance(1)
        return self.finish()

    def carried_out(self, trial: Trial) -> TrialResult:
        """One run, begun or gone on with; what it says goes into a file of its folder."""
        settings = self.settings.finetuning(trial)
        settings.run.mkdir(parents=True, exist_ok=True)
        settings = replace(settings, resume=(settings.run / "settings.toml").is_file())
        with (settings.run / "log.txt").open("a", encoding="utf-8", buffering=1) as log:
            try:
                finetune(settings, Console(file=log, width=120, force_terminal=False))
            except DivergedError as error:
                return TrialResult(trial, {}, str(error))
        return TrialResult(trial, read_json(settings.run / "report.json")["scores"])

    def hold_to_data(self) -> None:
        """Refuse to go on with other files or weights than the runs before: their scores would stand in one table."""
        for outcome in self.outcomes[:1]:
            now = digests(self.settings.task) | start_digest(self.settings.model)
            check_data_unchanged(self.settings.finetuning(outcome.trial).run, now)

    def prune(self) -> None:
        """Delete what no later step reads: checkpoints of runs that are done, and models that cannot be chosen."""
        settings = self.settings
        if settings.keep_all:
            return
        kept = (
            set() if (settings.run / "model").is_dir() else live_candidates(self.outcomes, self.metric, settings.seeds)
        )
        for outcome in self.outcomes:
            folder = settings.finetuning(outcome.trial).run
            gone = [*checkpoint.list_checkpoints(folder / "checkpoints"), folder / "best"]
            if outcome.trial not in kept:
                gone.append(folder / "model")
            for path in gone:
                if path.is_dir():
                    remove_folder(path)
            for place in (folder, folder / "checkpoints"):
                remove_stale_parts(place)

    def finish(self) -> Path:
        """Choose, write and show what came out."""
        settings, console = self.settings, self.console
        table = rank_settings(self.outcomes, self.metric)
        chosen = table[0].best
        if chosen.failure is not None:
            raise DivergedError(f"every run diverged; the first one: {chosen.failure}")
        write_json(settings.run / "report.json", self.report(table))
        folder = settings.run / "model"
        if not folder.is_dir():  # last of all: its presence says that the grid is finished
            remove_stale_parts(settings.run)
            with atomic_folder(folder) as part:
                shutil.copytree(settings.finetuning(chosen.trial).run / "model", part, dirs_exist_ok=True)
        self.prune()
        heading(console, f"dev {self.metric.replace('_', ' ')}, best setting first")
        console.print(_table(table))
        heading(console, f"Chosen: {chosen.trial.name}")
        console.print(score_table(chosen.scores, self.metric))
        found = self.test_spreads(chosen.trial.setting).get(self.metric)
        if found and settings.seeds > 1:
            say(console, f"test {self.metric.replace('_', ' ')} over the setting's seeds: {found}")
        if failures := sum(one.failures for one in table):
            notice(console, f"{failures} of {len(self.outcomes)} runs diverged; results.jsonl says which, and why")
        for name, path in {"model": folder, "all figures": self.results}.items():
            say(console, f"{name:<12} {path}")
        return folder

    def test_spreads(self, setting: HyperParams) -> dict[str, SeedSummary]:
        """A setting's test scores over its seeds; test is told, and chooses nothing."""
        runs = [one.scores["test"] for one in self.outcomes if one.trial.setting == setting and "test" in one.scores]
        return {name: summarize_seeds([scores[name] for scores in runs]) for name in (runs[0] if runs else ())}

    def report(self, table: list[SettingSummary]) -> dict[str, Any]:
        chosen = table[0].best
        return {
            "task": self.settings.task.task,
            "metric": self.metric,
            "chosen": row(chosen),
            "test": {name: found._asdict() for name, found in self.test_spreads(chosen.trial.setting).items()},
            "settings": [
                one.setting._asdict()
                | {
                    "diverged": one.failures,
                    "dev": one.spread._asdict() if one.spread else None,
                    "best": one.best.trial.name,
                }
                for one in table
            ],
        }


# --- what it will take


class CostEstimate(NamedTuple):
    """What some runs will take."""

    steps: int
    seconds: float


def estimate_cost(settings: GridSettings, trials: Sequence[Trial], console: Console) -> CostEstimate:
    """What these runs will take, by a few steps and predictions on the real data; says what their first one is like.

    Nothing is written. Raises ValueError as `finetune` does for what is missing or does not fit together, and where
    there is no dev part to choose by.
    """
    with execution_context(settings.device) as place:
        first = replace(settings.finetuning(trials[0]), run=settings.run)  # where no run's checkpoints are
        run, opening = _opened(first, place, console)
        if run.dev is None:
            raise ValueError(
                "nothing to choose by: name labelled files with --dev, or set --validation-fraction 0.1 of train aside"
            )
        run.announce()
        dev, test = (_pass_seconds(run, part) if part else 0.0 for part in (run.dev, run.test))
        a_step: dict[int, float] = {}
        steps, seconds = 0, 0.0
        for trial in trials:
            run.settings = replace(settings.finetuning(trial), optimizer=NOOP_OPTIMIZER)
            if run.settings.batch_size not in a_step:
                a_step[run.settings.batch_size] = _step_seconds(run)
            steps += run.steps
            evaluations = sum(map(run.is_due, range(1, run.steps + 1)))
            seconds += opening + run.steps * a_step[run.settings.batch_size] + evaluations * dev + test
    return CostEstimate(steps, seconds)


def _opened(settings: FinetuneSettings, place: ExecutionContext, console: Console) -> tuple[Run, float]:
    """A run, and the seconds that opening it takes; a quick one is opened again, as the first time loads libraries."""
    started = time.perf_counter()
    opened = open_run(settings, place, console)
    seconds = time.perf_counter() - started
    if seconds < REOPEN_BELOW_S:
        started = time.perf_counter()
        open_run(settings, place, Console(file=io.StringIO()))  # which has said already what there is to say
        seconds = time.perf_counter() - started
    return Run(**vars(opened), settings=settings, place=place, console=console), seconds


def _step_seconds(run: Run) -> float:
    """Seconds of one optimizer step."""
    run.optimizer.steps = 0
    seconds: list[float] = []
    enough: list[int] = []
    for report in run.reports(enough):
        seconds.append(report.seconds)
        if len(seconds) > TIMED_STEPS:
            enough.append(1)
    return statistics.median(seconds[1:] or seconds)


def _pass_seconds(run: Run, part: SplitData) -> float:
    """Seconds of one prediction of a whole part."""
    sample = part.examples[:: max(1, len(part.examples) // TIMED_EXAMPLES)]
    encoded = run.task.encode(sample, run.tokenizer, labelled=False)
    started = 0.0
    for _ in range(2):  # the first time warms up
        started = time.perf_counter()
        evaluate_examples(run.model, run.task, sample, encoded)
    return (time.perf_counter() - started) * len(part.examples) / len(sample)


def format_duration(seconds: float) -> str:
    """A length of time for people.

    >>> format_duration(42.3), format_duration(5_000), format_duration(200_000)
    ('42 s', '1 h 23 min', '55 h 33 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _table(ranked: Iterable[SettingSummary]) -> Table:
    """One row a setting; the first is marked, as the chosen one."""
    table = make_table("", "rate", "batch", "epochs", "mean ± sd", "lowest", "best")
    for place, (setting, found, _, _) in enumerate(ranked):
        scores = (str(found), shown(found.min), shown(found.max)) if found else ("diverged", "", "")
        varied = (f"{setting.learning_rate:g}", str(setting.batch_size), f"{setting.epochs:g}")
        table.add_row("" if place else "*", *varied, *scores)
    return table
