"""Several processes as one run: the process group, gradients over all ranks, and decisions of all ranks together.

Gradients are exchanged by DistributedDataParallel. Sharded weights (FSDP2) are not implemented. They would change
`wrap`, `no_sync` and the functions that read a state dict.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(days=7)  # ranks wait while rank 0 evaluates; torchrun notices a dead rank


@contextmanager
def process_group(world_size: int, device: torch.device) -> Iterator[None]:
    """Connect the ranks that torchrun started, until the block ends; do nothing for a single process."""
    if world_size == 1:
        yield
        return
    # DistributedDataParallel imports this module. Default arguments in it keep the current process group alive, with
    # gloo's threads, which can abort a process at its exit. Here, no group exists yet.
    importlib.import_module("torch.distributed.nn.functional")
    on_gpu = device.type == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def independent_ranks() -> Iterator[int]:
    """Let each process that torchrun started compute alone until the block ends; yield its rank, 0 without torchrun.

    The process still uses the GPU and the share of the CPUs that its local rank has.
    """
    hidden = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    try:
        yield int(hidden.get("RANK", "0"))
    finally:
        os.environ.update(hidden)


def check_single_process(what: str, advice: str = "start it without torchrun") -> None:
    """Raise ValueError, with advice, if torchrun started several processes for what a single one does."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"torchrun: {what} runs in a single process; {advice}")


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def wrap(module: nn.Module, find_unused_parameters: bool = False) -> nn.Module:
    """Return a module whose backward pass averages gradients over all ranks; a single process gets the module itself.

    `find_unused_parameters`: a step may use only some of the parameters; the ranks then search for unused ones.
    """
    if world_size() == 1:
        return module
    return DistributedDataParallel(module, find_unused_parameters=find_unused_parameters)


def no_sync(module: object) -> AbstractContextManager[None]:
    """Keep gradients on their rank within the block: they are exchanged once per step, with the last micro-batch."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


def sum_over_ranks(values: Tensor) -> Tensor:
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on at least one rank: all ranks must stop at the same step."""
    if world_size() == 1:
        return flag
    return bool(sum_over_ranks(torch.tensor(float(flag), device=device)) > 0)


def run_on_rank_0(act: Callable[[], object], subject: Any, device: torch.device) -> None:
    """Call a function on rank 0 only. If it raises an error, the other ranks raise a ValueError with the subject."""
    error = None
    if world_size() == 1 or dist.get_rank() == 0:
        try:
            act()
        except Exception as raised:
            error = raised
    if world_size() > 1:
        failed = torch.tensor([error is not None], device=device)
        dist.broadcast(failed, src=0)
        if failed and dist.get_rank() > 0:
            raise ValueError(f"{subject}: rejected by rank 0; see its message")
    if error is not None:
        raise error
