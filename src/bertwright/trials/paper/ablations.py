"""Choices of BERT that the paper does not vary: the share of masked tokens, the activation, the positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertwright.trials.paper_table import ACCURACY, Claim, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.planner import Planner

MASKED_SHARES = (0.05, 0.10, 0.20, 0.30, 0.40, 0.50)  # besides the paper's 0.15
BERT, RELU, SINUSOIDAL = "BERT (15 % masked, GELU, learned positions)", "ReLU", "sinusoidal positions"
LEARNED = "learned positions, normal initialization"


def has_normal_weights(planner: Planner) -> bool:
    """Return whether the level initializes weights as the paper; else positions are compared in rows that do so.

    Mimetic initialization sets learned positions, so fixed ones are compared without it.
    """
    return planner.level.init_scheme == "normal"


def rows(planner: Planner) -> dict[str, Row]:
    """Return the rows that each differ from BERT in one choice."""
    normal = {"init_scheme": "normal"}
    return {
        BERT: Row(),
        **{f"{100 * share:.0f} % masked": Row(data={"mlm_probability": share}) for share in MASKED_SHARES},
        RELU: Row(model={"activation": "relu"}),
        **({} if has_normal_weights(planner) else {LEARNED: Row(model=normal)}),
        SINUSOIDAL: Row(model=normal | {"sinusoidal_positions": True}),
    }


TABLE = PaperTable(
    title="Ablations: share of masked tokens, activation, positions",
    tasks=(("mnli", "conll2003"), ("sst2", "conll2003")),
    metrics=ACCURACY,
    rows=rows,
    claims=lambda planner: (
        Claim("40 % masked is better than 15 % (Wettig et al. 2022)", "40 % masked", BERT),
        Claim("GELU is better than ReLU", BERT, RELU),
        Claim(
            "Learned positions are better than sinusoidal ones",
            BERT if has_normal_weights(planner) else LEARNED,
            SINUSOIDAL,
        ),
    ),
    notes=(
        "Held-out losses of rows with other shares of masked tokens are of other inputs, so that they cannot be "
        "compared; the tasks can.",
    ),
)
