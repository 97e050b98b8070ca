"""Word-level models from a task's data alone: trained, resumed, read back and used by the commands of any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.info import InfoSettings, info
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.systems.word_settings import WordModelSettings
from bertwright.tables.tag_schemes import find_spans, spell
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.trials.probe_settings import ProbeSettings
from harness import run_and_capture
from helpers import CPU

SMALL = WordModelSettings(word_size=16, lstm_size=12)
FAST = OptimizerSettings(learning_rate=0.02, schedule="constant", warmup_ratio=0.0, bias_correction=True)
TITLES, FIRST, LAST = "Mr Mrs Dr".split(), "Ann Bob Cleo Dan".split(), "Smith Jones Brown Miller".split()
FILLERS = "saw met the a dog and then".split()


def tagged(number: int, seed: int) -> str:
    """Return sentences in CoNLL columns, in which a title begins a name of two or three words."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        for _ in range(int(rng.integers(1, 4))):
            lines += [f"{rng.choice(FILLERS)} O" for _ in range(int(rng.integers(1, 4)))]
            name = [rng.choice(TITLES), *([rng.choice(FIRST)] if rng.integers(2) else []), rng.choice(LAST)]
            lines += [f"{word} {'I' if n else 'B'}-PER" for n, word in enumerate(name)]
        lines += ["in O", f"Town{rng.integers(10)} B-LOC", ""]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def tagging(tmp_path_factory: pytest.TempPathFactory) -> TaskSettings:
    folder = tmp_path_factory.mktemp("names")
    for seed, (split, number) in enumerate({"train": 60, "dev": 20}.items()):
        (folder / f"{split}.conll").write_text(tagged(number, seed), encoding="utf-8")
    files = {split: (str(folder / f"{split}.conll"),) for split in ("train", "dev")}
    return TaskSettings("tagging", **files, overrides=TaskOptions(tag_head="crf"))


def tagger_settings(run: Path, task: TaskSettings, **changes: Any) -> FinetuneSettings:
    given: dict[str, Any] = {"architecture": "bilstm-crf", "epochs": 6.0, "batch_size": 10, "optimizer": FAST}
    return FinetuneSettings(run, task, **(given | {"device": CPU, "words": SMALL} | changes))


@pytest.fixture(scope="module")
def tagger(tagging: TaskSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("tagger") / "run"
    printed = run_and_capture(finetune, tagger_settings(run, tagging))
    assert "BiLSTM L1 H12+12, words 16, characters by CNN" in printed
    assert "random weights" in printed
    return run


def test_a_tagger_learns_names_and_its_folder_is_read_back(tagger: Path) -> None:
    scores = json.loads((tagger / "report.json").read_text(encoding="utf-8"))["scores"]["dev"]
    assert scores["f1"] > 0.95
    model = bertwright.load(tagger)
    prediction = model.tag("then Dr Cleo Smith met the dog in Town11")
    assert prediction.tags == ("O", "B-PER", "I-PER", "I-PER", "O", "O", "O", "O", "B-LOC")
    assert [entity.text for entity in prediction.entities] == ["Dr Cleo Smith", "Town11"]
    assert all(0.5 < probability <= 1 for probability in prediction.probabilities)
    assert model.tag([("saw",), ("Mr", "Miller")])[1].tags == ("B-PER", "I-PER")


def test_commands_take_a_folder_of_words(tagger: Path, tagging: TaskSettings, tmp_path: Path) -> None:
    (path,) = tagging.dev
    report = run_and_capture(evaluate, EvaluateSettings(str(tagger), (path,), errors=tmp_path / "errors.jsonl"))
    assert "f1" in report
    run_and_capture(predict, PredictSettings(str(tagger), inputs=(path,), output=tmp_path / "tags.conll"))
    sentences = (tmp_path / "tags.conll").read_text(encoding="utf-8").strip().split("\n\n")
    assert len(sentences) == 20
    described = run_and_capture(info, InfoSettings(tagger / "model"))
    assert "model for tagging" in described
    assert "B-LOC, B-PER, E-LOC" in described


@pytest.mark.parametrize(
    ("kind", "columns"), [("classification", 1), ("classification", 2), ("regression", 1), ("multiple-choice", 2)]
)
def test_sentences_and_pairs(kind: str, columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [[" ".join(rng.choice(FILLERS, 5)) for _ in range(3)] for _ in range(96)]
    right = [int("dog" in row[1].split()) for row in rows]
    match kind:
        case "multiple-choice":  # the ending without the dog
            wrong, free = ([row[n].replace("dog", "a") for row in rows] for n in (1, 2))
            pairs = zip(wrong, free, strict=True)
            endings = [(f"{dog} dog", other)[:: 1 if n % 2 else -1] for n, (dog, other) in enumerate(pairs)]
            lines = [f"{row[0]}\t{a}\t{b}\t{n % 2}" for n, (row, (a, b)) in enumerate(zip(rows, endings, strict=True))]
            header, options = "prompt\tA\tB\tlabel", TaskOptions(endings=("A", "B"), prompt="prompt", first_label=0)
        case _:
            lines = [f"{row[0]}\t{row[1]}\t{label}" for row, label in zip(rows, right, strict=True)]
            pair = {"text": "A", "text_pair": "B"} if columns == 2 else {"text": "B"}
            header, options = "A\tB\tlabel", TaskOptions(**pair)  # type: ignore[arg-type]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    task = TaskSettings(kind, train=(str(path),), dev=(str(path),), overrides=options)
    settings = FinetuneSettings(
        tmp_path / "run", task, architecture="bilstm", epochs=8.0, batch_size=16, optimizer=FAST, device=CPU,
        words=SMALL, tuning=TuningSettings(dropout=0.1),
    )  # fmt: skip
    run_and_capture(finetune, settings)
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["scores"]["dev"][report["metric"]] > 0.7
    model = bertwright.load(tmp_path / "run")
    if kind == "multiple-choice":
        assert model.choose("then a", ["met the a", "met the dog"]).choice == 0
    else:
        text = ("a", "then the dog") if columns == 2 else "then the dog"
        predicted = model.classify(text)
        assert predicted > 0.5 if kind == "regression" else predicted.label == "1"


def parse(**table: Any) -> FinetuneSettings:
    return from_table(FinetuneSettings, {"run": "run"} | table, "")


def test_settings_of_a_new_tagger_are_its_own_defaults() -> None:
    settings = parse(architecture="bilstm-crf", task={"task": "conll2003"})
    task: Any = settings.task.build_task()
    assert (task.tag_head, task.context) == ("crf", False)
    assert (settings.batch_size, settings.optimizer.max_grad_norm, settings.optimizer.weight_decay) == (32, 5.0, 0.0)
    assert (settings.epochs, settings.optimizer.learning_rate) == (20.0, 2e-3)
    pairs = parse(architecture="bilstm", task={"task": "mrpc"})
    assert (pairs.batch_size, pairs.optimizer.learning_rate) == (32, 1e-3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"architecture": "bilstm", "model": "folder"}, "model: architecture = 'bilstm' starts a new model; omit it"),
        ({"architecture": "bilstm", "tuning": {"keep_head": True}}, "keep_head: architecture = 'bilstm'"),
        ({"architecture": "lstm"}, "architecture: expected .*bilstm or bilstm-crf.*, got 'lstm'"),
        ({"model": "folder", "words": {"word_size": 50}}, "word_size.*set architecture = .*bilstm"),
        (
            {"architecture": "bilstm-crf", "task": {"task": "tagging", "overrides": {"tag_head": "linear"}}},
            "'bilstm-crf': expected tagging with tag_head = 'crf'",
        ),
        ({"architecture": "bilstm-crf", "tuning": {"label_smoothing": 0.1}}, "label_smoothing = 0.1: the head"),
        ({"architecture": "bilstm", "words": {"lstm_size": 0}}, "lstm_size: expected at least 1, got 0"),
        ({"architecture": "bilstm", "words": {"unknown_words": "pretrained"}}, "expected a file of word vectors"),
        (
            {"architecture": "bilstm", "words": {"unknown_words": "char", "char_model": "none"}},
            "'char': expected char_model = cnn or lstm",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_rejected(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**({"task": {"task": "tagging"}} | table))


def test_a_bert_has_the_crf_as_its_head(tagging: TaskSettings, tiny_bert: Path, tmp_path: Path) -> None:
    settings = FinetuneSettings(tmp_path / "run", tagging, model=str(tiny_bert), epochs=0.5, device=CPU)
    run_and_capture(finetune, settings)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertWithCrfHead"]
    with pytest.warns(UserWarning, match=r"\[UNK\]"):
        prediction = bertwright.load(tmp_path / "run").tag("Mr Dan Brown")
    assert spell(find_spans(prediction.tags), 3, "iob2") == prediction.tags


def test_a_probe_has_no_crf(tagging: TaskSettings) -> None:
    with pytest.raises(ValueError, match="tag_head = 'crf': a probe's heads are linear"):
        ProbeSettings(Path("run"), tagging)


def test_an_estimator_continues_from_a_folder_of_words(tagger: Path) -> None:
    words = [["saw", "Mr", "Miller"], ["the", "dog"]] * 4
    tags = [["O", "B-PER", "I-PER"], ["O", "O"]] * 4
    estimator = bertwright.BertTagger(str(tagger), epochs=15, batch_size=2, learning_rate=0.02, device="cpu")
    estimator.fit(words, tags)
    assert [list(row) for row in estimator.predict(words[:2])] == tags[:2]


def test_an_ensemble_averages_the_probabilities_of_a_crf(tagger: Path, tagging: TaskSettings, tmp_path: Path) -> None:
    twice = EvaluateSettings(str(tagger), tagging.dev, ensemble=(str(tagger),), output=tmp_path / "scores.json")
    run_and_capture(evaluate, twice)
    scores = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert scores["f1"] > 0.95
