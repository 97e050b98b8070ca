"""Table 6 of the paper: model size, with held-out perplexity."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from bertwright.models.shapes import format_shape
from bertwright.trials.paper_table import ACCURACY, PERPLEXITY, Claim, Figures, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.planner import Planner

FIGURES: Figures = {
    "L3 H768 A12": {"perplexity": 5.84, "mnli": 77.9, "mrpc": 79.8, "sst2": 88.4},
    "L6 H768 A3": {"perplexity": 5.24, "mnli": 80.6, "mrpc": 82.2, "sst2": 90.7},
    "L6 H768 A12": {"perplexity": 4.68, "mnli": 81.9, "mrpc": 84.8, "sst2": 91.3},
    "L12 H768 A12": {"perplexity": 3.99, "mnli": 84.4, "mrpc": 86.7, "sst2": 92.9},
    "L12 H1024 A16": {"perplexity": 3.54, "mnli": 85.7, "mrpc": 86.9, "sst2": 93.3},
    "L24 H1024 A16": {"perplexity": 3.23, "mnli": 86.6, "mrpc": 87.8, "sst2": 93.7},
}


def name_rows(planner: Planner) -> list[str]:
    """Return the names of the level's shapes, with the shapes of the paper that they stand for."""
    shapes = [format_shape(*shape) for shape in planner.level.shapes]
    return [row if row == own else f"{row} (paper: {own})" for row, own in zip(shapes, FIGURES, strict=True)]


def claims(planner: Planner) -> tuple[Claim, ...]:
    rows = name_rows(planner)
    return (
        Claim("The largest model is better than the smallest one", rows[-1], rows[0]),
        *(
            Claim(f"{larger} has a lower perplexity than {smaller}", larger, smaller, (PERPLEXITY,))
            for smaller, larger in pairwise(rows)
        ),
    )


TABLE = PaperTable(
    title="Table 6: model size",
    tasks=(("mnli", "mrpc", "sst2"),),
    metrics=ACCURACY,
    rows=lambda planner: {
        row: Row(shape=shape) for row, shape in zip(name_rows(planner), planner.level.shapes, strict=True)
    },
    figures=lambda planner: dict(zip(name_rows(planner), FIGURES.values(), strict=True)),
    claims=claims,
    has_perplexity=True,
    notes=lambda planner: (
        f"Perplexity is on held-out sequences of up to {planner.level.max_length} tokens. Random weights are of "
        f"{format_shape(*planner.level.shape)}.",
    ),
)
