"""ELMo's language model, pre-trained from text: its vocabulary, its sampled softmax, its runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.base.settings import from_table
from bertwright.corpus.documents import CorpusSettings
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.elmo import elmo_objective
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig
from bertwright.systems.elmo.elmo_objective import (
    BidirectionalLanguageModel,
    SampledWords,
    sampled_cross_entropy,
)
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.word_bytes import word_byte_rows
from bertwright.vocabulary.word_tokenizer import ELMO_RULES, WordTokenizer
from harness import check_interrupted_run, read_untimed, run_and_capture
from small_runs import grammar, make_word_store

Make = Callable[..., PretrainSettings]
run_pretrain = partial(run_and_capture, pretrain)


def learn_words(folder: Path, **changes: object) -> str:
    corpus = CorpusSettings((str(folder / "text.txt"),))
    vocabulary = VocabularySettings(algorithm="words", **changes)  # type: ignore[arg-type]
    return run_and_capture(learn_vocabulary, LearnSettings(corpus, folder / "vocabulary", vocabulary))


@pytest.fixture(scope="module")
def word_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_store(tmp_path_factory.mktemp("words"), grammar(200), "words")


@pytest.fixture
def make_elmo(make_settings: Make, word_store: Path) -> Make:
    """Return a function from changed fields to the settings of a run of a tiny ELMo."""
    changes = {
        "store": word_store,
        "model": ModelSettings(size="tiny", num_layers=2, architecture="elmo"),
        "data": DataSettings(max_length=32, batch_size=8, objective="bilm"),
        "long": LongPhase(long_ratio=0.0),
    }
    return lambda run, **more: make_settings(run, **changes | more)


def test_a_vocabulary_of_words_has_the_most_frequent_ones_with_their_capitals(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Das war das, was das war. Rare\n" * 2, encoding="utf-8")
    printed = learn_words(tmp_path, size=6, min_frequency=2)
    tokens = open_tokenizer(tmp_path / "vocabulary").tokens
    assert tokens[3:] == ("das", "war", ",")
    assert "6, of 7 distinct ones" in printed


def test_a_word_beyond_the_vocabulary_is_read_by_its_own_bytes_and_predicted_as_unknown(tmp_path: Path) -> None:
    """As in the released code: the characters of rare words are read, and only the softmax lacks them."""
    text = "".join(f"the cat{number} sat . the dog sat . Zürich sat .\n\n" for number in range(9))
    store = make_word_store(tmp_path, text, "words", size=6)  # three marks, then ".", "sat" and "the"
    tokenizer = open_tokenizer(store / "tokenizer")
    assert isinstance(tokenizer, WordTokenizer)
    assert tokenizer.tokens[3:] == (".", "sat", "the")
    assert tokenizer.rare == ("Zürich", *(f"cat{number}" for number in range(9)), "dog")
    settings = DataSettings(max_length=20, batch_size=3, objective="bilm", short_seq_prob=0.0)
    (examples,) = BidirectionalLanguageModel().open_examples(store / "train", tokenizer, [settings])
    (batch,) = examples.batches_for_step(0)
    words = [*tokenizer.tokens, *tokenizer.rare]
    ids = batch.input.rows[:, 0]
    assert {"<S>", "</S>", ".", "sat", "the", "Zürich", "dog"} < {words[number] for number in ids.tolist()}
    inner = ids > 2
    expected = word_byte_rows([words[number] for number in ids[inner].tolist()])
    np.testing.assert_array_equal(batch.input.rows[inner, 1:], expected)
    after_the = batch.labels[: len(batch.positions[0])][ids[batch.positions[0]] == 5]
    assert set(after_the.tolist()) == {2}  # "cat1" and "dog" are <UNK> as answers
    shares = np.array([3, 3, 2, 3]) / 11  # ".", "sat", "the", <UNK>
    assert examples.measure_baseline() == pytest.approx(-(shares * np.log(shares)).sum())


def test_a_vocabulary_whose_rare_words_repeat_it_is_an_error_that_names_both_files(tmp_path: Path) -> None:
    WordTokenizer(["cat"], "", ELMO_RULES, ["dog"]).save(tmp_path)
    (tmp_path / "rare_words.txt").write_text("cat\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab\.txt, rare_words\.txt: expected different words"):
        open_tokenizer(tmp_path)


def test_the_defaults_are_those_of_the_released_code_where_it_states_them(tmp_path: Path) -> None:
    table = {"run": str(tmp_path / "run"), "store": "store", "model": {"architecture": "elmo"}}
    settings = from_table(PretrainSettings, table, "test")
    assert (settings.data.batch_size, settings.data.max_length, settings.long.long_ratio) == (128, 32, 0)
    assert (settings.optimizer.max_grad_norm, settings.optimizer.weight_decay) == (10, 0)
    assert settings.optimizer.bias_correction


def test_a_vocabulary_without_a_frequent_word_is_an_error_that_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three", encoding="utf-8")
    with pytest.raises(ValueError, match="min_frequency = 5"):
        learn_words(tmp_path)
    assert not (tmp_path / "vocabulary").exists()


@pytest.mark.parametrize("min_sampled", [pytest.param(64, marks=pytest.mark.slow), 1])
def test_both_directions_learn_the_grammar(
    tmp_path: Path, make_elmo: Make, monkeypatch: pytest.MonkeyPatch, min_sampled: int
) -> None:
    monkeypatch.setattr(elmo_objective, "MIN_SAMPLED", min_sampled)  # 1: the softmax has 14 of the 28 words
    monkeypatch.setattr(elmo_objective, "SAMPLED_SHARE", 2)
    run_pretrain(make_elmo(tmp_path / "run", steps=60, eval_every=30))
    losses = [record["loss"] for record in read_metrics(tmp_path / "run") if record["kind"] == "held_out"]
    assert losses[0] == pytest.approx(math.log(open_tokenizer(tmp_path / "run" / "model").vocab_size), rel=0.15)
    assert losses[-1] < 0.6 * losses[0]


def test_interrupted_run_resumes_to_the_same_bits(
    tmp_path: Path, make_elmo: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_elmo(tmp_path / "whole")
    broken = check_interrupted_run(run_pretrain, whole, 6, monkeypatch)
    assert read_untimed(whole.run)[-1] == read_untimed(broken.run)[-1]


def test_a_vocabulary_without_bytes_is_an_error_that_says_how_to_make_one(
    tmp_path: Path, make_elmo: Make, store: Path
) -> None:
    with pytest.raises(ValueError, match="--algorithm words"):
        pretrain(make_elmo(tmp_path / "run", store=store))
    assert not (tmp_path / "run").exists()


def test_sampled_words_follow_their_distribution() -> None:
    drawn = [SampledWords.draw(50, 5, key) for key in range(4000)]
    assert all(len({*words.ids.tolist()}) == 5 for words in drawn)
    shares = np.bincount(np.concatenate([words.ids for words in drawn]), minlength=50) / len(drawn)
    expected = torch.stack([words.log_expected_counts(torch.arange(50), 50).exp() for words in drawn]).mean(0)
    np.testing.assert_allclose(shares, expected, atol=0.03)


def test_sampling_all_words_gives_the_loss_of_the_whole_softmax_up_to_the_correction() -> None:
    """With every word sampled, and the correction taken out by a bias, both losses and their gradients are equal."""
    model = BidirectionalLM(ElmoConfig(vocab_size=7, projection_size=4, cell_size=4, filters=((1, 2),)), seed=2)
    states, labels = torch.randn(6, 4), torch.tensor([0, 3, 6, 1, 1, 2])
    sampled = SampledWords(np.arange(7), draws=30)
    correction = sampled.log_expected_counts(torch.arange(7), 7)
    with torch.no_grad():
        model.softmax.bias.add_(correction)
    loss, correct = sampled_cross_entropy(model, states, labels, sampled, 1 / 6)
    (gradient,) = torch.autograd.grad(loss, model.softmax.weight)
    logits = states @ model.softmax.weight.T + model.softmax.bias - correction
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, model.softmax.weight)[0])
    assert int(correct) == int((logits.argmax(1) == labels).sum())


def test_micro_batches_give_the_loss_of_the_whole_step(word_store: Path) -> None:
    objective, tokenizer = BidirectionalLanguageModel(), open_tokenizer(word_store / "tokenizer")
    settings = DataSettings(max_length=24, batch_size=8, objective="bilm")
    (examples,) = objective.open_examples(word_store / "train", tokenizer, [settings])
    model = BidirectionalLM(ElmoConfig.from_size("tiny", tokenizer.vocab_size), seed=0).train()
    whole, parts = (
        sum(objective.loss(model, batch).loss for batch in examples.batches_for_step(3, micro_batch_size=size))
        for size in (8, 3)
    )
    torch.testing.assert_close(whole, parts)
