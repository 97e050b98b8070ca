"""Table 8 of the paper: masking strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertwright.models.representations import RepresentationName
from bertwright.objectives.masking import Mix
from bertwright.trials.paper_table import FEATURES, RANDOM, Claim, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.planner import Planner

MIXES: dict[str, Mix] = {
    "80/10/10": (0.8, 0.1, 0.1),
    "100/0/0": (1.0, 0.0, 0.0),
    "80/0/20": (0.8, 0.0, 0.2),
    "80/20/0": (0.8, 0.2, 0.0),
    "0/20/80": (0.0, 0.2, 0.8),
    "0/0/100": (0.0, 0.0, 1.0),
}


def choose_features(planner: Planner) -> RepresentationName:
    """Return the paper's features, or what a model of fewer layers has."""
    return "concat-last-four" if planner.num_layers >= 4 else "sum-all"


def rows(planner: Planner) -> dict[str, Row]:
    """Return a row for each mix, fine-tuned and frozen, and the features of random weights."""
    features = choose_features(planner)
    mixes = {row: Row(data={"mask_mix": mix}, features=features) for row, mix in MIXES.items()}
    return mixes | {RANDOM: Row(is_random=True, is_tuned=False, features=features)}


TABLE = PaperTable(
    title="Table 8: masking strategies (MASK/SAME/RND, percent)",
    tasks=(("mnli", "conll2003"), ("sst2", "conll2003")),
    rows=rows,
    # NER by fine-tuning, NER on frozen features.
    figures={
        "80/10/10": {"mnli": 84.2, "conll2003": 95.4, "features": 94.9},
        "100/0/0": {"mnli": 84.3, "conll2003": 94.9, "features": 94.0},
        "80/0/20": {"mnli": 84.1, "conll2003": 95.2, "features": 94.6},
        "80/20/0": {"mnli": 84.4, "conll2003": 95.2, "features": 94.7},
        "0/20/80": {"mnli": 83.7, "conll2003": 94.8, "features": 94.6},
        "0/0/100": {"mnli": 83.6, "conll2003": 94.9, "features": 94.6},
    },
    claims=(
        Claim("[MASK] alone is worse than the mix, if NER reads features", "80/10/10", "100/0/0", (FEATURES,)),
        Claim("[MASK] alone is worse than the mix, if NER is fine-tuned", "80/10/10", "100/0/0", ("conll2003",)),
        Claim("Random tokens alone are worse than the mix", "80/10/10", "0/0/100"),
    ),
    notes=lambda planner: (
        f"Features are {choose_features(planner)}. {planner.describe_heads()}",
        "Held-out losses of rows with other mixes are of other inputs, so that they cannot be compared.",
    ),
)
