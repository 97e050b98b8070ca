"""Pre-training of ULMFiT's AWD-LSTM: learning, resuming to the bit, and its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.base.settings import from_table
from bertwright.interop.huggingface import load_model
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.evaluation import evaluate
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmLanguageModel
from bertwright.systems.ulmfit.streams import StreamText
from bertwright.systems.ulmfit.ulmfit_objective import BackwardLanguageModel, RecurrentLanguageModel, make_batch
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from harness import check_interrupted_run, load_weights, read_untimed, run_and_capture
from small_runs import grammar, make_word_store

Make = Callable[..., PretrainSettings]
run_pretrain = partial(run_and_capture, pretrain)
OBJECTIVE = RecurrentLanguageModel()


@pytest.fixture(scope="module")
def word_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_store(tmp_path_factory.mktemp("words"), grammar(200), "lowercase-words")


@pytest.fixture
def make_lm(make_settings: Make, word_store: Path) -> Make:
    """Return a function from changed fields to the settings of a run of a tiny AWD-LSTM."""
    changes = {
        "store": word_store,
        "model": ModelSettings(size="tiny", hidden_dropout=0.1, architecture="ulmfit"),
        "data": DataSettings(max_length=16, batch_size=8, objective="recurrent"),
        "long": LongPhase(long_ratio=0.0),
    }
    return lambda run, **more: make_settings(run, **changes | more)


def test_words_are_learned_in_lower_case(word_store: Path) -> None:
    tokens = open_tokenizer(word_store / "tokenizer").tokens
    assert tokens[:4] == ("<S>", "</S>", "<UNK>", "the")
    assert not any(token != token.lower() for token in tokens[3:])


def test_the_model_learns_the_grammar(tmp_path: Path, make_lm: Make) -> None:
    printed = run_pretrain(make_lm(tmp_path / "run", steps=40, eval_every=40))
    losses = [record["loss"] for record in read_metrics(tmp_path / "run") if record["kind"] == "held_out"]
    assert losses[0] == pytest.approx(math.log(open_tokenizer(tmp_path / "run" / "model").vocab_size), rel=0.05)
    assert losses[-1] < 0.6 * losses[0]
    assert "LM perplexity" in printed
    assert "positions" not in printed


def test_interrupted_run_resumes_to_the_same_bits(
    tmp_path: Path, make_lm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_lm(tmp_path / "whole", micro_batch_size=3)
    broken = check_interrupted_run(run_pretrain, whole, 6, monkeypatch)
    assert read_untimed(whole.run)[-1] == read_untimed(broken.run)[-1]


def test_another_text_s_vocabulary_is_adapted_with_lower_rates_of_lower_layers(tmp_path: Path, make_lm: Make) -> None:
    run_pretrain(make_lm(tmp_path / "general"))
    store = make_word_store(tmp_path, grammar(60).replace("bear", "panda"), "lowercase-words")
    target = make_lm(
        tmp_path / "target", store=store, steps=1, layerwise_lr_decay=0.1,
        model=ModelSettings(init=str(tmp_path / "general"), architecture="ulmfit"),
    )  # fmt: skip
    printed = run_pretrain(target)
    size = open_tokenizer(store / "tokenizer").vocab_size
    assert f"{size - 1} of the {size} words" in " ".join(printed.split())
    model = load_model(tmp_path / "target" / "model").model
    assert isinstance(model, AwdLstmLanguageModel)
    assert (model.config.vocab_size, model.config.hidden_dropout) == (size, 0.1)
    before, after = (load_weights(tmp_path / name / "model") for name in ("general", "target"))
    changes = [(after[name] - before[name]).abs().max() for name in before if "weight_ih" in name]
    assert changes[0] / changes[1] == pytest.approx(0.1, rel=0.05)  # of Adam's first step


def test_the_loss_has_both_penalties_and_micro_batches_share_it(word_store: Path) -> None:
    """α · mean(h²) + β · mean((h_t − h_t+1)²) beside the mean cross entropy, over all streams of a step."""
    model = AwdLstmLanguageModel(AwdLstmConfig.from_size("tiny", 40).with_dropout(0.0), seed=0).train()
    ids = np.random.default_rng(0).integers(0, 40, (5, 8))
    whole = make_batch(StreamText(ids, slice(0, 5), 5, True, 3))
    loss = OBJECTIVE.loss(model, whole).loss
    states = model.encoder(whole.input)
    logits = states @ model.encoder.embeddings.word.weight.T + model.softmax_bias
    steps = states.view(5, 7, -1)
    expected = F.cross_entropy(logits, whole.labels) + 2 * states.square().mean() + steps.diff(dim=1).square().mean()
    torch.testing.assert_close(loss, expected)
    parts = [make_batch(StreamText(ids[rows], rows, 5, True, 3)) for rows in (slice(0, 2), slice(2, 5))]
    torch.testing.assert_close(torch.stack([OBJECTIVE.loss(model, part).loss for part in parts]).sum(), expected)


def test_a_model_from_right_to_left_learns_the_grammar_and_starts_none_of_the_other_direction(
    tmp_path: Path, make_lm: Make
) -> None:
    data = DataSettings(max_length=16, batch_size=8, objective="recurrent-rtl")
    run_pretrain(make_lm(tmp_path / "run", data=data, steps=40, eval_every=40))
    losses = [record["loss"] for record in read_metrics(tmp_path / "run") if record["kind"] == "held_out"]
    assert losses[-1] < 0.6 * losses[0]
    start = ModelSettings(init=str(tmp_path / "run"), architecture="ulmfit")
    with pytest.raises(ValueError, match="got one from right"):
        pretrain(make_lm(tmp_path / "other", model=start))


def test_the_loss_from_right_to_left_is_the_loss_of_the_reversed_text() -> None:
    config = AwdLstmConfig.from_size("tiny", 40).with_dropout(0.0)
    forward, backward = (
        AwdLstmLanguageModel(replace(config, is_reversed=is_reversed), seed=0).train() for is_reversed in (False, True)
    )
    ids = np.random.default_rng(0).integers(0, 40, (3, 8))
    text = StreamText(ids, slice(0, 3), 3, True, 3)
    mirrored = text._replace(ids=ids[:, ::-1].copy())
    own = BackwardLanguageModel().loss(backward, make_batch(text, is_reversed=True)).loss
    torch.testing.assert_close(own, OBJECTIVE.loss(forward, make_batch(mirrored)).loss)
    last, other = backward.carried.state(), forward.carried.state()
    assert all(torch.equal(values, other[name]) for name, values in last.items())


def test_an_evaluation_starts_from_zero_and_leaves_the_training_state(word_store: Path) -> None:
    tokenizer = open_tokenizer(word_store / "tokenizer")
    (examples,) = OBJECTIVE.open_examples(word_store / "train", tokenizer, [DataSettings(16, 8, "recurrent")])
    model = AwdLstmLanguageModel(AwdLstmConfig.from_size("tiny", tokenizer.vocab_size), seed=0).train()
    scores = evaluate(OBJECTIVE, model, examples.validation_batches(32))
    OBJECTIVE.loss(model, examples.batches_for_step(0)[0])
    carried = {name: values.clone() for name, values in model.carried.state().items()}
    assert evaluate(OBJECTIVE, model, examples.validation_batches(32)) == scores
    assert all(torch.equal(values, carried[name]) for name, values in model.carried.state().items())
    assert all(values.abs().sum() > 0 for values in carried.values())


def test_ulmfit_s_settings_are_the_defaults_and_pairs_are_refused() -> None:
    table = {"run": "run", "store": "store", "model": {"architecture": "ulmfit"}}
    settings = from_table(PretrainSettings, table, "")
    assert (settings.data.objective, settings.data.max_length, settings.optimizer.beta1) == ("recurrent", 70, 0.7)
    assert settings.optimizer.schedule == "slanted-triangular"
    with pytest.raises(ValueError, match="'pair'"):
        from_table(PretrainSettings, table | {"data": {"segments": "pair"}}, "")
    with pytest.raises(ValueError, match="num_heads"):
        from_table(PretrainSettings, table | {"model": {"architecture": "ulmfit", "num_heads": 2}}, "")


def test_another_architecture_is_no_start(tmp_path: Path, make_lm: Make, tiny_bert: Path) -> None:
    with pytest.raises(ValueError, match="expected an AWD-LSTM, got model_type bert"):
        pretrain(make_lm(tmp_path / "run", model=ModelSettings(init=str(tiny_bert), architecture="ulmfit")))
