"""Execution context: device, threads, ranks, memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bertwright.base.reporter import MUTE
from bertwright.kernels.attention import cuda_attention, order_gradients, split
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.bert import bert_encoder
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
from bertwright.training import context
from bertwright.training.context import ExecutionContext, execution_context, prefers_bfloat16, select_device
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.training.run_folder import format_resume_command
from bertwright.training.throughput import (
    CPU_TOKENS,
    GPU_TOKENS,
    choose_micro_batch_tokens,
    count_tokens_that_fit,
    default_micro_batch_tokens,
    measure_peak_flops,
)
from bertwright.training.train_run import train_run
from harness import run_on_ranks


def test_device_settings_configure_the_process() -> None:
    before = torch.get_num_threads()
    try:
        with execution_context(DeviceSettings(device="cpu", dtype="bfloat16", threads=1)) as context:
            assert (context.device.type, context.dtype, context.threads, context.world_size) == (
                "cpu",
                torch.bfloat16,
                1,
                1,
            )
            assert context.is_main_process
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before
        with execution_context(DeviceSettings(device="cpu")) as context:
            fast = prefers_bfloat16(torch.device("cpu"))
            assert context.dtype == (torch.bfloat16 if fast else torch.float32)
            assert measure_peak_flops(context, hidden_size=128, seconds=0.01) > 1e8
    finally:
        torch.set_num_threads(before)


def test_missing_gpu_raises_an_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="sees no GPU"), execution_context(DeviceSettings(device="cuda")):
        pass


def test_more_processes_than_gpus_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for rank in "0", "1":
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with pytest.raises(ValueError, match=r"2 processes .*1 GPU; lower --nproc-per-node to 1"):
            select_device(DeviceSettings())
    assert select_device(DeviceSettings(device="cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert select_device(DeviceSettings()) == torch.device("cuda", 1)


def test_the_resume_command_starts_as_many_processes_per_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = PretrainSettings(Path("run"), Path("store"))
    sixteen = ExecutionContext(torch.device("cpu"), torch.float32, threads=1, world_size=16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    one = format_resume_command(settings, "pretrain", sixteen)
    assert one == "torchrun --nproc-per-node 16 -m -- bertwright pretrain --run run --resume"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert "torchrun --nnodes 2 --nproc-per-node 8 -m" in format_resume_command(settings, "pretrain", sixteen)
    alone = replace(sixteen, world_size=1)
    assert format_resume_command(settings, "pretrain", alone) == "bertwright pretrain --run run --resume"


def count_gloo_threads() -> int:
    """Train together with the other ranks; return the number of threads of gloo afterwards."""

    def threads() -> list[str]:
        return [path.read_text() for path in Path("/proc/self/task").glob("*/comm") if "gloo" in path.read_text()]

    with execution_context(DeviceSettings(device="cpu", threads=1), distributed=True):
        trained = DistributedDataParallel(torch.nn.Linear(3, 3))
        trained(torch.ones(2, 3)).sum().backward()
        assert threads()
        del trained
    return len(threads())


def test_ranks_have_no_threads_of_gloo_after_the_process_group() -> None:
    assert run_on_ranks(2, count_gloo_threads) == {0: 0, 1: 0}


def fail_to_start(run: Path) -> str:
    """Start a run on a disk that is full; return the error."""

    def open_run(*_: object) -> Any:
        def fail() -> None:
            raise OSError("no space left")

        return SimpleNamespace(record_start=fail, spec=dist.barrier)

    settings: Any = SimpleNamespace(run=run, resume=False, dry_run=False, device=DeviceSettings("cpu", threads=1))
    try:
        train_run(settings, (), open_run, MUTE)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_start_that_fails_on_rank_0_ends_all_ranks(tmp_path: Path) -> None:
    """The other ranks would wait for rank 0 in the first step."""
    rejected = f"ValueError: {tmp_path / 'run'}: rejected by rank 0; see its message"
    assert run_on_ranks(2, fail_to_start, tmp_path / "run") == {0: "OSError: no space left", 1: rejected}


def test_zero_threads_raise_an_error() -> None:
    with pytest.raises(ValueError, match="threads: expected 1 to"):
        DeviceSettings(threads=0)


TINY = BertConfig.from_size("tiny", vocab_size=100)


def test_micro_batch_tokens_follow_the_memory() -> None:
    base, large = (BertConfig.from_size(size, vocab_size=30_522) for size in ("base", "large"))
    many = [count_tokens_that_fit(memory * 10**9, torch.bfloat16, base) for memory in (1, 16, 40, 1000)]
    assert many == sorted(many)
    assert (many[0], many[-1]) == (512, GPU_TOKENS)
    assert count_tokens_that_fit(40 * 10**9, torch.bfloat16, large) < many[2] / 2
    assert count_tokens_that_fit(40 * 10**9, torch.float32, base) == pytest.approx(many[2] / 2, abs=1)
    with execution_context(DeviceSettings(device="cpu", threads=torch.get_num_threads())) as context:
        assert default_micro_batch_tokens(context, large) == CPU_TOKENS
        # Where a second forward pass would follow, a step is whole up to a graph of 4 GB: 4,340 tokens.
        chosen = [choose_micro_batch_tokens(context, base, tokens) for tokens in (100, 4_300, 4_400, 10**6)]
        assert chosen == [CPU_TOKENS, 4_300, CPU_TOKENS, CPU_TOKENS]


def self_attention_on_cuda(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *rest: Any) -> Tensor:
    return cuda_attention(split((qkv,)), (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), *rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_tensors_of_a_pretraining_step_are_on_the_device(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor on the CPU among those of a GPU would raise an error. PyTorch's "meta" tensors, which have a device
    and a shape but no numbers, show it without a GPU: forward, backward and update."""
    monkeypatch.setattr(bert_encoder, "attention", self_attention_on_cuda)
    packed = pack([np.arange(3, 12), np.arange(4, 20)]).with_dropout(3)
    asked = torch.tensor([1, 3, 10]), torch.tensor([5, 6, 7]), torch.tensor([0, 1])
    batch = LanguageModelBatch(packed, *asked, lm_count=3, nsp_count=2).to("meta")
    model = BertForPretraining(TINY).train().to("meta")
    model.encoder.compute_dtype = dtype
    optimizer = Optimizer(dict(model.named_parameters()), OptimizerSettings())
    MaskedLMWithNextSentence().loss(model, batch).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step(1e-3, norm=1.0)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("head", [HeadSpec("sequence", 3), HeadSpec("token", 5), HeadSpec("span", 2)])
def test_all_tensors_of_a_task_step_are_on_the_device(head: HeadSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert_encoder, "attention", self_attention_on_cuda)
    packed = pack([np.arange(3, 12), np.arange(4, 20)]).with_dropout(3)
    model = EncoderForTask(BertEncoder(TINY), head).train().to("meta")
    logits = model(TaskBatch(packed.to("meta"), torch.tensor([0, 9], device="meta")))
    assert logits.shape == (2, head.outputs)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_warnings_of_torch_about_determinism_are_not_shown() -> None:
    texts = (
        "Flash Attention defaults to a non-deterministic algorithm. To explicitly enable determinism call …",
        "cumsum_cuda_kernel does not have a deterministic implementation, but you set …",
    )
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        with context._deterministic_algorithms():
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            for text in (*texts, "of interest"):
                warnings.warn(text, UserWarning, stacklevel=1)
        assert warnings.filters == filters
    assert [str(warning.message) for warning in shown] == ["of interest"]
    assert not torch.are_deterministic_algorithms_enabled()


def test_attention_of_torch_computes_gradients_where_determinism_is_strict() -> None:
    """PyTorch's attention adds up gradients in any order if determinism only warns."""
    modes: list[tuple[str, bool]] = []

    def record(name: str) -> Callable[..., None]:
        return lambda *_: modes.append((name, torch.is_deterministic_algorithms_warn_only_enabled()))

    x = torch.ones(3, requires_grad=True)
    with context._deterministic_algorithms():
        attended = x.sin()
        order_gradients(attended)
        assert attended.grad_fn is not None
        attended.grad_fn.register_prehook(record("attention"))
        x.register_hook(record("before it"))
        attended.sum().backward()
    assert modes == [("attention", False), ("before it", True)]


def test_execution_context_restores_the_defaults_of_malloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """FINDINGS M9: a notebook that once trained would never give memory back."""
    calls: list[str] = []
    monkeypatch.setattr(context, "configure_malloc", lambda: calls.append("configured"))
    monkeypatch.setattr(context, "restore_malloc", lambda: calls.append("restored"))
    with pytest.raises(KeyError), context.execution_context(DeviceSettings(device="cpu", threads=1)):
        assert calls == ["configured"]
        raise KeyError
    assert calls == ["configured", "restored"]
