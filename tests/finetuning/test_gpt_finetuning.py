"""Fine-tuning of GPT: the auxiliary language model, both orders of a pair, its defaults, its folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import OpenAIGPTForSequenceClassification

import bertwright
from bertwright.base.files import read_json
from bertwright.base.settings import from_table
from bertwright.cli.main import run
from bertwright.finetuning.finetune_state import make_spec, open_run
from bertwright.finetuning.pooling_choice import choose_pooling
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import read_config, read_source, save_model
from bertwright.models.heads import TaskBatch
from bertwright.systems.gpt.gpt import GptConfig, GptLanguageModel
from bertwright.tasks.collation import micro_batches
from bertwright.training.context import execution_context
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings, count_corpus_words, learn_byte_pairs
from helpers import text_reporter

ANIMALS = "bear wolf deer hare seal lynx".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = VocabularySettings(size=240, algorithm="byte-pair", criterion="bpe", min_frequency=1)
    tokenizer = learn_byte_pairs(
        count_corpus_words(["the bear sees a good wolf , bad deer hare seal lynx"], settings), settings
    )
    path = tmp_path_factory.mktemp("gpt") / "model"
    save_model(
        path, GptLanguageModel(GptConfig(tokenizer.vocab_size, 32, 1, 2, 128, 32, initializer_range=0.1)), tokenizer
    )
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table: sentences with a label, pairs with a score, and choices: each depends on a word."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    sentences, pairs, choices = ["text\tlabel"], ["a\tb\tscore"], ["prompt\tending0\tending1\tlabel"]
    for number in range(96):
        first, second, third = rng.choice(ANIMALS, 3, replace=False)
        word = ("good", "bad")[number % 2]
        sentences.append(f"the {first} sees a {word} {second}\t{word}")
        pairs.append(f"the {first}\ta {word} {third}\t{1 + 4 * (word == 'good')}")
        endings = [f"a good {third}", f"a bad {first}"]
        choices.append(
            "\t".join([f"the {first} sees", *endings[:: 1 if number % 4 < 2 else -1], str(int(number % 4 >= 2))])
        )
    for name, lines in (("texts", sentences), ("pairs", pairs), ("choices", choices)):
        (path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return path


def make_settings(folder: Path, data: Path, run: Path, task: str, **changes: Any) -> FinetuneSettings:
    name, options = {
        "classification": ("texts", {}),
        "regression": ("pairs", {"text": "a", "text_pair": "b", "label": "score", "both_orders": True}),
        "multiple-choice": ("choices", {"endings": ["ending0", "ending1"]}),
    }[task]
    files = [str(data / f"{name}.tsv")]
    table: dict[str, Any] = {
        "run": str(run), "model": str(folder), "epochs": 12.0, "batch_size": 16,
        "task": {"task": task, "train": files, "dev": files, "overrides": options},
        "optimizer": {"learning_rate": 5e-3}, "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip
    return from_table(FinetuneSettings, table | changes, "test")


def test_defaults_of_a_gpt_are_those_of_its_paper(folder: Path, tmp_path: Path) -> None:
    table = {"run": str(tmp_path / "run"), "model": str(folder), "task": {"task": "mrpc", "train": ["x.tsv"]}}
    settings = from_table(FinetuneSettings, table, "test")
    assert (settings.tuning.auxiliary_lm, settings.epochs, settings.batch_size) == (0.5, 3.0, 32)
    assert (settings.optimizer.warmup_ratio, settings.optimizer.schedule) == (0.002, "linear")
    assert settings.optimizer.learning_rate == pytest.approx(3e-4)  # 6.25e-5 at a hidden size of 768
    assert settings.task.build_task().both_orders  # type: ignore[attr-defined]
    rte = from_table(FinetuneSettings, table | {"task": {"task": "rte", "train": ["x.tsv"]}}, "test")
    assert not rte.task.build_task().both_orders  # type: ignore[attr-defined]
    source = read_source(folder, read_config(folder))
    assert choose_pooling(rte.tuning, rte.task.build_task(), folder, source) == (
        (),
        "",
    )  # the last token, without a pooler


def test_classification_learns_and_its_folder_opens_in_transformers(folder: Path, data: Path, tmp_path: Path) -> None:
    model = finetune(make_settings(folder, data, tmp_path / "run", "classification"), text_reporter())
    assert read_json(tmp_path / "run" / "report.json")["scores"]["dev"]["accuracy"] > 0.95
    bert, theirs = bertwright.load(model, "cpu"), OpenAIGPTForSequenceClassification.from_pretrained(model).eval()
    for text in ("the bear sees a good wolf", "a bad seal"):
        prediction = bert.classify(text)
        ids = torch.from_numpy(bert.tokenizer.encode(text).ids)[None]
        expected = theirs(ids).logits.softmax(1)[0].tolist()
        assert [*prediction.probabilities.values()] == pytest.approx(expected, abs=1e-5)
        assert theirs.config.id2label[int(np.argmax(expected))] == prediction.label


def test_similarity_reads_both_orders(folder: Path, data: Path, tmp_path: Path) -> None:
    model = finetune(make_settings(folder, data, tmp_path / "run", "regression"), text_reporter())
    assert read_json(tmp_path / "run" / "report.json")["scores"]["dev"]["spearman"] > 0.8
    bert = bertwright.load(model, "cpu")
    one, two, other = bert.classify(
        [("the bear", "a bad wolf"), ("a bad wolf", "the bear"), ("the bear", "a good wolf")]
    )
    assert one == pytest.approx(two, abs=1e-5)
    assert one != pytest.approx(other, abs=1e-3)
    config = read_json(model / "config.json")
    assert (config["architectures"], config["model_type"]) == (["OpenAIGPTWithBothOrdersHead"], "openai-gpt-own-head")
    bert.save(tmp_path / "again")
    assert bertwright.load(tmp_path / "again", "cpu").classify(("the bear", "a bad wolf")) == one


def test_a_head_with_a_bias_is_continued(folder: Path, data: Path, tmp_path: Path) -> None:
    settings = make_settings(folder, data, tmp_path / "run", "multiple-choice", epochs=1.0)
    first = finetune(settings, text_reporter())
    assert read_json(first / "config.json")["architectures"] == ["OpenAIGPTWithBiasedHead"]
    tuning = {"keep_head": True}
    again = make_settings(first, data, tmp_path / "again", "multiple-choice", epochs=1.0, tuning=tuning)
    with execution_context(again.device) as context:
        continued = open_run(again, context, text_reporter()).model.head.state_dict()
    before = bertwright.load(first, "cpu").model.head.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(continued[name], tensor) for name, tensor in before.items())


def test_multiple_choice_learns(folder: Path, data: Path, tmp_path: Path) -> None:
    settings = make_settings(folder, data, tmp_path / "run", "multiple-choice")
    model = finetune(settings, text_reporter())
    assert read_json(tmp_path / "run" / "report.json")["scores"]["dev"]["accuracy"] > 0.8
    assert bertwright.load(model, "cpu").choose("the bear sees", ["a bad wolf", "a good seal"]).choice == 1


def test_loss_is_the_tasks_plus_the_language_models_and_adds_up_over_micro_batches(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    settings = make_settings(
        folder, data, tmp_path / "run", "classification", tuning={"auxiliary_lm": 0.5, "dropout": 0.0}
    )
    with execution_context(settings.device) as context:
        state = open_run(settings, context, text_reporter())
        spec = make_spec(state, settings, context)
        encoded, model = state.train.encoded, state.model
        (whole,), parts = (micro_batches(encoded, 0, 16, 0, tokens) for tokens in (10_000, 60))
        assert len(parts) > 1
        logits = model(whole)
        states = model.encoder(whole.input)
        words = model.encoder.embeddings.word.weight
        next_losses = [
            F.cross_entropy(states[at] @ words.T, whole.input.input_ids[at + 1])
            for at in range(whole.packing.num_tokens - 1)
            if whole.packing.position_ids[at + 1] > 0
        ]
        expected = F.cross_entropy(logits, whole.labels) + 0.5 * torch.stack(next_losses).mean()
        assert spec.loss(whole).loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert sum(spec.loss(part).loss.item() for part in parts) == pytest.approx(expected.item(), rel=1e-5)
        assert isinstance(whole, TaskBatch)
        assert whole.num_next_tokens == len(next_losses)


def test_options_that_do_not_fit_are_named(
    folder: Path, tiny_bert: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"finetune --task classification --train {data / 'texts.tsv'} --run {tmp_path / 'run'}".split()
    assert run([*command, "--model", str(tiny_bert), "--auxiliary-lm", "0.5"]) == 2
    assert "auxiliary_lm" in capsys.readouterr().err
    assert run([*command, "--model", str(folder), "--both-orders", "True"]) == 2
    assert "both_orders" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()
