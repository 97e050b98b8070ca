"""A task type is one file: a type that only this test knows runs through every command and the Python interface."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bertwright
from bertwright.estimators import BertEstimator
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.info import InfoSettings, info
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.metrics import scores
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.tasks.encoded import Encoded, Ints, Outputs
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_folder import continue_task
from bertwright.tasks.task_types import TASK_TYPES
from bertwright.tasks.text_task import TextExample, TextTask, known_labels
from bertwright.training.optimizer import OptimizerSettings
from bertwright.trials.grid import grid
from bertwright.trials.grid_settings import GridSettings
from bertwright.trials.probe import probe
from bertwright.trials.probe_settings import ProbeSettings
from helpers import CPU, read_output, text_reporter, write_file
from small_runs import save_random_bert


@dataclass(frozen=True)
class Ordinal(TextTask[int, int]):
    """A grade from 1 to 5 per text: output k is the logit of a grade above k."""

    kind: ClassVar[str] = "ordinal"
    metric: str = "accuracy"
    """Score that selects the best checkpoint: accuracy or within_one."""

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("sequence", 4)

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"above {grade}" for grade in range(1, 5))

    def parse_label(self, value: Any, location: str) -> int:
        if str(value) not in tuple("12345"):
            raise ValueError(f"{location}: expected a grade from 1 to 5, got {value!r}")
        return int(value)

    def with_labels_of(self, examples: Sequence[TextExample[int]]) -> Self:
        return self

    def encode_labels(self, examples: Sequence[TextExample[int]]) -> Ints:
        return np.array(known_labels(examples), dtype=np.int64)

    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        is_above = batch.labels[:, None] > torch.arange(1, 5)
        return F.binary_cross_entropy_with_logits(logits, is_above.float(), reduction="sum")

    def decode(self, examples: Sequence[TextExample[int]], encoded: Encoded, outputs: Outputs) -> list[int]:
        grades: list[int] = (1 + (outputs > 0).sum(1)).tolist()
        return grades

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        mean: Outputs = np.mean(outputs, axis=0)
        return mean

    def score(self, examples: Sequence[TextExample[int]], predictions: Sequence[int]) -> dict[str, float]:
        distances = np.abs(np.array(known_labels(examples)) - predictions)
        return {
            "within_one": float((distances <= 1).mean()),
            "accuracy": scores.accuracy(known_labels(examples), predictions),
        }


class OrdinalEstimator(BertEstimator):
    kind = "ordinal"

    def fit(self, X: list[str], y: list[int]) -> Self:  # noqa: N803
        rows = enumerate(zip(X, y, strict=True))
        self.model_ = self._finetune([TextExample(text, None, grade, f"X[{n}]") for n, (text, grade) in rows])
        return self

    def predict(self, X: list[str]) -> list[int]:  # noqa: N803
        predictions: list[int] = self._on_device().classify(X)
        return predictions


GRADES = "awful bad fair good great".split()
FILLERS = "the film was a little very".split()
RATE = OptimizerSettings(learning_rate=5e-3, warmup_ratio=0.1, bias_correction=True)


def make_rows(number: int, seed: int) -> list[tuple[str, int]]:
    """Return texts with one word that decides the grade, among others."""
    rng = np.random.default_rng(seed)
    rows = []
    for grade in rng.integers(1, 6, number).tolist():
        words = [*rng.choice(FILLERS, int(rng.integers(2, 6))), GRADES[grade - 1]]
        rows.append((" ".join(rng.permutation(words)), grade))
    return rows


@pytest.fixture(scope="module", autouse=True)
def _register() -> Iterator[None]:
    """Register the type, as a line in `tasks/task_types.py` would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASK_TYPES, "ordinal", Ordinal)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random model, train.tsv, dev.tsv, and two models that were fine-tuned on them."""
    folder = tmp_path_factory.mktemp("ordinal")
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}
    save_random_bert(folder / "bert", [*GRADES, *FILLERS], initializer_range=0.06, **sizes)
    for seed, (split, number) in enumerate({"train": 320, "dev": 60}.items()):
        rows = (f"{text}\t{grade}\n" for text, grade in make_rows(number, seed))
        write_file(folder, "text\tlabel\n" + "".join(rows), f"{split}.tsv")
    for seed, epochs in ((0, 6.0), (1, 2.0)):
        settings = FinetuneSettings(
            run=folder / f"run{seed}", task=task_settings(folder), model=str(folder / "bert"), epochs=epochs,
            batch_size=16, seed=seed, optimizer=RATE, device=CPU,
        )  # fmt: skip
        finetune(settings, text_reporter())
    return folder


def task_settings(folder: Path) -> TaskSettings:
    return TaskSettings("ordinal", train=(str(folder / "train.tsv"),), dev=(str(folder / "dev.tsv"),))


def test_it_is_learned_evaluated_and_predicted(folder: Path, tmp_path: Path) -> None:
    report = json.loads((folder / "run0" / "report.json").read_text())
    assert report["scores"]["dev"]["accuracy"] > 0.9  # chance: 0.2
    model, dev = str(folder / "run0"), str(folder / "dev.tsv")
    assert evaluate(EvaluateSettings(model, (dev,), device=CPU), text_reporter()) == report["scores"]["dev"]
    output = tmp_path / "predictions.tsv"
    predict(PredictSettings(model, inputs=(dev,), output=output, keep_columns=("text",), device=CPU), text_reporter())
    header, *lines = output.read_text().splitlines()
    assert header == "text\tprediction"
    texts, written = zip(*(line.split("\t") for line in lines), strict=True)
    assert bertwright.load(model).classify(list(texts)) == [int(grade) for grade in written]
    reporter = text_reporter()
    predict(PredictSettings(model, texts=(texts[0],), device=CPU), reporter)
    assert re.search(rf"prediction\W+{written[0]}\W*$", read_output(reporter))
    reporter = text_reporter()
    info(InfoSettings(folder / "run0"), reporter)
    assert "ordinal" in read_output(reporter)
    assert "above 4" in read_output(reporter)


def test_an_ensemble_grades_between_its_members(folder: Path, tmp_path: Path) -> None:
    first, second, dev = str(folder / "run0"), str(folder / "run1"), str(folder / "dev.tsv")

    def grades(name: str, *ensemble: str) -> np.ndarray[Any, Any]:
        output = tmp_path / f"{Path(name).name}{len(ensemble)}.jsonl"
        predict(PredictSettings(name, inputs=(dev,), output=output, ensemble=ensemble, device=CPU), text_reporter())
        return np.array([json.loads(line)["prediction"] for line in output.read_text().splitlines()])

    alone, both = [grades(first), grades(second)], grades(first, second)
    assert (alone[0] != alone[1]).any()
    assert ((np.min(alone, axis=0) <= both) & (both <= np.max(alone, axis=0))).all()


def test_a_grid_and_a_probe_choose_by_its_metric(folder: Path, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"task": task_settings(folder), "model": str(folder / "bert"), "device": CPU}
    grid(
        GridSettings(tmp_path / "grid", learning_rates=(3e-3,), batch_sizes=(16,), epochs=(1.0,), seeds=1, **shared),
        text_reporter(),
    )
    assert json.loads((tmp_path / "grid" / "report.json").read_text())["metric"] == "accuracy"
    table = probe(
        ProbeSettings(tmp_path / "probe", representations=("last",), seeds=(0,), epochs=1, **shared), text_reporter()
    )
    assert table is not None
    assert 0 < table.cells["last", "dev"].summary.mean <= 1


def test_an_estimator_learns_saves_and_pickles_it(folder: Path, tmp_path: Path) -> None:
    texts, grades = map(list, zip(*make_rows(320, seed=7), strict=True))
    estimator = OrdinalEstimator(
        folder / "bert", epochs=6, batch_size=16, learning_rate=5e-3, device="cpu", dtype="float32", threads=1
    ).fit(texts, grades)
    predicted = estimator.predict(texts)
    assert np.mean(np.array(predicted) == grades) > 0.6  # chance: 0.2
    estimator.save(tmp_path / "saved")
    for copy in (OrdinalEstimator.from_folder(tmp_path / "saved"), pickle.loads(pickle.dumps(estimator))):
        assert copy.predict(texts) == predicted


def test_its_head_is_continued(folder: Path) -> None:
    task = Ordinal(max_length=32)
    assert continue_task(folder / "run0" / "model", task) == replace(task, pooling=("mean",))


def test_an_unknown_grade_is_located(folder: Path, tmp_path: Path) -> None:
    path = write_file(tmp_path, "text\tlabel\nfair\t3\nbad\t6\n", "six.tsv")
    with pytest.raises(ValueError, match=r"six\.tsv, line 3: expected a grade from 1 to 5, got '6'"):
        evaluate(EvaluateSettings(str(folder / "run0"), (path,), device=CPU), text_reporter())
