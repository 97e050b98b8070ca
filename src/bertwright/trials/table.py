"""Tables of trials: rows × columns of scores over seeds, with claims and notes, as JSON, Markdown and text."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from bertwright.base.files import save_figure
from bertwright.base.optional import is_installed
from bertwright.base.reporter import Heading, Line, Minor, Reporter, Rows
from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.trials.paper_table import FEATURES, PERPLEXITY, Claim, Figures
from bertwright.trials.statistics import Difference, Estimate, Sample, difference, estimate

T = TypeVar("T")
Key = tuple[str, str]
"""Row and column of a cell."""
Run = tuple[int, int]
"""Seed of pre-training, seed of fine-tuning."""
Verdict = Literal["shown", "not shown", "reversed", "no verdict"]
TextTable = Sequence[Sequence[str]]
"""Rows of cells, headings first."""

MEAN = "mean"  # column of differences averaged over tasks
PANELS = 6  # panels of a plot, side by side
CONTRAST_LEGEND = (
    "In percentage points, with 95 % intervals over seeds and examples (of a row with one seed, over examples); "
    "\\* p < 0.05, \\*\\* p < 0.01. For perplexities: the decrease of their logarithm, in nats per token."
)
LEGEND = (
    "Mean ± standard deviation over the seeds (number of seeds), in percent, on dev unless the column says test; in "
    "brackets the paper's figure, with its split if that is another."
)


class Score(NamedTuple):
    """A number of a cell."""

    row: str
    column: str
    value: float
    seed: int
    learning_rate: float = 0.0
    """If a cell has several rates, the one with the best mean counts."""
    pretraining: int = 0
    selected_by: float | None = None
    """The number whose mean selects the rate; None: the value."""
    examples: ExampleScores | None = None
    is_one_label: bool = False
    """Whether all predictions on dev are one label."""


class Cell(NamedTuple):
    """Scores of a row in a column, over the seeds."""

    scores: Mapping[Run, float]
    """Score of each run."""
    learning_rate: float | None
    """Among the rates with the most runs, the one with the best mean; None for a mean over columns."""
    examples: Sequence[ExampleScores] = ()
    """Per-example statistics of each run; empty unless all are known."""
    rates: Mapping[float, float] = {}
    """Mean score on dev at each rate, which selected the rate."""
    one_label: int = 0
    """Number of runs whose predictions on dev are all one label."""

    @property
    def summary(self) -> SeedSummary:
        """Mean and standard deviation of the scores."""
        return summarize_seeds([*self.scores.values()])

    @property
    def sample(self) -> Sample:
        """Scores and per-example statistics, as they are resampled."""
        return Sample([*self.scores.values()], self.examples, [pretraining for pretraining, _ in self.scores])

    @property
    def pretrainings(self) -> int:
        """Number of pre-trainings behind the scores."""
        return len({pretraining for pretraining, _ in self.scores})


def read_cells(scores: Iterable[Score]) -> dict[Key, Cell]:
    """Return the cells of some scores, each at its best rate."""
    by_key = dict[Key, list[Score]]()
    for score in scores:
        by_key.setdefault((score.row, score.column), []).append(score)
    return {key: _read_cell(of_cell) for key, of_cell in by_key.items()}


def _read_cell(scores: Sequence[Score]) -> Cell:
    rates = dict[float, list[Score]]()
    for score in scores:
        rates.setdefault(score.learning_rate, []).append(score)
    means = {
        rate: statistics.fmean(one.value if one.selected_by is None else one.selected_by for one in runs)
        for rate, runs in rates.items()
    }
    best = max(rates, key=lambda rate: (len(rates[rate]), means[rate]))
    chosen = rates[best]
    examples = [one.examples for one in chosen if one.examples is not None]
    return Cell(
        {(one.pretraining, one.seed): one.value for one in chosen},
        best,
        examples if len(examples) == len(chosen) else (),
        means,
        sum(one.is_one_label for one in chosen),
    )


def average(cells: Sequence[Cell]) -> Cell | None:
    """Return the mean of some cells of a row over the runs that all of them have; None if there is no such run."""
    runs = [run for run in cells[0].scores if all(run in cell.scores for cell in cells)]
    scores = {run: statistics.fmean(cell.scores[run] for cell in cells) for run in runs}
    return Cell(scores, None) if scores else None


def estimate_cells(cells: Mapping[Key, Cell]) -> dict[Key, Estimate]:
    """Return the estimate of each cell; of a perplexity, of the negative loss, so that higher is always better."""
    estimates = dict[Key, Estimate]()
    for column in dict.fromkeys(column for _, column in cells):
        samples = {row: cell.sample for (row, name), cell in cells.items() if name == column}
        if column == PERPLEXITY:
            samples = {row: one._replace(scores=[-math.log(score) for score in one.scores])
                       for row, one in samples.items()}  # fmt: skip
        estimates |= {(row, column): result for row, result in estimate(column, samples).items()}
    return estimates


class Contrast(NamedTuple):
    """Difference of a row from another row of the table."""

    row: str
    baseline: str
    column: str
    """MEAN: the mean over the tasks that both rows have."""
    difference: Difference

    def __str__(self) -> str:
        """Format the difference with its interval and stars for its p-value."""
        scale, digits = (1, 2) if self.column == PERPLEXITY else (100, 1)
        text = f"{scale * self.difference.mean:+.{digits}f}"
        if self.difference.interval is None:
            return text
        low, high, p = self.difference.interval
        return f"{text} ({scale * low:+.{digits}f} to {scale * high:+.{digits}f}){'*' * ((p < 0.05) + (p < 0.01))}"


def contrast_rows(
    pairs: Iterable[tuple[str, str]], columns: Iterable[str], estimates: Mapping[Key, Estimate]
) -> list[Contrast]:
    """Return the differences of rows from others: by column, then the mean over tasks. `pairs`: row and baseline."""
    contrasts, columns = [], [*columns]
    for row, baseline in pairs:
        both = [column for column in columns if (baseline, column) in estimates and (row, column) in estimates]
        groups = {column: [column] for column in both}
        if len(tasks := [column for column in both if column not in (PERPLEXITY, FEATURES)]) > 1:
            groups[MEAN] = tasks
        for name, group in groups.items():
            compared = [(estimates[row, column], estimates[baseline, column]) for column in group]
            contrasts.append(Contrast(row, baseline, name, difference(compared)))
    return contrasts


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the paper, checked on the cells that are finished."""

    claim: Claim
    columns: tuple[str, ...]
    """Columns with results."""
    difference: Difference
    """Difference of shares, or of the logarithms of perplexities, in the direction of the claim."""
    paper: float | None
    """The paper's own mean difference over `paper_columns`, in percentage points."""
    paper_columns: tuple[str, ...] = ()
    """Columns for which the paper has figures."""
    single_seed: tuple[str, ...] = ()
    """Rows with a single score in a column: there is no verdict."""
    pretrainings: int = 1
    """Minimum of pre-trainings behind a row."""

    @property
    def verdict(self) -> Verdict:
        """Shown or reversed if the whole interval is on one side of 0; none if a row has a single score."""
        if self.single_seed:
            return "no verdict"
        interval = self.difference.interval
        if interval is None or interval.low <= 0 <= interval.high:
            return "not shown"
        return "shown" if self.difference.mean > 0 else "reversed"

    def __str__(self) -> str:
        is_perplexity = self.columns == (PERPLEXITY,)
        scale, digits = (1, 2) if is_perplexity else (100, 1)
        unit = "nats per token" if is_perplexity else "points"
        interval = "no interval"
        if self.difference.interval is not None:
            low, high, p = self.difference.interval
            interval = f"95 % interval {scale * low:+.{digits}f} to {scale * high:+.{digits}f}, {format_p(p)}"
        paper = ""
        if self.paper is not None:
            columns = f" on {', '.join(self.paper_columns)}" if self.paper_columns not in ((), self.columns) else ""
            paper = f"; paper {self.paper:+.{digits}f}{columns}"
        if self.single_seed:
            basis = f"; a single run of {' and '.join(self.single_seed)}"
        elif self.pretrainings == 1:
            basis = "; one pre-training each, so that the interval is of these models, not of what distinguishes them"
        else:
            basis = f"; {self.pretrainings} pre-trainings each"
        where = self.columns[0] if len(self.columns) == 1 else f"mean of {', '.join(self.columns)}"
        mean = f"{scale * self.difference.mean:+.{digits}f} {unit}"
        return f"{self.claim.text}, {where}: {self.verdict} at this budget ({mean}, {interval}{paper}{basis})."

    def to_record(self) -> dict[str, Any]:
        """Return the claim and its verdict as a JSON object, with the sentence that is printed."""
        own = {name: value for name, value in vars(self).items() if name != "claim"}
        texts = {"verdict": self.verdict, "sentence": str(self)}
        return {**self.claim._asdict(), **own, "difference": self.difference.to_record(), **texts}


def format_p(p: float) -> str:
    """Format a p-value.

    >>> format_p(0.0123), format_p(0.0002)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


@dataclass(frozen=True)
class Table:
    """Scores by row and column, what they say, and three renderings: JSON, Markdown and text for the terminal."""

    title: str
    columns: Mapping[str, str]
    """Names and titles."""
    rows: Sequence[str]
    cells: Mapping[Key, Cell]
    claims: Sequence[ClaimResult] = ()
    notes: Sequence[str] = ()
    """Notes that are known before the trials run."""
    findings: Sequence[str] = ()
    """Notes about the results."""
    figures: Figures = field(default_factory=dict)
    """Published figures by row and column, in percent; perplexities are not scaled."""
    figure_splits: Mapping[Key, str] = field(default_factory=dict)
    """Split of each figure that is on another split than its column."""
    estimates: Mapping[Key, Estimate] = field(default_factory=dict)
    contrasts: Sequence[Contrast] = ()
    diverged: Counter[Key] = field(default_factory=Counter)
    """Trials that diverged, at any rate."""
    at_floor: tuple[str, ...] = ()
    """Columns in which no row is above all floors: no claim is checked there."""
    details: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further columns: text by title and row."""
    legend: str = LEGEND
    digits: int = 1
    is_transposed: bool = False
    """Whether there is a line for each column."""

    def format_cell(self, row: str, column: str) -> str:
        """Format mean ± deviation (seeds), in percent, or a perplexity with its interval, and the published figure."""
        cell, diverged = self.cells.get((row, column)), self.diverged[row, column]
        if cell is None:
            ours = f"{diverged} diverged" if diverged else ""
        elif column == PERPLEXITY:
            interval = self.get_interval(row, column)
            ours = f"{cell.summary.mean:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
        else:
            failures = f", {diverged} diverged" if diverged else ""
            ours = f"{cell.summary.format(self.digits)} ({cell.summary.seeds}{failures})"
        published, split = self.figures.get(row, {}).get(column), self.figure_splits.get((row, column))
        digits = 2 if column == PERPLEXITY else self.digits  # as the paper prints them
        figure = "" if published is None else f"[{published:.{digits}f}{f', {split}' if split else ''}]"
        return f"{ours} {figure}".strip()

    def get_interval(self, row: str, column: str) -> tuple[float, float] | None:
        """Return the 95 % interval of a cell's mean; None if nothing could be resampled."""
        interval = self.estimates[row, column].interval if (row, column) in self.estimates else None
        if interval is None or column != PERPLEXITY:
            return interval
        return math.exp(-interval[1]), math.exp(-interval[0])

    def to_text(self, mark: Callable[[str], Any] = str) -> list[list[Any]]:
        """Return the table as text, headings first. `mark` marks cells of columns at the floor, as grey or italics."""
        lines = [["", *self.rows]]
        for column, title in self.columns.items():
            is_at_floor = column in self.at_floor
            texts = [f"{title}, at the floor" if is_at_floor else title]
            texts += [self.format_cell(row, column) for row in self.rows]
            lines.append([mark(text) if text and is_at_floor else text for text in texts])
        for title, texts_by_row in self.details.items():
            lines.append([title, *(texts_by_row.get(row, "") for row in self.rows)])
        return lines if self.is_transposed else [list(line) for line in zip(*lines, strict=True)]

    def show(self, reporter: Reporter) -> None:
        """Print the table, the findings and the claims."""
        reporter.record(Heading(self.title))
        header, *rows = self.to_text(Minor)
        reporter.record(Rows([str(name) for name in header], rows, texts=(0,)))
        reporter.record(Line(self.legend, "minor"))
        for note in self.findings:
            reporter.note(note)
        for result in self.claims:
            reporter.record(Line(f"- {result}"))

    def to_markdown(self, setup: Mapping[str, str], further: Mapping[str, TextTable]) -> str:
        """Return the table as Markdown.

        `setup`: names and values of what was trained, where and when. `further`: tables by their headings.
        """
        lines = [f"# {self.title}", ""]
        lines += [f"- {name}: {value}" for name, value in setup.items()]
        lines += [f"- {note}" for note in (*self.notes, *self.findings)]
        lines += ["", *format_markdown(self.to_text(lambda text: f"*{text}*")), "", self.legend]
        for title, table in further.items():
            lines += ["", f"{title}:", "", *format_markdown(table)]
        if self.claims:
            lines += ["", "The paper's claims, on these results:", "", *(f"- {result}" for result in self.claims)]
        if self.contrasts:
            bases = {one.baseline for one in self.contrasts}
            base = bases.pop() if len(bases) == 1 else "the row above"
            lines += ["", f"Differences from {base}:", "", *format_markdown(self.format_contrasts())]
            lines += ["", CONTRAST_LEGEND]
        return "\n".join(lines) + "\n"

    def format_contrasts(self) -> TextTable:
        """Return the table of differences as text."""
        cells = {(one.row, one.column): str(one).replace("*", "\\*") for one in self.contrasts}
        rows, columns = ([*dict.fromkeys(names)] for names in zip(*cells, strict=True))
        header = ["", *(self.columns.get(column, column) for column in columns)]
        return [header, *([row, *(cells.get((row, column), "") for column in columns)] for row in rows)]

    def to_record(self) -> dict[str, Any]:
        """Return the table as a JSON object."""
        return {
            "title": self.title,
            "notes": [*self.notes, *self.findings],
            "at_floor": self.at_floor,
            "cells": [self._cell_record(row, column) for row, column in self.cells],
            "without_results": [
                {"row": row, "column": column, "diverged": count}
                for (row, column), count in self.diverged.items()
                if (row, column) not in self.cells
            ],
            "claims": [result.to_record() for result in self.claims],
            "figures": [
                {"row": row, "column": column, "paper": figure, "split": self.figure_splits.get((row, column))}
                for row, figures in self.figures.items()
                for column, figure in figures.items()
                if column in self.columns and row in self.rows
            ],
            "differences": [
                {"row": one.row, "from": one.baseline, "column": one.column} | one.difference.to_record()
                for one in self.contrasts
            ],
        } | ({"details": self.details} if self.details else {})

    def _cell_record(self, row: str, column: str) -> dict[str, Any]:
        """Return a cell as a JSON object."""
        cell = self.cells[row, column]
        return {
            "row": row,
            "column": column,
            "scores": [*cell.scores.values()],
            "learning_rate": cell.learning_rate,
            "rates": {f"{rate:g}": score for rate, score in cell.rates.items()},
            "pretrainings": cell.pretrainings,
            "one_label": cell.one_label,
            "at_floor": column in self.at_floor,
            "diverged": self.diverged[row, column],
            "paper": self.figures.get(row, {}).get(column),
            **cell.summary._asdict(),
            "interval": self.get_interval(row, column),
        }


def format_markdown(rows: TextTable) -> list[str]:
    """Return the lines of a Markdown table; the first column holds names and the others numbers."""
    alignment = ["---", *["---:"] * (len(rows[0]) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], alignment, *rows[1:])]


def plot(table: Table, path: Path, curves: Mapping[str, tuple[str, int]], x_label: str) -> None:
    """Plot each column as a panel of a PNG file, with standard deviations: the rows from left to right, or curves.

    `curves`: series and place on the x-axis of each row; empty: the rows are no curves.
    """
    if not is_installed("matplotlib"):  # extra "plot"
        return
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    columns = min(len(table.columns), PANELS)
    lines = math.ceil(len(table.columns) / columns)
    figure = Figure(figsize=(3.4 * columns + 1.2, 3.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel in panels[len(table.columns) :]:
        panel.set_axis_off()
    for panel, (column, title) in zip(panels, table.columns.items(), strict=False):
        rows = [row for row in table.rows if (row, column) in table.cells]
        if curves:
            for series in dict.fromkeys(series for series, _ in curves.values()):
                chosen = [row for row in rows if row in curves and curves[row][0] == series]
                _errorbar(panel, [curves[row][1] for row in chosen], table, chosen, column, label=series)
            panel.set_xlabel(x_label)
            panel.legend()
        else:
            _errorbar(panel, range(len(rows)), table, rows, column, linestyle="none")
            panel.set_xticks(range(len(rows)), rows, rotation=40, ha="right", fontsize=8)
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
    figure.suptitle(table.title)
    save_figure(figure, path)


def _errorbar(panel: Any, xs: Sequence[int], table: Table, rows: Sequence[str], column: str, **style: Any) -> None:
    """Plot means with standard deviations, in percent; perplexities are not scaled."""
    scale = 1 if column == PERPLEXITY else 100
    summaries = [table.cells[row, column].summary for row in rows]
    means, deviations = ([scale * value for value in values] for values in
                         ([one.mean for one in summaries], [one.std or 0.0 for one in summaries]))  # fmt: skip
    panel.errorbar(xs, means, deviations, marker="o", markersize=4, capsize=3, **style)
