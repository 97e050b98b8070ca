"""Reports of experiments as tables of text, Markdown, JSON and plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertwright.base.files import save_figure
from bertwright.trials.report import Cell, ClaimResult, Contrast, Report, get_interval
from bertwright.trials.table_plan import PERPLEXITY

T = TypeVar("T")

PANELS = 6  # panels of a plot, side by side
CONTRAST_LEGEND = (
    "In percentage points, with 95 % intervals over seeds and examples (of a row with one seed, over examples); "
    "\\* p < 0.05, \\*\\* p < 0.01. For perplexities: the decrease of their logarithm, in nats per token."
)
LEGEND = (
    "Mean ± standard deviation over the seeds (number of seeds), in percent, on dev unless the column says test; in "
    "brackets the paper's figure, with its split if that is another."
)


def format_cell(report: Report, row: str, column: str) -> str:
    """Format mean ± deviation (seeds), in percent, or a perplexity with its interval; "" without results."""
    cell, diverged = report.cells.get((row, column)), report.diverged[row, column]
    if cell is None:
        return f"{diverged} diverged" if diverged else ""
    if column == PERPLEXITY:
        interval = get_interval(report, row, column)
        return f"{cell.summary.mean:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
    failures = f", {diverged} diverged" if diverged else ""
    return f"{cell.summary.format()} ({cell.summary.seeds}{failures})"


def format_cells(report: Report) -> list[list[str]]:
    """Return the table as text, headings first; a cell has our score and, if there is one, the paper's figure."""
    titles = {
        name: f"{title}, at the floor" if name in report.at_floor else title
        for name, title in report.plan.columns.items()
    }
    rows = [["", *titles.values()]]
    for row in report.plan.rows:
        texts = [row]
        for column in report.plan.columns:
            published = report.plan.figures.get(row, {}).get(column)
            ours = format_cell(report, row, column)
            split = report.plan.figure_splits.get((row, column))
            digits = 2 if column == PERPLEXITY else 1  # as the paper prints them
            figure = "" if published is None else f"[{published:.{digits}f}{f', {split}' if split else ''}]"
            texts.append(f"{ours} {figure}".strip())
        rows.append(texts)
    return [list(column) for column in zip(*rows, strict=True)] if report.plan.is_transposed else rows


def mark_floors(report: Report, rows: Sequence[Sequence[str]], mark: Callable[[str], T]) -> list[list[str | T]]:
    """Return the rows of `format_cells` with a mark on the cells of columns at the floor, such as grey or italics."""
    names = ["", *report.plan.columns]

    def is_at_floor(line: int, number: int) -> bool:
        return names[line if report.plan.is_transposed else number] in report.at_floor

    return [
        [mark(text) if text and is_at_floor(line, number) else text for number, text in enumerate(row)]
        for line, row in enumerate(rows)
    ]


def format_pretrainings(report: Report) -> list[list[str]]:
    """Return the table of pre-trainings as text, headings first: the loss at each rate, the chosen rate, scores."""
    rates = sorted({rate for pretraining in report.pretrainings for rate in pretraining.losses})
    titles = [f"held-out loss at {rate:g}" for rate in rates]
    rows = [["pre-training", *titles, "chosen", "perplexity", "next sentence, held out"]]
    for run in report.pretrainings:
        losses = [f"{run.losses[rate]:.3f}" if rate in run.losses else "" for rate in rates]
        answers = "" if run.next_sentence is None else f"{run.next_sentence:.1%}"
        rows.append([run.name, *losses, f"{run.learning_rate:g}", f"{run.perplexity:.1f}", answers])
    return rows


def to_markdown(report: Report, setup: Mapping[str, str]) -> str:
    """Return the report as Markdown; `setup`: names and values of what was trained, where and when."""
    plan = report.plan
    lines = [f"# {plan.title}", ""]
    lines += [f"- {name}: {value}" for name, value in setup.items()]
    lines += [f"- {note}" for note in report.notes]
    if report.finished < report.total:
        lines.append(f"- **Incomplete: {report.finished} of {report.total} results.**")
    lines += ["", *format_table(mark_floors(report, format_cells(report), lambda text: f"*{text}*"))]
    lines += ["", LEGEND]
    if report.pretrainings:
        lines += ["", "Pre-trainings, each at the best of the rates on held-out loss:", ""]
        lines += format_table(format_pretrainings(report))
    if report.claims:
        lines += ["", "The paper's claims, on these results:", "", *(f"- {result}" for result in report.claims)]
    if report.contrasts:
        lines += ["", f"Differences from {plan.rows[0]}:", "", *format_table(format_contrasts(report))]
        lines += ["", CONTRAST_LEGEND]
    return "\n".join(lines) + "\n"


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, headings first; the first column holds names and the others numbers."""
    alignment = ["---", *["---:"] * (len(rows[0]) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], alignment, *rows[1:])]


def format_contrasts(report: Report) -> list[list[str]]:
    """Return the table of differences as text, headings first."""
    cells = {(contrast.row, contrast.column): format_contrast(contrast) for contrast in report.contrasts}
    rows, columns = ([*dict.fromkeys(names)] for names in zip(*cells, strict=True))
    header = ["", *(report.plan.columns.get(column, column) for column in columns)]
    return [header, *([row, *(cells.get((row, column), "") for column in columns)] for row in rows)]


def format_contrast(contrast: Contrast) -> str:
    """Format a difference with its interval and stars for its p-value."""
    scale, digits = (1, 2) if contrast.column == PERPLEXITY else (100, 1)
    text = f"{scale * contrast.difference.mean:+.{digits}f}"
    if contrast.difference.interval is None:
        return text
    low, high, p = contrast.difference.interval
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
        "notes": report.notes,
        "at_floor": report.at_floor,
        "pretrainings": [
            run._asdict() | {"losses": {f"{rate:g}": loss for rate, loss in run.losses.items()}}
            for run in report.pretrainings
        ],
        "finished": report.finished,
        "total": report.total,
        "cells": [_cell_record(report, row, column) for row, column in report.cells],
        "without_results": [
            {"row": row, "column": column, "diverged": count}
            for (row, column), count in report.diverged.items()
            if (row, column) not in report.cells
        ],
        "claims": [_claim_record(result) for result in report.claims],
        "figures": [
            {"row": row, "column": column, "paper": figure, "split": plan.figure_splits.get((row, column))}
            for row, figures in plan.figures.items()
            for column, figure in figures.items()
            if column in plan.columns
        ],
        "differences": [
            {"row": contrast.row, "from": contrast.baseline, "column": contrast.column}
            | contrast.difference.to_record()
            for contrast in report.contrasts
        ],
    }


def _cell_record(report: Report, row: str, column: str) -> dict[str, Any]:
    """Return a cell as a JSON object."""
    cell = report.cells[row, column]
    return {
        "row": row,
        "column": column,
        "scores": [*cell.scores.values()],
        "learning_rate": cell.learning_rate,
        "rates": {f"{rate:g}": score for rate, score in cell.rates.items()},
        "pretrainings": cell.pretrainings,
        "one_label": cell.one_label,
        "at_floor": column in report.at_floor,
        "diverged": report.diverged[row, column],
        "paper": report.plan.figures.get(row, {}).get(column),
        **cell.summary._asdict(),
        "interval": get_interval(report, row, column),
    }


def _claim_record(result: ClaimResult) -> dict[str, Any]:
    """Return a claim and its verdict as a JSON object, with the sentence that the program prints."""
    return {
        **result.claim._asdict(),
        "columns": result.columns,
        "difference": result.difference.to_record(),
        "paper": result.paper,
        "paper_columns": result.paper_columns,
        "single_seed": result.single_seed,
        "pretrainings": result.pretrainings,
        "verdict": result.verdict,
        "sentence": str(result),
    }


def plot(report: Report, path: Path) -> None:
    """Plot each column of a table, or each curve of a figure, as a PNG file."""
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    plan = report.plan
    columns = min(len(plan.columns), PANELS)
    rows = math.ceil(len(plan.columns) / columns)
    figure = Figure(figsize=(3.4 * columns + 1.2, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(plan.columns) :]:
        panel.set_axis_off()
    for panel, (column, title) in zip(panels, plan.columns.items(), strict=False):
        (_plot_curves if plan.steps else _plot_rows)(panel, report, column)
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
    figure.suptitle(plan.title)
    save_figure(figure, path)


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
    """Plot means with standard deviations, in percent; perplexities are not scaled."""
    scale = 1 if column == PERPLEXITY else 100
    means = [scale * cell.summary.mean for cell in cells]
    deviations = [scale * (cell.summary.std or 0.0) for cell in cells]
    panel.errorbar(xs, means, deviations, marker="o", markersize=4, capsize=3, label=label, **style)
