"""Weights, gradients and moments that are divided among the ranks (FSDP2), for models that do not fit on one GPU.

A rank has some rows of each tensor, its part. Parameters are DTensors, which know how they are divided; moments are the
plain tensors of their parts. PyTorch's modules are imported on use, because their import takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def shard(module: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> nn.Module:
    """Divide a module's parameters among the ranks and move this rank's parts to the device, in place.

    Each of the `layers` gathers its weights when it computes, forward and backward, and then forgets the other ranks'
    parts; the rest of the module keeps its weights from the forward to the end of the backward pass. The backward pass
    averages gradients over the ranks, as DistributedDataParallel does, but leaves each rank its part of the average.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in (*layers, module):  # the whole last: it gets what its layers do not have
        fully_shard(part, mesh=mesh).set_force_sum_reduction_for_comms(True)  # gloo has no average
    return module


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a divided tensor, which shares its memory; any other tensor itself."""
    if not is_divided(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def is_divided(tensor: Tensor) -> bool:
    """Return whether a tensor is divided among the ranks."""
    return hasattr(tensor, "to_local")


def divide_like(whole: Tensor, parameter: Any) -> Tensor:
    """Return this rank's part of a tensor that all ranks have, divided as a parameter is, on its device."""
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    divided: Any = distribute_tensor(whole.to(parameter.device), mesh, placements, src_data_rank=None)
    part: Tensor = divided.to_local().clone()  # without the memory of the whole
    return part


@torch.no_grad()
def gather(part: Tensor, parameter: Any) -> Tensor:
    """Return a whole tensor from its parts, one per rank, divided as a parameter is: on rank 0 on the CPU, else empty.

    All ranks must call this together.
    """
    from torch.distributed.tensor import DTensor

    layout = {"shape": parameter.shape, "stride": parameter.stride()}
    whole = DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False, **layout)
    full: Tensor = whole.full_tensor()
    return full.cpu() if dist.get_rank() == 0 else full.new_empty(0)


@torch.no_grad()
def copy_weights(divided: nn.Module, whole: nn.Module) -> None:
    """Copy the weights and buffers of a divided model into a whole one on rank 0. All ranks must call this together."""
    tensors, targets = ([*model.parameters(), *model.buffers()] for model in (divided, whole))
    for own, target in zip(tensors, targets, strict=True):
        weights = gather(own_part(own), own) if is_divided(own) else own
        if len(weights) == len(target):
            target.copy_(weights)
