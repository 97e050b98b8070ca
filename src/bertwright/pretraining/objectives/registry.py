"""The objectives by name: add yours here."""

from __future__ import annotations

from bertwright.pretraining.objectives.causal import LeftToRightLM, RightToLeftLM
from bertwright.pretraining.objectives.masked import MaskedLM, MaskedLMWithNextSentence
from bertwright.pretraining.objectives.objective import AnyObjective

OBJECTIVES: dict[str, AnyObjective] = {
    objective.name: objective
    for objective in (MaskedLMWithNextSentence(), MaskedLM(), LeftToRightLM(), RightToLeftLM())
}


def find_objective(name: str) -> AnyObjective:
    if name not in OBJECTIVES:
        raise ValueError(f"objective is {name!r}; expected one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
