"""Pooling of sequence-level heads: vectors by hand, training, folders, and the choice of pooling and learning rate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import bertwright
from bertwright.base.settings import from_table
from bertwright.estimators import BertClassifier
from bertwright.finetuning.pooling_choice import choose_pooling
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.interop.huggingface import read_config, read_source, save_model
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import PooledHead
from bertwright.models.pooling import POOLINGS
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.registry import default_learning_rate
from bertwright.tasks.classification import Classification
from bertwright.tasks.collation import collate, micro_batches
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel, save_task_folder
from bertwright.tasks.text_task import TextExample
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.trials.probe import probe
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.trials.task_trials import with_model_of
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import CPU, read_output, text_reporter, write_file

WORDS = "cat dog sees hears a the red big".split()
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *WORDS], lowercase=True)
CONFIG = BertConfig(TOKENIZER.vocab_size, 32, 2, 2, 64, max_positions=32, initializer_range=0.06)
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(1, 6))) for _ in range(240)]
RATE = OptimizerSettings(learning_rate=1e-2, warmup_ratio=0.1, bias_correction=True)
ENCODED = Classification(labels=("no", "yes")).encode(
    [TextExample(text, None, "yes" if "cat" in text else "no", "toy") for text in TEXTS], TOKENIZER
)


def make_model(modes: tuple[str, ...], **changes: Any) -> EncoderForTask:
    encoder = BertEncoder(replace(CONFIG, **changes), seed=1)
    return EncoderForTask(encoder, PooledHead(HeadSpec("sequence", 2), modes, encoder))


@pytest.mark.parametrize("is_causal", [False, True])
def test_pooled_vectors_by_hand(is_causal: bool) -> None:
    model = make_model(("cls", "max", "mean"), is_causal=is_causal).eval()
    batch = collate(ENCODED, np.arange(5))
    states = model.encoder(batch.input)
    expected = []
    for text in states.split(batch.packing.lengths.tolist()):
        expected.append(torch.cat([text[-1 if is_causal else 0], text.max(0).values, text.mean(0)]))
    classifier = model.head.get_submodule("classifier")
    assert torch.allclose(model(batch), classifier(torch.stack(expected)), atol=1e-6)


def test_gradients_under_dropout_do_not_depend_on_micro_batches() -> None:
    task, gradients = Classification(labels=("no", "yes")), []
    for tokens in (10_000, 30):
        model = make_model(("cls", "mean")).train()
        batches = micro_batches(ENCODED, 3, 16, 0, tokens)
        assert (len(batches) > 1) == (tokens == 30)
        for batch in batches:
            (task.loss(model(batch), batch=batch) / batch.num_labels).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*gradients, atol=1e-6)


@pytest.mark.parametrize("factor", [0.1, 1.0, 20.0])
def test_initial_logits_have_one_deviation_whatever_the_states_are(factor: float) -> None:
    model = make_model(("max", "mean")).eval()
    batch = collate(ENCODED, np.arange(240))
    with torch.no_grad():
        for name, parameter in model.encoder.layers[-1].named_parameters():
            if "output_norm" in name or "norm" in name:
                parameter.mul_(factor)
        model.scale_pooled_head(batch)
        pooled = model(batch) - model.head.get_submodule("classifier").bias
    weights = model.head.get_submodule("classifier").weight
    assert 0.2 < pooled.square().mean().sqrt().item() / (CONFIG.initializer_range * CONFIG.hidden_size**0.5) < 3
    assert weights.shape == (2, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random model, its copy as a sentence-transformers folder, and files of three tasks."""
    folder = tmp_path_factory.mktemp("pooling")
    for name in ("bert", "sentences"):
        save_model(folder / name, BertForPretraining(CONFIG, seed=1), TOKENIZER)
    module = "sentence_transformers.models."
    listed = [{"idx": n, "name": str(n), "path": p, "type": module + t} for n, (p, t) in enumerate(
        (("", "Transformer"), ("1_Pooling", "Pooling")))]  # fmt: skip
    write_file(folder / "sentences", json.dumps(listed), "modules.json")
    (folder / "sentences" / "1_Pooling").mkdir()
    write_file(folder / "sentences" / "1_Pooling", json.dumps({"pooling_mode_mean_tokens": True}), "config.json")
    labels = {
        "classification": lambda text: "yes" if "cat" in text else "no",
        "regression": lambda text: text.count("a"),
    }
    for kind, label in labels.items():
        lines = (json.dumps({"text": text, "label": label(text)}) for text in TEXTS)
        write_file(folder, "\n".join(lines) + "\n", f"{kind}.jsonl")
    choices = (
        json.dumps({"prompt": text, "endings": ["a cat", "the dog"], "label": int("cat" not in text)}) for text in TEXTS
    )
    write_file(folder, "\n".join(choices) + "\n", "multiple-choice.jsonl")
    return folder


def make_settings(folder: Path, run: Path, kind: str = "classification", **changes: Any) -> FinetuneSettings:
    overrides: dict[str, Any] = {"max_length": 32} | ({"endings": ["endings"]} if "choice" in kind else {})
    task: dict[str, Any] = {"task": kind, "overrides": overrides}
    task |= {split: [f"{folder}/{kind}.jsonl"] for split in ("train", "dev")}
    table: dict[str, Any] = {
        "run": str(run),
        "model": str(folder / "bert"),
        "epochs": 3.0,
        "batch_size": 16,
        "task": task,
    }
    settings = from_table(FinetuneSettings, table, "test")
    return replace(settings, optimizer=RATE, device=CPU, **changes)


@pytest.mark.parametrize("kind", ["classification", "regression", "multiple-choice"])
@pytest.mark.parametrize("pooling", ["mean", "concat"])
def test_a_pooled_head_is_learned_read_back_and_continued(
    kind: str, pooling: str, folder: Path, tmp_path: Path
) -> None:
    tuning = TuningSettings(pooling=pooling)  # type: ignore[arg-type]
    model = finetune(make_settings(folder, tmp_path / "run", kind, tuning=tuning), text_reporter())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["scores"]["dev"][report["metric"]] > 0.8
    assert json.loads((model / "config.json").read_text())["architectures"] == ["BertWithPooledHead"]
    continued = TuningSettings(keep_head=True)
    again = make_settings(folder, tmp_path / "again", kind, tuning=continued, model=str(model), epochs=0.1)
    finetune(replace(again, optimizer=replace(RATE, learning_rate=1e-9)), text_reporter())
    scores = json.loads((tmp_path / "again" / "report.json").read_text())["scores"]["dev"]
    assert scores[report["metric"]] == pytest.approx(report["scores"]["dev"][report["metric"]], abs=1e-3)
    other = make_settings(folder, tmp_path / "other", kind, tuning=replace(continued, pooling="max"), model=str(model))
    with pytest.raises(ValueError, match=r"pooling = 'max': the head of .*, with .*mean pooling"):
        finetune(other, text_reporter())


MODES = tuple(POOLINGS)


def save_pooled(folder: Path, task: AnyTask, is_causal: bool = False) -> bertwright.Bert:
    """Write the folder of a random model with a pooled head; return it as it is read back."""
    encoder = BertEncoder(replace(CONFIG, is_causal=is_causal), seed=2)
    head = PooledHead(task.head, task.pooling, encoder)  # type: ignore[union-attr]
    torch.nn.init.normal_(head.classifier.weight, generator=torch.Generator().manual_seed(0))
    save_task_folder(folder, TaskModel(EncoderForTask(encoder, head), task), TOKENIZER)
    return bertwright.load(folder, "cpu")


def read_by_transformers(folder: Path, name: str) -> Any:
    return getattr(transformers, name).from_pretrained(folder, trust_remote_code=True).eval()


@pytest.mark.parametrize("is_causal", [False, True])
def test_transformers_computes_the_same_with_a_pooled_head_if_it_may_run_the_folder_s_code(
    is_causal: bool, tmp_path: Path
) -> None:
    task = Classification(text_pair="pair", labels=("no", "yes", "maybe"), pooling=MODES)
    bert = save_pooled(tmp_path / "model", task, is_causal)
    pairs = list(zip(TEXTS[:20], TEXTS[20:40], strict=True))
    theirs = read_by_transformers(tmp_path / "model", "AutoModelForSequenceClassification")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "model", trust_remote_code=True)
    with torch.no_grad():
        expected = [theirs(**tokens(*pair, return_tensors="pt")).logits[0].softmax(-1) for pair in pairs]
        together = tokens(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
        padded = theirs(**together).logits.softmax(-1)
    ours = torch.tensor([[*answer.probabilities.values()] for answer in bert.classify(pairs)])
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours, padded, atol=1e-5, rtol=0)
    bert.save(tmp_path / "copy")
    assert bertwright.load(tmp_path / "copy", "cpu").classify(pairs) == bert.classify(pairs)


def test_transformers_computes_the_same_scores_labels_and_choices_with_a_pooled_head(tmp_path: Path) -> None:
    scored = save_pooled(tmp_path / "score", Regression(pooling=("mean",)))
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "score", trust_remote_code=True)
    labels = save_pooled(tmp_path / "labels", MultiLabel(labels=("a", "b", "c"), pooling=("max",)))
    choice = save_pooled(tmp_path / "choice", MultipleChoice(pooling=("cls", "mean")))
    encoded = tokens(TEXTS[:5], padding=True, return_tensors="pt")
    with torch.no_grad():
        score = read_by_transformers(tmp_path / "score", "AutoModelForSequenceClassification")(**encoded).logits[:, 0]
        several = read_by_transformers(tmp_path / "labels", "AutoModelForSequenceClassification")
        ending = read_by_transformers(tmp_path / "choice", "AutoModelForMultipleChoice")
        both = tokens([TEXTS[0]] * 2, ["a cat", "the big dog"], padding=True, return_tensors="pt")
        chosen = ending(**{name: values[None] for name, values in both.items()}).logits[0].softmax(-1)
        probabilities = several(**encoded).logits.sigmoid()
    assert scored.classify(TEXTS[:5]) == pytest.approx(score.tolist(), abs=1e-5)
    assert several.config.problem_type == "multi_label_classification"
    ours = [[*answer.probabilities.values()] for answer in labels.classify(TEXTS[:5])]
    np.testing.assert_allclose(ours, probabilities.numpy(), atol=1e-5)
    assert choice.choose(TEXTS[0], ["a cat", "the big dog"]).probabilities == pytest.approx(chosen.tolist(), abs=1e-5)


def test_transformers_names_what_it_needs_or_lacks_for_a_head_of_ours(tmp_path: Path) -> None:
    save_pooled(tmp_path / "pooled", Classification(labels=("no", "yes"), pooling=("mean",)))
    with pytest.raises(ValueError, match=r"custom code (.|\n)*trust_remote_code=True"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "pooled", trust_remote_code=False)
    tagging = Tagging(labels=("O", "B-X", "I-X"), scheme="iob2", tag_head="crf")
    assert tagging.head_builder is not None
    encoder = BertEncoder(CONFIG, seed=2)
    crf = TaskModel(EncoderForTask(encoder, tagging.head_builder(encoder)), tagging)
    save_task_folder(tmp_path / "crf", crf, TOKENIZER)
    assert json.loads((tmp_path / "crf/config.json").read_text())["read_with"].startswith("bertwright; ")
    with pytest.raises(ValueError, match="model type `bert-own-head` but Transformers does not recognize"):
        transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "crf")
    assert bertwright.load(tmp_path / "crf", "cpu").tag([TEXTS[0].split()])


def test_a_folder_of_before_the_own_name_is_read(tmp_path: Path) -> None:
    bert = save_pooled(tmp_path / "model", Classification(labels=("no", "yes"), pooling=("mean",)))
    (tmp_path / "model/checksums.json").unlink()
    config = json.loads((tmp_path / "model/config.json").read_text())
    config = {name: value for name, value in config.items() if name not in ("auto_map", "pooling", "read_with")}
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    assert bertwright.load(tmp_path / "model", "cpu").classify(TEXTS[:3]) == bert.classify(TEXTS[:3])


def test_the_folder_of_a_sentence_embedding_model_chooses_its_pooling(folder: Path, tmp_path: Path) -> None:
    settings = make_settings(folder, tmp_path / "run", model=str(folder / "sentences"), epochs=0.1)
    reporter = text_reporter(200)
    model = finetune(settings, reporter)
    assert "new, mean pooling (as its modules.json says; --pooling overrides it)" in read_output(reporter)
    assert json.loads((model / "task.json").read_text())["pooling"] == ["mean"]
    assert choose_pooling(TuningSettings(pooling="cls"), Classification(), folder / "sentences", None).modes == ()


TEXT_TASKS = (Classification(), MultiLabel(), Regression(), MultipleChoice())


@pytest.fixture(scope="module")
def poolers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of a model whose pooler was trained, was never trained, or is absent, the last also sharded."""
    folders = {name: tmp_path_factory.mktemp(name) / "bert" for name in ("trained", "untrained", "absent", "shards")}
    model = BertForPretraining(CONFIG, seed=1)
    for name, path in folders.items():
        if name == "trained":
            torch.nn.init.constant_(model.pooler.dense.bias, 1e-3)
        else:
            torch.nn.init.zeros_(model.pooler.dense.bias)
        lacking = ("pooler", "next_sentence") if name in ("absent", "shards") else ()
        save_model(path, model, TOKENIZER, missing_heads=lacking)
    shards = folders["shards"]
    (shards / "checksums.json").unlink()
    names = list(load_file(shards / "model.safetensors"))
    (shards / "model.safetensors").rename(shards / "part.safetensors")
    index = {"weight_map": dict.fromkeys(names, "part.safetensors")}
    write_file(shards, json.dumps(index), "model.safetensors.index.json")
    return folders


@pytest.mark.parametrize("task", TEXT_TASKS, ids=lambda task: task.kind)
def test_an_untrained_or_missing_pooler_gives_way_to_the_mean(task: AnyTask, poolers: dict[str, Path]) -> None:
    sources = {name: read_source(path, read_config(path)) for name, path in poolers.items()}
    chosen = {name: choose_pooling(TuningSettings(), task, poolers[name], one) for name, one in sources.items()}
    assert chosen == {
        "trained": ((), ""),
        "untrained": (("mean",), "its pooler was never trained"),
        "absent": (("mean",), "the model has no pooler"),
        "shards": (("mean",), "the model has no pooler"),
    }
    assert choose_pooling(TuningSettings(pooling="cls"), task, poolers["absent"], sources["absent"]) == ((), "")
    assert choose_pooling(TuningSettings(from_scratch=True), task, poolers["absent"], None) == ((), "")


def test_a_head_of_both_orders_keeps_the_pooler(poolers: dict[str, Path]) -> None:
    similarity = Classification(text_pair="b", both_orders=True)
    source = read_source(poolers["absent"], read_config(poolers["absent"]))
    assert choose_pooling(TuningSettings(), similarity, poolers["absent"], source) == ((), "")


@pytest.mark.parametrize("kind", ["classification", "multiple-choice"])
def test_the_summary_says_why_a_head_reads_the_mean(
    kind: str, folder: Path, poolers: dict[str, Path], tmp_path: Path
) -> None:
    model, reporter = poolers["absent"], text_reporter(200)
    written = finetune(make_settings(folder, tmp_path / "run", kind, model=str(model), epochs=0.1), reporter)
    printed = read_output(reporter)
    assert "new, mean pooling (the model has no pooler; --pooling overrides it)" in printed
    assert "random weights" not in printed
    assert printed.count(str(model)) == 1  # in the line of the model
    assert json.loads((written / "task.json").read_text())["pooling"] == ["mean"]
    reporter, tuning = text_reporter(200), TuningSettings(pooling="cls")
    settings = make_settings(folder, tmp_path / "cls", kind, tuning=tuning, model=str(model), epochs=0.1)
    written = finetune(settings, reporter)
    assert "the model has no pooler: a new one starts from random weights" in read_output(reporter)
    assert json.loads((written / "task.json").read_text())["pooling"] == []


@pytest.mark.parametrize(
    ("name", "pooling", "expected"),
    [("trained", None, ""), ("untrained", None, "mean pooling (its pooler was never trained; "), ("absent", "cls", ""),
     ("trained", "concat", "cls, max, mean pooling")],
)  # fmt: skip
def test_a_probe_reads_what_fine_tuning_reads(
    name: str, pooling: Any, expected: str, folder: Path, poolers: dict[str, Path], tmp_path: Path
) -> None:
    finetuning, reporter = make_settings(folder, tmp_path / "run", model=str(poolers[name])), text_reporter(200)
    settings = ProbeSettings(
        tmp_path / "probe", finetuning.task, str(poolers[name]), limit=20, representations=("last",), seeds=(0,),
        epochs=1, pooling=pooling, device=CPU,
    )  # fmt: skip
    probe(settings, reporter)
    printed = read_output(reporter)
    assert expected in printed
    assert ("text vector" in printed) == bool(expected)
    assert np.load(tmp_path / "probe/features/train/layer-02.npy").shape[1] == (96 if pooling == "concat" else 32)
    with pytest.raises(ValueError, match=r"pooling: expected one of cls, max, mean, .*, concat, got 'sum'"):
        replace(settings, pooling="sum")  # type: ignore[arg-type]
    assert "classification, best by accuracy" in printed


def test_a_probe_does_not_read_both_orders_of_a_pair(tmp_path: Path) -> None:
    table = {"run": str(tmp_path), "task": {"task": "mrpc", "overrides": {"both_orders": True}}}
    with pytest.raises(ValueError, match=r"both_orders = True: .* one order; omit it"):
        from_table(ProbeSettings, table, "test")


def test_an_estimator_reads_the_mean_where_the_pooler_is_untrained(poolers: dict[str, Path]) -> None:
    labels = ["yes" if "cat" in text else "no" for text in TEXTS[:40]]
    options: dict[str, Any] = {"epochs": 1, "device": "cpu", "dtype": "float32", "threads": 1}
    for name, modes in (("trained", ()), ("untrained", ("mean",)), ("absent", ("mean",))):
        fitted = BertClassifier(poolers[name], **options).fit(TEXTS[:40], labels)
        assert fitted.model_.task.pooling == modes
    fitted = BertClassifier(poolers["absent"], pooling="max", **options).fit(TEXTS[:40], labels)
    assert fitted.model_.task.pooling == ("max",)


def test_experiments_keep_the_head_of_the_paper(folder: Path, tmp_path: Path) -> None:
    finetuning = make_settings(folder, tmp_path / "run")
    assert with_model_of(finetuning, [folder]).tuning.pooling == "cls"
    assert with_model_of(replace(finetuning, tuning=TuningSettings(pooling="mean")), [folder]).tuning.pooling == "mean"
    assert with_model_of(finetuning, []).tuning.pooling is None
    assert with_model_of(ProbeSettings(tmp_path / "probe", finetuning.task), [folder]).pooling == "cls"
    tagging = replace(finetuning, task=from_table(TaskSettings, {"task": "tagging"}, ""))
    assert with_model_of(tagging, [folder]).tuning.pooling is None


def test_a_task_without_a_sentence_head_has_no_pooling(folder: Path) -> None:
    assert choose_pooling(TuningSettings(), Tagging(), folder / "sentences", None) == ((), "")
    with pytest.raises(ValueError, match="pooling = 'mean': a head for tagging"):
        choose_pooling(TuningSettings(pooling="mean"), Tagging(), folder / "bert", None)
    with pytest.raises(ValueError, match=r"pooling: expected one of cls, max, mean, .*, concat, got 'sum'"):
        TuningSettings(pooling="sum")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base", "hidden_size", "expected"),
    [(3e-5, 768, 3e-5), (3e-5, 1024, 3e-5), (3e-5, 384, 1.2e-4), (2e-5, 256, 1.8e-4), (2e-5, 16, 3e-4)],
)
def test_default_rate_falls_with_the_width_up_to_base(base: float, hidden_size: int, expected: float) -> None:
    assert default_learning_rate(base, hidden_size) == pytest.approx(expected)


def test_an_unset_rate_is_chosen_by_the_hidden_size(folder: Path, tmp_path: Path) -> None:
    table: dict[str, Any] = {"run": "r", "model": str(folder / "bert"), "task": {"task": "classification"}}
    settings = from_table(FinetuneSettings, table, "")
    assert settings.optimizer.learning_rate == 3e-4
    assert "learning rate 0.0003 (chosen by the hidden size, 32; BASE: 3e-05)" in settings.describe_hyperparams(32)
    given = from_table(FinetuneSettings, table | {"optimizer": {"learning_rate": 2e-5}}, "")
    assert given.optimizer.learning_rate == 2e-5
    for model in (str(tmp_path / "absent"), str(tmp_path), None):
        absent = {name: value for name, value in (table | {"model": model}).items() if value}
        assert from_table(FinetuneSettings, absent, "").optimizer.learning_rate == 3e-5
