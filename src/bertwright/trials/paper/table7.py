"""Table 7 of the paper: fine-tuning and six kinds of features, on CoNLL-2003."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertwright.models.representations import REPRESENTATIONS, RepresentationName
from bertwright.trials.paper_table import RANDOM, Claim, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.planner import Planner

# F1 of BERT BASE on the dev set of CoNLL-2003, in percent: fine-tuned, and of each representation.
FINE_TUNED_F1 = 96.4
PAPER_F1: dict[str, float] = {
    "embeddings": 91.0,
    "second-to-last": 95.6,
    "last": 94.9,
    "sum-last-four": 95.9,
    "concat-last-four": 96.1,
    "sum-all": 95.5,
}
FINE_TUNED, TASK = "fine-tuned", "conll2003"
LAST, FOUR, EVERY = "features: last", "features: concat-last-four", "features: sum-all"


def possible(planner: Planner) -> list[RepresentationName]:
    """Return the representations for which the model has layers."""
    return [name for name, one in REPRESENTATIONS.items() if planner.num_layers >= -(one.layers.start or 0)]


def rows(planner: Planner) -> dict[str, Row]:
    """Return the rows of the paper, and the last representation of a model from random weights."""

    def features(name: RepresentationName, is_random: bool = False) -> Row:
        return Row(is_random=is_random, is_tuned=False, features=name, feature_column=TASK)

    names = possible(planner)
    frozen = {f"features: {name}": features(name) for name in names}
    floor = {} if planner.inputs.model else {f"{RANDOM}: {names[-1]}": features(names[-1], is_random=True)}
    return {FINE_TUNED: Row(), **frozen, **floor}


def notes(planner: Planner) -> tuple[str, ...]:
    """Return the representations that the model is too small for, and the heads."""
    skipped = ", ".join(name for name in REPRESENTATIONS if name not in possible(planner))
    few = f"The model has {planner.num_layers} layers, too few for {skipped}."
    return (*((few,) if skipped else ()), planner.describe_heads())


TABLE = PaperTable(
    title="Table 7: features and fine-tuning",
    tasks=((TASK,),),
    rows=rows,
    figures={FINE_TUNED: {TASK: FINE_TUNED_F1}} | {f"features: {name}": {TASK: f1} for name, f1 in PAPER_F1.items()},
    claims=(
        Claim("Fine-tuning is better than the last four layers as features", FINE_TUNED, FOUR),
        Claim("The last four layers are better features than the last one", FOUR, LAST),
        Claim("All layers are better features than the last one", EVERY, LAST),
        Claim("The last layer is better than the embeddings", LAST, "features: embeddings"),
    ),
    notes=notes,
    takes_model=True,
    only_task=TASK,
)
