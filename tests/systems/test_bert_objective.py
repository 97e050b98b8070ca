"""Losses of pre-training: hand-worked, sums over micro-batches, objectives without NSP."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertwright.models.packing import pack
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.bert_objective import LeftToRightLM
from bertwright.systems.bert.masked_lm_objective import MaskedLM, MaskedLMWithNextSentence

CONFIG = BertConfig(
    vocab_size=30, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, max_positions=16,
    hidden_dropout=0.2, attention_dropout=0.2,
)  # fmt: skip
LENGTHS = (5, 9, 3, 12)
NEXT_SENTENCE = MaskedLMWithNextSentence()
NO_LABELS = torch.zeros(0, dtype=torch.int64)


def make_batch(sequences: slice, first_token: int = 0, nsp: bool = True) -> LanguageModelBatch:
    """Return some sequences of a step of four; tokens 1 and 2 of each are predicted."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 30, n) for n in LENGTHS]
    labels = torch.from_numpy(rng.integers(0, 30, (4, 2)))
    packed = pack(ids[sequences])
    starts = packed.packing.first_positions
    return LanguageModelBatch(
        input=packed.with_dropout(11, first_token),
        mlm_positions=(starts[:, None] + torch.tensor([1, 2])).flatten(),
        mlm_labels=labels[sequences].flatten(),
        nsp_labels=torch.tensor([0, 1, 1, 0])[sequences] if nsp else NO_LABELS,
        lm_count=8,
        nsp_count=4 if nsp else 0,
    )


def test_losses_are_the_cross_entropies_of_the_logits():
    model, batch = BertForPretraining(CONFIG).eval(), make_batch(slice(None))
    with torch.no_grad():
        predicted = model(batch.input, batch.mlm_positions)
    found = NEXT_SENTENCE.loss(model, batch)
    tokens = -sum(
        math.log(math.exp(row[label]) / sum(map(math.exp, row)))
        for row, label in zip(predicted.tokens.tolist(), batch.mlm_labels.tolist(), strict=True)
    )
    answers = -sum(
        math.log(math.exp(row[label]) / sum(map(math.exp, row)))
        for row, label in zip(predicted.next_sentence.tolist(), batch.nsp_labels.tolist(), strict=True)
    )
    assert found.sums["lm_sum"].item() == pytest.approx(tokens, rel=1e-5)
    assert found.sums["nsp_sum"].item() == pytest.approx(answers, rel=1e-5)
    assert found.loss.item() == pytest.approx(tokens / 8 + answers / 4, rel=1e-5)
    assert found.sums["lm_correct"] == (predicted.tokens.argmax(-1) == batch.mlm_labels).sum()
    assert found.sums["nsp_correct"] == (predicted.next_sentence.argmax(-1) == batch.nsp_labels).sum()


def test_losses_of_an_untrained_model_are_those_of_chance():
    found = NEXT_SENTENCE.loss(BertForPretraining(CONFIG).eval(), make_batch(slice(None)))
    assert found.sums["lm_sum"].item() / 8 == pytest.approx(math.log(30), abs=0.1)
    assert found.sums["nsp_sum"].item() / 4 == pytest.approx(math.log(2), abs=0.1)


def test_losses_and_gradients_of_micro_batches_add_up_with_dropout():
    model = BertForPretraining(CONFIG).train()
    whole = NEXT_SENTENCE.loss(model, make_batch(slice(None)))
    whole.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    micro_batches = [
        NEXT_SENTENCE.loss(model, make_batch(slice(0, 3))),
        NEXT_SENTENCE.loss(model, make_batch(slice(3, 4), first_token=17)),
    ]
    for micro_batch in micro_batches:
        micro_batch.loss.backward()
    assert sum(output.loss.item() for output in micro_batches) == pytest.approx(whole.loss.item(), rel=1e-5)
    for name, expected in whole.sums.items():
        assert sum(output.sums[name].item() for output in micro_batches) == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: n + m)


def test_next_sentence_head_without_its_objective_has_no_gradient():
    model = BertForPretraining(CONFIG).train()
    found = MaskedLM().loss(model, make_batch(slice(None), nsp=False))
    found.loss.backward()
    assert found.sums["nsp_sum"] == found.sums["nsp_correct"] == 0
    assert found.loss.item() == pytest.approx(found.sums["lm_sum"].item() / 8)
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {f"{m}.{kind}" for m in ("pooler.dense", "next_sentence") for kind in ("weight", "bias")}


def test_micro_batch_without_masked_tokens_has_a_loss_of_zero():
    model, batch = BertForPretraining(CONFIG).train(), make_batch(slice(None))
    empty = LanguageModelBatch(**(vars(batch) | {"mlm_positions": NO_LABELS, "mlm_labels": NO_LABELS}))
    found = NEXT_SENTENCE.loss(model, empty)
    found.loss.backward()
    assert found.sums["lm_sum"] == found.sums["lm_correct"] == 0
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


def test_scores_equal_those_worked_by_hand() -> None:
    sums = {"lm_sum": 6.0, "lm_correct": 1, "lm_count": 4, "nsp_sum": 1.0, "nsp_correct": 3, "nsp_count": 5}
    expected = {
        "loss": 1.5, "perplexity": math.exp(1.5), "mlm_accuracy": 0.25, "nsp_loss": 0.2, "nsp_accuracy": 0.6
    }  # fmt: skip
    assert NEXT_SENTENCE.compute_scores(sums) == expected
    nothing = NEXT_SENTENCE.compute_scores(dict.fromkeys(sums, 0.0))
    assert nothing == dict.fromkeys(expected, 0.0) | {"perplexity": 1.0}


def test_scores_are_formatted_for_each_objective() -> None:
    scores = {"loss": 6.5, "perplexity": 665.1, "mlm_accuracy": 0.1, "nsp_accuracy": 0.5, "nsp_loss": 0.7}
    assert NEXT_SENTENCE.format_evaluation(scores) == "masked-LM loss 6.500, accuracy 10.0%, next sentence 50.0%"
    long = scores | {"long_loss": 6.25}
    assert LeftToRightLM().format_evaluation(long) == (
        "left-to-right LM loss 6.500, accuracy 10.0%; on long sequences loss 6.250"
    )
    metrics = scores | {"tokens_per_second": 1234.5}
    assert NEXT_SENTENCE.format_progress(metrics) == "loss 6.500 nsp 50% 1,234 tok/s"
    assert MaskedLM().format_progress(metrics) == "loss 6.500 1,234 tok/s"
    assert [column.metric for column in NEXT_SENTENCE.columns if column.is_plotted] == ["loss", "nsp_accuracy"]
    assert [column.metric for column in MaskedLM().columns if column.is_plotted] == ["loss", "mlm_accuracy"]
