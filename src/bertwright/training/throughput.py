"""Speed and memory of this machine: the peak speed of matrix products, and the micro-batches that fit in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from bertwright.kernels.cpu import available_memory
from bertwright.kernels.cpu_linear import is_native_bf16, linear_forward, uses_native_linear
from bertwright.models.encoder import EncoderConfig
from bertwright.training.context import ExecutionContext

CPU_TOKENS, GPU_TOKENS = 4_096, 65_536  # per forward pass: enough to use the whole processor
ACTIVATIONS_PER_TOKEN = 50  # values saved per token and layer, in hidden sizes, with a reserve
MEASURED_PER_TOKEN = 25  # the same as measured, without reserve
GRAPH_MEMORY = 4 * 10**9  # bytes that the graph of a step may have on a CPU, whatever the machine: runs must resume
GPU_SHARE = 0.6  # usable share of a GPU's memory; the rest is for gradients of weights and for fragmentation


def default_micro_batch_tokens(context: ExecutionContext, config: EncoderConfig, shards: int = 1) -> int:
    """Return the default number of tokens per forward pass in training. It depends on GPU, dtype and model.

    `shards`: number of ranks that divide weights, gradients and moments.
    """
    if context.device.type != "cuda":
        return CPU_TOKENS
    memory = torch.cuda.get_device_properties(context.device).total_memory
    return count_tokens_that_fit(memory, context.dtype, config, shards)


def count_tokens_that_fit(memory: int, dtype: torch.dtype, config: EncoderConfig, shards: int = 1) -> int:
    """Return the tokens per forward pass that fit in a GPU's memory (bytes) with float32 weights, gradients, moments.

    `shards`: number of ranks that divide these four; rank 0 then has all weights as well.

    >>> from bertwright.systems.bert.bert_config import BertConfig
    >>> base = BertConfig.from_size("base", vocab_size=30_522)
    >>> [count_tokens_that_fit(gigabytes * 10**9, torch.bfloat16, base) for gigabytes in (8, 24, 80)]
    [3296, 13713, 50171]
    """
    weights = 4 * config.num_parameters
    free = GPU_SHARE * memory - 4 * weights / shards - (weights if shards > 1 else 0)
    bytes_per_token = ACTIVATIONS_PER_TOKEN * dtype.itemsize * config.hidden_size * config.num_layers
    return min(max(int(free / bytes_per_token), 512), GPU_TOKENS)


def choose_micro_batch_tokens(context: ExecutionContext, config: EncoderConfig, step_tokens: int) -> int:
    """Return the tokens per forward pass for a step of a loss that needs all its rows.

    Several micro-batches cost a second forward pass. So on a CPU, a step is one if its graph fits in `GRAPH_MEMORY`.
    """
    bytes_per_token = MEASURED_PER_TOKEN * 4 * config.hidden_size * config.num_layers
    if context.device.type != "cuda" and step_tokens * bytes_per_token <= GRAPH_MEMORY:
        return max(step_tokens, CPU_TOKENS)
    return default_micro_batch_tokens(context, config)


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of memory of a GPU or, for a CPU, of this machine; None if unknown."""
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    return available_memory()


def measure_peak_flops(context: ExecutionContext, hidden_size: int, seconds: float = 0.3) -> float:
    """Measure the sustained speed (FLOP/s) of matrix products with the shape of a feed-forward layer.

    This speed is a utilization of 1: a model of this hidden size would reach it if it computed only matrix products.
    Torch or the native kernels multiply, whichever is faster. The median is used because some processors are several
    times as fast for a short time as they can be permanently.
    """
    on_gpu = context.device.type == "cuda"
    count, repeats = (32_768, 20) if on_gpu else (4_096, 1)  # a GPU needs more work per launch and per synchronization
    states = torch.randn(count, hidden_size, device=context.device).to(context.dtype)
    weights = torch.randn(4 * hidden_size, hidden_size, device=context.device).to(context.dtype)
    product = torch.empty(len(states), len(weights), device=context.device, dtype=context.dtype)
    multiply: list[Callable[[], object]] = [lambda: torch.mm(states, weights.T, out=product)]
    if is_native_bf16(states) and uses_native_linear(weights):
        multiply.append(lambda: linear_forward(states, weights, None))
    times: list[list[float]] = [[] for _ in multiply]
    until = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < until:
        for run, measured in zip(multiply, times, strict=True):
            started = time.perf_counter()
            for _ in range(repeats):
                run()
            if on_gpu:
                torch.cuda.synchronize(context.device)
            measured.append(time.perf_counter() - started)
    return repeats * 2 * states.numel() * len(weights) / min(map(statistics.median, times))
