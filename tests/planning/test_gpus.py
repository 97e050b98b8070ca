"""Estimates for GPUs, worked by hand from the figures of a data sheet."""

from __future__ import annotations

import pytest

from bertwright.base.settings import field_docs
from bertwright.planning.gpus import GPUS, UTILIZATION, Gpu, estimate_memory, estimate_seconds
from bertwright.planning.plan_settings import PlanSettings
from bertwright.systems.bert.bert_config import BertConfig

BASE = BertConfig.from_size("base", vocab_size=30_522)
TINY = BertConfig.from_size("tiny", vocab_size=30_522)


def test_seconds_are_operations_divided_by_the_utilized_peak() -> None:
    assert estimate_seconds(Gpu(100e12, 80e9), BASE, flops=200e12) == pytest.approx(2 / UTILIZATION)


def test_help_names_all_gpus() -> None:
    text = field_docs(PlanSettings)["gpu"]
    assert [name for name in GPUS if name not in text] == []


def test_narrow_models_utilize_a_gpu_in_proportion_to_their_hidden_size() -> None:
    gpu = GPUS["h100"]
    assert estimate_seconds(gpu, TINY, 1e15) == pytest.approx(768 / 128 * estimate_seconds(gpu, BASE, 1e15))


def test_base_on_an_h200_reads_hundreds_of_thousands_of_tokens_per_second() -> None:
    flops = BASE.count_training_flops([128] * 256, num_predictions=256 * 19, pooled=True)
    assert 256 * 128 / estimate_seconds(GPUS["h200"], BASE, flops) == pytest.approx(760_000, rel=0.05)


def test_memory_is_that_of_weights_and_of_the_tokens_of_a_micro_batch() -> None:
    # Weight, gradient and two moments of 4 bytes; per token and layer 50 hidden sizes of 2 bytes.
    expected = 16 * BASE.num_parameters + 4096 * 12 * 50 * 2 * 768
    assert estimate_memory(GPUS["a100"], BASE, step_tokens=4096) == expected


def test_large_steps_are_cut_into_micro_batches_that_fit() -> None:
    gpu = GPUS["a10"]
    assert estimate_memory(gpu, BASE, step_tokens=10**9) < gpu.memory
