"""`Bert.next_sentence` and `Bert.attention` against `transformers`, with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.inference.bert import Bert, load
from bertwright.models.heads import BertForPretraining
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

TOKENS = [*SPECIAL_TOKENS, *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), ".", "the", "cat", "sat"]
FIRST = ["the cat sat.", "a b c d e f g h i j a b c d e f g h", "cat"]
SECOND = ["abc the", "the cat sat. the cat sat. the cat", "b"]


def make_bert(**changes: Any) -> Bert:
    sizes = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "intermediate_size": 40, "max_positions": 16}
    config = BertConfig(**({"vocab_size": len(TOKENS), "initializer_range": 0.3} | sizes | changes))
    model = BertForPretraining(config, seed=3)
    for layer in (model.pooler.dense, model.next_sentence):
        layer.bias.data = torch.linspace(-0.3, 0.3, len(layer.bias))  # not 0, as after training
    return Bert(model, Tokenizer.from_tokens(TOKENS, lowercase=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    make_bert().save(path)
    return path


def test_next_sentence_has_the_probabilities_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer, BertForNextSentencePrediction

    theirs, tokenizer = BertForNextSentencePrediction.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = []
    for first, second in zip(FIRST, SECOND, strict=True):
        encoded = tokenizer(first, second, truncation="longest_first", max_length=16, return_tensors="pt")
        with torch.no_grad():
            expected.append(theirs.eval()(**encoded).logits.softmax(-1)[0, 0].item())
    model = load(folder)
    found = model.next_sentence(FIRST, SECOND)
    assert found == pytest.approx(expected, abs=1e-6)
    assert max(found) - min(found) > 0.01
    assert model.next_sentence(FIRST[0], SECOND[0]) == pytest.approx(found[0], abs=1e-6)
    assert model.next_sentence([], []) == []


@pytest.mark.parametrize(("first", "second"), [("the cat", None), ("the cat", "abc sat")])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_that_of_transformers(tmp_path: Path, first: str, second: str | None, causal: bool) -> None:
    from transformers import AutoTokenizer, BertModel

    ours = make_bert(is_causal=causal)
    ours.save(tmp_path / "model")
    theirs = BertModel.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    encoded = AutoTokenizer.from_pretrained(tmp_path / "model")(first, second, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(theirs(**encoded, output_attentions=True).attentions).numpy()
    found = ours.attention(first, second)
    assert found.tokens == tuple(TOKENS[token] for token in encoded["input_ids"][0].tolist())
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    np.testing.assert_allclose(found.weights.sum(-1), 1.0, atol=1e-5)


def test_attention_of_a_reversed_model_is_that_of_transformers_on_the_mirrored_sequence(tmp_path: Path) -> None:
    from transformers import BertModel

    make_bert(is_causal=True).save(tmp_path / "model")
    theirs = BertModel.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    ours = make_bert(is_causal=True, is_reversed=True)  # with the same weights
    found = ours.attention("the cat", "abc sat")
    ids = torch.tensor([[TOKENS.index(token) for token in reversed(found.tokens)]])
    types = torch.tensor([[1] * (found.tokens[::-1].index("[SEP]", 1)) + [0] * (found.tokens.index("[SEP]") + 1)])
    with torch.no_grad():
        mirrored = torch.cat(theirs(ids, token_type_ids=types, output_attentions=True).attentions).numpy()
    assert found.tokens[0] == "[CLS]"
    assert (np.tril(found.weights, -1) == 0).all()  # a token attends to itself and later ones
    np.testing.assert_allclose(found.weights, mirrored[:, :, ::-1, ::-1], atol=1e-6)


def test_model_with_one_segment_rejects_pairs() -> None:
    model = make_bert(type_vocab_size=1)
    with pytest.raises(ValueError, match=r"type_vocab_size = 1: .* one segment embedding"):
        model.next_sentence("the", "cat")
    with pytest.raises(ValueError, match=r"type_vocab_size = 1: .* one segment embedding"):
        model.attention("the", "cat")
    assert model.attention("the").tokens == ("[CLS]", "the", "[SEP]")
    assert model.attention("the [MASK]").tokens == ("[CLS]", "the", "[MASK]", "[SEP]")


def test_attention_reads_empty_texts_and_the_full_number_of_positions() -> None:
    model = make_bert()
    assert model.attention("", "the cat").tokens == ("[CLS]", "[SEP]", "the", "cat", "[SEP]")
    assert model.attention("the", "").tokens == ("[CLS]", "the", "[SEP]", "[SEP]")
    assert len(model.attention(" ".join("abcdefghijabcd")).tokens) == 16


def test_calls_that_do_not_fit_the_model_are_refused(folder: Path) -> None:
    model = load(folder)
    with pytest.raises(ValueError, match="expected one for each of 2 first texts, got 1"):
        model.next_sentence(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="second text: expected a text"):
        model.next_sentence("a", ["c"])  # type: ignore[call-overload]
    without = Bert(model.model, model.tokenizer, missing_heads=("next_sentence",))
    with pytest.raises(ValueError, match="no next-sentence head"):
        without.next_sentence("a", "b")
    with pytest.raises(ValueError, match=r"left-to-right .*without next-sentence prediction"):
        make_bert(is_causal=True).next_sentence("a", "b")
    for untrained in ("pooler.dense", "next_sentence"):
        bert = make_bert()
        torch.nn.init.zeros_(bert.model.get_submodule(untrained).bias)
        with pytest.raises(ValueError, match=r"bidirectional .*without next-sentence prediction"):
            bert.next_sentence("a", "b")
    with pytest.raises(ValueError, match="expected at most the 16 tokens that the model reads, got 17"):
        model.attention(" ".join("abcdefghijabcde"))
