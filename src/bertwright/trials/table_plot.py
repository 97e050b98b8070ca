"""Plot of a table: a panel for each column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertwright.base.files import save_figure
from bertwright.base.optional import is_installed
from bertwright.trials.paper_table import PERPLEXITY
from bertwright.trials.table import Table

PANELS = 6  # panels side by side


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
