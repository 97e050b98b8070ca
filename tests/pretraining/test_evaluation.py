"""Metrics of an evaluation, the unigram entropy, the plateau detector."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertwright.objectives.data import StoreExamples, unigram_entropy
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.pretraining.evaluation import PlateauDetector, evaluate
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

OBJECTIVE = MaskedLMWithNextSentence()


def open_pairs(
    store: TokenStore, tokenizer: Tokenizer, batch_size: int, max_length: int = 32
) -> StoreExamples[LanguageModelBatch]:
    return StoreExamples(store, tokenizer, DataSettings(max_length, batch_size), OBJECTIVE)


@pytest.fixture
def model(tokenizer: Tokenizer) -> BertForPretraining:
    return BertForPretraining(
        BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=8)
    )


def test_evaluation_does_not_depend_on_the_batches(
    model: BertForPretraining, mixed_store: TokenStore, tokenizer: Tokenizer
) -> None:
    data = open_pairs(mixed_store, tokenizer, batch_size=24)
    model.train()
    whole, batches_by_size = (
        evaluate(OBJECTIVE, model, data.batches_for_step(0)),
        evaluate(OBJECTIVE, model, data.batches_for_step(0, micro_batch_size=5)),
    )
    assert model.training
    assert batches_by_size == pytest.approx(whole, rel=1e-5)
    assert abs(whole["loss"] - math.log(tokenizer.vocab_size)) < 0.5  # an untrained model knows nothing


def test_evaluation_has_no_gradient_and_restores_the_mode_after_an_error(
    model: BertForPretraining, mixed_store: TokenStore, tokenizer: Tokenizer
) -> None:
    data = open_pairs(mixed_store, tokenizer, batch_size=4)
    (batch,) = data.batches_for_step(0)
    too_long = replace(batch, input=replace(batch.input, packing=replace(batch.packing, lengths=np.array([10_000]))))
    model.train()
    with pytest.raises(ValueError, match=r"tokens per sequence .*, got 10000"):
        evaluate(OBJECTIVE, model, [batch, too_long])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_unigram_entropy_of_a_small_store(make_store: Callable[..., TokenStore]) -> None:
    equal = make_store([[[5, 6, 7, 8]] * 10])
    assert unigram_entropy(equal) == pytest.approx(math.log(4))
    uneven = make_store([[[5, 5, 5, 6]]])
    assert unigram_entropy(uneven) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_unigram_entropy_is_the_loss_of_a_model_that_ignores_its_input(
    mixed_store: TokenStore, tokenizer: Tokenizer, model: BertForPretraining
) -> None:
    counts = np.bincount(mixed_store.read_tokens(0, mixed_store.num_tokens), minlength=tokenizer.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.masked_token.bias.copy_(torch.from_numpy(counts / counts.sum()).clamp(min=1e-9).log())
    data = open_pairs(mixed_store, tokenizer, batch_size=256, max_length=64)
    assert evaluate(OBJECTIVE, model, data.batches_for_step(0))["loss"] == pytest.approx(
        unigram_entropy(mixed_store), abs=0.05
    )


@pytest.mark.parametrize(
    "losses",
    [[9.0, 8.0, 7.0, 6.5], [6.0, 6.0], [4.0, 4.0, 4.0, 4.0], [6.3, 6.2, 6.1, 6.0]],
    ids=["falling", "too few", "far below", "slowly falling"],
)
def test_plateau_detector_ignores_a_falling_loss(losses: list[float]) -> None:
    watch = PlateauDetector(entropy=6.0, window=2)
    assert not any(watch.update(loss) for loss in losses)


def test_plateau_is_reported_once() -> None:
    watch = PlateauDetector(entropy=6.0, window=3)
    assert sum(watch.update(6.02) for _ in range(50)) == 1
