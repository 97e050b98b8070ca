"""Pre-training of GPT on a token store of byte pairs: running text, lower perplexity, resume to the bit, misuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.base.files import read_json
from bertwright.base.settings import from_table
from bertwright.cli.main import run
from bertwright.corpus.documents import CorpusSettings
from bertwright.interop.huggingface import load_model
from bertwright.pretraining.run import open_run, pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.gpt.gpt import GptLanguageModel
from bertwright.systems.gpt.gpt_objective import GptObjective
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.training.context import execution_context
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings, count_corpus_words, learn_byte_pairs
from harness import failing_after, same_weights
from helpers import read_output, text_reporter
from small_runs import grammar


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    (folder / "text.txt").write_text(text := grammar(60))
    settings = VocabularySettings(size=250, algorithm="byte-pair", criterion="bpe", min_frequency=2)
    tokenizer = learn_byte_pairs(count_corpus_words([text], settings), settings)
    build(folder / "store", CorpusSettings((str(folder / "text.txt"),)), tokenizer, BuildSettings(0.2, workers=1))
    return folder / "store"


def make_settings(run: Path, store: Path, **changes: Any) -> PretrainSettings:
    table: dict[str, Any] = {
        "run": str(run), "store": str(store), "steps": 40, "save_every": 10, "eval_every": 40, "log_every": 10,
        "model": {"architecture": "gpt", "size": "tiny", "num_layers": 1, "hidden_size": 32, "max_positions": 48},
        "data": {"max_length": 40, "batch_size": 8}, "optimizer": {"learning_rate": 1e-2, "warmup_ratio": 0.1},
        "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip
    return from_table(PretrainSettings, table | changes, "test")


def test_defaults_are_those_of_the_paper(tmp_path: Path, store: Path) -> None:
    table = {"run": "run", "store": str(store), "model": {"architecture": "gpt"}}
    settings = from_table(PretrainSettings, table, "test")
    optimizer = settings.optimizer
    assert (settings.data.max_length, settings.data.batch_size, settings.data.short_seq_prob) == (512, 64, 0.0)
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.weight_decay) == (2.5e-4, "cosine", 0.01)
    assert len(settings.phases) == 1


def test_examples_are_running_text_and_predict_every_next_token(tmp_path: Path, store: Path) -> None:
    settings = make_settings(tmp_path / "run", store)
    with execution_context(settings.device) as context:
        opened = open_run(settings, context, text_reporter())
    (batch,) = opened.train[0].batches_for_step(0)
    lengths = batch.packing.lengths
    assert not {*opened.tokenizer.special_ids} & {*batch.input.input_ids.tolist()}
    assert batch.input.token_type_ids is None
    assert batch.lm_count == lengths.sum() - len(lengths)
    assert (batch.mlm_labels == batch.input.input_ids[batch.mlm_positions + 1]).all()
    stored = opened.train[0].store.read_tokens(0, opened.train[0].store.num_tokens)
    first = batch.input.input_ids[: lengths[0]].numpy()
    windows = np.lib.stride_tricks.sliding_window_view(stored, len(first))
    assert (windows == first).all(1).any()


def test_interrupted_run_resumes_to_the_bit_and_learns(tmp_path: Path, store: Path) -> None:
    reporter = text_reporter()
    unbroken = pretrain(make_settings(tmp_path / "unbroken", store), reporter)
    assert "causal LM perplexity" in read_output(reporter)
    with failing_after(25, GptObjective, "loss"):
        pretrain(make_settings(tmp_path / "broken", store), text_reporter())
    assert any((tmp_path / "broken" / "checkpoints").iterdir())
    resumed = pretrain(make_settings(tmp_path / "broken", store, resume=True), text_reporter())
    assert same_weights(unbroken, resumed)
    report = read_json(tmp_path / "unbroken" / "report.json")
    assert report["held_out_after"]["perplexity"] < report["held_out_before"]["perplexity"] / 5
    assert report["held_out_after"]["perplexity"] == pytest.approx(math.exp(report["held_out_after"]["loss"]))
    assert isinstance(load_model(unbroken).model, GptLanguageModel)


def test_a_model_of_another_kind_and_pairs_are_refused(
    tmp_path: Path, store: Path, vocabulary_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pretrain", "--store", str(store), "--run", str(tmp_path / "run"), "--architecture", "gpt"]
    assert run([*command, "--segments", "pair"]) == 2
    assert "segments" in capsys.readouterr().err
    assert run([*command, "--activation", "relu"]) == 2
    assert "activation" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
