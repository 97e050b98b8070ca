"""The translation model of CoVe: a reference written in loops after the paper, batches, decoding, folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.base.seeding import make_rng
from bertwright.models.packing import PairBatch, TokenBatch, pack
from bertwright.systems.cove.mt_lstm import CoveConfig, Memory, MtLstm, MtLstmConfig, MtLstmSteps
from bertwright.systems.cove.mt_lstm_folder import SOURCE_RULES
from bertwright.systems.translation_models import (
    TranslationSystem,
    load_translation_system,
    smoothed_loss,
    write_translation_system,
)
from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary
from bertwright.vocabulary.word_tokenizer import WordTokenizer

SOURCE_LENGTHS, TARGET_LENGTHS = (3, 5, 1, 4), (2, 4, 5, 1)
SOURCE_WORDS, TOKENS = 11, 13


def make_model(dropout: float = 0.0) -> MtLstm:
    model = MtLstm(MtLstmConfig(CoveConfig(SOURCE_WORDS, word_size=4, hidden_size=6), TOKENS, dropout), seed=3)
    with torch.no_grad():  # larger weights, so that no part of the model is nearly linear
        for parameter in model.parameters():
            parameter *= 8
    return model.double()


def make_batch() -> PairBatch:
    rng = make_rng(1, 1)
    sides = [
        pack([rng.integers(0, size, length) for length in lengths])
        for size, lengths in ((SOURCE_WORDS, SOURCE_LENGTHS), (TOKENS, TARGET_LENGTHS))
    ]
    return PairBatch(*sides)


def split(batch: TokenBatch) -> list[Tensor]:
    return [*batch.input_ids.split(batch.packing.lengths.tolist())]


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state and the cell of gates i, f, g, o."""
    i, f, g, o = gates.chunk(4)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def reference_states(model: MtLstm, source: Tensor, target: Tensor) -> Tensor:
    """Compute the attentional states of one pair by loops over its words (sections 3 and 3.1 of the paper)."""
    encoder, decoder, states = model.encoder, model.decoder, model.encoder.words.weight[source]
    hidden, cells = [], []
    for layer in encoder.layers:
        states, (last_state, last_cell) = layer(states)  # type: ignore[operator]
        hidden.append(last_state.flatten())
        cells.append(last_cell.flatten())
    attended, results = torch.zeros_like(hidden[0]), []
    for token in target:
        inputs = torch.cat([decoder.words.weight[token], attended])
        for number, gates in enumerate(decoder.gates):
            weight = torch.cat([decoder.word_gates.weight, gates.weight], 1) if number == 0 else gates.weight  # type: ignore[list-item]
            values = weight @ torch.cat([inputs, hidden[number]]) + gates.bias  # type: ignore[operator]
            hidden[number], cells[number] = lstm_cell(values, cells[number])
            inputs = hidden[number]
        query = decoder.query.weight @ inputs + decoder.query.bias
        scores = torch.stack([state @ query for state in states]).exp()
        context = sum(score / scores.sum() * state for score, state in zip(scores, states, strict=True))
        attended = torch.tanh(decoder.combine(torch.cat([context, inputs])))  # type: ignore[list-item]
        results.append(attended)
    return torch.stack(results)


def test_attention_and_decoder_equal_loops_with_their_gradients() -> None:
    model, batch = make_model(), make_batch()
    model.compute_dtype = torch.float64
    own = model(batch)
    pairs = zip(split(batch.source), split(batch.target), strict=True)
    reference = torch.cat([reference_states(model, source, target) for source, target in pairs])
    torch.testing.assert_close(own, reference, rtol=0, atol=1e-12)
    weights = torch.randn_like(own)
    wanted = [parameter for name, parameter in model.named_parameters() if "output" not in name]
    gradients = [torch.autograd.grad((states * weights).sum(), wanted) for states in (own, reference)]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-9)


def test_attention_by_hand() -> None:
    """Two words with states (0, 0) and (log 3, 1), and padding: the query (1, 0) gives them 1/4 and 3/4."""
    log3 = float(np.log(3))
    states = torch.tensor([[[0.0, 0.0], [log3, 1.0], [9.0, 9.0]]])
    context = Memory(states, torch.tensor([[False, False, True]])).attend(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(context, torch.tensor([[0.75 * log3, 0.75], [0.5 * log3, 0.5]]))


def test_states_do_not_depend_on_the_batch() -> None:
    model, batch = make_model(), make_batch()
    together = model(batch).split(TARGET_LENGTHS)
    source_states = model.encoder(batch.source.input_ids, batch.source.packing.lengths).layers[-1].split(SOURCE_LENGTHS)
    for number, (source, target) in enumerate(zip(split(batch.source), split(batch.target), strict=True)):
        alone = PairBatch(pack([source.numpy()]), pack([target.numpy()]))
        torch.testing.assert_close(model(alone), together[number], rtol=0, atol=1e-6)
        states = model.encoder(alone.source.input_ids, alone.source.packing.lengths).layers[-1]
        torch.testing.assert_close(states, source_states[number], rtol=0, atol=1e-12)


def test_dropout_acts_in_training_and_is_a_function_of_key_and_token() -> None:
    model, batch = make_model(dropout=0.4).train(), make_batch()
    first, again, other = (model(batch.with_dropout(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    # The second half of the batch, with the numbers of its tokens within the whole.
    halves = [pack([ids.numpy() for ids in split(side)[2:]]) for side in (batch.source, batch.target)]
    starts = (sum(SOURCE_LENGTHS[:2]), sum(TARGET_LENGTHS[:2]))
    half = PairBatch(*(side.with_dropout(1, start) for side, start in zip(halves, starts, strict=True)))
    torch.testing.assert_close(model(half), first[starts[1] :], rtol=0, atol=1e-6)
    model.eval()
    assert torch.equal(model(batch.with_dropout(1)), model(batch.with_dropout(2)))


def test_steps_of_decoding_compute_the_logits_of_training_for_any_order_of_hypotheses() -> None:
    model, batch = make_model().eval(), make_batch()
    steps = MtLstmSteps(model, batch.source)
    weight, bias = model.softmax_weights()
    expected = [states @ weight.T + bias for states in model(batch).double().split(TARGET_LENGTHS)]
    targets = split(batch.target)
    # Two hypotheses of each source, the second with another last token; from the second step on, sources 1 and 2 alone.
    for step, sources in enumerate((torch.arange(4), torch.tensor([1, 2]))):
        tokens = torch.stack([torch.stack([targets[n][step], torch.tensor(step)]) for n in sources.tolist()]).flatten()
        parents = sources.repeat_interleave(2) if step == 0 else torch.tensor([2, 3, 4, 4])
        logits = steps.advance(tokens, parents, sources)
        for row, number in enumerate(sources.tolist()):
            torch.testing.assert_close(logits[2 * row], expected[number][step], rtol=0, atol=1e-6)


def test_the_smoothed_loss_counts_the_biases_of_the_softmax() -> None:
    model, batch = make_model().float(), make_batch()
    labels = torch.arange(sum(TARGET_LENGTHS))
    loss = smoothed_loss(model, batch, labels, 0.3, 1.0)
    weight, bias = model.softmax_weights()
    log_probs = (model(batch) @ weight.T + bias).log_softmax(1)
    chosen = log_probs.gather(1, labels[:, None]).sum()
    torch.testing.assert_close(loss.cross_entropy, -chosen)
    torch.testing.assert_close(loss.smoothed, -0.7 * chosen - 0.3 * log_probs.mean(1).sum())


def make_system() -> TranslationSystem:
    source = WordTokenizer.learn(["the dog barks", "two dogs"], SOURCE_RULES)
    target = learn_joint_vocabulary(["der hund bellt", "zwei hunde"], 60)
    config = MtLstmConfig(CoveConfig(source.vocab_size, 4, 6), target.vocab_size, freeze_words=True)
    return TranslationSystem(MtLstm(config, seed=1), source, target)


def test_folders_restore_model_and_both_vocabularies(tmp_path: Path) -> None:
    system = make_system()
    write_translation_system(tmp_path, system)
    loaded = load_translation_system(tmp_path)
    assert loaded.model.config == system.model.config
    assert loaded.source.tokens == system.source.tokens
    assert loaded.target.tokens == system.target.tokens
    state = loaded.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in system.model.state_dict().items())
    assert isinstance(loaded.model, MtLstm)
    assert not loaded.model.encoder.words.weight.requires_grad


@pytest.mark.parametrize(
    ("change", "where", "expected"),
    [
        ("drop", "model.safetensors", "missing: decoder.output.bias"),
        ("words", "source_words.txt", "expected 8 words, got 7"),
        ("shape", "model.safetensors", r"decoder.output.bias \(3,\) instead of"),
    ],
)
def test_damaged_folders_are_errors_with_the_file(tmp_path: Path, change: str, where: str, expected: str) -> None:
    write_translation_system(tmp_path, make_system())
    (tmp_path / "checksums.json").unlink()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    if change == "words":
        words = (tmp_path / "source_words.txt").read_text().splitlines()
        (tmp_path / "source_words.txt").write_text("".join(f"{word}\n" for word in words[:-1]))
    elif change == "drop":
        del tensors["decoder.output.bias"]
    else:
        tensors["decoder.output.bias"] = torch.zeros(3)
    save_file(tensors, path)
    with pytest.raises(ValueError, match=expected) as error:
        load_translation_system(tmp_path)
    assert str(tmp_path / where) in str(error.value)
