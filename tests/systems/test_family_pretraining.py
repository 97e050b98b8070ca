"""Pre-training of systems with BERT's layers, resumed to the bit, and by masked LM of what has its head."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from families import FAMILIES, make_settings, save

import bertwright
from bertwright.base.files import read_json
from bertwright.interop.huggingface import load_model
from bertwright.pretraining.run import pretrain
from bertwright.systems.bert.masked_lm_objective import FamilyMaskedLM
from bertwright.systems.registry import objectives_of
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from harness import failing_after, same_weights
from small_runs import grammar, make_word_store

each_system = pytest.mark.parametrize("name", ["distilbert", "albert", "mpnet", "modernbert"])
LONG = {"max_length": 150, "batch_size": 4}  # longer than a window of ModernBERT


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_store(tmp_path_factory.mktemp("families"), grammar(60), "bpe-bytes", size=300)


@each_system
def test_interrupted_pretraining_resumes_to_the_bit_and_is_continued(name: str, store: Path, tmp_path: Path) -> None:
    new = {"architecture": name, "size": "tiny", "hidden_size": 32, "num_heads": 4, "max_positions": 150}
    new |= {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    data = {"data": LONG} if name == "modernbert" else {}
    unbroken = pretrain(make_settings(tmp_path / "unbroken", store, new, **data))
    (objective,) = objectives_of(name)
    with failing_after(25, type(objective), "loss"):
        pretrain(make_settings(tmp_path / "broken", store, new, **data))
    resumed = pretrain(make_settings(tmp_path / "broken", store, new, resume=True, **data))
    assert same_weights(unbroken, resumed)
    report = read_json(tmp_path / "unbroken" / "report.json")
    assert report["held_out_after"]["loss"] < report["held_out_before"]["loss"] - 1

    settings = make_settings(tmp_path / "continued", store, {"init": str(tmp_path / "unbroken")}, steps=3)
    assert settings.model.architecture == name  # that of the folder
    continued = pretrain(settings)
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


@each_system
def test_its_objective_is_the_masked_lm_of_single_texts(name: str, store: Path, tmp_path: Path) -> None:
    (objective,) = objectives_of(name)
    assert isinstance(objective, FamilyMaskedLM)
    with pytest.raises(ValueError, match="segments is 'pair'"):
        make_settings(tmp_path / "run", store, {"architecture": name}, data={"segments": "pair"})


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
