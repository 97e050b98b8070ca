"""The fit of a new head: against scikit-learn, as a minimum for every task type, in runs, and misuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score

from bertwright.base.example_order import permute
from bertwright.base.files import read_json
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.base.settings import from_table
from bertwright.finetuning import head_start
from bertwright.finetuning import settings as settings_module
from bertwright.finetuning.head_start import VARIANCES, choose_items, fit_head, read_states
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.interop.huggingface import save_model
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskHead
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tables.qa_example import GoldAnswer, QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.classification import Classification
from bertwright.tasks.collation import collate
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample
from bertwright.training import loop
from bertwright.trials.ladder_settings import LadderSettings
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import read_output, text_reporter, write_file

WORDS = "cat dog sees hears a the red big".split()
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *WORDS], lowercase=True)
CONFIG = BertConfig(TOKENIZER.vocab_size, 16, 2, 2, 32, max_positions=32, initializer_range=0.2)
RNG = np.random.default_rng(0)
TEXTS = [RNG.choice(WORDS, RNG.integers(2, 7)).tolist() for _ in range(60)]
TEXTS = [[*text, "cat"] if number % 2 else text for number, text in enumerate(TEXTS)]
JOINED = [" ".join(text) for text in TEXTS]


def make_examples(labels: list[Any]) -> list[TextExample[Any]]:
    return [TextExample(text, None, label, "toy") for text, label in zip(JOINED, labels, strict=True)]


SENTIMENT = make_examples(["yes" if text.count("cat") > 1 else "no" for text in TEXTS])
LABEL_SETS = [tuple({"cat", "dog"}.intersection(text)) for text in TEXTS]
CHOICES = [ChoiceExample(text, ("a cat", "the dog"), n % 2, "toy") for n, text in enumerate(JOINED)]
TAGGED = [TagExample(tuple(text), tuple("B" if word in "a the" else "C" for word in text)) for text in TEXTS]
WITH_CAT = [text for text in JOINED if "cat" in text]
ANSWERED = [QaExample(str(n), "sees", t, (GoldAnswer("cat", t.index("cat")),)) for n, t in enumerate(WITH_CAT)]
EXAMPLES: dict[str, tuple[AnyTask, list[Any]]] = {
    "classification": (Classification(), SENTIMENT),
    "pooled": (Classification(pooling=("mean", "max")), SENTIMENT),
    "multi-label": (MultiLabel(), make_examples(LABEL_SETS)),
    "regression": (Regression(), make_examples([3.0 * len(text) + 100 for text in TEXTS])),
    "multiple-choice": (MultipleChoice(), CHOICES),
    "tagging": (Tagging(scheme="none"), TAGGED),
    "question-answering": (QuestionAnswering(max_length=32, max_query_length=8, doc_stride=4), ANSWERED),
}


def make_case(name: str) -> tuple[AnyTask, EncoderForTask, Encoded]:
    task, examples = EXAMPLES[name]
    task = task.with_labels_of(examples)
    encoder = BertEncoder(CONFIG, seed=1)
    model = EncoderForTask(encoder, task.head_builder(encoder) if task.head_builder else task.head, seed=1).train()
    task.initialize_head(model.head)
    return task, model, task.encode(examples, TOKENIZER)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_fit_is_the_minimum_of_loss_and_penalty(name: str) -> None:
    task, model, encoded = make_case(name)
    fit = fit_head(model, task, encoded, seed=0)
    assert (fit.items, model.training) == (encoded.num_items, True)
    assert fit.loss < fit.first_loss
    items = np.arange(encoded.num_items)
    states, batch = read_states(model, encoded, items), collate(encoded, items)
    loss = task.loss(model.eval()(batch), batch) / batch.num_labels  # through the whole model, not the cached states
    assert loss.item() == pytest.approx(fit.loss, rel=1e-4)
    weight, bias = (model.head.get_parameter(f"classifier.{name}") for name in ("weight", "bias"))
    by_weight, by_bias = torch.autograd.grad(loss, (weight, bias))
    mean, deviation = states.mean(0), states.std(0, correction=0)
    slope = (by_weight - by_bias[:, None] * mean) / deviation  # by the weights of standardized states
    penalty = weight * deviation * states.shape[1] / (fit.variance * batch.num_labels)
    assert torch.allclose(slope, -penalty, atol=1e-3 * penalty.abs().max().item())


def test_a_fit_equals_logistic_regression_of_scikit_learn() -> None:
    task, model, encoded = make_case("pooled")
    states = read_states(model, encoded, np.arange(60)).double().numpy()
    standard = (states - states.mean(0)) / states.std(0)
    fit = fit_head(model, task, encoded, seed=0)
    # Two outputs share what is one weight vector there: half the penalty.
    expected = LogisticRegression(C=2 * fit.variance / standard.shape[1], tol=1e-8, max_iter=1000)
    expected.fit(standard, encoded.labels)
    logits = model.eval()(collate(encoded, np.arange(60))).detach()
    assert torch.allclose(
        logits[:, 1] - logits[:, 0], torch.tensor(expected.decision_function(standard)).float(), atol=0.02
    )


def test_a_fit_of_a_regression_equals_ridge_regression() -> None:
    task, model, encoded = make_case("regression")
    states = read_states(model, encoded, np.arange(60)).double().numpy()
    standard = (states - states.mean(0)) / states.std(0)
    fit = fit_head(model, task, encoded, seed=0)
    expected = Ridge(alpha=standard.shape[1] / (2 * fit.variance)).fit(standard, encoded.labels)
    numbers = model.eval()(collate(encoded, np.arange(60))).detach()[:, 0].numpy()
    assert numbers == pytest.approx(expected.predict(standard), abs=0.01)


@pytest.mark.slow
def test_the_prior_is_narrow_where_the_states_say_nothing_of_the_labels() -> None:
    task, model, encoded = make_case("classification")
    states = read_states(model, encoded, np.arange(60))[:, 0]
    labeled = replace(encoded, labels=(states > states.median()).long().numpy())
    assert fit_head(model, task, labeled, seed=0).variance >= 3.0
    noise = [replace(encoded, labels=np.random.default_rng(n).integers(2, size=60)) for n in range(9)]
    assert np.median([fit_head(model, task, labels, seed=0).variance for labels in noise]) == VARIANCES[0]


def test_the_chosen_prior_has_the_least_loss_in_cross_validation_of_scikit_learn() -> None:
    task, model, encoded = make_case("pooled")
    states = read_states(model, encoded, np.arange(60)).double().numpy()
    standard = (states - states.mean(0)) / states.std(0)
    order = permute(np.arange(60), 60, derive_key(0, TaskStream.HELD_OUT))
    losses = []
    for variance in VARIANCES:
        regression = LogisticRegression(C=2 * variance / standard.shape[1], tol=1e-8, max_iter=1000)
        folds = [(np.setdiff1d(order, fold), fold) for fold in np.array_split(order, 5)]
        losses.append(-cross_val_score(regression, standard, encoded.labels, cv=folds, scoring="neg_log_loss").mean())
    assert fit_head(model, task, encoded, seed=0).variance == VARIANCES[int(np.argmin(losses))]


def test_constant_states_get_no_weight() -> None:
    task, model, encoded = make_case("pooled")
    with torch.no_grad():
        for parameter in (model.encoder.layers[-1].output_norm.weight, model.encoder.layers[-1].output_norm.bias):
            parameter[3] = 0.0
    fit_head(model, task, encoded, seed=0)
    weight = model.head.get_parameter("classifier.weight")
    assert weight[:, 3].tolist() == [0.0, 0.0]
    assert weight.isfinite().all()


def test_a_fit_reads_the_first_items_of_the_first_epoch_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = make_case("tagging")[2]
    assert choose_items(encoded, 16, seed=0).tolist() == list(range(60))
    monkeypatch.setattr(head_start, "MAX_NUMBERS", 16 * 40)
    chosen = choose_items(encoded, 16, seed=0)
    assert 0 < encoded.position_counts[chosen].sum() <= 40 < encoded.position_counts.sum()
    assert chosen.tolist() == sorted(chosen.tolist()) != choose_items(encoded, 16, seed=1).tolist()
    monkeypatch.setattr(head_start, "MAX_NUMBERS", 1)
    assert len(choose_items(encoded, 16, seed=0)) == 1
    monkeypatch.setattr(head_start, "MAX_ITEMS", 10)
    monkeypatch.setattr(head_start, "MAX_NUMBERS", 1 << 26)
    assert len(choose_items(encoded, 16, seed=0)) == 10


class NonlinearHead(TaskHead):
    def forward(self, states: Any, batch: Any, drop: Any) -> Any:
        raise NotImplementedError


def test_a_head_that_is_not_linear_is_not_fitted() -> None:
    task, model, encoded = make_case("classification")
    model.head = NonlinearHead(HeadSpec("sequence", 2))
    with pytest.raises(ValueError, match=r"head_init = 'fit'.*one linear layer, got NonlinearHead"):
        fit_head(model, task, encoded, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_init": "zero"}, "head_init: expected random or fit, got 'zero'"),
        ({"head_init": "fit", "keep_head": True}, "head_init = 'fit' and keep_head"),
        ({"head_init": "fit", "from_scratch": True}, "head_init = 'fit' and from_scratch"),
    ],
)
def test_settings_that_contradict_a_fit_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TuningSettings(**changes)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_fit_to_a_few_examples_is_finite_and_no_worse_than_zero_weights(name: str, number: int) -> None:
    task, examples = EXAMPLES[name]
    task = task.with_labels_of(examples)
    encoder = BertEncoder(CONFIG, seed=1)
    model = EncoderForTask(encoder, task.head_builder(encoder) if task.head_builder else task.head, seed=1).train()
    encoded = task.encode(examples[:number], TOKENIZER)
    fit = fit_head(model, task, encoded, seed=0)
    assert np.isfinite([fit.loss, fit.first_loss]).all()
    assert fit.loss <= fit.first_loss + 1e-6
    assert all(parameter.isfinite().all() for parameter in model.head.parameters())


def test_a_head_is_fitted_by_default_in_small_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "MAX_FITTED_ITEMS", 60)
    monkeypatch.setattr(settings_module, "MAX_FITTED_PER_LABEL", 10)
    tuning = TuningSettings()
    assert [tuning.choose_head_init(items, 2, True) for items in (1, 60, 61)] == ["fit", "fit", "random"]
    assert [tuning.choose_head_init(items, 77, True) for items in (61, 770, 771)] == ["fit", "fit", "random"]
    assert tuning.choose_head_init(60, 2, False) == "random"
    assert TuningSettings(from_scratch=True).choose_head_init(60, 2, True) == "random"
    assert TuningSettings(head_init="random").choose_head_init(60, 2, True) == "random"
    assert TuningSettings(head_init="fit").choose_head_init(61, 2, True) == "fit"


@pytest.mark.parametrize(("items", "fitted"), [(60, True), (59, False)])
def test_a_run_starts_from_a_fit_by_default(
    items: int, fitted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "MAX_FITTED_ITEMS", items)
    settings = make_settings(tmp_path, "run", head_init=None)
    reporter = text_reporter(200)
    finetune(replace(settings, dry_run=True), reporter)
    assert ("a run fits it to the encoder's states first" in read_output(reporter)) == fitted
    finetune(settings, reporter)
    assert ("fitted to the encoder's states of 60" in read_output(reporter)) == fitted


def test_heads_that_are_not_linear_start_at_random_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "MAX_FITTED_ITEMS", 8_192)
    settings = make_settings(tmp_path, "run", head_init=None)
    lines = (json.dumps({"words": example.words, "tags": example.tags}) for example in TAGGED)
    files = [str(write_file(tmp_path, "\n".join(lines), "tags.jsonl"))]
    overrides = {"tag_head": "crf", "scheme": "none"}
    table = {"task": "tagging", "train": files, "dev": files, "overrides": overrides}
    reporter = text_reporter(200)
    finetune(replace(settings, task=from_table(TaskSettings, table, "test")), reporter)
    assert "fitted" not in read_output(reporter)


def test_experiments_and_the_ladder_start_heads_at_random(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, "run", head_init=None)
    ladder = LadderSettings(tmp_path / "ladder", settings.task, bert=str(settings.model))
    started = {rung.name: ladder.finetune_settings(rung, 0, 1e-3).tuning.head_init for rung in ladder.rungs()}
    assert set(started.values()) == {"random"}


def make_settings(folder: Path, run: str, **changes: Any) -> FinetuneSettings:
    save = folder / "bert"
    if not save.exists():
        save_model(save, BertForPretraining(CONFIG, seed=1), TOKENIZER)
        lines = (json.dumps({"text": example.text, "label": example.label}) for example in SENTIMENT)
        write_file(folder, "\n".join(lines), "train.jsonl")
    files = [str(folder / "train.jsonl")]
    table: dict[str, Any] = {
        "run": str(folder / run), "model": str(save), "epochs": 2.0, "batch_size": 8,
        "task": {"task": "classification", "train": files, "dev": files},
        "tuning": {name: value for name, value in ({"head_init": "fit"} | changes).items() if value},
        "optimizer": {"learning_rate": 1e-6},
        "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip
    return from_table(FinetuneSettings, table, "test")


def test_a_run_starts_from_the_fit_and_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, reporter = make_settings(tmp_path, "whole"), text_reporter(200)
    model = finetune(settings, reporter)
    printed = " ".join(read_output(reporter).split())
    assert "head new, mean pooling (its pooler was never trained; --pooling overrides it), fitted" in printed
    assert "fitted to the encoder's states of 60 training items (loss 0.6" in printed
    fitted = read_json(settings.run / "report.json")["scores"]["dev"]["accuracy"]
    finetune(replace(settings, run=tmp_path / "random", tuning=TuningSettings(head_init="random")), text_reporter())
    assert fitted > read_json(tmp_path / "random/report.json")["scores"]["dev"]["accuracy"] + 0.1  # at a rate of 1e-6

    broken = replace(settings, run=tmp_path / "broken", save_every=3)
    step, steps = loop.Optimizer.step, []

    def stop(*arguments: Any) -> None:
        steps.append(arguments)
        if len(steps) == 5:
            raise KeyboardInterrupt
        step(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Optimizer, "step", stop)
        finetune(broken, text_reporter())
    reporter = text_reporter(200)
    again = finetune(replace(broken, resume=True), reporter)
    assert "fitted" not in read_output(reporter)
    assert (again / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
