"""Pre-training of the systems with BERT's layers, resumed to the bit, and by masked LM of what has its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from families import save
from test_families import FAMILIES

import bertwright
from bertwright.base.files import read_json
from bertwright.base.settings import from_table
from bertwright.interop.huggingface import load_model
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.registry import objectives_of
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from harness import failing_after, same_weights
from small_runs import grammar, make_word_store

each_system = pytest.mark.parametrize("name", ["distilbert", "albert", "mpnet"])
SHAPE = {"size": "tiny", "hidden_size": 32, "num_heads": 4, "max_positions": 24}
NEW = {
    **{name: {"model": {"architecture": name} | SHAPE} for name in ("distilbert", "albert", "mpnet")},
    "roberta": {"model": {"architecture": "roberta", "num_layers": 1} | SHAPE},
    "modernbert": {
        "model": {"architecture": "modernbert", "attention_dropout": 0.1}
        | SHAPE
        | {"num_layers": 3, "max_positions": 150},
        "data": {"max_length": 150, "batch_size": 4},  # beyond a window of 128 tokens
    },
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_store(tmp_path_factory.mktemp("families"), grammar(60), "bpe-bytes", size=300)


@pytest.fixture(scope="module")
def unigram_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_store(tmp_path_factory.mktemp("unigram"), grammar(60), "unigram", size=300)


def make_settings(run: Path, store: Path, model: dict[str, Any], **changes: Any) -> PretrainSettings:
    table: dict[str, Any] = {
        "run": str(run), "store": str(store), "steps": 30, "save_every": 10, "eval_every": 30, "log_every": 10,
        "model": {"hidden_dropout": 0.1} | model, "data": {"max_length": 24, "batch_size": 8},
        "long": {"long_ratio": 0.0}, "optimizer": {"learning_rate": 1e-2, "warmup_ratio": 0.1},
        "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip
    return from_table(PretrainSettings, table | changes, "test")


@pytest.mark.parametrize("name", NEW)
def test_interrupted_pretraining_resumes_to_the_bit_and_is_continued(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = request.getfixturevalue("unigram_store" if name == "albert" else "store")

    def settings(run: str, **changes: Any) -> PretrainSettings:
        return make_settings(tmp_path / run, store, **(NEW[name] | changes))

    unbroken = pretrain(settings("unbroken"))
    (objective,) = objectives_of(name)
    with failing_after(25, type(objective), "loss"):
        pretrain(settings("broken"))
    assert same_weights(unbroken, pretrain(settings("broken", resume=True)))
    report = read_json(tmp_path / "unbroken" / "report.json")
    assert report["held_out_after"]["loss"] < report["held_out_before"]["loss"] - 1

    onward = settings("continued", model={"init": str(tmp_path / "unbroken")}, steps=3)
    assert onward.model.architecture == name  # that of the folder
    continued = pretrain(onward)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(continued)
    assert theirs.config.model_type == name
    assert bertwright.load(continued).fill_mask("the <mask> sees the deer").masks


@each_system
def test_pretraining_starts_from_the_weights_of_transformers(name: str, store: Path, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(store / "tokenizer")
    theirs = FAMILIES[name].build("ForMaskedLM", vocab_size=tokenizer.vocab_size)
    tokenizer.save(save(theirs, tmp_path / "theirs"), max_length=24)
    expected = load_model(tmp_path / "theirs", heads="optional").model
    rate = {"optimizer": {"learning_rate": 1e-12}}
    result = pretrain(make_settings(tmp_path / "run", store, {"init": str(tmp_path / "theirs")}, steps=1, **rate))
    found = dict(load_model(result, heads="optional").model.named_parameters())
    for parameter, tensor in expected.named_parameters():
        assert (found[parameter] - tensor).abs().max() < 1e-6, parameter


@pytest.mark.parametrize("name", NEW)
def test_its_objective_reads_single_texts(name: str) -> None:
    (objective,) = objectives_of(name)
    table = {"run": "run", "store": "store", "data": {"segments": "pair"}} | {"model": {"architecture": name}}
    with pytest.raises(ValueError, match=rf"segments is 'pair'; --objective {objective.name} reads single texts"):
        from_table(PretrainSettings, table, "test")


@pytest.mark.parametrize("name", ["distilbert", "electra"])
def test_masked_lm_continues_from_any_model_with_its_head(name: str, store: Path, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(store / "tokenizer")
    theirs = FAMILIES[name].build("ForMaskedLM", vocab_size=tokenizer.vocab_size)
    tokenizer.save(save(theirs, tmp_path / "theirs"), max_length=24)
    start, single = {"init": str(tmp_path / "theirs")}, {"max_length": 24, "batch_size": 8, "objective": "mlm"}
    continued = pretrain(make_settings(tmp_path / "run", store, start, steps=4, data=single))
    opened = transformers.AutoModelForMaskedLM.from_pretrained(continued)
    assert opened.config.model_type == name
    left = single | {"objective": "ltr"}
    with pytest.raises(ValueError, match=f"expected a BERT, got model_type {name}"):
        pretrain(make_settings(tmp_path / "left", store, start, data=left))


def test_masked_lm_does_not_continue_from_an_electra_that_finds_replaced_tokens(store: Path, tmp_path: Path) -> None:
    tokenizer = open_tokenizer(store / "tokenizer")
    theirs = FAMILIES["electra"].build("ForPreTraining", vocab_size=tokenizer.vocab_size)
    tokenizer.save(save(theirs, tmp_path / "theirs"), max_length=24)
    single = {"max_length": 24, "batch_size": 8, "objective": "mlm"}
    with pytest.raises(ValueError, match=r"or a model with .*, got model_type electra"):
        pretrain(make_settings(tmp_path / "run", store, {"init": str(tmp_path / "theirs")}, data=single))
