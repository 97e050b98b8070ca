"""Settings of the device that a command computes on. The module imports no torch, so that help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertwright.base.settings import check_choice, check_range
from bertwright.kernels.cpu import MAX_THREADS


@dataclass(frozen=True)
class DeviceSettings:
    """Device to compute on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU, if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of states and matrix products; weights, LayerNorm, softmax and losses stay float32. auto: bfloat16 where it
    is faster (GPUs since Ampere, CPUs with AMX, AMD's with AVX512-BF16, ARM's with BFMMLA), else float32."""
    threads: int | None = None
    """CPU threads; unset: `OMP_NUM_THREADS`, else all CPUs that this process may use, divided among the ranks on this
    machine. With several ranks, OMP_NUM_THREADS=1 counts as unset, because torchrun sets it."""

    def __post_init__(self) -> None:
        check_choice(self, "device", "dtype")
        check_range(self, 1, MAX_THREADS, "threads")


@dataclass(frozen=True)
class InferenceDeviceSettings(DeviceSettings):
    """Device to compute on, without training."""

    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"  # type: ignore[assignment]
    """Dtype of states and matrix products; weights, LayerNorm, softmax and losses stay float32. auto: bfloat16 where it
    is faster (GPUs since Ampere, CPUs with AMX, AMD's with AVX512-BF16, ARM's with BFMMLA), else float32. int8: the
    linear layers of a BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT or MPNet in int8, on a CPU with AVX2 or more;
    bertwright quantize checks first what that costs."""
