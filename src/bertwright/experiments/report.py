"""Results of an experiment: cells, differences and verdicts as records, and as Markdown, JSON and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertwright.experiments.bootstrap import Difference, Sample, difference
from bertwright.experiments.jobs import Work
from bertwright.experiments.plans import PERPLEXITY, Claim, Plan, iter_cells
from bertwright.files import atomic_file
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds

Verdict = Literal["shown", "not shown", "reversed"]


class Cell(NamedTuple):
    """Scores of a row in a column, over the seeds."""

    summary: SeedSummary
    learning_rate: float
    """The one with the best mean, of those that were tried with the most seeds."""
    sample: Sample
    failures: int
    """Trials that diverged, at any rate."""


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
    has_interval: bool

    @property
    def verdict(self) -> Verdict:
        """Shown or reversed if the whole interval is on one side of 0; of two perplexities, the sign decides."""
        if self.columns == (PERPLEXITY,):
            return "shown" if self.found.mean > 0 else "reversed"
        if not self.has_interval or self.found.low <= 0 <= self.found.high:
            return "not shown"
        return "shown" if self.found.mean > 0 else "reversed"

    def __str__(self) -> str:
        if self.columns == (PERPLEXITY,):
            paper = "" if self.paper is None else f"; paper {self.paper:+.2f}"
            found = f"{self.found.mean:+.2f} nats per token, one run each{paper}"
            return f"{self.claim.text}: {self.verdict} at this budget ({found})."
        low, high, mean = (100 * value for value in (self.found.low, self.found.high, self.found.mean))
        interval = f", 95 % interval {low:+.1f} to {high:+.1f}" if self.has_interval else ", one run each: no interval"
        paper = "" if self.paper is None else f"; paper {self.paper:+.1f}"
        where = f" on {', '.join(self.columns)}"
        return f"{self.claim.text}: {self.verdict} at this budget ({mean:+.1f} points{where}{interval}{paper})."


@dataclass(frozen=True)
class Report:
    """The finished cells of a plan and what they say."""

    plan: Plan
    cells: dict[tuple[str, str], Cell]
    claims: list[ClaimResult]
    finished: int
    total: int
    """Trials."""


def make_report(plan: Plan, work: Work) -> Report:
    """Read the results of all finished jobs of a plan and compare them."""
    cells = {key: cell for key in iter_cells(plan) if (cell := _read_cell(plan, *key, work))}
    claims = [result for claim in plan.claims if (result := _check(plan, claim, cells))]
    finished = sum(work.result(trial.job) is not None for trial in plan.trials)
    return Report(plan, cells, claims, finished, len(plan.trials))


def _read_cell(plan: Plan, row: str, column: str, work: Work) -> Cell | None:
    """Read a cell from its finished trials; None if there are none."""
    rates: dict[float, list[tuple[float, Any]]] = {}
    failures = 0
    for trial in plan.trials:
        if (trial.row, trial.column) != (row, column) or not (result := work.result(trial.job)):
            continue
        if result.failure:
            failures += 1
            continue
        examples = work.examples(trial.job, trial.score)
        rates.setdefault(trial.learning_rate, []).append((result.scores[trial.score], examples))
    if not rates:
        return None
    best = max(rates, key=lambda rate: (len(rates[rate]), math.fsum(score for score, _ in rates[rate])))
    scores = [score for score, _ in rates[best]]
    known = [numbers for _, numbers in rates[best] if numbers is not None]
    sample = Sample(scores, known if len(known) == len(scores) else ())
    return Cell(summarize_seeds(scores), best, sample, failures)


def _check(plan: Plan, claim: Claim, cells: Mapping[tuple[str, str], Cell]) -> ClaimResult | None:
    """Check a claim on the columns in which both of its rows are finished; None if there are none."""
    columns = tuple(c for c in claim.columns if (claim.better, c) in cells and (claim.worse, c) in cells)
    if not columns:
        return None
    samples = [(_sample(cells, claim.better, column), _sample(cells, claim.worse, column)) for column in columns]
    published = [
        (plan.figures[claim.better][column], plan.figures[claim.worse][column])
        for column in columns
        if column in plan.figures.get(claim.better, {}) and column in plan.figures.get(claim.worse, {})
    ]
    if columns == (PERPLEXITY,):
        paper = [math.log(worse / better) for better, worse in published]
    else:
        paper = [better - worse for better, worse in published]
    has_interval = any(len(sample.scores) > 1 or sample.examples for pair in samples for sample in pair)
    mean = math.fsum(paper) / len(paper) if paper else None
    return ClaimResult(claim, columns, difference(samples), mean, has_interval)


def _sample(cells: Mapping[tuple[str, str], Cell], row: str, column: str) -> Sample:
    """Return the sample of a cell; of perplexities, negative losses, of which higher is better, too."""
    sample = cells[row, column].sample
    return Sample([-math.log(score) for score in sample.scores], ()) if column == PERPLEXITY else sample


def format_cell(cell: Cell | None, column: str) -> str:
    """Format mean ± deviation (seeds), in percent; a perplexity as it is."""
    if cell is None:
        return ""
    if column == PERPLEXITY:
        return f"{cell.summary.mean:.2f}"
    diverged = f", {cell.failures} diverged" if cell.failures else ""
    return f"{cell.summary.format()} ({cell.summary.seeds}{diverged})"


def table_rows(report: Report) -> list[list[str]]:
    """Return the cells of the table as text: the row's name, then ours and, where it has one, the paper's figure."""
    rows = []
    for row in report.plan.rows:
        texts = [row]
        for column in report.plan.columns:
            published = report.plan.figures.get(row, {}).get(column)
            ours = format_cell(report.cells.get((row, column)), column)
            texts.append(f"{ours} [{published:.4g}]".strip() if published is not None else ours)
        rows.append(texts)
    return rows


LEGEND = (
    "Mean ± standard deviation over the seeds (number of seeds), in percent, on dev; in brackets the paper's figure."
)


def to_markdown(report: Report, setup: Mapping[str, str]) -> str:
    """Return the report as Markdown; `setup`: names and values of what was trained, where and when."""
    plan = report.plan
    lines = [f"# {plan.title}", ""]
    lines += [f"- {name}: {value}" for name, value in setup.items()]
    lines += [f"- {note}" for note in plan.notes]
    if report.finished < report.total:
        lines.append(f"- **Incomplete: {report.finished} of {report.total} results.**")
    header = ["", *plan.columns.values()]
    lines += ["", f"| {' | '.join(header)} |", f"|---|{'---:|' * len(plan.columns)}"]
    lines += [f"| {' | '.join(texts)} |" for texts in table_rows(report)]
    lines += ["", LEGEND, "", "The paper's claims, on these results:", ""]
    lines += [f"- {result}" for result in report.claims]
    return "\n".join(lines) + "\n"


def to_record(report: Report, setup: Mapping[str, str]) -> dict[str, Any]:
    """Return the report as a JSON object."""
    plan = report.plan
    return {
        "experiment": plan.name,
        "title": plan.title,
        "setup": dict(setup),
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
            for (row, column), cell in report.cells.items()
        ],
        "claims": [
            {
                "text": one.claim.text,
                "better": one.claim.better,
                "worse": one.claim.worse,
                "columns": list(one.columns),
                "difference": one.found._asdict() if one.has_interval else {"mean": one.found.mean},
                "paper": one.paper,
                "verdict": one.verdict,
            }
            for one in report.claims
        ],
    }


def plot(report: Report, path: Path) -> None:
    """Plot each column of a table, or each curve of a figure, as a PNG file."""
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    plan = report.plan
    figure = Figure(figsize=(3.4 * len(plan.columns) + 1.2, 3.6), layout="constrained")
    panels = figure.subplots(1, len(plan.columns), squeeze=False)[0]
    for panel, (column, title) in zip(panels, plan.columns.items(), strict=True):
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
