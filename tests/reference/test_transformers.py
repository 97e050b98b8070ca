"""Parity of the model with BertForPreTraining of `transformers` on the same weights: states, losses, gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from converted import distance, randomize_reference, weights_of
from torch import Tensor

from bertwright.interop.huggingface import build_model
from bertwright.models.packing import pack
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_folder import BERT, NAMES
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence

VOCABULARY = 211
IGNORED = -100  # the label in transformers of positions without a target

CASES = {
    "one layer": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64},
    "odd sizes": {"num_hidden_layers": 2, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 55},
    "tanh": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2, "hidden_act": "gelu_new"},
    "left to right": {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "is_decoder": True},
}


class Example(NamedTuple):
    """The same sequences, packed for our model and padded for theirs."""

    ours: LanguageModelBatch
    theirs: dict[str, Tensor]
    real: Tensor  # B S, False at padding


def reference_model(**changes: object) -> transformers.BertForPreTraining:
    """Build their model in float32 without dropout."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **({"intermediate_size": 96} | changes), attn_implementation="eager",
    )  # fmt: skip
    return randomize_reference(transformers.BertForPreTraining(config))


def example(lengths: tuple[int, ...] = (17, 2, 40, 9, 33)) -> Example:
    rng = np.random.default_rng(3)
    ids = [rng.integers(1, VOCABULARY, length) for length in lengths]
    types = [(np.arange(length) >= length // 2).astype(np.int64) for length in lengths]
    nsp = rng.integers(0, 2, len(lengths))
    shape = (len(lengths), max(lengths))
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    masked = real & (rng.random(shape) < 0.25)
    masked[0, 0] = True
    padded = {"input_ids": np.zeros(shape, int), "token_type_ids": np.zeros(shape, int)}
    padded["input_ids"][real], padded["token_type_ids"][real] = np.concatenate(ids), np.concatenate(types)
    targets = rng.integers(1, VOCABULARY, shape)
    ours = LanguageModelBatch(
        input=pack(ids, types),
        mlm_positions=torch.from_numpy(masked[real].nonzero()[0]),
        mlm_labels=torch.from_numpy(targets[masked]),
        nsp_labels=torch.from_numpy(nsp),
        lm_count=int(masked.sum()),
        nsp_count=len(lengths),
    )
    padded |= {"attention_mask": real.astype(int), "labels": np.where(masked, targets, IGNORED)}
    theirs = {name: torch.from_numpy(array) for name, array in padded.items()}
    return Example(ours, theirs | {"next_sentence_label": torch.from_numpy(nsp)}, torch.from_numpy(real))


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def pair(request: pytest.FixtureRequest) -> tuple[transformers.BertForPreTraining, BertForPretraining]:
    reference = reference_model(**request.param)
    return reference, build_model(weights_of(reference)).model.train()


def test_every_hidden_state_and_both_heads_equal_transformers(pair):
    reference, model = pair
    batch = example()
    with torch.no_grad():
        theirs = reference(**batch.theirs, output_hidden_states=True)
        ours = model.encoder.hidden_states(batch.ours.input)
        predicted = model(batch.ours.input, batch.ours.mlm_positions)
    assert len(ours) == len(theirs.hidden_states)
    for state, expected in zip(ours, theirs.hidden_states, strict=True):
        assert distance(state, expected[batch.real]) < 1e-5
    tokens = theirs.prediction_logits[batch.theirs["labels"] != IGNORED]
    assert distance(predicted.tokens, tokens) < 1e-5
    assert distance(predicted.next_sentence, theirs.seq_relationship_logits) < 1e-5


def test_losses_and_every_gradient_equal_transformers(pair):
    reference, model = pair
    batch = example()
    output = reference(**batch.theirs)
    output.loss.backward()
    ours = MaskedLMWithNextSentence().loss(model, batch.ours)
    ours.loss.backward()

    assert ours.loss.item() == pytest.approx(output.loss.item(), rel=1e-5)
    mean = ours.sums["lm_sum"] / batch.ours.lm_count + ours.sums["nsp_sum"] / batch.ours.nsp_count
    assert mean.item() == pytest.approx(output.loss.item(), rel=1e-5)
    theirs = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        expected = torch.cat([theirs[theirs_name].grad for theirs_name in NAMES.of(name)])
        assert distance(parameter.grad, expected) < 1e-5, name


def test_bfloat16_is_close_to_float32(pair):
    _, model = pair
    batch = example()
    exact = MaskedLMWithNextSentence().loss(model, batch.ours)
    exact.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.encoder.compute_dtype = torch.bfloat16
    rough = MaskedLMWithNextSentence().loss(model, batch.ours)
    rough.loss.backward()
    assert rough.loss.item() == pytest.approx(exact.loss.item(), rel=2e-2)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert distance(parameter.grad, gradients[name]) < 2.5e-2, name


def their_config(config: BertConfig) -> transformers.BertConfig:
    fields = BERT.format_config(config)
    return transformers.BertConfig(**{name: fields[name] for name in fields if name not in ("model_type", "dtype")})


def test_published_parameter_counts():
    for size, expected, encoder in (("base", 110_106_428, 109_482_240), ("large", 336_226_108, 335_141_888)):
        config = BertConfig.from_size(size, vocab_size=30_522)
        with torch.device("meta"):
            model = BertForPretraining(config)
            theirs = transformers.BertForPreTraining(their_config(config))
        assert sum(p.numel() for p in theirs.parameters()) == expected
        assert sum(p.numel() for p in model.parameters()) == config.num_parameters == expected
        assert config.num_encoder_parameters + config.num_pooler_parameters == encoder
