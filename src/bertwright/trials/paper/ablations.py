"""Choices of BERT that the paper does not vary: the share of masked tokens, the activation, the positions."""

from __future__ import annotations

from typing import Any

from bertwright.trials.job_maker import ACCURACY, JobMaker
from bertwright.trials.table_plan import FLOORS, Claim, TablePlan, column_titles

TITLE = "Ablations: share of masked tokens, activation, positions"
MASKED_SHARES = (0.05, 0.10, 0.20, 0.30, 0.40, 0.50)  # besides the paper's 0.15
BERT, RELU, SINUSOIDAL = "BERT (15 % masked, GELU, learned positions)", "ReLU", "sinusoidal positions"
LEARNED = "learned positions, normal initialization"


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of the ablations. Each row differs from BERT in one choice."""
    tasks = maker.find_tasks(("mnli" if maker.has_mnli else "sst2", "conll2003"), ACCURACY)
    # Mimetic initialization sets learned positions, so fixed ones are compared without it.
    normal = {} if maker.level.init_scheme == "normal" else {"init_scheme": "normal"}
    variants: dict[str, dict[str, Any]] = {BERT: {}}
    variants |= {
        f"{share:.0%} masked".replace("%", " %"): {"data": {"mlm_probability": share}} for share in MASKED_SHARES
    }
    variants |= {RELU: {"model": {"activation": "relu"}}}
    variants |= {LEARNED: {"model": normal}} if normal else {}
    variants |= {SINUSOIDAL: {"model": normal | {"sinusoidal_positions": True}}}
    trials = []
    for row, changes in variants.items():
        starts = maker.pretrain(f"mlm+nsp, {row}" if changes else "mlm+nsp", "mlm+nsp", **changes)
        trials += [trial for name, task in tasks.items() for trial in maker.finetune(row, name, task, starts)]
    trials += maker.floors(tasks)
    every = tuple(tasks)
    claims = [
        Claim("40 % masked is better than 15 % (Wettig et al. 2022)", "40 % masked", BERT, every),
        Claim("GELU is better than ReLU", BERT, RELU, every),
        Claim("Learned positions are better than sinusoidal ones", LEARNED if normal else BERT, SINUSOIDAL, every),
    ]
    maker.notes.append(
        "Held-out losses of rows with other shares of masked tokens are of other inputs, so that they cannot be "
        "compared; the tasks can."
    )
    return TablePlan("ablations", TITLE, column_titles(tasks), (*variants, *FLOORS), trials, claims, {}, maker.notes)
