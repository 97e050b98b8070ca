"""The objectives by name: add yours here.

An architecture is pre-trained by the objectives that name it (`Objective.architecture`); the first one is its default.
"""

from __future__ import annotations

from bertwright.objectives.objective import AnyObjective
from bertwright.systems.bert.masked_lm_objective import MaskedLM, MaskedLMWithNextSentence
from bertwright.systems.bert.one_sided_objective import LeftToRightLM, RightToLeftLM
from bertwright.systems.elmo.elmo_objective import BidirectionalLanguageModel
from bertwright.systems.gpt.gpt_objective import GptObjective
from bertwright.systems.ulmfit.ulmfit_objective import RecurrentLanguageModel

OBJECTIVES: dict[str, AnyObjective] = {
    objective.name: objective
    for objective in (
        MaskedLMWithNextSentence(),
        MaskedLM(),
        LeftToRightLM(),
        RightToLeftLM(),
        GptObjective(),
        BidirectionalLanguageModel(),
        RecurrentLanguageModel(),
    )
}


def architectures() -> list[str]:
    """Return the values of --architecture."""
    return list(dict.fromkeys(objective.architecture for objective in OBJECTIVES.values()))


def objectives_of(architecture: str) -> list[AnyObjective]:
    """Return the objectives that train an architecture, its default first. Raises ValueError for an unknown one."""
    if architecture not in architectures():
        raise ValueError(f"architecture is {architecture!r}; expected one of {', '.join(architectures())}")
    return [objective for objective in OBJECTIVES.values() if objective.architecture == architecture]


def find_objective(name: str) -> AnyObjective:
    if name not in OBJECTIVES:
        raise ValueError(f"objective is {name!r}; expected one of {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
