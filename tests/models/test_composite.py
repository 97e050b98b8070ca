"""Reversed and composed encoders: what each state sees, parity with their parts, and the way to a folder and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.experiments.composition import compose
from bertwright.finetuning.finetune_state import layerwise_lr_scales, lstm_lr_scales
from bertwright.inference.feature_cache import LayerStates
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import load_model, load_task_model, save_model, start_task_model, write_task_model
from bertwright.models.composite import CompositeConfig, CompositeEncoder
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder
from bertwright.models.heads import BertForPretraining, EncoderForTask, HeadSpec, TaskBatch
from bertwright.models.packing import TokenBatch, pack
from bertwright.vocabulary.tokenizer import Tokenizer
from bertwright.vocabulary.tokenizer_io import SPECIAL_TOKENS

LTR = BertConfig(
    vocab_size=30, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=16, max_positions=16, is_causal=True
)
RTL = replace(LTR, is_reversed=True)
BATCH = pack([np.arange(1, 6), np.arange(3, 12)])
COMPOSED = {
    "LTR + RTL": CompositeConfig((LTR, RTL)),
    "LTR + BiLSTM": CompositeConfig((LTR,), lstm_layers=2),
}


def build(config: CompositeConfig) -> CompositeEncoder:
    return CompositeEncoder(config, seed=3).eval()


def changed_states(encoder: BertEncoder | CompositeEncoder, token: int) -> list[int]:
    """Return the positions whose states change with one token of the batch."""
    ids = BATCH.input_ids.clone()
    ids[token] += 1
    with torch.no_grad():
        difference = encoder(replace(BATCH, input_ids=ids)) - encoder(BATCH)
    return (difference.abs().sum(1) > 1e-6).nonzero().flatten().tolist()


def mirror(batch: TokenBatch) -> TokenBatch:
    """Reverse each sequence of a batch, by a loop."""
    return pack([ids.numpy()[::-1] for ids in batch.input_ids.split(batch.packing.lengths.tolist())])


# Right to left


def test_a_reversed_encoder_equals_a_causal_one_on_mirrored_sequences() -> None:
    ltr, rtl = BertEncoder(LTR, seed=1).eval(), BertEncoder(RTL, seed=1).eval()
    expected = ltr(mirror(BATCH)).split(BATCH.packing.lengths.tolist())
    assert torch.equal(rtl(BATCH), torch.cat([states.flip(0) for states in expected]))
    positions = torch.tensor([12, 0, 6])
    assert torch.equal(rtl(BATCH, positions), rtl(BATCH)[positions])
    for one, all_states in zip(rtl.hidden_states(BATCH, positions=positions), rtl.hidden_states(BATCH), strict=True):
        assert torch.equal(one, all_states[positions])


@pytest.mark.parametrize(("token", "expected"), [(2, [0, 1, 2]), (7, [5, 6, 7])])
def test_reversed_states_depend_on_themselves_and_later_tokens(token: int, expected: list[int]) -> None:
    assert changed_states(BertEncoder(RTL, seed=1).eval(), token) == expected


def test_the_summary_of_a_reversed_encoder_is_its_first_token() -> None:
    assert BertEncoder(RTL).pooled_positions(BATCH.packing).tolist() == [0, 5]
    assert BertEncoder(LTR).pooled_positions(BATCH.packing).tolist() == [4, 13]


def test_a_reversed_encoder_that_is_not_causal_is_rejected() -> None:
    with pytest.raises(ValueError, match="is_reversed = True: expected is_causal = True"):
        replace(RTL, is_causal=False)


# Composed


@pytest.mark.parametrize("name", COMPOSED)
def test_every_state_of_a_composed_encoder_sees_its_whole_sequence(name: str) -> None:
    encoder = build(COMPOSED[name])
    assert changed_states(encoder, 2) == [0, 1, 2, 3, 4]
    assert changed_states(encoder, 5) == [5, 6, 7, 8, 9, 10, 11, 12, 13]


def test_concatenated_states_are_those_of_the_encoders() -> None:
    encoder = build(COMPOSED["LTR + RTL"])
    ltr, rtl = (one(BATCH) for one in encoder.encoders)
    states = encoder(BATCH)
    inside = [1, 2, 3, 4, 6, 13]
    assert torch.equal(states[inside], torch.cat([ltr, rtl], 1)[inside])
    assert torch.equal(states[[0, 5]], torch.cat([ltr[[4, 13]], rtl[[0, 5]]], 1))


def test_the_summary_of_a_bilstm_is_the_end_of_each_direction() -> None:
    encoder = build(COMPOSED["LTR + BiLSTM"])
    assert encoder.lstm is not None
    states = encoder(BATCH)
    for first, last in ((0, 4), (5, 13)):
        words = encoder.encoders[0](BATCH)[None, first : last + 1]
        for layer in encoder.lstm.layers:
            words, (ends, _) = layer(words.transpose(0, 1))
            words = words.transpose(0, 1)
        torch.testing.assert_close(states[first], ends.flatten())
        torch.testing.assert_close(states[first + 1 : last + 1], words[0, 1:])


@pytest.mark.parametrize("name", COMPOSED)
def test_positions_and_layers_select_states(name: str) -> None:
    encoder = build(COMPOSED[name])
    positions = torch.tensor([3, 0, 9])
    assert torch.equal(encoder(BATCH, positions), encoder(BATCH)[positions])
    states = encoder.hidden_states(BATCH)
    assert [tuple(one.shape) for one in states] == [(14, encoder.config.hidden_size)] * (encoder.config.num_layers + 1)
    some = encoder.hidden_states(BATCH, [0, encoder.config.num_layers], positions)
    assert all(torch.equal(one, states[n][positions]) for one, n in zip(some, (0, -1), strict=True))


@pytest.mark.parametrize("name", COMPOSED)
def test_pooled_states_of_every_layer_differ_between_texts_in_every_encoder(name: str) -> None:
    encoder, firsts = build(COMPOSED[name]), BATCH.packing.first_positions
    layers = range(encoder.config.num_layers + 1)
    with torch.no_grad():
        states = [
            LayerStates(encoder, [layer], pooled=True).predict_batch(TaskBatch(BATCH, firsts)) for layer in layers
        ]
        assert torch.equal(states[-1], encoder(BATCH, firsts))
        *below, last = encoder.hidden_states(BATCH)
        for state, expected in zip(states, [*below, last], strict=True):
            assert torch.equal(state, expected[firsts])
    for state in states[1:]:
        assert ((state[0] - state[1]).abs() > 1e-6).all()


def test_summaries_of_layers_are_those_of_the_encoders() -> None:
    encoder = build(COMPOSED["LTR + RTL"])
    each = [one.hidden_states(BATCH) for one in encoder.encoders]
    for states, ltr, rtl in zip(encoder.hidden_states(BATCH), *each, strict=True):
        assert torch.equal(states[[0, 5]], torch.cat([ltr[[4, 13]], rtl[[0, 5]]], 1))
        assert torch.equal(states[[1, 4, 6]], torch.cat([ltr, rtl], 1)[[1, 4, 6]])


def test_encoders_side_by_side_have_different_dropout_masks() -> None:
    encoder = CompositeEncoder(CompositeConfig((LTR, LTR)), seed=3).train()
    one, other = encoder(BATCH).chunk(2, 1)
    assert not torch.equal(one, other)
    assert torch.equal(encoder(BATCH), encoder(BATCH))
    one, other = encoder.eval()(BATCH).chunk(2, 1)
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", COMPOSED)
def test_dropout_does_not_depend_on_micro_batches(name: str) -> None:
    encoder = CompositeEncoder(COMPOSED[name], seed=3).train()
    first, second = (ids.numpy() for ids in BATCH.input_ids.split(BATCH.packing.lengths.tolist()))
    apart = [encoder(pack([first])), encoder(pack([second]).with_dropout(0, len(first)))]
    assert not torch.equal(encoder(BATCH), encoder.eval()(BATCH))
    assert torch.allclose(encoder.train()(BATCH), torch.cat(apart), atol=1e-6)


@pytest.mark.parametrize("name", COMPOSED)
def test_all_parameters_get_gradients(name: str) -> None:
    model = EncoderForTask(CompositeEncoder(COMPOSED[name]), HeadSpec("sequence", 2)).train()
    model(TaskBatch(BATCH, BATCH.packing.first_positions)).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", COMPOSED)
def test_number_of_parameters_is_that_of_the_model(name: str) -> None:
    encoder = CompositeEncoder(COMPOSED[name])
    assert encoder.config.num_parameters == sum(parameter.numel() for parameter in encoder.parameters())


def test_layers_can_be_frozen() -> None:
    model = EncoderForTask(CompositeEncoder(COMPOSED["LTR + BiLSTM"]), HeadSpec("sequence", 2))
    scales = layerwise_lr_scales(model, freeze_layers=1, decay=0.5)
    assert scales["encoder.encoders.0.embeddings.word.weight"] == 0
    assert scales["encoder.encoders.0.layers.0.qkv.weight"] == 0
    assert scales["encoder.encoders.0.layers.1.qkv.weight"] == 0.5  # the BiLSTM is new, as the head is
    assert scales["head.classifier.weight"] == scales["encoder.lstm.layers.0.weight_ih_l0"] == 1
    with pytest.raises(ValueError, match=r"freeze_layers = 3: this model has 2 layers"):
        layerwise_lr_scales(model, freeze_layers=3, decay=1.0)


def test_the_lstm_has_a_learning_rate_of_its_own() -> None:
    model = EncoderForTask(CompositeEncoder(COMPOSED["LTR + BiLSTM"]), HeadSpec("sequence", 2))
    scales = lstm_lr_scales(model, 10.0)
    assert scales.keys() == {f"encoder.lstm.{name}" for name, _ in model.encoder.lstm.named_parameters()}  # type: ignore[union-attr]
    assert {*scales.values()} == {10.0}
    without = EncoderForTask(CompositeEncoder(COMPOSED["LTR + RTL"]), HeadSpec("sequence", 2))
    assert lstm_lr_scales(without, 1.0) == {}
    with pytest.raises(ValueError, match=r"lstm_lr_scale = 10\.0: this model has no BiLSTM"):
        lstm_lr_scales(without, 10.0)


# Folders


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_tokens([*SPECIAL_TOKENS, *(f"word{n}" for n in range(25))], lowercase=True)


@pytest.fixture
def folders(tmp_path: Path, tokenizer: Tokenizer) -> list[Path]:
    """Return model folders of a left-to-right and a right-to-left BERT."""
    for name, config in {"ltr": LTR, "rtl": RTL}.items():
        save_model(tmp_path / name, BertForPretraining(config, seed=5), tokenizer)
    return [tmp_path / "ltr", tmp_path / "rtl"]


def test_a_reversed_model_is_read_back_and_transformers_rejects_it(folders: list[Path]) -> None:
    loaded = load_model(folders[1]).model
    assert loaded.config == RTL
    assert torch.equal(loaded.encoder(BATCH), BertEncoder(RTL, seed=5).eval()(BATCH))
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="bert-rtl"):
        transformers.AutoConfig.from_pretrained(folders[1])


@pytest.mark.parametrize(("used", "lstm_layers"), [(2, 0), (1, 2)])
def test_a_composed_folder_is_fine_tuned_and_read_back(
    tmp_path: Path, folders: list[Path], tokenizer: Tokenizer, used: int, lstm_layers: int
) -> None:
    compose(tmp_path / "composed", folders[:used], lstm_layers, seed=7)
    started = start_task_model(tmp_path / "composed", HeadSpec("token", 3), seed=0)
    assert started.newly_initialized == ("classifier",)
    encoder = started.model.encoder
    assert isinstance(encoder, CompositeEncoder)
    bert = load_model(folders[0]).model.encoder
    assert torch.equal(encoder.encoders[0].eval()(BATCH), bert(BATCH))
    (tmp_path / "task").mkdir()
    write_task_model(
        tmp_path / "task", started.model, tokenizer, HeadRecord(started.model.head.spec, ("A", "B", "C"), False)
    )
    again = load_task_model(tmp_path / "task")
    positions = torch.arange(BATCH.packing.num_tokens)
    assert torch.equal(again(TaskBatch(BATCH, positions)), started.model.eval()(TaskBatch(BATCH, positions)))


def test_a_composed_folder_has_no_dropout_to_change(tmp_path: Path, folders: list[Path]) -> None:
    compose(tmp_path / "composed", folders, 0, seed=7)
    with pytest.raises(ValueError, match="bert-composite has no hidden_dropout to change"):
        load_model(tmp_path / "composed", heads="optional", hidden_dropout=0.1)


def test_the_seed_decides_the_weights_of_a_bilstm(tmp_path: Path, folders: list[Path]) -> None:
    weights = []
    for number, seed in enumerate((7, 7, 8)):
        compose(tmp_path / str(number), folders[:1], 1, seed)
        encoder = load_model(tmp_path / str(number), heads="optional").model.encoder
        weights.append(torch.cat([p.flatten() for n, p in encoder.named_parameters() if n.startswith("lstm")]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("encoders", "lstm_layers", "message"),
    [
        ((), 0, "encoders: expected at least one"),
        (
            (LTR, replace(LTR, vocab_size=31)),
            0,
            r"vocab_size: expected the same value for all encoders, got \[30, 31\]",
        ),
        ((LTR,), -1, "lstm_layers: .*got -1"),
    ],
)
def test_encoders_that_do_not_fit_together_are_rejected(
    encoders: tuple[BertConfig, ...], lstm_layers: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CompositeConfig(encoders, lstm_layers)
