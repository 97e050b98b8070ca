from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertwright.batching.batch import Batch, pack
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingBatch
from bertwright.pretraining.objective import pretraining_losses

CONFIG = BertConfig(
    vocab_size=30, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, max_positions=16,
    hidden_dropout=0.2, attention_dropout=0.2,
)  # fmt: skip
LENGTHS = (5, 9, 3, 12)
NO_LABELS = torch.zeros(0, dtype=torch.int64)


def question(rows: slice, first_token: int = 0, nsp: bool = True) -> PretrainingBatch:
    """Some sequences of one step of four; tokens 1 and 2 of each are asked."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 30, n) for n in LENGTHS]
    labels = torch.from_numpy(rng.integers(0, 30, (4, 2)))
    packed = pack(ids[rows])
    starts = packed.cu_seqlens[:-1].long()
    return PretrainingBatch(
        batch=Batch(**(vars(packed) | {"dropout_seed": 11, "first_token": first_token})),
        mlm_positions=(starts[:, None] + torch.tensor([1, 2])).flatten(),
        mlm_labels=labels[rows].flatten(),
        nsp_labels=torch.tensor([0, 1, 1, 0])[rows] if nsp else NO_LABELS,
        mlm_count=8,
        nsp_count=4 if nsp else 0,
    )


def test_the_losses_are_the_cross_entropies_of_the_logits():
    model, asked = BertForPretraining(CONFIG).eval(), question(slice(None))
    with torch.no_grad():
        predicted = model(asked.batch, asked.mlm_positions)
    found = pretraining_losses(model, asked)
    tokens = -sum(
        math.log(math.exp(row[label]) / sum(map(math.exp, row)))
        for row, label in zip(predicted.tokens.tolist(), asked.mlm_labels.tolist(), strict=True)
    )
    answers = -sum(
        math.log(math.exp(row[label]) / sum(map(math.exp, row)))
        for row, label in zip(predicted.next_sentence.tolist(), asked.nsp_labels.tolist(), strict=True)
    )
    assert found.mlm_sum.item() == pytest.approx(tokens, rel=1e-5)
    assert found.nsp_sum.item() == pytest.approx(answers, rel=1e-5)
    assert found.loss.item() == pytest.approx(tokens / 8 + answers / 4, rel=1e-5)
    assert found.mlm_correct == (predicted.tokens.argmax(-1) == asked.mlm_labels).sum()
    assert found.nsp_correct == (predicted.next_sentence.argmax(-1) == asked.nsp_labels).sum()


def test_an_untrained_model_knows_nothing():
    found = pretraining_losses(BertForPretraining(CONFIG).eval(), question(slice(None)))
    assert found.mlm_sum.item() / 8 == pytest.approx(math.log(30), abs=0.1)
    assert found.nsp_sum.item() / 4 == pytest.approx(math.log(2), abs=0.1)


def test_micro_batches_add_up_to_the_step_with_dropout_on():
    model = BertForPretraining(CONFIG).train()
    whole = pretraining_losses(model, question(slice(None)))
    whole.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    parts = [
        pretraining_losses(model, question(slice(0, 3))),
        pretraining_losses(model, question(slice(3, 4), first_token=17)),
    ]
    for part in parts:
        part.loss.backward()
    for ours, expected in zip(map(sum, zip(*parts, strict=True)), whole, strict=True):
        assert ours.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: n + m)


def test_without_next_sentence_prediction_its_head_gets_no_gradient():
    model = BertForPretraining(CONFIG).train()
    found = pretraining_losses(model, question(slice(None), nsp=False))
    found.loss.backward()
    assert found.nsp_sum == found.nsp_correct == 0
    assert found.loss.item() == pytest.approx(found.mlm_sum.item() / 8)
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {f"{m}.{kind}" for m in ("pooler.dense", "next_sentence") for kind in ("weight", "bias")}


def test_a_micro_batch_may_have_no_masked_token():
    model, asked = BertForPretraining(CONFIG).train(), question(slice(None))
    empty = PretrainingBatch(**(vars(asked) | {"mlm_positions": NO_LABELS, "mlm_labels": NO_LABELS}))
    found = pretraining_losses(model, empty)
    found.loss.backward()
    assert found.mlm_sum == found.mlm_correct == 0
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)
