"""Results of an experiment: cells, differences and verdicts as records, and as Markdown, JSON and a plot."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertwright.experiments.bootstrap import Difference, Estimate, Sample, difference, estimate
from bertwright.experiments.jobs import Work, all_jobs
from bertwright.experiments.plans import FEATURES, PERPLEXITY, Claim, Plan, iter_cells
from bertwright.files import atomic_file
from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds

Verdict = Literal["shown", "not shown", "reversed"]

MEAN = "mean"  # of the differences over tasks
PANELS = 6  # of a plot, side by side


class Cell(NamedTuple):
    """Scores of a row in a column, over the seeds."""

    summary: SeedSummary
    learning_rate: float
    """The one with the best mean, of those that were tried with the most seeds."""
    sample: Sample
    failures: int
    """Trials that diverged, at any rate."""


class Contrast(NamedTuple):
    """Difference of a row from the first row of the table."""

    row: str
    first: str
    column: str
    """MEAN: the mean over the tasks that both rows have."""
    found: Difference


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the paper, checked on the cells that are finished."""

    claim: Claim
    columns: tuple[str, ...]
    """Those with results."""
    found: Difference
    """In the direction of the claim, of shares; of perplexities, of their logarithms."""
    paper: float | None
    """The paper's own mean difference over those of the columns that it has, in percentage points."""

    @property
    def verdict(self) -> Verdict:
        """Shown or reversed if the whole interval is on one side of 0."""
        interval = self.found.interval
        if interval is None or interval.low <= 0 <= interval.high:
            return "not shown"
        return "shown" if self.found.mean > 0 else "reversed"

    def __str__(self) -> str:
        is_perplexity = self.columns == (PERPLEXITY,)
        scale, digits = (1, 2) if is_perplexity else (100, 1)
        unit = "nats per token" if is_perplexity else f"points on {', '.join(self.columns)}"
        interval = "one run each: no interval"
        if self.found.interval is not None:
            low, high, p = self.found.interval
            interval = f"95 % interval {scale * low:+.{digits}f} to {scale * high:+.{digits}f}, {format_p(p)}"
        paper = "" if self.paper is None else f"; paper {self.paper:+.{digits}f}"
        found = f"{scale * self.found.mean:+.{digits}f} {unit}, {interval}{paper}"
        return f"{self.claim.text}: {self.verdict} at this budget ({found})."


@dataclass(frozen=True)
class Report:
    """The finished cells of a plan and what they say."""

    plan: Plan
    cells: dict[tuple[str, str], Cell]
    estimates: dict[tuple[str, str], Estimate]
    """Of perplexities, that of the negative loss, of which higher is better, too."""
    claims: list[ClaimResult]
    contrasts: list[Contrast]
    environments: Counter[str]
    """Processor, number type and versions of the finished jobs, with the number of jobs."""
    finished: int
    total: int
    """Trials."""


def make_report(plan: Plan, work: Work) -> Report:
    """Read the results of all finished jobs of a plan and compare them."""
    cells = {key: cell for key in iter_cells(plan) if (cell := _read_cell(plan, *key, work))}
    cells |= {
        (row, column): _average([cells[row, one] for one in columns])
        for column, columns in plan.averages.items()
        for row in plan.rows
        if all((row, one) in cells for one in columns)
    }
    estimates = {
        (row, column): found
        for column in plan.columns
        for row, found in estimate(column, _samples(cells, column)).items()
    }
    claims = [result for claim in plan.claims if (result := _check(plan, claim, estimates))]
    finished = sum(work.result(trial.job) is not None for trial in plan.trials)
    environments = Counter(
        describe_environment(done.environment) for job in all_jobs(plan.jobs) if (done := work.result(job))
    )
    contrasts = _contrast_rows(plan, estimates)
    return Report(plan, cells, estimates, claims, contrasts, environments, finished, len(plan.trials))


def describe_environment(environment: Mapping[str, str]) -> str:
    """Format where a job was computed.

    >>> describe_environment({"processor": "Xeon", "dtype": "float32", "torch": "2.13", "bertwright": "1.0"})
    'Xeon, float32, PyTorch 2.13, bertwright 1.0'
    """
    dtype = [environment["dtype"]] if "dtype" in environment else []  # composing a model has none
    versions = [f"PyTorch {environment['torch']}", f"bertwright {environment['bertwright']}"]
    return ", ".join([environment["processor"], *dtype, *versions])


def _samples(cells: Mapping[tuple[str, str], Cell], column: str) -> dict[str, Sample]:
    """Return the samples of a column by row; of perplexities, those of the negative loss."""
    found = {row: cell.sample for (row, name), cell in cells.items() if name == column}
    if column == PERPLEXITY:
        return {row: one._replace(scores=[-math.log(score) for score in one.scores]) for row, one in found.items()}
    return found


def _contrast_rows(plan: Plan, estimates: Mapping[tuple[str, str], Estimate]) -> list[Contrast]:
    """Return the differences of each row from the first one: by column, then of the mean over tasks."""
    first, *others = plan.rows
    found = []
    for row in others:
        both = [column for column in plan.columns if (first, column) in estimates and (row, column) in estimates]
        groups = {column: [column] for column in both}
        if len(tasks := [column for column in both if column not in (PERPLEXITY, FEATURES)]) > 1:
            groups[MEAN] = tasks
        for name, columns in groups.items():
            pairs = [(estimates[row, column], estimates[first, column]) for column in columns]
            found.append(Contrast(row, first, name, difference(pairs)))
    return found


def _read_cell(plan: Plan, row: str, column: str, work: Work) -> Cell | None:
    """Read a cell from its finished trials; None if there are none."""
    rates: dict[float, list[tuple[float, float, ExampleScores | None]]] = {}
    failures = 0
    for trial in plan.trials:
        if (trial.row, trial.column) != (row, column) or not (result := work.result(trial.job)):
            continue
        if result.failure:
            failures += 1
            continue
        examples = work.examples(trial.job, trial.score)
        found = result.scores[trial.selection], result.scores[trial.score], examples
        rates.setdefault(trial.learning_rate, []).append(found)
    if not rates:
        return None
    best = max(rates, key=lambda rate: (len(rates[rate]), math.fsum(selection for selection, *_ in rates[rate])))
    scores = [score for _, score, _ in rates[best]]
    known = [numbers for *_, numbers in rates[best] if numbers is not None]
    sample = Sample(scores, known if len(known) == len(scores) else ())
    return Cell(summarize_seeds(scores), best, sample, failures)


def _average(cells: Sequence[Cell]) -> Cell:
    """Return the mean of some cells of a row, seed by seed."""
    scores = [statistics.fmean(seed) for seed in zip(*(cell.sample.scores for cell in cells), strict=False)]
    failures = sum(cell.failures for cell in cells)
    return Cell(summarize_seeds(scores), 0.0, Sample(scores, ()), failures)


def _check(plan: Plan, claim: Claim, estimates: Mapping[tuple[str, str], Estimate]) -> ClaimResult | None:
    """Check a claim on the columns in which both of its rows have results; None if there are none."""
    columns = tuple(c for c in claim.columns if (claim.better, c) in estimates and (claim.worse, c) in estimates)
    if not columns:
        return None
    pairs = [(estimates[claim.better, column], estimates[claim.worse, column]) for column in columns]
    published = [
        (plan.figures[claim.better][column], plan.figures[claim.worse][column])
        for column in columns
        if column in plan.figures.get(claim.better, {}) and column in plan.figures.get(claim.worse, {})
    ]
    if columns == (PERPLEXITY,):
        paper = [math.log(worse / better) for better, worse in published]
    else:
        paper = [better - worse for better, worse in published]
    mean = math.fsum(paper) / len(paper) if paper else None
    return ClaimResult(claim, columns, difference(pairs), mean)


def format_p(p: float) -> str:
    """Format a p-value.

    >>> format_p(0.0123), format_p(0.0002)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def interval_of(report: Report, row: str, column: str) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a cell's mean; None if nothing could be resampled."""
    found = report.estimates[row, column].interval
    if found is None or column != PERPLEXITY:
        return found
    return math.exp(-found[1]), math.exp(-found[0])


def format_cell(report: Report, row: str, column: str) -> str:
    """Format mean ± deviation (seeds), in percent; a perplexity as it is, with its interval; "" without results."""
    cell = report.cells.get((row, column))
    if cell is None:
        return ""
    if column == PERPLEXITY:
        interval = interval_of(report, row, column)
        return f"{cell.summary.mean:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
    diverged = f", {cell.failures} diverged" if cell.failures else ""
    return f"{cell.summary.format()} ({cell.summary.seeds}{diverged})"


def table_cells(report: Report) -> list[list[str]]:
    """Return the table as text, headings first: of each cell ours and, if there is one, the paper's figure."""
    rows = [["", *report.plan.columns.values()]]
    for row in report.plan.rows:
        texts = [row]
        for column in report.plan.columns:
            published = report.plan.figures.get(row, {}).get(column)
            ours = format_cell(report, row, column)
            split = report.plan.figure_splits.get((row, column))
            figure = "" if published is None else f"[{published:.3g}{f', {split}' if split else ''}]"
            texts.append(f"{ours} {figure}".strip())
        rows.append(texts)
    return [list(column) for column in zip(*rows, strict=True)] if report.plan.is_transposed else rows


CONTRAST_LEGEND = (
    "In points, with 95 % bootstrap intervals over seeds and examples; \\* p < 0.05, \\*\\* p < 0.01. Of perplexities, "
    "the fall of their logarithm, in nats per token."
)
LEGEND = (
    "Mean ± standard deviation over the seeds (number of seeds), in percent, on dev unless the column says test; in "
    "brackets the paper's figure, with its split if that is another."
)


def to_markdown(report: Report, setup: Mapping[str, str]) -> str:
    """Return the report as Markdown; `setup`: names and values of what was trained, where and when."""
    plan = report.plan
    lines = [f"# {plan.title}", ""]
    lines += [f"- {name}: {value}" for name, value in setup.items()]
    lines += [f"- {note}" for note in plan.notes]
    if report.finished < report.total:
        lines.append(f"- **Incomplete: {report.finished} of {report.total} results.**")
    lines += ["", *format_table(table_cells(report))]
    lines += ["", LEGEND]
    if report.claims:
        lines += ["", "The paper's claims, on these results:", "", *(f"- {result}" for result in report.claims)]
    if report.contrasts:
        names = {one.column: plan.columns.get(one.column, one.column) for one in report.contrasts}
        lines += ["", f"Differences from {plan.rows[0]}:", ""]
        lines += format_table([["", *names.values()], *contrast_rows(report, list(names))])
        lines += ["", CONTRAST_LEGEND]
    return "\n".join(lines) + "\n"


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, headings first; the first column holds names and the others numbers."""
    alignment = ["---", *["---:"] * (len(rows[0]) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], alignment, *rows[1:])]


def contrast_rows(report: Report, columns: Sequence[str]) -> list[list[str]]:
    """Return the cells of the table of differences as text: the row's name, then one cell per column."""
    found = {(one.row, one.column): format_contrast(one) for one in report.contrasts}
    rows = dict.fromkeys(one.row for one in report.contrasts)
    return [[row, *(found.get((row, column), "") for column in columns)] for row in rows]


def format_contrast(contrast: Contrast) -> str:
    """Format a difference with its interval and stars for its p-value."""
    scale, digits = (1, 2) if contrast.column == PERPLEXITY else (100, 1)
    text = f"{scale * contrast.found.mean:+.{digits}f}"
    if contrast.found.interval is None:
        return text
    low, high, p = contrast.found.interval
    stars = "\\*" * ((p < 0.05) + (p < 0.01))
    return f"{text} ({scale * low:+.{digits}f} to {scale * high:+.{digits}f}){stars}"


def to_record(report: Report, setup: Mapping[str, str]) -> dict[str, Any]:
    """Return the report as a JSON object."""
    plan = report.plan
    return {
        "experiment": plan.name,
        "title": plan.title,
        "setup": dict(setup),
        "environments": dict(report.environments),
        "notes": plan.notes,
        "finished": report.finished,
        "total": report.total,
        "cells": [
            {
                "row": row,
                "column": column,
                "scores": list(cell.sample.scores),
                "learning_rate": cell.learning_rate,
                "diverged": cell.failures,
                "paper": plan.figures.get(row, {}).get(column),
            }
            | cell.summary._asdict()
            | {"interval": interval_of(report, row, column)}
            for (row, column), cell in report.cells.items()
        ],
        "claims": [
            {
                "text": one.claim.text,
                "better": one.claim.better,
                "worse": one.claim.worse,
                "columns": list(one.columns),
                "difference": one.found.to_record(),
                "paper": one.paper,
                "verdict": one.verdict,
            }
            for one in report.claims
        ],
        "paper": [
            {"row": row, "column": column, "figure": figure, "split": plan.figure_splits.get((row, column))}
            for row, figures in plan.figures.items()
            for column, figure in figures.items()
            if column in plan.columns
        ],
        "differences": [
            {"row": one.row, "from": one.first, "column": one.column} | one.found.to_record()
            for one in report.contrasts
        ],
    }


def plot(report: Report, path: Path) -> None:
    """Plot each column of a table, or each curve of a figure, as a PNG file."""
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    plan = report.plan
    across = min(len(plan.columns), PANELS)
    down = math.ceil(len(plan.columns) / across)
    figure = Figure(figsize=(3.4 * across + 1.2, 3.6 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(plan.columns) :]:
        panel.set_axis_off()
    for panel, (column, title) in zip(panels, plan.columns.items(), strict=False):
        (_plot_curves if plan.steps else _plot_rows)(panel, report, column)
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
    figure.suptitle(plan.title)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")


def _plot_curves(panel: Any, report: Report, column: str) -> None:
    """Plot scores against steps, one line per series."""
    steps = report.plan.steps
    for series in dict.fromkeys(series for series, _ in steps.values()):
        rows = [row for row, (name, _) in steps.items() if name == series and (row, column) in report.cells]
        _errorbar(panel, [steps[row][1] for row in rows], [report.cells[row, column] for row in rows], column, series)
    panel.set_xlabel("steps of pre-training")
    panel.legend()


def _plot_rows(panel: Any, report: Report, column: str) -> None:
    """Plot the rows of a table as points from left to right."""
    rows = [row for row in report.plan.rows if (row, column) in report.cells]
    _errorbar(panel, range(len(rows)), [report.cells[row, column] for row in rows], column, "", linestyle="none")
    panel.set_xticks(range(len(rows)), rows, rotation=40, ha="right", fontsize=8)


def _errorbar(panel: Any, xs: Sequence[int], cells: Sequence[Cell], column: str, label: str, **style: Any) -> None:
    """Plot means with standard deviations, in percent; perplexities as they are."""
    scale = 1 if column == PERPLEXITY else 100
    means = [scale * cell.summary.mean for cell in cells]
    deviations = [scale * (cell.summary.std or 0.0) for cell in cells]
    panel.errorbar(xs, means, deviations, marker="o", markersize=4, capsize=3, label=label, **style)
