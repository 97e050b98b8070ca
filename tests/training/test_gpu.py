"""Parity of training steps in all dtypes and devices; bench/gpu.sh runs it on a GPU."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from bertwright.models.packing import pack
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
from bertwright.training.context import execution_context
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.loop import train_steps
from bertwright.training.optimizer import Optimizer, OptimizerSettings

VOCABULARY, STEPS = 500, 5
ROOT = Path(__file__).parents[2]


def make_batch() -> LanguageModelBatch:
    rng = np.random.default_rng(0)
    batch = pack([rng.integers(5, VOCABULARY, length) for length in (17, 64, 5, 40)])
    positions = torch.arange(3, len(batch.input_ids), 7)
    labels = torch.from_numpy(rng.integers(5, VOCABULARY, len(positions)))
    return LanguageModelBatch(batch, positions, labels, torch.tensor([0, 1, 1, 0]), len(labels), len(batch.packing))


def losses(device: Literal["cpu", "cuda"], dtype: torch.dtype) -> Iterator[float]:
    """Train a small model on one batch; attention has no dropout, since a GPU's kernels draw their own."""
    with execution_context(DeviceSettings(device, "float32", 1)) as context:
        config = BertConfig.from_size("tiny", VOCABULARY, attention_dropout=0.0)
        model = BertForPretraining(config, seed=1).train().to(context.device)
        model.encoder.compute_dtype = dtype
        optimizer = Optimizer(dict(model.named_parameters()), OptimizerSettings())
        batches = repeat([make_batch().to(context.device)], STEPS)
        loss = partial(MaskedLMWithNextSentence().loss, model)
        for result in train_steps(loss, batches, optimizer, lambda _: 1e-3):
            yield float(result.sums["lm_sum"]) / float(result.sums["lm_count"])


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        pytest.param("cpu", torch.bfloat16, 3e-2),
        pytest.param("cuda", torch.float32, 1e-4, marks=gpu),
        pytest.param("cuda", torch.bfloat16, 3e-2, marks=gpu),
    ],
)
def test_training_steps_have_the_losses_of_float32_on_the_cpu(
    device: Literal["cpu", "cuda"], dtype: torch.dtype, tolerance: float
) -> None:
    expected = list(losses("cpu", torch.float32))
    assert expected[0] - expected[-1] > 0.1
    assert list(losses(device, dtype)) == pytest.approx(expected, abs=tolerance)


@gpu
def test_training_on_a_gpu_gives_the_same_bits_again() -> None:
    """With dropout everywhere, sequences of several tiles, and more tokens with one id than a sum's block."""

    def train() -> list[float]:
        with execution_context(DeviceSettings("cuda", "bfloat16", 1)) as context:
            rng = np.random.default_rng(0)
            packed = pack([rng.integers(5, 9, length) for length in (300, 64, 512, 17, 200)]).with_dropout(3)
            positions = torch.arange(3, len(packed.input_ids), 7)
            labels = torch.from_numpy(rng.integers(5, VOCABULARY, len(positions)))
            batch = LanguageModelBatch(packed, positions, labels, torch.tensor([0, 1, 1, 0, 1]), len(labels), 5)
            model = BertForPretraining(BertConfig.from_size("mini", VOCABULARY), seed=1).train().to(context.device)
            model.encoder.compute_dtype = context.dtype
            optimizer = Optimizer(dict(model.named_parameters()), OptimizerSettings())
            loss = partial(MaskedLMWithNextSentence().loss, model)
            batches = repeat([batch.to(context.device)], STEPS)
            results = [result.gradient_norm for result in train_steps(loss, batches, optimizer, lambda _: 1e-3)]
            return [*results, *(float(parameter.detach().double().sum()) for parameter in model.parameters())]

    assert train() == train()


@gpu
def test_graphs_have_the_bits_of_kernels_started_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of several sizes, steps of two micro-batches, and weights that something else changes in between."""
    from bertwright.kernels.triton import cuda_graphs

    def make_batches(number: int) -> list[LanguageModelBatch]:
        rng = np.random.default_rng(number)
        packed = [pack([rng.integers(5, 400, n) for n in rng.integers(5, 60, 12 + number % 2)]) for _ in range(2)]
        batches = []
        for micro, batch in enumerate(packed[: 1 + (number > 5)]):
            positions = torch.arange(3, len(batch.input_ids), 7)
            labels = torch.from_numpy(rng.integers(5, VOCABULARY, len(positions)))
            answers = torch.arange(len(batch.packing)) % 2
            dropped = batch.with_dropout(number, 1000 * micro)
            batches.append(LanguageModelBatch(dropped, positions, labels, answers, 2 * len(labels), 2 * len(answers)))
        return batches

    def train(uses: int) -> list[torch.Tensor]:
        monkeypatch.setattr(cuda_graphs, "USES_BEFORE_CAPTURE", uses)
        with execution_context(DeviceSettings("cuda", "bfloat16", 1)) as context:
            model = BertForPretraining(BertConfig.from_size("mini", VOCABULARY), seed=1).train().to(context.device)
            model.encoder.compute_dtype = context.dtype
            optimizer = Optimizer(dict(model.named_parameters()), OptimizerSettings())
            batches = ([batch.to(context.device) for batch in make_batches(number)] for number in range(12))
            steps = train_steps(partial(MaskedLMWithNextSentence().loss, model), batches, optimizer, lambda _: 1e-3)
            for result in steps:
                if result.step == 9:
                    with torch.no_grad():
                        model.encoder.layers[0].qkv.weight.mul_(0.5)
            encoders = cuda_graphs._encoders.get(model.encoder.layers[0].qkv.weight)
            assert encoders is not None
            (encoder,) = encoders.values()
            assert any(padded.graphs for padded in encoder.padded.values()) == (uses == 1)
            assert not cuda_graphs._problems
            return [parameter.detach().cpu() for parameter in model.parameters()]

    assert all(map(torch.equal, train(1), train(10**9)))


@gpu
def test_two_encoders_in_one_backward_pass_have_their_own_graphs() -> None:
    """Also after a third one has gone, whose memory pool ended with it."""
    from bertwright.kernels.triton import cuda_graphs

    def train(models: int) -> list[torch.Tensor]:
        config = BertConfig.from_size("mini", VOCABULARY)
        encoders = [BertEncoder(config, torch.bfloat16, seed=seed).train().cuda() for seed in range(models)]
        batch = pack([np.arange(5, 5 + length) for length in (40, 60)]).to("cuda")
        for step in range(4):
            states = [encoder(batch.with_dropout(step)) for encoder in encoders]
            for encoder in encoders:
                encoder.zero_grad()
            torch.stack(states).float().square().mean(1).sum().backward()
        gradients = [parameter.grad for encoder in encoders for parameter in encoder.parameters()]
        assert not cuda_graphs._problems
        return [gradient.cpu() for gradient in gradients if gradient is not None]

    (alone, both, again), count = (train(1), train(2), train(1)), len(cuda_graphs._encoders)
    assert all(map(torch.equal, alone, both))
    assert all(map(torch.equal, alone, again))
    assert count <= 1


def test_packages_that_travel_to_a_gpu_machine_have_pinned_versions() -> None:
    """Without a pin, pip took an old seqeval, the last one that has a wheel."""
    (listed,) = re.findall(r"^packages=\((.*)\)$", (ROOT / "bench/gpu.sh").read_text(), flags=re.MULTILINE)
    pinned = re.findall(r"^(.+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert set(listed.split()) <= {name.replace("_", "-") for name in pinned}
