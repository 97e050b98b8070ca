"""ELMo's encoder against PyTorch's projected LSTM and against loops written after the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertwright.models.layer_mix import LayerMix
from bertwright.models.packed_lstm import Clips, ProjectedLSTM
from bertwright.models.packing import Packing, WordBatch
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig, ElmoEncoder
from bertwright.vocabulary.word_bytes import WORD_BYTES, mark_rows, word_byte_rows

SMALL = ElmoConfig(
    vocab_size=40, filters=((1, 3), (2, 4), (3, 5)), num_highway=2, projection_size=6, cell_size=8, hidden_dropout=0.0
)
SENTENCES = (["The", "naïve", "cat", "sat"], ["Words"], ["a" * 60, "the", "cat"])


def make_batch(sentences: tuple[list[str], ...] = SENTENCES) -> WordBatch:
    """Return sentences between the marks of their beginnings and ends."""
    rows, lengths = [], []
    for words in sentences:
        ids = [0, *range(3, 3 + len(words)), 1]
        bytes_ = np.concatenate([np.zeros((1, WORD_BYTES), int), word_byte_rows(words), np.zeros((1, WORD_BYTES), int)])
        rows.append(np.column_stack([ids, bytes_]))
        lengths.append(len(ids))
    return WordBatch(Packing.of(np.array(lengths)), torch.from_numpy(np.concatenate(rows)))


def make_encoder(**changes: object) -> ElmoEncoder:
    encoder = ElmoEncoder(ElmoConfig(**SMALL.__dict__ | changes), seed=3)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(2).add_(0.05)  # so that clips, gates and biases matter
    return encoder.eval()


def torch_layer(layer: ProjectedLSTM, direction: int) -> nn.LSTM:
    """Return PyTorch's layer with the weights of one direction."""
    projection, cell = layer.weight_hr.shape[1:]
    lstm = nn.LSTM(layer.weight_ih.shape[2], cell, proj_size=projection)
    lstm.load_state_dict(
        {
            "weight_ih_l0": layer.weight_ih[direction].detach(),
            "weight_hh_l0": layer.weight_hh[direction].detach(),
            "bias_ih_l0": layer.bias[direction].detach(),
            "bias_hh_l0": torch.zeros(4 * cell),
            "weight_hr_l0": layer.weight_hr[direction].detach(),
        }
    )
    return lstm


def test_layers_equal_torchs_projected_lstm_with_a_residual() -> None:
    encoder, batch = make_encoder(cell_clip=0.0, projection_clip=0.0), make_batch()
    states = encoder.hidden_states(batch)
    begin = 0
    for length in batch.packing.lengths.tolist():
        rows = slice(begin, begin + length)
        for direction, halves in enumerate((slice(0, 6), slice(6, 12))):
            expected = states[0][rows, halves]
            for number, layer in enumerate(encoder.layers, 1):
                read = expected.flip(0) if direction else expected
                output = torch_layer(layer, direction)(read)[0]
                output = output.flip(0) if direction else output
                expected = output + expected if number == 2 else output
                torch.testing.assert_close(states[number][rows, halves], expected, atol=1e-5, rtol=1e-5)
        begin += length


def test_clips_bound_cells_and_states() -> None:
    layer = ProjectedLSTM(2, 3, 2, Clips(0.5, 0.25))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
    words = torch.full((2, 3, 2), 5.0)
    states = layer(words, [1, 1, 1])
    # The gates are open, so the cell reaches 0.5 at once, and 3 tanh(0.5) is beyond 0.25.
    assert torch.equal(states, torch.full((2, 3, 2), 0.25))


def test_gradients_equal_finite_differences_with_clips_and_sequences_of_different_lengths() -> None:
    layer = ProjectedLSTM(3, 4, 2, Clips(0.6, 0.2)).double()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    words = torch.randn(2, 6, 3, dtype=torch.double, requires_grad=True)
    parameters = [words, *layer.parameters()]

    def run(words: Tensor, *weights: Tensor) -> Tensor:
        names = [name for name, _ in layer.named_parameters()]
        output = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (words, [3, 2, 1]))
        assert isinstance(output, Tensor)
        return output

    states = run(*parameters)
    assert (states.abs() == 0.2).any()
    assert (states.abs() < 0.2).any()
    assert torch.autograd.gradcheck(run, parameters)


def loop_over_characters(encoder: ElmoEncoder, word: Tensor) -> Tensor:
    """Compute the vector of one row of bytes, place by place and filter by filter."""
    module = encoder.embeddings.characters
    vectors = module.embedding.weight[word]
    values = []
    for convolution in module.convolutions:
        width = convolution.kernel_size[0]
        for weight, bias in zip(convolution.weight, convolution.bias, strict=True):
            windows = [(vectors[at : at + width].T * weight).sum() for at in range(WORD_BYTES - width + 1)]
            values.append(torch.relu(torch.stack(windows).max() + bias))
    state = torch.stack(values)
    for highway in module.highways:
        gate = torch.sigmoid(highway.gate.weight @ state + highway.gate.bias)
        new = torch.relu(highway.transform.weight @ state + highway.transform.bias)
        state = gate * new + (1 - gate) * state
    return module.projection.weight @ state + module.projection.bias


@torch.no_grad()
def test_characters_equal_a_loop() -> None:
    encoder, batch = make_encoder(), make_batch()
    vectors = encoder.hidden_states(batch, [0])[0]
    marks = torch.from_numpy(mark_rows())
    rows = batch.rows[:, 1:].clone()
    rows[batch.rows[:, 0] == 0], rows[batch.rows[:, 0] == 1] = marks[0].long(), marks[1].long()
    for row, vector in zip(rows, vectors, strict=True):
        expected = loop_over_characters(encoder, row)
        torch.testing.assert_close(vector, torch.cat([expected, expected]), atol=1e-5, rtol=1e-5)


# Rows of a product are in the order of the words' hashes, and libraries round a row by its place and the shape:
# in float64 what only rounding changes is far below what another word would change.
ROUNDING = {"atol": 1e-12, "rtol": 1e-12}


@torch.no_grad()
def test_states_do_not_depend_on_the_batch() -> None:
    encoder = make_encoder().double()
    together = encoder(make_batch())
    alone = torch.cat([encoder(make_batch((words,))) for words in SENTENCES])
    torch.testing.assert_close(together, alone, **ROUNDING)


@torch.no_grad()
def test_no_direction_sees_beyond_its_word() -> None:
    encoder = make_encoder().double()
    first, changed = (encoder(make_batch((["a", "b", last, "d"],))) for last in ("c", "x"))
    torch.testing.assert_close(first[:3, :6], changed[:3, :6], **ROUNDING)  # forward, before the changed word
    torch.testing.assert_close(first[4:, 6:], changed[4:, 6:], **ROUNDING)  # backward, after it
    differences = (first - changed).abs().unflatten(1, (2, 6)).amax(2)  # words × directions
    assert differences[3:, 0].min() > 1e-4
    assert differences[:4, 1].min() > 1e-4


@torch.no_grad()
def test_reversed_text_with_swapped_directions_has_the_same_loss() -> None:
    model = BidirectionalLM(SMALL, seed=1).eval()
    swapped = BidirectionalLM(SMALL, seed=1).eval()
    for layer in swapped.encoder.layers:
        for parameter in layer.parameters():
            parameter.copy_(parameter.flip(0))
    words = ["the", "cat", "sat", "down"]
    losses = []
    for trained, text in ((model, words), (swapped, words[::-1])):
        batch = make_batch((text,))
        rows = batch.rows[1:-1]  # without marks, whose bytes differ
        bare = WordBatch(Packing.of(np.array([4])), rows)
        ids = torch.tensor([3 + words.index(word) for word in text])
        states = trained.predicting_states(bare, (torch.arange(3), torch.arange(1, 4)))
        losses.append(trained.cross_entropy(states, torch.cat([ids[1:], ids[:-1]]))[0])
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)


def test_a_mix_with_layer_norm_normalizes_each_layer_first() -> None:
    layers = [3 + 2 * torch.randn(5, 4) for _ in range(2)]
    normal = [(states - states.mean(1, keepdim=True)) / states.std(1, keepdim=True, correction=0) for states in layers]
    torch.testing.assert_close(LayerMix(2, layer_norm=True)(layers), sum(normal) / 2, atol=1e-4, rtol=1e-4)


def test_the_released_sizes_have_the_published_numbers_of_parameters() -> None:
    """93.6 million without the softmax (the paper's authors); the small one has 13.6 million."""
    assert ElmoConfig(1).num_parameters == pytest.approx(93.6e6, rel=2e-3)
    assert ElmoConfig.from_size("small", 1).num_parameters == pytest.approx(13.6e6, rel=5e-3)


@torch.no_grad()
def test_words_that_determine_their_vectors_are_read_by_their_bytes() -> None:
    """A tagger's unknown words may have negative ids (`--unknown-words random`): they are no marks of texts."""
    encoder, batch = make_encoder().double(), make_batch()
    keyed = batch.rows.clone()
    keyed[keyed[:, 0] == 4, 0] = -77
    assert (keyed[:, 0] < 0).any()
    torch.testing.assert_close(encoder(WordBatch(batch.packing, keyed)), encoder(batch), **ROUNDING)
