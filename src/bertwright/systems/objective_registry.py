"""The objectives of all systems by name: a system's record in `systems/NAME/defaults.py` lists its own.

The value of --architecture is the name of a system that has objectives; the first of them is its default.
"""

from __future__ import annotations

from functools import cache

from bertwright.objectives.objective import AnyObjective
from bertwright.systems.registry import pretrained, resolve, system_of_objective


@cache
def _make(name: str) -> AnyObjective:
    objective: AnyObjective = resolve(name)()
    return objective


def architectures() -> list[str]:
    """Return the values of --architecture."""
    return list(pretrained())


def objectives_of(architecture: str) -> list[AnyObjective]:
    """Return the objectives that train an architecture, its default first. Raises ValueError for an unknown one."""
    if architecture not in pretrained():
        raise ValueError(f"architecture is {architecture!r}; expected one of {', '.join(architectures())}")
    return [_make(name) for name in pretrained()[architecture].objectives.values()]


def find_objective(name: str) -> AnyObjective:
    """Return an objective by the value of --objective. Raises ValueError for an unknown one."""
    system = system_of_objective(name)
    if system is None:
        known = [name for system in pretrained().values() for name in system.objectives]
        raise ValueError(f"objective is {name!r}; expected one of {', '.join(known)}")
    return _make(system.objectives[name])


def architecture_of_objective(name: str) -> str:
    """Return the architecture that an objective trains. Raises ValueError for an unknown objective."""
    find_objective(name)
    return next(architecture for architecture, system in pretrained().items() if name in system.objectives)
