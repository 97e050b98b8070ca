"""Options of training text vectors: which numbers they may be, and with which loss they do something."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertwright.tasks.embedding import Embedding
    from bertwright.tasks.embedding_data import LossName

WITHOUT_SCALE = ("cosine", "contrastive", "triplet", "tsdae")
OF_RANKING = ("symmetric", "all_pairs", "hardness", "guide")


def check_options(task: Embedding, loss: LossName) -> None:
    """Raise ValueError, with the reason, for a number that is out of range and for an option that does nothing."""
    for name in ("similarity_scale", "hardness", "guide_margin"):
        value, is_scale = getattr(task, name), name == "similarity_scale"
        if not math.isfinite(value) or (is_scale and value <= 0):
            raise ValueError(f"{name}: expected a finite number{' above 0' if is_scale else ''}, got {value:g}")
    if task.weights and not (all(0 <= one < math.inf for one in task.weights) and sum(task.weights) > 0):
        raise ValueError(f"weights: expected finite numbers from 0, one of them above 0, got {task.weights}")
    changed = [name for name in OF_RANKING if getattr(task, name)]
    if changed and loss not in ("ranking", "simcse"):
        raise ValueError(f"{changed[0]}: {loss} has no wrong answers that it could change; omit it")
    if task.all_pairs and (odd := [name for name in changed if name != "all_pairs"]):
        raise ValueError(f"{odd[0]}: all_pairs has its own wrong answers in all directions; omit one of the two")
    if loss == "simcse" and task.guide and task.guide_margin <= 0:
        raise ValueError(
            "guide: simcse has each text as its own answer, and nothing is nearer; give --guide-margin 0.1"
        )
    if task.guide_margin and not task.guide:
        raise ValueError("guide_margin: no guide, which it is for; name one with --guide, or omit it")
    if loss in WITHOUT_SCALE and task.similarity_scale != type(task).similarity_scale:
        raise ValueError(f"similarity_scale: {loss} has no scale; omit it")
    if loss == "labels" and task.weights:
        raise ValueError("weights: labels reads classes, not files; omit it")
    if loss == "tsdae" and task.dims:
        raise ValueError("dims: tsdae decodes whole vectors; omit it, or choose --vector-loss simcse")
