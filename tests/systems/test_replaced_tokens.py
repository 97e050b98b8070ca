"""ELECTRA's objective: parity with `transformers`' losses, sampling, resume to the bit, its folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import ElectraForMaskedLM, ElectraForPreTraining

import bertwright
from bertwright.cli.main import run
from bertwright.interop.huggingface import load_model, save_model
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.distilbert.distilbert import DistilBertConfig, DistilBertForMaskedLM
from bertwright.systems.electra.electra import (
    ElectraConfig,
    ElectraDiscriminator,
    ElectraForPretraining,
    ElectraGenerator,
)
from bertwright.systems.electra.replaced_tokens import (
    DETECTION_WEIGHT,
    ReplacedTokenBatch,
    ReplacedTokens,
    replace_tokens,
    sample_tokens,
)
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import check_interrupted_run, randomize
from helpers import CPU, text_reporter
from small_runs import FILLERS

ELECTRA = ModelSettings(hidden_size=32, num_heads=4, num_layers=2, max_positions=64, architecture="electra")
DATA = DataSettings(max_length=32, batch_size=8, objective="replaced-tokens", mask_mix=(1.0, 0.0, 0.0))


def make_model(vocab_size: int, **changes: Any) -> ElectraForPretraining:
    config = ElectraConfig(vocab_size, 32, 2, 4, 64, 64, embedding_size=32, **changes)
    parts = ElectraDiscriminator(config, 1), ElectraGenerator(config.generator, 2)
    return randomize(ElectraForPretraining(*parts))


@pytest.fixture(scope="module")
def tokenizer(vocabulary_folder: Path) -> Tokenizer:
    return Tokenizer.load(vocabulary_folder)


def make_batches(store: Path, tokenizer: Tokenizer, size: int | None = None, step: int = 0) -> list[ReplacedTokenBatch]:
    (examples,) = ReplacedTokens().open_examples(store / "train", tokenizer, [DATA])
    return examples.batches_for_step(step, micro_batch_size=size)  # type: ignore[return-value]


def test_losses_and_gradients_equal_transformers_on_the_same_replaced_tokens(
    tmp_path: Path, store: Path, tokenizer: Tokenizer
) -> None:
    model = make_model(tokenizer.vocab_size).eval()
    ReplacedTokens().write_model(tmp_path, model, tokenizer)
    discriminator = ElectraForPreTraining.from_pretrained(tmp_path).eval()
    generator = ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    (batch,) = make_batches(store, tokenizer)
    output = ReplacedTokens().loss(model, batch)

    states = model.generator.masked_token(model.generator.encoder(batch.input, batch.mlm_positions))
    head = model.generator.masked_token
    drawn = sample_tokens(states, model.generator.word_embeddings, head.bias, batch.draws)
    text, is_replaced = replace_tokens(batch, drawn)
    starts = batch.packing.cu_seqlens.tolist()
    labels = torch.full_like(text, -100)
    labels[batch.mlm_positions] = batch.mlm_labels
    sums = [torch.zeros(()), torch.zeros(())]
    for begin, end in pairwise(starts):
        of_masks = generator(batch.input.input_ids[None, begin:end]).logits[0]
        sums[0] = sums[0] + F.cross_entropy(of_masks, labels[begin:end], reduction="sum")
        found = discriminator(text[None, begin:end], labels=is_replaced[None, begin:end].long())
        sums[1] = sums[1] + found.loss * (end - begin)
    expected = sums[0] / len(batch.mlm_labels) + DETECTION_WEIGHT * sums[1] / len(text)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    output.loss.backward()
    expected.backward()
    for name, ours, theirs in (
        ("encoder.layers.1.output.weight", model, discriminator.electra.encoder.layer[1].output.dense.weight),
        ("replaced_token.dense.weight", model, discriminator.discriminator_predictions.dense.weight),
        ("encoder.layers.0.output.weight", model.generator, generator.electra.encoder.layer[0].output.dense.weight),
        ("encoder.embeddings.projection.weight", model.generator, generator.electra.embeddings_project.weight),
    ):
        torch.testing.assert_close(ours.get_parameter(name).grad, theirs.grad, rtol=1e-4, atol=1e-6)
    tables = [each.electra.embeddings.word_embeddings.weight.grad for each in (discriminator, generator)]
    words = slice(1, None)  # transformers does not train [PAD], which the generator may draw
    found_gradient = model.encoder.embeddings.word.weight.grad
    torch.testing.assert_close(found_gradient[words], sum(tables)[words], rtol=1e-4, atol=1e-5)


def test_texts_do_not_depend_on_micro_batches(store: Path, tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer.vocab_size).train()
    outputs = {}
    for size in (8, 3, 1):
        model.zero_grad()
        results = [ReplacedTokens().loss(model, batch) for batch in make_batches(store, tokenizer, size)]
        outputs[size] = sum(result.loss.item() for result in results)
        assert sum(result.sums["replaced"].item() for result in results) > 0
    assert outputs[3] == pytest.approx(outputs[8], rel=1e-5)
    assert outputs[1] == pytest.approx(outputs[8], rel=1e-5)


def test_padding_changes_nothing(store: Path, tokenizer: Tokenizer) -> None:
    model, objective = make_model(tokenizer.vocab_size).train(), ReplacedTokens()
    (batch,) = make_batches(store, tokenizer)
    padded = objective.pad_batch(batch, 8, DATA)
    before, after = objective.loss(model, batch), objective.loss(model, padded)
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-6)
    for name, value in before.sums.items():
        assert after.sums[name].item() == pytest.approx(value.item(), rel=1e-6), name


def test_drawn_tokens_follow_the_softmax() -> None:
    generator = torch.Generator().manual_seed(3)
    states, words, bias = (torch.randn(*size, generator=generator) for size in ((1, 4), (6, 4), (6,)))
    draws = torch.from_numpy((np.arange(60_000) + 0.5) / 60_000)
    drawn = sample_tokens(states.expand(60_000, 4), words, bias, draws)
    shares = drawn.bincount(minlength=6) / 60_000
    torch.testing.assert_close(shares, (states @ words.T + bias).softmax(-1)[0], atol=1e-4, rtol=0)


def test_a_token_that_is_drawn_as_it_was_is_original(store: Path, tokenizer: Tokenizer) -> None:
    (batch,) = make_batches(store, tokenizer)
    text, is_replaced = replace_tokens(batch, batch.mlm_labels)
    assert not is_replaced.any()
    assert not (text == tokenizer.mask_id).any()
    other = torch.where(batch.mlm_labels == 9, 8, 9)
    text, is_replaced = replace_tokens(batch, other)
    assert is_replaced.nonzero()[:, 0].equal(batch.mlm_positions)


def test_generator_is_a_quarter_with_the_same_embeddings(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer.vocab_size)
    config = model.generator.config
    assert (config.hidden_size, config.num_heads, config.intermediate_size, config.num_layers) == (8, 1, 16, 2)
    assert model.generator.word_embeddings is model.encoder.embeddings.word.weight
    names = [name for name, _ in model.named_parameters()]
    assert [name for name in names if "embeddings" in name and name.startswith("generator.")] == [
        "generator.encoder.embeddings.projection.weight",
        "generator.encoder.embeddings.projection.bias",
    ]
    with pytest.raises(ValueError, match=r"hidden_size = 30, .*expected multiples of 4"):
        replace(model.config, hidden_size=30, num_heads=2, embedding_size=30).generator  # noqa: B018


def test_interrupted_run_resumes_to_the_bit_and_leaves_both_models(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, review_files: Path
) -> None:
    settings = PretrainSettings(
        tmp_path / "run", store, steps=6, save_every=2, eval_every=6, model=ELECTRA, data=DATA, long=LongPhase(0),
        device=CPU,
    )  # fmt: skip
    check_interrupted_run(pretrain, settings, 3, monkeypatch)
    folder = tmp_path / "run" / "model"
    assert isinstance(load_model(folder).model, ElectraDiscriminator)
    with pytest.raises(ValueError, match="no masked-LM head"):
        bertwright.load(folder).fill_mask("the [MASK]")
    assert len(bertwright.load(folder / "generator").fill_mask("the [MASK] in").masks) == 1
    device = "--device cpu --threads 1"
    continued = f"pretrain --architecture electra --init {tmp_path / 'run'} --store {store} --run {tmp_path / 'more'}"
    assert run(f"{continued} --steps 2 --batch-size 4 --max-length 32 {device}".split()) == 0
    tune = f"finetune --task classification --train {review_files / 'train.tsv'} --dev {review_files / 'dev.tsv'}"
    assert run(f"{tune} --model {tmp_path / 'run'} --run {tmp_path / 'tuned'} --epochs 1 {device}".split()) == 0
    assert bertwright.load(tmp_path / "tuned").classify(" ".join(FILLERS)).label in ("bad", "good")


def test_run_from_a_discriminator_alone_gets_a_new_generator(tmp_path: Path, store: Path, tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer.vocab_size)
    ReplacedTokens().write_model(tmp_path, model, tokenizer)
    (tmp_path / "generator").rename(tmp_path.parent / "elsewhere")
    found, notices = ReplacedTokens().load_model(tmp_path, ELECTRA, tokenizer, is_checkpoint=False)
    assert notices == [f"{tmp_path} has no folder generator: the generator starts from random weights"]
    assert torch.equal(found.generator.word_embeddings, model.generator.word_embeddings)


def test_masked_lm_continues_from_any_model_with_its_head(
    tmp_path: Path, make_settings: Callable[..., PretrainSettings], tokenizer: Tokenizer
) -> None:
    config = DistilBertConfig(tokenizer.vocab_size, 32, 2, 4, 64, 64)
    save_model(tmp_path / "first", DistilBertForMaskedLM(config), tokenizer)
    start = {"model": ModelSettings(init=str(tmp_path / "first")), "long": LongPhase(0), "steps": 4}
    pretrain(make_settings(tmp_path / "run", data=DataSettings(32, 8, "mlm"), **start), text_reporter())
    assert isinstance(load_model(tmp_path / "run" / "model").model, DistilBertForMaskedLM)
    with pytest.raises(ValueError, match="expected a BERT, got model_type distilbert"):
        pretrain(make_settings(tmp_path / "other", data=DataSettings(32, 8), **start), text_reporter())
