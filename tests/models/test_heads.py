"""Heads of pre-training and of tasks: their logits, dropout and initial weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining

CONFIG = BertConfig(vocab_size=30, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16)
BATCH = pack([np.arange(1, 6), np.arange(3, 12)])


def test_logits_have_their_shapes_and_are_float32():
    model = BertForPretraining(CONFIG).eval()
    predicted = model(BATCH, torch.tensor([0, 2, 9]))
    assert predicted.tokens.shape == (3, 30)
    assert predicted.next_sentence.shape == (2, 2)
    model.encoder.compute_dtype = torch.bfloat16
    assert all(logits.dtype == torch.float32 for logits in model(BATCH, torch.tensor([0])))


def test_no_positions_give_no_logits():
    predicted = BertForPretraining(CONFIG).eval()(BATCH, torch.zeros(0, dtype=torch.int64))
    assert predicted.tokens.shape == (0, 30)


def test_pooler_reads_the_first_tokens():
    model = BertForPretraining(CONFIG).eval()
    hidden = torch.arange(14.0)[:, None].expand(14, 8) / 14
    with torch.no_grad():
        model.pooler.dense.weight.copy_(torch.eye(8))
    pooled = model.pooler(hidden[BATCH.packing.first_positions])
    torch.testing.assert_close(pooled, torch.tensor([0.0, 5 / 14]).tanh()[:, None].expand(2, 8))


def test_the_decoder_is_tied_to_the_word_embeddings():
    model = BertForPretraining(CONFIG).eval()
    hidden = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    before = model.masked_token.logits(hidden, model.word_embeddings)
    with torch.no_grad():
        model.encoder.embeddings.word.weight[7, 0] += 1.0
        model.masked_token.bias[3] += 2.0
        changed = (model.masked_token.logits(hidden, model.word_embeddings) - before).abs().sum(0) > 1e-3
    assert changed.nonzero().flatten().tolist() == [3, 7]


def test_the_same_seed_gives_the_same_model():
    models = [BertForPretraining(CONFIG, seed) for seed in (4, 4, 5)]
    states = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


# The linear layer of a task

HEADS = [HeadSpec("sequence", 3), HeadSpec("choice", 1), HeadSpec("token", 5), HeadSpec("span", 2)]
POSITIONS = torch.tensor([0, 2, 3, 5, 13])


def task_model(head: HeadSpec, rate: float = 0.0) -> EncoderForTask:
    """Return a model whose weights are so large that every state matters."""
    config = replace(CONFIG, initializer_range=0.3, hidden_dropout=rate, attention_dropout=rate)
    return EncoderForTask(BertEncoder(config, seed=1), head, seed=1)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_logits_are_a_linear_layer_of_the_states_at_positions(head):
    model = task_model(head).eval()
    assert (model.head.pooler is not None) == (head.kind in ("sequence", "choice"))
    states = model.encoder(BATCH)[POSITIONS]
    if model.head.pooler is not None:
        states = (states @ model.head.pooler.dense.weight.T + model.head.pooler.dense.bias).tanh()
    expected = states @ model.head.classifier.weight.T + model.head.classifier.bias
    logits = model(TaskBatch(BATCH, POSITIONS))
    assert logits.shape == (5, head.outputs)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    model.encoder.compute_dtype = torch.bfloat16
    assert model(TaskBatch(BATCH, POSITIONS)).dtype == torch.float32


def test_no_positions_give_no_logits_of_a_task():
    assert task_model(HEADS[2]).eval()(TaskBatch(BATCH, torch.zeros(0, dtype=torch.int64))).shape == (0, 5)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_dropout_precedes_the_linear_layer_except_for_spans(head):
    model = task_model(head._replace(outputs=8), rate=0.4)
    with torch.no_grad():
        model.head.classifier.weight.copy_(torch.eye(8))
    batches = [BATCH.with_dropout(seed) for seed in range(60)]
    undropped = model.eval()(TaskBatch(BATCH, POSITIONS))
    model.train().encoder.eval()
    with torch.no_grad():
        ratios = torch.stack([model(TaskBatch(batch, POSITIONS)) / undropped for batch in batches])
    if head.kind == "span":  # as in Google's run_squad.py
        torch.testing.assert_close(ratios, torch.ones_like(ratios))
        return
    dropped = ratios == 0
    torch.testing.assert_close(ratios[~dropped], torch.full_like(ratios[~dropped], 1 / 0.6))
    assert dropped.float().mean().item() == pytest.approx(0.4, abs=0.05)
    assert (
        0 < dropped.float().mean((0, 2)).min() < dropped.float().mean((0, 2)).max() < 1
    )  # positions have masks of their own


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_dropout_and_gradients_do_not_depend_on_micro_batches(head):
    texts = [np.arange(1, 6), np.arange(3, 12), np.arange(7, 11)]
    whole = pack(texts).with_dropout(5)
    micro_batches = [
        pack(texts[:1]).with_dropout(5),
        pack(texts[1:]).with_dropout(5, 5),
    ]
    positions = [torch.tensor([0, 3]), torch.tensor([0, 8, 9, 12])]
    model = task_model(head, rate=0.3).train()
    logits = model(TaskBatch(whole, torch.cat([positions[0], positions[1] + 5])))
    logits.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for batch, read, expected in zip(micro_batches, positions, logits.detach().split([2, 4]), strict=True):
        found = model(TaskBatch(batch, read))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        found.square().sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    other = model(TaskBatch(whole.with_dropout(6), torch.cat([positions[0], positions[1] + 5])))
    assert not torch.allclose(other, logits, rtol=1e-2)


def test_initial_weights_of_a_head_depend_on_its_seed_only():
    sequence, choice, other = (
        EncoderForTask(BertEncoder(CONFIG, seed=seed), head, seed)
        for head, seed in zip(HEADS[:3], (4, 4, 5), strict=True)
    )
    assert torch.equal(sequence.head.pooler.dense.weight, choice.head.pooler.dense.weight)
    assert torch.equal(sequence.encoder.layers[0].qkv.weight, choice.encoder.layers[0].qkv.weight)
    assert not torch.equal(sequence.encoder.layers[0].qkv.weight, other.encoder.layers[0].qkv.weight)
