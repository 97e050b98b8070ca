"""Composed encoders: what each state sees, parity with their parts, and the way to a folder and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.finetuning.finetune_state import own_lr_scales
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import load_model, load_task_model, save_model, start_task_model, write_task_model
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.composed_model import ComposeSettings, CompositeConfig, CompositeEncoder, compose
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

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
def test_positions_select_states(name: str) -> None:
    encoder = build(COMPOSED[name])
    positions = torch.tensor([3, 0, 9])
    assert torch.equal(encoder(BATCH, positions), encoder(BATCH)[positions])


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


def test_the_lstm_alone_has_a_learning_rate_of_its_own() -> None:
    encoder = build(replace(COMPOSED["LTR + BiLSTM"], lstm_learning_rate=1e-3))
    assert encoder.lstm is not None
    scales = own_lr_scales(encoder, 1e-4)
    assert scales == {f"encoder.lstm.{name}": 10.0 for name, _ in encoder.lstm.named_parameters()}
    assert own_lr_scales(build(COMPOSED["LTR + RTL"]), 1e-4) == {}


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


@pytest.mark.parametrize(("used", "lstm_layers"), [(2, 0), (1, 2)])
def test_a_composed_folder_is_fine_tuned_and_read_back(
    tmp_path: Path, folders: list[Path], tokenizer: Tokenizer, used: int, lstm_layers: int
) -> None:
    compose(tmp_path / "composed", folders[:used], ComposeSettings(lstm_layers, 2e-3, 7, DeviceSettings()))
    started = start_task_model(tmp_path / "composed", HeadSpec("token", 3), seed=0)
    assert started.missing_heads == ("classifier",)
    encoder = started.model.encoder
    assert isinstance(encoder, CompositeEncoder)
    assert encoder.learning_rates == ({"lstm": 2e-3} if lstm_layers else {})
    bert = load_model(folders[0]).model.encoder
    assert torch.equal(encoder.encoders[0].eval()(BATCH), bert(BATCH))
    (tmp_path / "task").mkdir()
    write_task_model(
        tmp_path / "task", started.model, tokenizer, HeadRecord(started.model.head.spec, ("A", "B", "C"), False)
    )
    again = load_task_model(tmp_path / "task")
    positions = torch.arange(BATCH.packing.num_tokens)
    assert torch.equal(again(TaskBatch(BATCH, positions)), started.model.eval()(TaskBatch(BATCH, positions)))


def test_the_seed_decides_the_weights_of_a_bilstm(tmp_path: Path, folders: list[Path]) -> None:
    weights = []
    for number, seed in enumerate((7, 7, 8)):
        compose(tmp_path / str(number), folders[:1], ComposeSettings(1, 1e-3, seed, DeviceSettings()))
        encoder = load_model(tmp_path / str(number), heads="optional").model.encoder
        weights.append(torch.cat([p.flatten() for n, p in encoder.named_parameters() if n.startswith("lstm")]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("encoders", [(), (LTR, replace(LTR, vocab_size=31))])
def test_encoders_that_do_not_fit_together_are_rejected(encoders: tuple[BertConfig, ...]) -> None:
    with pytest.raises(ValueError, match="encoders: expected"):
        CompositeConfig(encoders)
