"""The biattentive classification network: a reference in loops, batches, empty texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import Packing, WordBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bcn.bcn import BcnConfig, BcnEncoder, BcnHead
from bertwright.systems.cove.mt_lstm import CoveConfig
from bertwright.vocabulary.word_tokenizer import BEGIN, END, UNKNOWN

COVE = CoveConfig(20, word_size=3, hidden_size=4)
SINGLES = [[[5, 6, 7]], [[8]], [[9, 5, 2, 12]]]
PAIRS = [[[5, 6, 7], [8, 9]], [[3], [4, 11, 12]], [[10, 3], [10, 3]]]


def make_batch(examples: list[list[list[int]]]) -> TaskBatch:
    sequences = [[BEGIN, *(id_ for text in texts for id_ in (*text, END))] for texts in examples]
    rows = torch.tensor([id_ for ids in sequences for id_ in ids])[:, None]
    packing = Packing.of(np.array([len(ids) for ids in sequences]))
    return TaskBatch(WordBatch(packing, rows), packing.first_positions)


def make_model(texts: int, context: CoveConfig | None = COVE) -> EncoderForTask:
    config = BcnConfig(20, 5, word_size=6, char_model="none", texts=texts, lstm_size=4, language_model=context)
    model = EncoderForTask(BcnEncoder(config, seed=2), HeadSpec("sequence", 3), seed=2).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norms" not in name:  # larger weights, so that no part of the model is nearly linear
                parameter.mul_(4)
            elif not name.endswith("weight"):
                parameter.copy_(torch.linspace(-0.5, 0.5, len(parameter)))
    return model.eval()


def run_lstm(layer: nn.Module, states: Tensor) -> Tensor:
    result: Tensor = layer(states)[0]
    return result


def weighted(values: Tensor, scores: Tensor) -> Tensor:
    """Return the mean of the rows by softmax weights, in a loop."""
    weights = scores.exp() / scores.exp().sum()
    return sum((w * row for w, row in zip(weights, values, strict=True)), torch.zeros_like(values[0]))


def reference_logits(model: EncoderForTask, texts: list[list[int]]) -> Tensor:
    """Compute the logits of one example by loops over words (section 5 of the paper, and its figure 2)."""
    encoder, head = model.encoder, model.head
    assert isinstance(encoder, BcnEncoder)
    assert isinstance(head, BcnHead)
    read = []
    for ids in texts:
        words = encoder.embeddings.word.weight[ids]
        if encoder.language_model is not None:
            context = encoder.language_model.model.words.weight[ids]  # type: ignore[union-attr]
            for layer in encoder.language_model.model.layers:
                context = run_lstm(layer, context)
            words = torch.cat([words, context], 1)
        reader = encoder.layers[0]
        read.append(run_lstm(reader.lstm, torch.relu(reader.dense(words))))  # type: ignore[arg-type, operator]
    pooled = []
    for role, own in enumerate(read):
        partner = read[1 - role] if len(read) == 2 else own
        summaries = torch.stack([weighted(partner, torch.stack([x @ y for y in partner])) for x in own])
        joined = torch.cat([own, own - summaries, own * summaries], 1)
        states = run_lstm(encoder.layers[1].lstms[role], joined)  # type: ignore[index, union-attr]
        scores = states @ head.attention.weight[role] + head.attention.bias[role]
        pooled += [states.max(0).values, states.mean(0), states.min(0).values, weighted(states, scores)]
    x = torch.cat(pooled)
    for norm, maxout in zip(head.norms, head.maxouts, strict=True):
        x = (x - norm.mean) / (norm.variance + 1e-5).sqrt() * norm.weight + norm.bias
        channels = maxout(x).view(4, -1)  # type: ignore[operator]
        x = torch.stack([max(column) for column in channels.T])
    return x


@pytest.mark.parametrize("context", [COVE, None])
@pytest.mark.parametrize("examples", [SINGLES, PAIRS])
def test_logits_equal_loops(examples: list[list[list[int]]], context: CoveConfig | None) -> None:
    model = make_model(len(examples[0]), context)
    with torch.no_grad():
        logits = model(make_batch(examples))
        reference = torch.stack([reference_logits(model, texts) for texts in examples])
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-9)
    assert logits.std(0).min() > 1e-4  # the examples differ


@torch.no_grad()
@pytest.mark.parametrize("examples", [SINGLES, PAIRS])
def test_states_do_not_depend_on_the_batch(examples: list[list[list[int]]]) -> None:
    model = make_model(len(examples[0]))
    together = model.encoder(make_batch(examples).input)
    alone = torch.cat([model.encoder(make_batch([example]).input) for example in examples])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    marks = make_batch(examples).input.rows[:, 0] <= END  # type: ignore[attr-defined]
    assert not together[marks].any()
    assert together[~marks].any(1).all()


@torch.no_grad()
@pytest.mark.parametrize(("texts", "examples", "words"), [(1, PAIRS, "single texts"), (2, SINGLES, "pairs of texts")])
def test_number_of_texts_other_than_the_models_is_named(
    texts: int, examples: list[list[list[int]]], words: str
) -> None:
    with pytest.raises(ValueError, match=f"^bcn: expected {words}"):
        make_model(texts)(make_batch(examples))


def test_empty_texts_have_finite_logits_and_change_no_other_text() -> None:
    model = make_model(2)
    with_empty = model(make_batch([PAIRS[0], [[], [5, 6]], [[5], []], [[], []], PAIRS[1]]))
    assert with_empty.isfinite().all()
    torch.testing.assert_close(with_empty[[0, 4]], model(make_batch(PAIRS[:2])))
    only_empty = model(make_batch([[[], []]]))
    torch.testing.assert_close(only_empty, with_empty[3:4])


@torch.no_grad()
def test_words_with_keyed_vectors_have_the_context_of_unknown_ones() -> None:
    encoder = make_model(1).float().encoder
    states = []
    for number in (UNKNOWN, -12345):
        batch = make_batch([[[5, 6]]])
        assert isinstance(batch.input, WordBatch)
        batch.input.rows[1, 0] = number
        states.append(encoder.hidden_states(batch.input, [0])[0])
    torch.testing.assert_close(states[0][:, 6:], states[1][:, 6:])  # context
    assert not torch.equal(states[0][:, :6], states[1][:, :6])  # the words' own vectors


def test_the_encoder_has_one_state_size_and_the_context_is_not_trained() -> None:
    model = make_model(2)
    encoder = model.encoder
    assert isinstance(encoder, BcnEncoder)
    model.train()
    model(make_batch(PAIRS)).sum().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert all("language_model.model." in name for name in without)
    assert any("language_model.model.layers" in name for name in without)
    assert encoder.config.num_parameters == sum(parameter.numel() for parameter in encoder.parameters())
