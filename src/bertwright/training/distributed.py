"""Several processes as one run: the process group, gradients over all ranks, and decisions of all ranks together.

Gradients are exchanged by DistributedDataParallel while the backward pass still computes or, with divided weights,
by FSDP2 (`divided_weights.py`).
"""

from __future__ import annotations

import importlib
import os
import time
import uuid
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
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=TIMEOUT,
        device_id=device if on_gpu else None,
        rank=int(os.environ["RANK"]),
        world_size=world_size,
        store=open_own_store() if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def open_own_store() -> Any:
    """Return a part of torchrun's key-value store that only the processes of this attempt know.

    Ranks find each other by addresses in the store. After a restart, it still has the addresses of dead processes, to
    which PyTorch would connect (https://github.com/pytorch/pytorch/issues/135712). So rank 0 draws a name, and sends it
    to each rank in reply to a word that this rank has drawn.
    """
    environment = os.environ
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    torch_distributed: Any = dist  # its types lack the stores
    store = torch_distributed.TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), is_master=False)
    word = name = uuid.uuid4().hex
    if rank > 0:
        store.set(f"word of {rank}", word)
        name = store.get(f"reply to {word}").decode()  # waits for rank 0
        store.set(f"{name} {rank}", "")
    while rank == 0 and not store.check([f"{name} {other}" for other in range(1, ranks)]):
        for key in (f"word of {other}" for other in range(1, ranks)):
            if store.check([key]):  # the word may still be one of a dead process, whose reply nobody reads
                store.set(f"reply to {store.get(key).decode()}", name)
        time.sleep(0.01)
    store.set_timeout(TIMEOUT)
    return torch_distributed.PrefixStore(name, store)


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

    The exchange of a gradient begins as soon as it is computed, in groups of about 25 MB, while the backward pass goes
    on. `find_unused_parameters`: a step may use only some of the parameters; the ranks then search for unused ones.
    Each rank keeps its own statistics of batches; rank 0 saves its own.
    """
    if world_size() == 1:
        return module
    return DistributedDataParallel(module, find_unused_parameters=find_unused_parameters, broadcast_buffers=False)


def no_sync(module: object) -> AbstractContextManager[None]:
    """Keep gradients on their rank within the block: they are exchanged once per step, with the last micro-batch."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


def sum_over_ranks(values: Tensor) -> Tensor:
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def gather_rows(*tensors: Tensor) -> tuple[list[Tensor], slice]:
    """Return tensors with the rows of all ranks, rank by rank, and the place of this rank's rows in them.

    `tensors` have one number of rows, which may differ between the ranks. All ranks must call this together.
    """
    if world_size() == 1:
        return [*tensors], slice(None)
    count, rank, device = len(tensors[0]), dist.get_rank(), tensors[0].device
    counts = torch.zeros(world_size(), dtype=torch.int64, device=device)
    counts[rank] = count
    ends = sum_over_ranks(counts).cumsum(0).tolist()
    own, gathered = slice(ends[rank] - count, ends[rank]), []
    for tensor in tensors:
        whole = tensor.new_zeros(ends[-1], *tensor.shape[1:])
        whole[own] = tensor
        gathered.append(sum_over_ranks(whole))  # exact: all other ranks add zeros
    return gathered, own


def min_over_ranks(number: int, device: torch.device) -> int:
    """Return the smallest number of all ranks, on each of them."""
    if world_size() == 1:
        return number
    smallest = torch.tensor(number, device=device)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


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
