"""Digests of the weights with which every system and head starts at seed 0."""

from __future__ import annotations

from typing import Any

from artefacts import describe_array
from private_names import pretrained_models, read_environment, small_sizes, task_models
from torch import nn

JOINED = "language_model.model."


def describe_initial_weights() -> dict[str, Any]:
    """Return shape, digest and norm of each parameter by model; with a head, of the parameters that are new."""
    with small_sizes():
        described: dict[str, Any] = {name: describe_weights(model) for name, model in pretrained_models()}
        for system, task, model in task_models():
            weights = describe_weights(model)
            alone = described.get(system, {})
            changed = {name: value for name, value in weights.items() if alone.get(name) != value}
            absent = {name: "absent" for name in alone if name not in weights}
            described[f"{system}, {task}" if task else system] = changed | absent
    return {"environment": read_environment(), "models": described}


def describe_weights(model: nn.Module) -> dict[str, Any]:
    """Describe all weights but those of a joined model, which are always read from its folder."""
    weights = {name: value for name, value in sorted(model.state_dict().items()) if JOINED not in name}
    return {name: describe_array(value.numpy()) for name, value in weights.items()}
