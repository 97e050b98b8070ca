"""Figure 5 of the paper: scores against the steps of pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertwright.trials.paper_table import CURVE_CHECKPOINTS, UNTRAINED_POOLER, Claim, Objective, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.planner import Planner

SERIES: dict[str, Objective] = {"MLM": "mlm", "LTR": "ltr"}


def list_checkpoint_steps(steps: int) -> list[int]:
    """Return the steps of figure 5: every tenth of a pre-training.

    >>> list_checkpoint_steps(4_005)[-3:]
    [3200, 3600, 4005]
    """
    every = max(1, steps // CURVE_CHECKPOINTS)
    return [*range(every, CURVE_CHECKPOINTS * every, every), steps]


def name_row(series: str, step: int) -> str:
    return f"{series}, {step:,} steps"


def rows(planner: Planner) -> dict[str, Row]:
    *saved, last = list_checkpoint_steps(planner.level.steps)
    return {
        name_row(series, step or last): Row(objective, step=step)
        for series, objective in SERIES.items()
        for step in (*saved, None)
    }


def claims(planner: Planner) -> tuple[Claim, ...]:
    """Return the claims about the first checkpoint, the fifth, and the last."""
    saved = list_checkpoint_steps(planner.level.steps)
    first, half, last = saved[0], saved[len(saved) // 2 - 1], saved[-1]
    return (
        Claim("The second half of pre-training helps", name_row("MLM", last), name_row("MLM", half)),
        Claim("MLM is better than LTR almost at once", name_row("MLM", first), name_row("LTR", first)),
        Claim("MLM is better than LTR in the end", name_row("MLM", last), name_row("LTR", last)),
    )


TABLE = PaperTable(
    title="Figure 5: scores against the steps of pre-training",
    tasks=(("mnli",), ("sst2", "conll2003")),
    rows=rows,
    claims=claims,
    notes=(UNTRAINED_POOLER,),
    is_curve=True,
)
