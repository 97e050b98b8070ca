"""ULMFiT's AWD-LSTM and its classifier against PyTorch's layers and loops written after the papers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout, keep_mask
from bertwright.models.batch_norm import BatchNorm
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packed_lstm import LstmValues
from bertwright.models.packing import Packing, TokenBatch, from_flat
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.ulmfit.awd_lstm import (
    AwdLstmConfig,
    AwdLstmEncoder,
    AwdLstmLanguageModel,
    ConcatPoolingHead,
    adapt_vocabulary,
)

CONFIG = AwdLstmConfig(30, embedding_size=5, lstm_size=7, num_layers=3, bptt=4)
LENGTHS = [3, 9, 1, 6]


def make_batch(lengths: list[int], seed: int = 7, first_token: int = 0) -> TokenBatch:
    ids = np.random.default_rng(1).integers(0, 30, sum(lengths))
    return from_flat(ids, None, np.array(lengths)).with_dropout(seed, first_token)


def reference_layers(encoder: AwdLstmEncoder) -> list[nn.LSTM]:
    layers = [nn.LSTM(size, state) for size, state in encoder.config.layer_sizes()]
    for layer, own in zip(layers, encoder.layers, strict=True):
        layer.load_state_dict(own.state_dict())
    return layers


def test_states_and_gradients_equal_those_of_plain_torch() -> None:
    model = AwdLstmLanguageModel(replace(CONFIG, bptt=100).with_dropout(0.0), seed=1).train()
    layers, batch = reference_layers(model.encoder), make_batch(LENGTHS)
    expected = []
    for ids in batch.input_ids.split(LENGTHS):
        states = model.encoder.embeddings.word.weight[ids]
        for layer in layers:
            states, _ = layer(states)
        expected.append(states)
    reference = torch.cat(expected)
    own = model.encoder(batch)
    torch.testing.assert_close(own, reference, atol=1e-5, rtol=1e-5)
    weights = torch.randn(own.shape)
    given = [own_layer.weight_hh_l0 for own_layer in model.encoder.layers]
    gradients = torch.autograd.grad((own * weights).sum(), [model.encoder.embeddings.word.weight, *given])
    wanted = [model.encoder.embeddings.word.weight, *(layer.weight_hh_l0 for layer in layers)]
    for gradient, other in zip(gradients, torch.autograd.grad((reference * weights).sum(), wanted), strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-5, rtol=1e-5)


def mask(rate: float, seed: int, site: int, rows: list[int], columns: int) -> Tensor:
    key = Dropout(rate, seed).mask_key(site)
    return keep_mask(key, torch.tensor(rows), columns) / (1 - rate)


def test_all_five_dropouts_equal_a_loop_over_steps() -> None:
    """Each sequence is read alone, step by step, with one mask of vectors, and one mask of weights for all."""
    encoder = AwdLstmEncoder(replace(CONFIG, bptt=100), seed=2).train()
    batch, rates = make_batch(LENGTHS, first_token=20), (CONFIG.hidden_dropout, CONFIG.hidden_dropout, 0.4)
    expected, undropped, begin = list[torch.Tensor](), list[torch.Tensor](), 0
    for ids in batch.input_ids.split(LENGTHS):
        words = encoder.embeddings.word.weight[ids] * mask(0.05, 7, 0, ids.tolist(), 1)
        states = words * mask(0.4, 7, 1, [20 + begin], 5)
        for number, (layer, rate) in enumerate(zip(encoder.layers, rates, strict=True)):
            size = layer.weight_hh_l0.shape[1]
            dropped = layer.weight_hh_l0 * mask(0.5, 7, 2 + 2 * number, [*range(4 * size)], size)
            state, cell, outputs = torch.zeros(size), torch.zeros(size), []
            for word in states:
                gates = layer.weight_ih_l0 @ word + dropped @ state + layer.bias_ih_l0 + layer.bias_hh_l0
                i, f, g, o = gates.chunk(4)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                state = o.sigmoid() * cell.tanh()
                outputs.append(state)
            states = torch.stack(outputs) * mask(rate, 7, 3 + 2 * number, [20 + begin], size)
        undropped += outputs
        expected.append(states)
        begin += len(ids)
    torch.testing.assert_close(encoder.read(batch).outputs[-1], torch.cat(expected), atol=1e-6, rtol=1e-5)
    # A classifier reads the states before the dropout of the language model's outputs.
    torch.testing.assert_close(encoder(batch), torch.stack(undropped), atol=1e-6, rtol=1e-5)
    assert (mask(0.4, 7, 1, [20], 5) == 0).any()


def test_dropout_masks_change_with_the_step_and_not_with_the_batch() -> None:
    encoder = AwdLstmEncoder(CONFIG, seed=2).train()
    whole = encoder(make_batch([4, 4]))
    first, second = (from_flat(ids.numpy(), None, np.array([4])) for ids in make_batch([4, 4]).input_ids.split(4))
    parts = [encoder(first.with_dropout(7, 0)), encoder(second.with_dropout(7, 4))]
    torch.testing.assert_close(torch.cat(parts), whole)
    assert not torch.allclose(encoder(make_batch([4, 4], seed=8)), whole)


def test_reading_in_parts_with_carried_values_equals_reading_at_once() -> None:
    encoder = AwdLstmEncoder(CONFIG, seed=3).eval()
    ids = torch.randint(30, (2, 10), generator=torch.Generator().manual_seed(0))
    values = [LstmValues(*torch.zeros(2, 2, state)) for _, state in CONFIG.layer_sizes()]
    parts = []
    for part in ids.split(5, 1):
        reading = encoder.read(from_flat(part.reshape(-1).numpy(), None, np.full(2, 5)), values)
        parts.append(reading.states.view(2, 5, -1))
        values = reading.last
    whole = encoder(from_flat(ids.reshape(-1).numpy(), None, np.full(2, 10))).view(2, 10, -1)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_gradients_of_a_long_text_stop_at_the_chunks_and_reach_all_pooled_ones() -> None:
    """BPT3C: the last chunk's states give no gradient to the words before it; a sum over all states does."""
    encoder = AwdLstmEncoder(CONFIG.with_dropout(0.0), seed=3).train()
    batch = from_flat(np.arange(10), None, np.array([10]))
    encoder(batch)[-1].sum().backward()
    table = encoder.embeddings.word.weight
    assert table.grad is not None
    assert table.grad.abs().sum(1).nonzero()[:, 0].tolist() == [8, 9]  # the third chunk of 4
    table.grad = None
    encoder(batch).sum().backward()
    assert table.grad.abs().sum(1).nonzero()[:, 0].tolist() == list(range(10))


def test_a_model_from_right_to_left_equals_the_other_one_on_the_reversed_texts() -> None:
    """States, carried values, and the classifier's logits, which pool the first tokens of a long text."""
    forward = EncoderForTask(AwdLstmEncoder(replace(CONFIG, pooled_tokens=4), seed=2), HeadSpec("sequence", 3)).eval()
    config = replace(CONFIG, pooled_tokens=4, is_reversed=True)
    backward = EncoderForTask(AwdLstmEncoder(config, seed=2), HeadSpec("sequence", 3)).eval()
    batch = make_batch(LENGTHS)
    flip = torch.cat(
        [torch.arange(end - length, end).flip(0) for length, end in zip(LENGTHS, np.cumsum(LENGTHS), strict=True)]
    )
    flipped = from_flat(batch.input_ids[flip].numpy(), None, np.array(LENGTHS))
    own, other = backward.encoder.read(batch), forward.encoder.read(flipped)
    torch.testing.assert_close(own.states[flip], other.states)
    torch.testing.assert_close(own.last[0].states, other.last[0].states)
    tasks = (TaskBatch(texts, texts.packing.last_positions) for texts in (batch, flipped))
    torch.testing.assert_close(backward(next(tasks)), forward(next(tasks)))


def test_the_classifier_s_penalties_equal_their_formulas_for_any_micro_batches() -> None:
    encoder, states = AwdLstmEncoder(CONFIG), torch.randn(sum(LENGTHS), 5)
    texts = states.split(LENGTHS)
    squares = states.square().mean()
    differences = torch.cat([text.diff(dim=0) for text in texts]).square().mean()
    step = {"num_sequences": 4, "num_next_tokens": sum(LENGTHS) - 4}
    parts = []
    for chosen in (slice(0, 1), slice(1, 4)):
        batch = replace(make_task(LENGTHS[chosen]), **step)
        parts.append(encoder.penalty(batch, torch.cat(texts[chosen])))
    torch.testing.assert_close(sum(parts), 2 * squares + differences)


def make_task(lengths: list[int]) -> TaskBatch:
    packing = Packing.of(np.array(lengths))
    return TaskBatch(TokenBatch(packing, torch.zeros(sum(lengths), dtype=torch.int64)), packing.last_positions)


@pytest.mark.parametrize("pooled_tokens", [1400, 4])
def test_the_classifier_equals_a_loop_with_torch_batch_norm(pooled_tokens: int) -> None:
    torch.manual_seed(0)
    head = ConcatPoolingHead(HeadSpec("sequence", 3), replace(CONFIG, pooled_tokens=pooled_tokens)).train()
    norms = nn.BatchNorm1d(15), nn.BatchNorm1d(50)
    states, batch = torch.randn(sum(LENGTHS), 5), make_task(LENGTHS)
    for training in (True, True, False):
        head.train(training)
        [norm.train(training) for norm in norms]
        rows = []
        for text in states.split(LENGTHS):
            last = text[-pooled_tokens:]
            rows.append(torch.cat([last[-1], last.max(0).values, last.mean(0)]))
        hidden = norms[1](torch.relu(head.dense(norms[0](torch.stack(rows)))))
        torch.testing.assert_close(head(states, batch, None), head.classifier(hidden), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head.pooled_norm.variance, norms[0].running_var)


def test_batch_norm_of_one_row_uses_the_running_statistics() -> None:
    norm, row = BatchNorm(3).train(), torch.randn(1, 3)
    torch.testing.assert_close(norm(row), row, atol=1e-4, rtol=1e-4)
    assert not norm.mean.any()


def test_a_text_has_the_same_scores_in_any_batch() -> None:
    model = EncoderForTask(AwdLstmEncoder(CONFIG, seed=1), HeadSpec("sequence", 3)).eval()
    batch = make_batch(LENGTHS)
    together = model(TaskBatch(batch, batch.packing.last_positions))
    for number, ids in enumerate(batch.input_ids.split(LENGTHS)):
        alone = from_flat(ids.numpy(), None, np.array([len(ids)]))
        torch.testing.assert_close(model(TaskBatch(alone, alone.packing.last_positions))[0], together[number])


def test_new_words_start_at_the_mean_of_the_known_vectors() -> None:
    model = AwdLstmLanguageModel(replace(CONFIG, vocab_size=3), seed=1)
    nn.init.normal_(model.softmax_bias)
    adapted, known = adapt_vocabulary(model, ["<UNK>", "cat", "dog"], ["<UNK>", "mouse", "dog", "emu"])
    table, new = model.encoder.embeddings.word.weight, adapted.encoder.embeddings.word.weight
    assert (known, adapted.config.vocab_size) == (2, 4)
    torch.testing.assert_close(new, torch.stack([table[0], table.mean(0), table[2], table.mean(0)]))
    torch.testing.assert_close(adapted.softmax_bias[1], model.softmax_bias.mean())
    assert torch.equal(adapted.encoder.layers[0].weight_ih_l0, model.encoder.layers[0].weight_ih_l0)


def test_the_paper_s_sizes_and_its_dropouts_scale_together() -> None:
    config = AwdLstmConfig(60_000)
    assert [*config.layer_sizes()] == [(400, 1150), (1150, 1150), (1150, 400)]
    layers = [4 * state * (size + state + 2) for size, state in config.layer_sizes()]
    assert config.num_parameters == 60_000 * 401 + sum(layers) == 44_271_600
    half = config.with_dropout(0.15)
    rates = (half.embedding_dropout, half.input_dropout, half.weight_dropout, half.hidden_dropout, half.output_dropout)
    assert rates == pytest.approx((0.025, 0.2, 0.25, 0.15, 0.2))
    assert half.classifier_dropouts == pytest.approx((0.2, 0.05))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"lstm_size": 0}, ("lstm_size", "0")), ({"weight_dropout": 1.0}, ("weight_dropout", "1.0"))],
)
def test_impossible_sizes_are_named(changes: dict[str, float], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=words[0]) as error:
        replace(CONFIG, **changes)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words)
