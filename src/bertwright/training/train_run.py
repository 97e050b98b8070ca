"""A command's training run: lock its folder, train with `fit`, then write its report and its model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console

from bertwright.console import heading, key_value_table, print_outputs, say, silent_console
from bertwright.files import atomic_folder, write_json
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.definition import FitSettings, Training
from bertwright.training.distributed import check_single_process
from bertwright.training.fit import FitResult, fit
from bertwright.training.metrics_log import METRICS_FILE, plot_metrics
from bertwright.training.run_folder import Resumable, check_run_directory, locked_run


class RunSettings(Resumable, Protocol):
    """Settings of a run whose cost can be estimated."""

    @property
    def dry_run(self) -> bool: ...


class RunReport(NamedTuple):
    """Report of a finished run."""

    fields: dict[str, Any]
    """Fields of report.json."""
    plot: tuple[str, str]
    """Name of the plot among the printed outputs, and its file."""
    panels: Sequence[tuple[str, str]]
    """Metric and axis label of each panel of the plot."""
    example: str
    """Command line that uses the model."""


class TrainingRun(Protocol):
    """An opened run: everything that distinguishes a command for `train_run`.

    `record_start` writes settings and digests of the data, `describe_cost` measures some steps, `make_report` scores
    the finished model, and `print_scores` prints the fields of the report.
    """

    def record_start(self) -> None: ...
    def print_summary(self) -> None: ...
    def describe_cost(self) -> Mapping[str, str]: ...
    def fit_settings(self) -> FitSettings: ...
    def training(self) -> Training[Any]: ...
    def write_model(self, folder: Path) -> None: ...
    def make_report(self, result: FitResult) -> RunReport: ...
    def print_scores(self, fields: Mapping[str, Any]) -> None: ...


def train_run(
    settings: RunSettings,
    resume_overrides: tuple[str, ...],
    open_run: Callable[[ExecutionContext, Console], TrainingRun],
    console: Console,
    distributed: bool = True,
) -> Path:
    """Start or resume a run; return its model folder, or the run folder on other ranks and in a dry run.

    `resume_overrides` and `distributed` are those of `locked_run`. Raises what `open_run` and `fit` raise.
    """
    if settings.dry_run:
        check_single_process("a dry run")
        check_run_directory(settings, resume_overrides)
        with execution_context(settings.device) as context:
            print_plan(open_run, context, console)
        return settings.run
    with locked_run(settings, resume_overrides, distributed) as context:
        folder, console = settings.run / "model", console if context.is_main_process else silent_console()
        if settings.resume and folder.is_dir():  # written last, so the run is finished
            say(console, f"{settings.run}: finished already; the model is {folder}")
            return folder
        run = open_run(context, console)
        if context.is_main_process:
            run.record_start()
            run.print_summary()
        started = time.perf_counter()
        result = fit(run.fit_settings(), run.training(), context, console)
        if not context.is_main_process:
            return settings.run
        write_results(settings.run, run, result, time.perf_counter() - started, console)
    return folder


def print_plan(
    open_run: Callable[[ExecutionContext, Console], TrainingRun], context: ExecutionContext, console: Console
) -> None:
    """Print the summary and the estimated cost of a run; nothing is written."""
    run = open_run(context, console)
    run.print_summary()
    cost = run.describe_cost()
    heading(console, "The whole run, estimated on this machine")
    console.print(key_value_table(cost))


def write_results(folder: Path, run: TrainingRun, result: FitResult, seconds: float, console: Console) -> None:
    """Write plot, report and model of a run into its folder; print its scores and outputs."""
    settings, report = run.fit_settings(), run.make_report(result)
    name, plot = report.plot
    if settings.resumable:
        plot_metrics(folder, folder / plot, report.panels)
    fields = {"steps": settings.steps, "seconds_of_this_process": seconds}
    write_json(folder / "report.json", fields | report.fields)
    with atomic_folder(folder / "model") as temporary:  # last: the folder exists if and only if the run is finished
        run.write_model(temporary)
    run.print_scores(report.fields)
    if settings.resumable:
        outputs = {"model": folder / "model", name: folder / plot, "all metrics": folder / METRICS_FILE}
        print_outputs(console, outputs | {"try it": report.example})
