"""Padding of micro-batches: fixed shapes, and the same losses and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertwright.kernels import ffi, fused_ops
from bertwright.kernels import linear_cross_entropy as loss_module
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.kernels.reference import IGNORED_LABEL
from bertwright.objectives.data import StoreExamples
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.registry import find_objective
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

CONFIG = BertConfig(
    vocab_size=1005, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, max_positions=32
)  # fmt: skip
OBJECTIVES: list[dict[str, Any]] = [
    {"objective": "mlm+nsp"},
    {"objective": "mlm", "whole_word_mask": True},
    {"objective": "ltr"},
    {"objective": "rtl"},
]


@pytest.fixture(params=["native", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "reference":
        for module in (ffi, fused_ops, loss_module):
            monkeypatch.setattr(module, "use_native", lambda *tensors: False)
    return str(request.param)


def shapes(batch: LanguageModelBatch) -> dict[str, Any]:
    """Return everything that a compiled program depends on."""
    packed = batch.input
    tensors = {
        name: value.shape
        for name, value in (vars(packed) | vars(packed.packing) | vars(batch)).items()
        if torch.is_tensor(value)
    }
    return tensors | {"max_seqlen": packed.packing.max_seqlen}


@pytest.mark.parametrize("given_settings", OBJECTIVES, ids=lambda value: value["objective"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(length=st.integers(6, 40), size=st.integers(1, 9), step=st.integers(0, 99), short=st.sampled_from([0.0, 0.5, 1]))
def test_padded_batches_of_all_steps_have_equal_shapes(
    mixed_store: TokenStore,
    tokenizer: Tokenizer,
    given_settings: dict[str, Any],
    length: int,
    size: int,
    step: int,
    short: float,
) -> None:
    chosen = DataSettings(length, 12, short_seq_prob=short, mlm_probability=0.3, **given_settings)
    objective = find_objective(chosen.objective)
    examples = StoreExamples(mixed_store, tokenizer, chosen, objective)
    batches = examples.batches_for_step(step, micro_batch_size=size)
    padded = [objective.pad_batch(batch, size, chosen) for batch in batches]
    assert all(shapes(batch) == shapes(padded[0]) for batch in padded)
    for before, after in zip(batches, padded, strict=True):
        sequences, tokens, predictions = (
            len(before.packing),
            before.packing.num_tokens,
            len(before.mlm_labels),
        )
        assert (after.num_sequences, after.num_predictions) == (sequences, predictions)
        assert after.packing.num_tokens == after.packing.lengths.sum() == size * length == after.packing.cu_seqlens[-1]
        assert after.packing.lengths.max() <= after.packing.max_seqlen == length
        assert after.input.input_ids[:tokens].equal(before.input.input_ids)
        assert after.packing.cu_seqlens[: sequences + 1].equal(before.packing.cu_seqlens)
        assert after.mlm_positions[:predictions].equal(before.mlm_positions)
        assert after.mlm_labels[predictions:].eq(IGNORED_LABEL).all()
        read = torch.cat([after.packing.cu_seqlens[: len(after.nsp_labels)].long(), after.mlm_positions])
        assert len(read.unique()) == len(read)
        assert read.max() < size * length


@pytest.mark.parametrize("given_settings", OBJECTIVES, ids=lambda value: value["objective"])
def test_padding_leaves_losses_bit_equal_and_gradients_equal(
    mixed_store: TokenStore, tokenizer: Tokenizer, kernels: str, given_settings: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    chosen = DataSettings(32, 12, short_seq_prob=0.5, **given_settings)
    objective = find_objective(chosen.objective)
    data = StoreExamples(mixed_store, tokenizer, chosen, objective)
    model = BertForPretraining(CONFIG, seed=1).train()

    def run(batch: LanguageModelBatch) -> tuple[list[float], dict[str, torch.Tensor]]:
        model.zero_grad()
        output = objective.loss(model, batch)
        output.loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        losses = [output.loss.item(), *(value.item() for value in output.sums.values())]
        return losses, {name: grad for name, grad in gradients.items() if grad is not None}

    for batch in [batch for step in range(3) for batch in data.batches_for_step(step, micro_batch_size=5)]:
        losses, gradients = run(batch)
        padded_losses, padded_gradients = run(objective.pad_batch(batch, 5, chosen))
        assert padded_losses == losses
        assert padded_gradients.keys() == gradients.keys()
        for name, gradient in padded_gradients.items():  # sums over more rows are rounded differently
            dense, expected = gradient.to_dense(), gradients[name].to_dense()
            torch.testing.assert_close(dense, expected, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)


def test_ignored_labels_have_neither_loss_nor_gradient(kernels: str) -> None:
    hidden, weight, bias = torch.randn(4, 8), torch.randn(10, 8), torch.randn(10)
    labels = torch.tensor([3, IGNORED_LABEL, 9, IGNORED_LABEL])

    def run(rows: torch.Tensor) -> list[torch.Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        loss, correct = linear_cross_entropy(inputs[0][rows], inputs[1], inputs[2], labels[rows])
        loss.backward()
        return [loss.detach(), correct, *(tensor.grad for tensor in inputs if tensor.grad is not None)]

    for ours, expected in zip(run(torch.arange(4)), run(torch.tensor([0, 2])), strict=True):
        torch.testing.assert_close(ours, expected)
