"""Execution context of a run: device, dtype, threads, and the rank of this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from bertwright.kernels.cpu import available_cpus, configure_malloc, restore_malloc, vendor
from bertwright.kernels.cpu_sharing import share_cpus
from bertwright.kernels.native_library import triton_available, triton_problems
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.distributed import process_group

DETERMINISM_WARNING = ".*(non-deterministic algorithm|does not have a deterministic implementation)"
"""Beginning of PyTorch's warnings about operations that may add up in any order."""


@dataclass(frozen=True)
class ExecutionContext:
    """Device, dtype, threads and rank of this process."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    rank: int = 0
    world_size: int = 1
    asked: tuple[str, str] = ("auto", "auto")
    """Device and dtype of the settings that this follows from."""

    @property
    def is_main_process(self) -> bool:
        """Only rank 0 prints, evaluates and writes files."""
        return self.rank == 0

    @property
    def dtype_name(self) -> str:
        """Name of the dtype of states and matrix products."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        threads = f"{self.threads} thread" + "s" * (self.threads > 1)
        device = f"CPU, {threads}"
        if self.device.type == "cuda":
            flash = "flash" if self.dtype == torch.bfloat16 else "memory-efficient"
            kernels = f"PyTorch's kernels, {flash} attention, sums in a fixed order"
            if triton_problems:
                kernels += " (Triton's failed their check)"
            elif triton_available():
                kernels = "Triton kernels, attention included, sums in a fixed order, each checked before its first use"
            device = f"{torch.cuda.get_device_name(self.device)}, {kernels}"
        return f"{device}, {self.dtype_name}" + (f", {self.world_size} ranks" if self.world_size > 1 else "")


def supports_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 in hardware. Emulation takes ten times as long as float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # "bf16": ARM


def prefers_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies matrices faster in bfloat16 than in float32.

    Intel's processors with AVX512-BF16 but without AMX do not (decision 13).
    """
    if device.type == "cuda" or not supports_bfloat16(device):
        return supports_bfloat16(device)
    return vendor() != "GenuineIntel" or bool(torch.cpu.get_capabilities().get("amx_bf16"))


def select_device(settings: DeviceSettings) -> torch.device:
    """Return the device of this process; under torchrun, each local rank has its own GPU.

    Raises ValueError if a GPU is requested and none is available, and for more local ranks than GPUs.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: this PyTorch sees no GPU; leave --device at auto, or see nvidia-smi")
    if settings.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if processes > gpus:
        raise ValueError(
            f"{processes} processes on this machine, but {gpus} GPU{'s' * (gpus != 1)}; lower --nproc-per-node to "
            f"{gpus}, or choose --device cpu"
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def select_dtype(settings: DeviceSettings) -> Literal["float32", "bfloat16"]:
    """Return the name of the dtype; `auto` depends on this machine. `InferenceDeviceSettings` may also name int8."""
    if settings.dtype != "auto":
        return settings.dtype
    return "bfloat16" if prefers_bfloat16(select_device(settings)) else "float32"


def select_threads(settings: DeviceSettings) -> int:
    """Return the number of threads; by default, this process's share of the CPUs."""
    return settings.threads or available_cpus(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def execution_context(settings: DeviceSettings, distributed: bool = False) -> Iterator[ExecutionContext]:
    """Configure this process for a run, until the block ends, and yield its execution context.

    `distributed`: under torchrun, compute together with the other ranks until the block ends; otherwise this process
    computes alone, even under torchrun. Raises ValueError if a GPU is requested and none is available.
    """
    device = select_device(settings)
    on_gpu = device.type == "cuda"
    environment = os.environ if distributed else {}
    ranks, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
    if on_gpu:
        torch.cuda.set_device(device)
    threads = select_threads(settings)
    with ExitStack() as stack:  # restores everything, for a notebook or server, which continues after the run
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        stack.callback(restore_malloc)
        configure_malloc()
        stack.enter_context(share_cpus(threads))
        if on_gpu:
            stack.enter_context(_deterministic_algorithms())
            stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)  # dropout seeds it
        stack.enter_context(process_group(ranks, device))
        dtype, asked = getattr(torch, select_dtype(settings)), (settings.device, settings.dtype)
        yield ExecutionContext(device, dtype, threads, rank, ranks, asked)


@contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    """Use deterministic CUDA kernels; with atomics, sums depend on thread order, and a resumed run would differ.

    An operation without a deterministic kernel runs all the same, and PyTorch's warning about it is not shown: no model
    of this package needs one in training (`order_gradients` of `kernels/attention.py`).
    """
    options = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills_memory = options.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it before its first product
    torch.use_deterministic_algorithms(True, warn_only=True)
    options.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it would cost a pass over memory
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", DETERMINISM_WARNING, UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        options.fill_uninitialized_memory = fills_memory  # type: ignore[attr-defined]
