"""Where a run computes: device, number type, threads, and its place among the ranks that torchrun started."""

from __future__ import annotations

import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from bertwright.kernels.cpu import available_cpus, configure_malloc, restore_malloc
from bertwright.kernels.linear_bf16 import is_native_bf16, linear_forward, uses_native_linear
from bertwright.models.text_encoder import EncoderConfig
from bertwright.training.settings import DeviceSettings as DeviceSettings

CPU_TOKENS, GPU_TOKENS = 4_096, 65_536  # of a forward pass: enough to fill the machine
ACTIVATIONS_PER_TOKEN = (
    50  # numbers that a layer keeps of a token for the backward pass, in hidden sizes; about twice what was counted
)
GPU_SHARE = 0.6  # of a GPU's memory that a pass may fill: gradients of weights and the allocator's gaps take more


@dataclass(frozen=True)
class ExecutionContext:
    """What `DeviceSettings` came to on this machine, in this process."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    rank: int = 0
    world_size: int = 1

    @property
    def is_main_process(self) -> bool:
        """Rank 0 alone prints, evaluates to the screen, and writes files."""
        return self.rank == 0

    def raise_on_all_ranks(self, fault: Exception | None, what: str) -> None:
        """Let the ranks hear from the first whether it has found a fault with `what`.

        Raises that fault on the first rank, and ValueError on the others, which wait here for its word.
        """
        if self.world_size > 1:
            found = torch.tensor([fault is not None], device=self.device)
            dist.broadcast(found, src=0)
            if found and not self.is_main_process:
                raise ValueError(f"{what}: refused by the first rank, which says why")
        if fault is not None:
            raise fault

    def __str__(self) -> str:
        number_type = str(self.dtype).removeprefix("torch.")
        threads = f"{self.threads} thread" + "s" * (self.threads > 1)
        on = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"CPU, {threads}"
        return f"{on}, {number_type}" + (f", {self.world_size} ranks" if self.world_size > 1 else "")


def supports_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 there: emulation is ten times slower."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@contextmanager
def execution_context(settings: DeviceSettings, joined: bool = False) -> Iterator[ExecutionContext]:
    """Set this process up to compute as settings say.

    `joined`: under torchrun, to compute together with the other ranks, until the block ends; else it computes alone, be
    there other ranks or not. Raises ValueError when a GPU is asked for and none is there.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device cuda was asked for, but this PyTorch sees no GPU; leave --device at auto, or see nvidia-smi"
        )
    on_gpu = settings.device != "cpu" and torch.cuda.is_available()
    world_size, rank = (int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))) if joined else (1, 0)
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    threads = settings.threads or available_cpus(local_ranks)
    torch.set_num_threads(threads)
    fast = settings.dtype == "bfloat16" or (settings.dtype == "auto" and supports_bfloat16(device))
    place = ExecutionContext(device, torch.bfloat16 if fast else torch.float32, threads, rank, world_size)
    with ExitStack() as stack:
        stack.callback(restore_malloc)  # a notebook or server goes on when this is over
        configure_malloc()
        if on_gpu:
            stack.enter_context(_deterministic_algorithms())
        if world_size > 1:
            # One rank scores while the others wait, which may take longer than torch would; a rank that is dead is
            # noticed by torchrun.
            backend, patience = "nccl" if on_gpu else "gloo", timedelta(days=7)
            # DistributedDataParallel imports this, and its functions' defaults keep the group of that moment for good,
            # with gloo's threads, which now and then abort a process at its exit. Imported before, there is none.
            importlib.import_module("torch.distributed.nn.functional")
            dist.init_process_group(backend, timeout=patience, device_id=device if on_gpu else None)
        try:
            yield place
        finally:
            if world_size > 1:
                dist.destroy_process_group()


@contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    """On a GPU sums are otherwise taken in the order in which threads come; a resumed run would drift away.

    Only warns where an operation knows no other order (the backward pass of attention), rather than to end a run.
    """
    chosen = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling = chosen.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for, before its first product
    torch.use_deterministic_algorithms(True, warn_only=True)
    chosen.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a pass over memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        chosen.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


def default_micro_batch_tokens(place: ExecutionContext, config: EncoderConfig) -> int:
    """How many tokens a forward pass in training takes where the user does not say; the same on every machine alike."""
    if place.device.type != "cuda":
        return CPU_TOKENS
    return tokens_that_fit(torch.cuda.get_device_properties(place.device).total_memory, place.dtype, config)


def tokens_that_fit(memory: int, dtype: torch.dtype, config: EncoderConfig) -> int:
    """Tokens of a forward pass that fit into a GPU of so many bytes, beside weights, gradients and moments (float32).

    >>> from bertwright.models.config import BertConfig
    >>> base = BertConfig.from_size("base", vocab_size=30_522)
    >>> [tokens_that_fit(gigabytes * 10**9, torch.bfloat16, base) for gigabytes in (8, 24, 80)]
    [3296, 13713, 50171]
    """
    room = GPU_SHARE * memory - 4 * 4 * config.num_parameters
    a_token = ACTIVATIONS_PER_TOKEN * dtype.itemsize * config.hidden_size * config.num_layers
    return min(max(int(room / a_token), 512), GPU_TOKENS)


def measure_peak_flops(place: ExecutionContext, hidden_size: int, seconds: float = 0.3) -> float:
    """Matrix-product speed that this place keeps up on a feed-forward layer's shape, FLOP/s.

    The yardstick of utilisation: what a model of this width could reach if it were nothing but matrix products, torch's
    or our own, whichever are faster. The median product counts: for a moment, some processors are several times as fast
    as they can stay.
    """
    on_gpu = place.device.type == "cuda"
    count, repeats = (32_768, 20) if on_gpu else (4_096, 1)  # a GPU is filled by no less, and slow to start and to ask
    rows = torch.randn(count, hidden_size, device=place.device).to(place.dtype)
    weights = torch.randn(4 * hidden_size, hidden_size, device=place.device).to(place.dtype)
    product = torch.empty(len(rows), len(weights), device=place.device, dtype=place.dtype)
    multiply: list[Callable[[], object]] = [lambda: torch.mm(rows, weights.T, out=product)]
    if is_native_bf16(rows) and uses_native_linear(weights):
        multiply.append(lambda: linear_forward(rows, weights, None))
    times: list[list[float]] = [[] for _ in multiply]
    until = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < until:
        for run, taken in zip(multiply, times, strict=True):
            started = time.perf_counter()
            for _ in range(repeats):
                run()
            if on_gpu:
                torch.cuda.synchronize(place.device)
            taken.append(time.perf_counter() - started)
    return repeats * 2 * rows.numel() * len(weights) / min(map(statistics.median, times))
