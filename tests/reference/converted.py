"""Models of `transformers` with random weights, their weights as our models are built from them, and a distance."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.interop.huggingface import ModelSource
from bertwright.systems.architectures import BERT


def weights_of(reference: Any) -> ModelSource:
    """Return a copy of a model's configuration and weights."""
    values, path = reference.config.to_dict(), Path("reference")
    tensors = {name: tensor.detach().clone() for name, tensor in reference.state_dict().items()}
    return ModelSource(BERT, BERT.parse_config(values, path), BERT.normalize(tensors, values, path), path)


def randomize_reference(model: Any) -> Any:
    """Give a model of `transformers` random weights for training; none is 0 or 1, so that a swapped one shows."""
    numbers = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.copy_(mean + 0.15 * torch.randn(parameter.shape, generator=numbers))
    return model.train()


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Compute ‖ours − theirs‖ / ‖theirs‖ in double precision."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())
