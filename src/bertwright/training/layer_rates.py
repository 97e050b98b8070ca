"""Learning rates by layer: frozen layers, discriminative rates, gradual unfreezing (ULMFiT)."""

from __future__ import annotations

from collections.abc import Mapping

from bertwright.models.encoder import EncoderModel
from bertwright.training.optimizer import LRScale, Unfreezing


def layerwise_lr_scales(model: EncoderModel, freeze_layers: int | None, decay: float) -> dict[str, float]:
    """Return the factor of each parameter's learning rate: 0 if frozen, else one `decay` for each layer above it.

    Raises ValueError for more frozen layers than the model has.
    """
    head = model.encoder.head_depth
    frozen = -1 if freeze_layers is None else freeze_layers
    if frozen >= head:
        raise ValueError(f"freeze_layers = {freeze_layers}: this model has {head - 1} layers")
    scales = {}
    for name, parameter in model.named_parameters():
        depth = model.depth_of(name)
        scales[name] = 0.0 if depth <= frozen or not parameter.requires_grad else decay ** (head - depth)
    return scales


def unfreeze_gradually(model: EncoderModel, scales: Mapping[str, float], epoch_steps: int) -> dict[str, LRScale]:
    """Return the factors with which one more layer is trained in each epoch, the head first (ULMFiT, section 3.3).

    `scales`: the factors after that; `epoch_steps`: steps of an epoch, or 0 to train all layers from the first step.
    """
    head = model.encoder.head_depth
    rates: dict[str, LRScale] = dict(scales)
    for name, scale in scales.items():
        if scale and (first_step := (head - model.depth_of(name)) * epoch_steps):
            rates[name] = Unfreezing(scale, first_step)
    return rates
