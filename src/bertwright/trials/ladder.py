"""The road to BERT on one task: from the most frequent answer to a fine-tuned BERT, each compared with the row above.

RUN/settings.toml   all settings       RUN/runs/NAME/result.json   scores of a finished run
RUN/runs/NAME/run/  each run, as `finetune` writes it, without its model
RUN/report.json     the table          RUN/ladder.md       the table for people
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from bertwright.base.description import Description, describe_progress, name_damaged_file, read_settings_with
from bertwright.base.files import lock_folder, read_json, write_json, write_text
from bertwright.base.reporter import SILENT, Heading, Outputs, Reporter
from bertwright.training.run_folder import check_run_directory, write_run_settings
from bertwright.trials.cells import estimate_cells
from bertwright.trials.floors import FrequentAnswer, linear_floors
from bertwright.trials.ladder_settings import FLOOR, RESUME_OVERRIDES, LadderSettings, slug
from bertwright.trials.paper_table import FLOORS
from bertwright.trials.runner import Result, Runner, count_results
from bertwright.trials.table import Table, contrast_rows
from bertwright.trials.task_trials import Finetune
from bertwright.trials.trial import Trial
from bertwright.trials.work_spent import Work, pretraining_work

LEGEND = (
    "Mean ± standard deviation (number of seeds), in percent; in brackets the published figure. Step up: difference "
    "from the row above, on test if there are test files, with its 95 % interval over the seeds, "
    "which is of these checkpoints. Before: tokens and minutes of all pre-training that a system starts from (? if its "
    "folders do not tell). Minutes: training and scoring of one run."
)


def ladder(settings: LadderSettings, reporter: Reporter = SILENT) -> Path:
    """Run or resume a ladder; return its folder.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. A run that diverges is reported. Errors are
    `finetune`'s.
    """
    with lock_folder(settings.run):
        check_run_directory(settings, RESUME_OVERRIDES)
        runner = Runner.of_series(settings.run, "ladder")
        write_run_settings(settings, "ladder")
        trials = list_trials(settings)
        rows = [*dict.fromkeys(trial.row for trial in trials)]
        pending = len(trials) - runner.count(trials)
        reporter.record(Heading(f"Ladder of {len(rows)} systems, {len(trials)} runs, {pending} of them pending"))
        runner.run_all(trials, reporter)
    table = make_table(settings, rows, runner.results(trials))
    write_json(settings.run / "report.json", table.to_record())
    write_text(settings.run / "ladder.md", table.to_markdown({}, {}))
    table.show(reporter)
    reporter.record(Outputs({"table": settings.run / "ladder.md", "all results": settings.run / "report.json"}))
    return settings.run


def list_trials(settings: LadderSettings) -> list[Trial]:
    """Return the runs, one of each system first; the floor is scored once."""
    rungs, trials = settings.rungs(), list[Trial]()
    first = settings.finetune_settings(rungs[0], 0)
    if settings.task.build_task().has_frequent_answer:
        trials.append(FrequentAnswer(f"{slug(FLOOR)}-seed0", (), (), first, FLOOR))
    if settings.linear_floor:
        trials += linear_floors(first)
    return trials + [
        Finetune(f"{slug(rung.name)}-seed{seed}", (), (), settings.finetune_settings(rung, seed), rung.name, seed=seed)
        for seed in range(settings.seeds)
        for rung in rungs
    ]


def make_table(settings: LadderSettings, rows: Sequence[str], results: Sequence[tuple[Trial, Result]]) -> Table:
    """Return the table of the systems from the lowest to the highest."""
    table = Table.of_series(f"Ladder of {settings.task.task}", rows, results, LEGEND, digits=2)
    last = [*table.columns][-1]
    estimates = estimate_cells(table.cells)
    steps = [(row, below) for below, row in pairwise(rows) if below not in FLOORS]
    contrasts = contrast_rows(steps, [last], estimates)
    works = {rung.name: pretraining_work(rung.sources()) for rung in settings.rungs()}
    minutes = {
        row: sum(times) / len(times) / 60
        for row in rows
        if (times := [result.seconds for trial, result in results if trial.row == row])
    }
    published = {rung.name: rung.published for rung in settings.rungs() if rung.published is not None}
    is_conll = settings.task.task == "conll2003"
    return replace(
        table,
        figures={row: {last: figure} for row, figure in published.items()} if is_conll else {},
        figure_splits={} if last == "test" else {(row, last): "test" for row in published},
        estimates=estimates,
        contrasts=contrasts,
        details={
            "step up": {one.row: str(one) for one in contrasts},
            "tokens before": {row: format_tokens(work) for row, work in works.items()},
            "minutes before": {row: format_minutes(work) for row, work in works.items()},
            "minutes": {row: f"{value:.1f}" for row, value in minutes.items()},
        },
    )


def format_tokens(work: Work | None) -> str:
    """Format the tokens of all pre-training; "" without one, "?" if unknown."""
    return "?" if work is None else f"{work.tokens / 1e6:,.1f} M" if work.tokens else ""


def format_minutes(work: Work | None) -> str:
    """Format the minutes of all pre-training; "" without one, "?" if unknown."""
    return "?" if work is None else f"{work.seconds / 60:,.1f}" if work.tokens else ""


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the finished runs of a ladder and, when all are finished, its table; None for another folder."""
    report = folder / "report.json"
    if read_settings_with(folder, "word_epochs", "seeds") is None:
        return None
    fields = describe_progress(folder, count_results(folder))
    if report.is_file():
        with name_damaged_file(report):
            table = read_json(report)
            fields["table"] = str(table["title"])
            for cell in table["cells"]:
                score = f"{cell['column']} {100 * cell['mean']:.2f}"
                fields[cell["row"]] = ", ".join([*filter(None, [fields.get(cell["row"])]), score])
    return Description("ladder of systems", fields)
