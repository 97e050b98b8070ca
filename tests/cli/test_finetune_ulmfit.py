"""ULMFiT's classifier: its defaults, gradual unfreezing, resuming, its folder; gradual unfreezing of a BERT."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertwright
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.interop.huggingface import save_model, start_task_model
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmLanguageModel
from bertwright.training.layer_rates import layerwise_lr_scales, unfreeze_gradually
from bertwright.training.metrics_log import read_metrics
from bertwright.training.optimizer import Optimizer, OptimizerSettings, Unfreezing
from bertwright.vocabulary.word_tokenizer import LOWERCASE_RULES, WordTokenizer
from harness import load_weights, run_and_capture

run_finetune = partial(run_and_capture, finetune)
WORDS = ["good", "bad", "film", "the", "was"]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm") / "model"
    config = AwdLstmConfig(3 + len(WORDS), embedding_size=8, lstm_size=12, num_layers=2)
    save_model(folder, AwdLstmLanguageModel(config, seed=4), WordTokenizer(WORDS, "", LOWERCASE_RULES))
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    rng = np.random.default_rng(0)
    for split, number in {"train": 64, "dev": 16}.items():
        lines = ["text\tlabel"]
        for _ in range(number):
            label = int(rng.integers(2))
            words = rng.permutation(["the", "film", "was", WORDS[label]]).tolist()
            lines.append(f"{' '.join(words * int(rng.integers(1, 3)))}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def make_settings(run: Path, model: Path, data: Path, **tables: Any) -> FinetuneSettings:
    task = {"task": "classification", "train": [str(data / "train.tsv")], "dev": [str(data / "dev.tsv")]}
    device = {"device": "cpu", "dtype": "float32", "threads": 1}
    table = {"run": str(run), "model": str(model), "task": task, "device": device, "batch_size": 16}
    return from_table(FinetuneSettings, table | tables, "run.toml")


def test_the_paper_s_settings_are_the_defaults_of_its_model(language_model: Path, reviews: Path) -> None:
    settings = make_settings(Path("run"), language_model, reviews)
    assert (settings.tuning.unfreeze, settings.tuning.layerwise_lr_decay) == ("gradual", 0.385)
    assert (settings.optimizer.schedule, settings.optimizer.learning_rate) == ("slanted-triangular", 0.01)
    own = make_settings(Path("run"), language_model, reviews, tuning={"unfreeze": "all"})
    assert (own.tuning.unfreeze, own.tuning.layerwise_lr_decay) == ("all", 0.385)


def test_a_classifier_is_learned_and_its_folder_predicts(language_model: Path, reviews: Path, tmp_path: Path) -> None:
    tuning = {"unfreeze": "all", "layerwise_lr_decay": 1.0, "dropout": 0.03}
    printed = run_finetune(make_settings(tmp_path / "run", language_model, reviews, epochs=10.0, tuning=tuning))
    assert "AWD-LSTM L2 E8 H12" in printed
    (*_, last) = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "dev"]
    assert last["accuracy"] > 0.9
    assert load_weights(tmp_path / "run" / "model")["head.pooled_norm.mean"].abs().sum() > 0
    model = bertwright.load(tmp_path / "run")
    assert model.classify("The film was bad").label == "1"
    assert model.classify("the good film").label == "0"


def test_classifiers_of_both_directions_are_averaged_as_an_ensemble(
    language_model: Path, reviews: Path, tmp_path: Path
) -> None:
    config = AwdLstmConfig(3 + len(WORDS), embedding_size=8, lstm_size=12, num_layers=2, is_reversed=True)
    backward = tmp_path / "backward"
    save_model(backward, AwdLstmLanguageModel(config, seed=5), WordTokenizer(WORDS, "", LOWERCASE_RULES))
    tuning = {"unfreeze": "all", "layerwise_lr_decay": 1.0, "dropout": 0.03}
    for name, model in {"ltr": language_model, "rtl": backward}.items():
        run_finetune(make_settings(tmp_path / name, model, reviews, epochs=2.0, tuning=tuning))
    (tmp_path / "new.csv").write_text("text\nthe film was bad\ngood the film\n", encoding="utf-8")
    probabilities = []
    for name, others in {"ltr": (), "rtl": (), "both": (str(tmp_path / "rtl"),)}.items():
        model = str(tmp_path / ("rtl" if name == "rtl" else "ltr"))
        output = tmp_path / f"{name}.jsonl"
        predict(PredictSettings(model, inputs=(str(tmp_path / "new.csv"),), output=output, ensemble=others), MUTE)
        rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        shares = [(row["label"], row["probability"]) for row in rows]
        probabilities.append([share if label == "1" else 1 - share for label, share in shares])
    forward, reversed_, both = map(np.array, probabilities)
    assert both == pytest.approx((forward + reversed_) / 2, abs=1e-4)
    assert not np.allclose(forward, reversed_, atol=1e-4)


def test_one_more_layer_is_trained_in_each_epoch(language_model: Path, reviews: Path, tmp_path: Path) -> None:
    model = start_task_model(language_model, HeadSpec("sequence", 2), seed=0).model
    scales = layerwise_lr_scales(model, None, 0.5)
    rates = unfreeze_gradually(model, scales, epoch_steps=10)
    assert rates["head.dense.weight"] == 1.0
    lower = ("encoder.layers.1.weight_hh_l0", "encoder.layers.0.bias_ih_l0", "encoder.embeddings.word.weight")
    assert [rates[name] for name in lower] == [Unfreezing(0.5, 10), Unfreezing(0.25, 20), Unfreezing(0.125, 30)]
    assert unfreeze_gradually(model, scales, epoch_steps=0) == scales

    run_finetune(make_settings(tmp_path / "run", language_model, reviews, epochs=2.0, eval_every=99))
    before, after = load_weights(language_model), load_weights(tmp_path / "run" / "model")
    encoder = [name for name in before if name.startswith("encoder.")]
    changed = {name.rpartition(".")[0] for name in encoder if not torch.equal(before[name], after[name])}
    assert changed == {"encoder.layers.1"}


def test_each_unfreezing_begins_a_new_slanted_triangle(language_model: Path, reviews: Path, tmp_path: Path) -> None:
    optimizer = {"learning_rate": 0.01}
    settings = make_settings(tmp_path / "run", language_model, reviews, epochs=6.0, log_every=1, optimizer=optimizer)
    run_finetune(settings)
    rates = [record["learning_rate"] for record in read_metrics(settings.run) if record["kind"] == "train"]
    epoch = len(rates) // 6
    stages = [rates[:epoch], rates[epoch : 2 * epoch], rates[2 * epoch : 3 * epoch], rates[3 * epoch :]]
    assert [len(stage) for stage in stages] == [epoch] * 3 + [3 * epoch]
    assert (
        stages[0] == stages[1] == stages[2] == [settings.optimizer.make_schedule(epoch)(step) for step in range(epoch)]
    )
    assert stages[3] == [settings.optimizer.make_schedule(3 * epoch)(step) for step in range(3 * epoch)]


def test_bert_is_unfrozen_from_the_top(tiny_bert: Path, reviews: Path, tmp_path: Path) -> None:
    tuning = {"unfreeze": "gradual", "pooling": "concat", "layerwise_lr_decay": 0.385}
    optimizer = {"schedule": "slanted-triangular", "learning_rate": 1e-3}
    run_finetune(
        make_settings(
            tmp_path / "run", tiny_bert, reviews, epochs=2.0, tuning=tuning, optimizer=optimizer, eval_every=99
        )
    )
    initial, trained = load_weights(tiny_bert), load_weights(tmp_path / "run" / "model")
    names = ["bert.encoder.layer.1.output.dense.weight", "bert.encoder.layer.0.output.dense.weight"]
    assert [torch.equal(trained[name], initial[name]) for name in names] == [False, True]


def test_the_first_step_after_unfreezing_is_adam_s_first_step() -> None:
    """Both parameters change by the rate: the correction of the moments' bias counts from their own first step."""
    values = {name: torch.nn.Parameter(torch.zeros(3)) for name in ("early", "late")}
    settings = OptimizerSettings(learning_rate=0.1, bias_correction=True, weight_decay=0.0, max_grad_norm=1e9)
    optimizer = Optimizer(values, settings, {"early": 1.0, "late": Unfreezing(0.5, 4)})
    for _ in range(5):
        assert not values["late"].any()
        for value in values.values():
            value.grad = torch.ones(3)
        optimizer.step(0.1, optimizer.gradient_norm())
    torch.testing.assert_close(values["late"].detach(), torch.full((3,), -0.05), rtol=1e-4, atol=1e-6)


def test_another_way_of_unfreezing_is_an_error(language_model: Path, reviews: Path) -> None:
    with pytest.raises(ValueError, match="unfreeze") as error:
        make_settings(Path("run"), language_model, reviews, tuning={"unfreeze": "chain-thaw"})
    assert "chain-thaw" in str(error.value)
