"""Execution context of a run: device, number type, threads, and the rank of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from bertwright.kernels.cpu import available_cpus, configure_malloc, restore_malloc
from bertwright.training.distributed import process_group
from bertwright.training.settings import DeviceSettings


@dataclass(frozen=True)
class ExecutionContext:
    """Device, number type, threads and rank of this process."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    rank: int = 0
    world_size: int = 1

    @property
    def is_main_process(self) -> bool:
        """Only rank 0 prints, evaluates and writes files."""
        return self.rank == 0

    @property
    def number_type(self) -> str:
        """Name of the number type of states and matrix products."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        threads = f"{self.threads} thread" + "s" * (self.threads > 1)
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"CPU, {threads}"
        return f"{device}, {self.number_type}" + (f", {self.world_size} ranks" if self.world_size > 1 else "")


def supports_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices itself; emulation is ten times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


@contextmanager
def execution_context(settings: DeviceSettings, distributed: bool = False) -> Iterator[ExecutionContext]:
    """Configure this process as the settings say.

    `distributed`: under torchrun, compute together with the other ranks until the block ends; otherwise this process
    computes alone, even under torchrun. Raises ValueError if a GPU is requested and none is available.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: this PyTorch sees no GPU; leave --device at auto, or see nvidia-smi")
    on_gpu = settings.device != "cpu" and torch.cuda.is_available()
    ranks, rank = (1, 0)
    if distributed:
        ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    threads = settings.threads or available_cpus(local_ranks)
    torch.set_num_threads(threads)
    fast = settings.dtype == "bfloat16" or (settings.dtype == "auto" and supports_bfloat16(device))
    with ExitStack() as stack:
        stack.callback(restore_malloc)  # a notebook or server continues afterwards
        configure_malloc()
        if on_gpu:
            stack.enter_context(_deterministic_algorithms())
        stack.enter_context(process_group(ranks, device))
        yield ExecutionContext(device, torch.bfloat16 if fast else torch.float32, threads, rank, ranks)


@contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    """Use deterministic CUDA kernels: atomics make reductions depend on thread order, and resumed runs would diverge.

    PyTorch only warns about an operation without a deterministic kernel (the backward pass of attention).
    """
    options = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills_memory = options.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it before its first product
    torch.use_deterministic_algorithms(True, warn_only=True)
    options.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a pass over memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        options.fill_uninitialized_memory = fills_memory  # type: ignore[attr-defined]
