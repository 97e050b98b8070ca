"""Tables of trials: rows × columns of scores over seeds, with claims and notes, as JSON, Markdown and text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bertwright.base.reporter import Heading, Line, Minor, Reporter, Rows
from bertwright.metrics.statistics import Difference, Estimate, difference
from bertwright.trials.cells import Cell, Key, read_cells, score_splits
from bertwright.trials.paper_table import FEATURES, PERPLEXITY, Claim, Figures
from bertwright.trials.runner import Result
from bertwright.trials.trial import Trial

Verdict = Literal["shown", "not shown", "reversed", "no verdict"]
TextTable = Sequence[Sequence[str]]
"""Rows of cells, headings first."""

MIN_PRETRAININGS = 3
"""Pre-trainings of each row that a verdict needs: two say next to nothing about how far pre-trainings differ."""
MEAN = "mean"  # column of differences averaged over tasks
CONTRAST_LEGEND = (
    "In percentage points, with 95 % intervals over seeds and examples (of a row with one seed, over examples). "
    "For perplexities: the decrease of their logarithm, in nats per token."
)
LEGEND = (
    "Mean ± standard deviation over the seeds (number of seeds), in percent, on dev unless the column says test; in "
    "brackets the paper's figure, with its split if that is another."
)


class Contrast(NamedTuple):
    """Difference of a row from another row of the table."""

    row: str
    baseline: str
    column: str
    """MEAN: the mean over the tasks that both rows have."""
    difference: Difference

    def __str__(self) -> str:
        scale, digits = (1, 2) if self.column == PERPLEXITY else (100, 1)
        text = f"{scale * self.difference.mean:+.{digits}f}"
        if self.difference.interval is None:
            return text
        low, high = self.difference.interval
        return f"{text} ({scale * low:+.{digits}f} to {scale * high:+.{digits}f})"


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
        """Shown or reversed if the whole interval is on one side of 0.

        None if a row has a single score or fewer than MIN_PRETRAININGS pre-trainings.
        """
        if self.single_seed or self.pretrainings < MIN_PRETRAININGS:
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
            low, high = self.difference.interval
            smallest = scale * self.difference.interval.smallest_effect
            interval = f"95 % interval {scale * low:+.{digits}f} to {scale * high:+.{digits}f}"
            interval += f", which could show {smallest:.{digits}f} or more"
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
        if self.pretrainings < MIN_PRETRAININGS and not self.single_seed:
            basis += f": a verdict needs {MIN_PRETRAININGS}"
        where = self.columns[0] if len(self.columns) == 1 else f"mean of {', '.join(self.columns)}"
        mean = f"{scale * self.difference.mean:+.{digits}f} {unit}"
        return f"{self.claim.text}, {where}: {self.verdict} at this budget ({mean}, {interval}{paper}{basis})."

    def to_record(self) -> dict[str, Any]:
        """Return the claim and its verdict as a JSON object, with the sentence that is printed."""
        own = {name: value for name, value in vars(self).items() if name != "claim"}
        texts = {"verdict": self.verdict, "sentence": str(self)}
        return {**self.claim._asdict(), **own, "difference": self.difference.to_record(), **texts}


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

    @classmethod
    def of_series(
        cls, title: str, rows: Sequence[str], results: Sequence[tuple[Trial, Result]], legend: str, digits: int = 1
    ) -> Table:
        """Return the table of a series' finished runs, with their scores on dev and on test."""
        cells = read_cells(score_splits(results))
        columns = {split: split for split in ("dev", "test") if any(name == split for _, name in cells)}
        diverged = Counter((trial.row, "dev") for trial, result in results if result.failure)
        return cls(title, columns or {"dev": "dev"}, rows, cells, diverged=diverged, legend=legend, digits=digits)

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
        cells = {(one.row, one.column): str(one).replace("*", "\\*") for one in self.contrasts}
        rows, columns = ([*dict.fromkeys(names)] for names in zip(*cells, strict=True))
        header = ["", *(self.columns.get(column, column) for column in columns)]
        return [header, *([row, *(cells.get((row, column), "") for column in columns)] for row in rows)]

    def to_record(self) -> dict[str, Any]:
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
