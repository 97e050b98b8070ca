"""Folders of translation models: `transformers` computes the same logits and translations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, MarianMTModel

from bertwright.base.seeding import make_rng
from bertwright.models.packing import PairBatch, pack
from bertwright.systems.transformer.marian import load_system, write_system
from bertwright.systems.transformer.transformer import Transformer, TransformerConfig
from bertwright.systems.translation_models import TranslationSystem
from bertwright.translation.translator import Translator, load_translator
from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary
from harness import randomize

TEXT = ["der Hund schläft .", "der Hund bellt .", "die Katze schläft .", "ein Mann sieht den Hund .", "ein Haus"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = learn_joint_vocabulary(TEXT, 120)
    config = TransformerConfig(tokenizer.vocab_size, 32, num_layers=2, num_heads=4, intermediate_size=48, dropout=0.2)
    path = tmp_path_factory.mktemp("marian")
    write_system(path, TranslationSystem(randomize(Transformer(config, seed=3)), tokenizer, tokenizer))
    return path


def test_transformers_computes_the_same_logits(folder: Path) -> None:
    theirs = MarianMTModel.from_pretrained(folder).eval()
    model, *_ = load_system(folder)
    rng = make_rng(0, 1)
    source, target = rng.integers(5, 40, 9), rng.integers(5, 40, 7)
    pairs = PairBatch(pack([source, source[:4]]), pack([target, target[:2]]))
    with torch.no_grad():
        ours = model.logits(model(pairs))
        mask = torch.tensor([[1] * 9, [1] * 4 + [0] * 5])
        sources = torch.from_numpy(np.stack([source, source])).long()
        targets = torch.from_numpy(np.stack([target, target])).long()
        expected = theirs(sources, attention_mask=mask, decoder_input_ids=targets).logits
    torch.testing.assert_close(ours[:7], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[7:], expected[1, :2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_transformers_translates_as_we_do(folder: Path, beam_size: int) -> None:
    """The penalty is switched off: that of `transformers` is length^α. Its scores also stop a beam later."""
    theirs, tokenizer = MarianMTModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(TEXT[:3], padding=True, return_tensors="pt")
    found = theirs.generate(
        encoded.input_ids, attention_mask=encoded.attention_mask, num_beams=beam_size, max_new_tokens=12,
        early_stopping=True, length_penalty=0.0, do_sample=False,
    )  # fmt: skip
    expected = tokenizer.batch_decode(found, skip_special_tokens=True)
    system = load_system(folder)
    lengths = encoded.attention_mask.sum(1)
    for text, length, translation in zip(TEXT[:3], lengths.tolist(), expected, strict=True):
        [ours] = Translator(system, beam_size, 0.0, extra_length=12 - length).translate([text])
        assert ours.split() == translation.split()


def test_a_written_model_is_read_to_the_bit(folder: Path, tmp_path: Path) -> None:
    system = load_system(folder)
    model, tokenizer, _ = system
    assert model.config.dropout == 0.2
    write_system(tmp_path, system)
    again, tokenizer_again, _ = load_system(tmp_path)
    for (name, first), (_, second) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(first, second), name
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert tokenizer_again.digest == tokenizer.digest


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("activation_function", "swish", "activation_function: expected 'relu', got 'swish'"),
        ("model_type", "bert", "model_type: expected .*marian.*, got 'bert'"),
        ("decoder_layers", 3, "decoder_layers: expected a number, equal in both halves, got 3"),
        ("d_model", 30, "hidden_size = 30: expected a multiple of num_heads = 4"),
        ("vocab_size", None, "vocab_size: expected a number"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    folder: Path, tmp_path: Path, field: str, value: object, expected: str
) -> None:
    for file in folder.iterdir():
        if file.name != "checksums.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(ValueError, match=expected) as error:
        load_translator(tmp_path)
    assert str(tmp_path / "config.json") in str(error.value)
