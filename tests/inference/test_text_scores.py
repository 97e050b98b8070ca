"""Scores of texts by left-to-right language models: the loss of transformers, sums by hand, long texts, the command."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import OpenAIGPTLMHeadModel

import bertwright
from bertwright.cli.main import run
from bertwright.inference import text_scores
from bertwright.inference.bert import Bert
from bertwright.inference.text_scores import TextScore
from bertwright.interop.huggingface import save_model
from bertwright.models.encoder import EncoderModel
from bertwright.models.packing import make_input
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig
from bertwright.systems.gpt.gpt import GptConfig, GptLanguageModel
from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmLanguageModel
from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.word_tokenizer import ELMO_RULES, LOWERCASE_RULES, WordTokenizer
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

WORDS = ["a", "b", "c", "d"]
SPECIAL = ["<pad>", "<unk>", "_start_", "_delimiter_", "_classify_"]
PAIRS = BytePairTokenizer({t: n for n, t in enumerate([*SPECIAL, *(f"{word}</w>" for word in WORDS)])}, [], "test")
TEXTS = ["a b c", "c a", "d d d b a c d b"]


def make_gpt(positions: int) -> Bert:
    config = GptConfig(PAIRS.vocab_size, 16, 2, 2, 64, positions, initializer_range=0.8)
    return Bert(GptLanguageModel(config, seed=2), PAIRS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt") / "model"
    save_model(folder, make_gpt(12).model, PAIRS)
    return folder


@torch.inference_mode()
def test_a_score_equals_the_loss_of_transformers_on_the_same_weights(folder: Path) -> None:
    theirs = OpenAIGPTLMHeadModel.from_pretrained(folder).eval()
    for text, score in zip(TEXTS, bertwright.load(folder).score(TEXTS), strict=True):
        ids = torch.from_numpy(PAIRS.encode_raw([text]).ids.astype(np.int64))[None]
        loss = float(theirs(ids, labels=ids).loss)
        assert score.tokens == ids.shape[1] - 1
        assert score.log_probability == pytest.approx(-loss * score.tokens, abs=1e-4)
        assert score.perplexity == pytest.approx(math.exp(loss), rel=1e-5)


def other_models() -> list[tuple[EncoderModel, TextTokenizer]]:
    bert = BertConfig(9, 16, 2, 2, 32, 24, is_causal=True, initializer_range=0.5)
    wordpiece = Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
    elmo = ElmoConfig(vocab_size=7, filters=((1, 4), (2, 4)), num_highway=1, projection_size=6, cell_size=8)
    return [
        (BertForPretraining(bert, seed=1), wordpiece),
        (
            AwdLstmLanguageModel(AwdLstmConfig(7, embedding_size=5, lstm_size=7), seed=1),
            WordTokenizer(WORDS, "", LOWERCASE_RULES),
        ),
        (BidirectionalLM(elmo, seed=1), WordTokenizer(WORDS, "", ELMO_RULES, ["rare"])),
    ]


@torch.inference_mode()
@pytest.mark.parametrize("number", range(3))
def test_other_language_models_predict_each_token_from_the_ones_before_it(number: int) -> None:
    """Between the marks of their layout; a change of a later token changes no earlier probability."""
    model, tokenizer = other_models()[number]
    bert = Bert(model, tokenizer)
    for text in ("a b", "c"):
        assert bert.score(text).tokens == len(text.split()) + 1
    ids = np.asarray(tokenizer.encode_ids(["a b c"]).ids)
    scores = model.score_tokens(make_input(ids, None, np.array([5]))).double()
    assert scores[0] == 0
    assert bert.score("a b c").log_probability == pytest.approx(float(scores.sum()), abs=1e-5)
    changed = np.asarray(tokenizer.encode_ids(["a b d"]).ids)
    others = model.score_tokens(make_input(changed, None, np.array([5]))).double()
    torch.testing.assert_close(scores[:3], others[:3])
    assert float(scores[3]) != float(others[3])


def test_the_probabilities_of_all_last_words_sum_to_one() -> None:
    bert, beginning = make_gpt(12), "a b"
    before = bert.score(beginning).log_probability
    model = bert.model
    rows = [np.array([*PAIRS.encode_raw([beginning]).ids, token]) for token in range(PAIRS.vocab_size)]
    with torch.inference_mode():
        totals = [float(model.score_tokens(make_input(row, None, np.array([3]))).sum()) for row in rows]
    assert sum(math.exp(total - before) for total in totals) == pytest.approx(1, abs=1e-5)


def test_a_text_longer_than_the_positions_is_read_in_windows_that_predict_each_token_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a loop: the first window whole, then each token from at least half of the positions before it."""
    bert, rng = make_gpt(6), np.random.default_rng(0)
    words = [WORDS[n] for n in rng.integers(4, size=20)]
    ids = PAIRS.encode_raw([" ".join(words)]).ids.astype(np.int64)
    expected, done = 0.0, 1
    while done < len(ids):
        begin = 0 if done == 1 else max(0, min(done - 3, len(ids) - 6))
        window = ids[begin : begin + 6]
        with torch.inference_mode():
            scores = bert.model.score_tokens(make_input(window, None, np.array([len(window)])))
        expected += float(scores[done - begin :].sum())
        done = begin + len(window)
    score = bert.score(" ".join(words))
    assert (score.tokens, score.log_probability) == (19, pytest.approx(expected, abs=1e-4))
    monkeypatch.setattr(text_scores, "BATCH_WINDOWS", 1)  # one window per batch
    assert bert.score(" ".join(words)).log_probability == pytest.approx(expected, abs=1e-4)


def test_a_text_without_a_token_to_predict_and_other_models_are_errors_that_say_so() -> None:
    with pytest.raises(ValueError, match="text 1: expected at least 2 tokens"):
        make_gpt(12).score(["a b", "b"])
    wordpiece = Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
    with pytest.raises(ValueError, match="expected a left-to-right language model, such as a GPT, got a bert"):
        Bert(BertForPretraining(BertConfig(9, 16, 2, 2, 32, 24)), wordpiece).score("a b")
    backward = AwdLstmConfig(7, embedding_size=5, lstm_size=7, is_reversed=True)
    with pytest.raises(ValueError, match="left-to-right"):
        Bert(AwdLstmLanguageModel(backward), WordTokenizer(WORDS, "", LOWERCASE_RULES)).score("a b")


def test_the_command_prints_a_row_per_text_and_one_for_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["score", str(folder), *TEXTS, "--device", "cpu", "--dtype", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    scores = bertwright.load(folder).score(TEXTS)
    total = TextScore(sum(score.log_probability for score in scores), sum(score.tokens for score in scores))
    rows = {tuple(line.rsplit(None, 3)) for line in lines}
    for text, score in [*zip(TEXTS, scores, strict=True), ("all together", total)]:
        assert (f"  {text}", str(score.tokens), f"{score.log_probability:.2f}", f"{score.perplexity:,.1f}") in rows
