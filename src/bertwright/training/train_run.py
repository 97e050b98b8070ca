"""A command's training run: lock its folder, train with `fit`, then write its report and its model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from bertwright.base.files import atomic_folder, write_json
from bertwright.base.reporter import MUTE, Fields, Heading, Line, Reporter
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.distributed import check_single_process, run_on_rank_0
from bertwright.training.fit import FitResult, FitSettings, TrainingSpec, fit
from bertwright.training.metrics_log import total_work
from bertwright.training.run_folder import Resumable, check_run_directory, delete_weights, locked_run


class RunSettings(Resumable, Protocol):
    """Settings of a run that can be a dry run."""

    @property
    def dry_run(self) -> bool: ...
    @property
    def show_examples(self) -> int: ...


class TrainingRun(Protocol):
    """An opened run: everything that distinguishes a command for `train_run`.

    `record_start` writes settings and digests of the data, `describe_cost` measures some steps, `make_report` plots the
    metrics and scores the finished model, `write_card` writes its model card, and `print_results` prints the report's
    scores and the files of the run.
    """

    def record_start(self) -> None: ...
    def print_summary(self) -> None: ...
    def describe_cost(self) -> Mapping[str, str]: ...
    def fit_settings(self) -> FitSettings: ...
    def spec(self) -> TrainingSpec[Any]: ...
    def make_report(self, result: FitResult) -> dict[str, Any]: ...
    def write_card(self, folder: Path, report: Mapping[str, Any]) -> None: ...
    def print_results(self, report: Mapping[str, Any]) -> None: ...


def train_run(
    settings: RunSettings,
    resume_overrides: tuple[str, ...],
    open_run: Callable[[ExecutionContext, Reporter], TrainingRun],
    reporter: Reporter,
    distributed: bool = True,
    keep_checkpoints: bool = True,
) -> Path:
    """Start or resume a run; return its model folder, or the run folder on other ranks and in a dry run.

    `resume_overrides`, `distributed`: see `locked_run`. `keep_checkpoints` False: delete the checkpoints when the run
    has finished, also if it was killed before it had deleted them. Raises the errors of `open_run` and `fit`.
    """
    if settings.dry_run:
        check_single_process("a dry run")
        check_run_directory(settings, resume_overrides)
        _describe_run(settings, open_run, reporter)
        return settings.run
    with locked_run(settings, resume_overrides, distributed) as context:
        folder, reporter = settings.run / "model", reporter if context.is_main_process else MUTE
        if settings.resume and folder.is_dir():  # written last, so the run is finished
            if context.is_main_process and not keep_checkpoints:
                delete_weights(settings.run, with_model=False)
            reporter.record(Line(f"{settings.run}: finished already; the model is {folder}"))
            return folder
        run = open_run(context, reporter)
        run_on_rank_0(run.record_start, settings.run, context.device)
        if context.is_main_process:
            run.print_summary()
        spec = run.spec()
        started = spec.watch.last = time.perf_counter()
        result = fit(run.fit_settings(), spec, context, reporter)
        if not context.is_main_process:
            return settings.run
        report = run.make_report(result)
        spec.watch.mark("report")
        fields = {
            "steps": spec.optimizer.steps,
            "seconds_of_this_process": time.perf_counter() - started,
            "seconds_by_part": dict(spec.watch.seconds),
        }
        write_json(settings.run / "report.json", fields | total_work(settings.run) | report)
        assert spec.write_model is not None
        with atomic_folder(folder) as temporary:  # last: the folder exists if and only if the run is finished
            spec.write_model(temporary)
            run.write_card(temporary, report)
        if not keep_checkpoints:
            delete_weights(settings.run, with_model=False)
        run.print_results(report)
    return folder


def _describe_run(
    settings: RunSettings, open_run: Callable[[ExecutionContext, Reporter], TrainingRun], reporter: Reporter
) -> None:
    """Report what a run would do and, without examples to show, its cost; write nothing."""
    with execution_context(settings.device) as context:
        run = open_run(context, reporter)
        run.print_summary()
        if not settings.show_examples:
            cost = run.describe_cost()
            reporter.record(Heading("The whole run, estimated on this machine"))
            reporter.record(Fields(cost))
