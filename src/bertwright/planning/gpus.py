"""Peak speed and memory of GPUs, from their makers' data sheets, to plan for a GPU that this machine does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bertwright.systems.bert.bert_config import BertConfig

# Share of the peak speed that a training step of BASE is assumed to reach. NVIDIA's own BERT reaches 0.45 for LARGE on
# an A100 (DeepLearningExamples, 580 sequences of 128 tokens per second).
UTILIZATION = 0.4
FULL_HIDDEN_SIZE = 768  # hidden size of BASE; narrower models have about proportionally lower utilization


class Gpu(NamedTuple):
    """Figures of a data sheet."""

    flops: float
    """Peak of bfloat16 matrix products with float32 accumulation, in FLOP/s, without sparsity."""
    memory: float
    """Bytes."""


GPUS = {
    "a10": Gpu(125e12, 24e9),  # NVIDIA A10 datasheet, 2021
    "a100": Gpu(312e12, 80e9),  # NVIDIA A100 80GB datasheet, 2021
    "a100-40gb": Gpu(312e12, 40e9),  # NVIDIA A100 datasheet, 2020
    "h100": Gpu(989e12, 80e9),  # NVIDIA H100 datasheet, SXM: 1,979 TFLOP/s with sparsity
    "h100-pcie": Gpu(756e12, 80e9),  # NVIDIA H100 datasheet, PCIe: 1,513 TFLOP/s with sparsity
    "h200": Gpu(989e12, 141e9),  # NVIDIA H200 datasheet, SXM: 1,979 TFLOP/s with sparsity
    "l4": Gpu(121e12, 24e9),  # NVIDIA L4 datasheet: 242 TFLOP/s with sparsity
    "l40s": Gpu(362e12, 48e9),  # NVIDIA L40S datasheet: 733 TFLOP/s with sparsity
    "rtx3090": Gpu(71e12, 24e9),  # NVIDIA GA102 whitepaper, appendix A
    "rtx4090": Gpu(165e12, 24e9),  # NVIDIA Ada whitepaper, appendix A
}


def estimate_seconds(gpu: Gpu, config: BertConfig, flops: float) -> float:
    """Estimate the seconds that a GPU takes for `flops` operations of a model's training.

    >>> from bertwright.systems.bert.bert_config import BertConfig
    >>> base = BertConfig.from_size("base", vocab_size=30_522)
    >>> round(estimate_seconds(GPUS["h200"], base, flops=989e12))
    2
    """
    utilization = UTILIZATION * min(1.0, config.hidden_size / FULL_HIDDEN_SIZE)
    return flops / (gpu.flops * utilization)


def estimate_memory(gpu: Gpu, config: BertConfig, step_tokens: int) -> float:
    """Estimate the bytes of weights, gradients, two moments and the activations of a micro-batch in bfloat16.

    `step_tokens`: tokens per step, the maximum of a micro-batch.
    """
    import torch  # slow to import, and --help does not need it

    from bertwright.training.throughput import ACTIVATIONS_PER_TOKEN, count_tokens_that_fit

    tokens = min(step_tokens, count_tokens_that_fit(int(gpu.memory), torch.bfloat16, config))
    activations = tokens * ACTIVATIONS_PER_TOKEN * torch.bfloat16.itemsize * config.hidden_size * config.num_layers
    return 4 * 4 * config.num_parameters + activations
