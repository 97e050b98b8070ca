"""Experiments: every job is done once and shared, a kill costs nothing, and the report says what the jobs found."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import run_and_capture, same_weights, start_process
from rich.console import Console

from bertwright.corpus.documents import CorpusSettings
from bertwright.experiments import experiment as command
from bertwright.experiments import experiment_setup as setup
from bertwright.experiments import jobs, report
from bertwright.experiments.ablations import ComposeJob
from bertwright.experiments.experiment import experiment
from bertwright.experiments.experiment_settings import ExperimentSettings
from bertwright.experiments.experiment_setup import choose_level, plan_experiment
from bertwright.experiments.job_cost import JobCost, SplitCost, estimate_costs
from bertwright.experiments.job_runner import JobResult, JobRunner, lock_if_free
from bertwright.experiments.jobs import FinetuneJob, PretrainJob, ProbeJob, all_jobs
from bertwright.experiments.levels import LEVELS, ExperimentLevel, TaskRecipe
from bertwright.experiments.paper import GLUE
from bertwright.experiments.paper_tables import MIXES, list_checkpoint_steps, published_figures
from bertwright.experiments.report import format_p
from bertwright.experiments.table_plan import TablePlan, Trial
from bertwright.experiments.task_files import add_test_files, find_task
from bertwright.files import read_json
from bertwright.finetuning.finetune_state import open_run as open_finetuning
from bertwright.finetuning.probe import open_probe
from bertwright.finetuning.run import finetune
from bertwright.models.config import SIZES
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.settings import to_table
from bertwright.tasks.presets import PRESETS
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.training.context import execution_context
from bertwright.training.loop import DivergedError
from bertwright.training.optimizer_settings import DeviceSettings
from bertwright.vocabulary.tokenizer import Tokenizer

Make = Callable[..., ExperimentSettings]
CLASSES = {"bear": "PER", "deer": "PER", "fish": "LOC", "wolf": "LOC", "crow": "ORG", "hare": "ORG"}
OTHERS = "the in sees hears fears finds".split()


@pytest.fixture(scope="module", autouse=True)
def _without_plots_of_runs() -> Iterator[None]:
    """Plots take half of the time of such small runs, and other tests check them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.training.metrics_log.save_figure", lambda *_: None)
        yield


def sentences(number: int, seed: int) -> str:
    """Return CoNLL columns in which the word alone decides its tag."""
    rng = np.random.default_rng(seed)
    lines = ["-DOCSTART- -X- O O", ""]
    for _ in range(number):
        words = rng.choice([*CLASSES, *OTHERS], int(rng.integers(3, 8)))
        lines += [f"{word} N O {'B-' + CLASSES[word] if word in CLASSES else 'O'}" for word in words] + [""]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, review_files: Path) -> Path:
    """Return a folder with the files of two published tasks."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("train", "dev"):
        path = folder / "glue" / "SST-2" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((review_files / f"{name}.tsv").read_text().replace("text\tlabel", "sentence\tlabel"))
    (folder / "conll2003").mkdir()
    for seed, name in enumerate(("train", "valid")):
        (folder / "conll2003" / f"{name}.txt").write_text(sentences(60, seed))
    return folder


@pytest.fixture(scope="module")
def make(store: Path, data: Path) -> Make:
    """Return settings of an experiment of a few seconds, any field changed by name."""

    def build(work: Path, name: str = "table5", **changes: Any) -> ExperimentSettings:
        fields: dict[str, Any] = {
            "store": store,
            "data": data,
            "seeds": 2,
            "steps": 20,
            "limit": 60,
            "word_task_limit": 40,
            "device": DeviceSettings(device="cpu", dtype="float32", threads=1),
        }
        if "model" in changes:  # then nothing is pre-trained
            fields |= {"store": None, "steps": None}
        return ExperimentSettings(**({"experiment": name, "work": work} | fields | changes))

    return build


def plan_of(settings: ExperimentSettings) -> TablePlan:
    return plan_experiment(settings, choose_level(settings))


def output(settings: ExperimentSettings) -> Path:
    return setup.report_folder(settings, plan_of(settings))


run_experiment = partial(run_and_capture, experiment)


@pytest.fixture(scope="module")
def finished_run(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExperimentSettings, str]:
    """Return table 5, run without interruption, and its output."""
    settings = make(tmp_path_factory.mktemp("experiment") / "work")
    return settings, run_experiment(settings, columns=140)


def results(settings: ExperimentSettings) -> dict[str, Any]:
    """Return the scores of all jobs by key."""
    work = JobRunner(settings.work.resolve())
    found = {job.key: work.result(job) for job in all_jobs(plan_of(settings).jobs)}
    return {key: result and result.scores for key, result in found.items()}


# Front door


def test_table5_reports_every_cell_beside_the_paper(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    record = read_json(output(settings) / "report.json")
    cells = {(cell["row"], cell["column"]): cell for cell in record["cells"]}
    assert {row for row, _ in cells} == {"MLM + NSP", "MLM", "LTR", "LTR + BiLSTM", "LTR + RTL"}
    assert {column for _, column in cells} == {"sst2", "conll2003"}
    assert all(cell["seeds"] == 2 == len(cell["scores"]) for cell in cells.values())
    assert cells["LTR", "sst2"]["paper"] == 92.1
    assert cells["MLM", "conll2003"]["mean"] > 0
    assert record["finished"] == record["total"] == 20
    assert "LTR" in printed
    assert "[92.1]" in printed
    markdown = (output(settings) / "report.md").read_text()
    assert "| MLM + NSP |" in markdown
    assert "mimetic" in markdown  # the initialization is named in every table
    for name, value in to_table(LEVELS["demo"].optimizer).items():
        assert f"{name} {value}" in record["setup"]["optimizer"]
    assert (output(settings) / "plot.png").stat().st_size > 1_000


def test_each_claim_has_one_sentence_with_verdict_and_interval(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    claims = read_json(output(settings) / "report.json")["claims"]
    every, words = ["sst2", "conll2003"], ["conll2003"]
    assert [claim["columns"] for claim in claims] == [every, words, words, ["sst2"], every]
    for claim in claims:
        low, mean, high, p = (claim["difference"][name] for name in ("low", "mean", "high", "p"))
        assert low <= mean <= high
        assert (p < 0.05) == (low > 0 or high < 0)
        assert format_p(p) in printed
        assert claim["verdict"] == ("shown" if low > 0 else "reversed" if high < 0 else "not shown")
        assert f"{claim['text']}: {claim['verdict']} at this budget" in printed
    assert "variance between seeds of" not in printed
    assert [claim["paper_columns"] for claim in claims][:2] == [["sst2"], []]
    assert claims[0]["paper"] is not None


def test_the_report_lists_all_machines_that_computed_its_jobs(
    finished_run: tuple[ExperimentSettings, str], tmp_path: Path
) -> None:
    settings, _ = finished_run
    moved = replace(settings, work=tmp_path / "work", report_only=True)
    shutil.copytree(settings.work, moved.work)
    *_, other = all_jobs(plan_of(moved).jobs)
    path = JobRunner(moved.work).folder(other) / "result.json"
    record = read_json(path)
    assert record["environment"]["dtype"] == "float32"
    assert {"processor", "torch", "threads", "bertwright"} < record["environment"].keys()
    path.write_text(json.dumps(record | {"environment": record["environment"] | {"processor": "Another One"}}))
    run_experiment(moved)
    environments = read_json(output(moved) / "report.json")["environments"]
    assert any(name.startswith("Another One, float32, PyTorch") for name in environments)
    assert sum(environments.values()) == 4 + 3 + 20
    assert "Another One, float32" in (output(moved) / "report.md").read_text()


def test_the_report_has_the_differences_of_all_rows_from_the_first(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, _ = finished_run
    record = read_json(output(settings) / "report.json")
    rows = ["MLM", "LTR", "LTR + BiLSTM", "LTR + RTL"]
    assert [(one["row"], one["from"], one["column"]) for one in record["differences"]] == [
        (row, "MLM + NSP", column) for row in rows for column in ("sst2", "conll2003", "mean")
    ]
    means = {(cell["row"], cell["column"]): cell["mean"] for cell in record["cells"]}
    one, other, mean = record["differences"][:3]
    assert one["mean"] == pytest.approx(means["MLM", "sst2"] - means["MLM + NSP", "sst2"])
    assert mean["mean"] == pytest.approx((one["mean"] + other["mean"]) / 2)
    assert all(one["low"] <= one["mean"] <= one["high"] and 0 < one["p"] <= 1 for one in record["differences"])
    markdown = (output(settings) / "report.md").read_text()
    assert "Differences from MLM + NSP:" in markdown
    assert f"| MLM | {100 * one['mean']:+.1f} ({100 * one['low']:+.1f} to {100 * one['high']:+.1f})" in markdown


def test_a_cell_is_the_score_of_the_last_step(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, _ = finished_run
    work = JobRunner(settings.work.resolve())
    for job in plan_of(settings).jobs:
        report = read_json(work.run_folder(job) / "report.json")
        assert report["best_step"] == report["steps"]
        result = work.result(job)
        assert result is not None
        assert result.scores["dev"] == report["scores"]["dev"][report["metric"]]


def test_finished_jobs_keep_metrics_but_no_fine_tuned_weights(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, _ = finished_run
    work = JobRunner(settings.work.resolve())
    for job in all_jobs(plan_of(settings).jobs):
        weights = list((work.run_folder(job)).rglob("*.safetensors"))
        assert bool(weights) == isinstance(job, PretrainJob | ComposeJob)
        assert isinstance(job, ComposeJob) or (work.run_folder(job) / "metrics.jsonl").is_file()


def test_table8_has_a_column_of_frozen_features(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixes = dict(list(MIXES.items())[:2])
    monkeypatch.setattr("bertwright.experiments.paper_tables.MIXES", mixes)
    settings = make(tmp_path / "work", "table8", seeds=1, word_task_limit=None)
    run_experiment(settings)
    record = read_json(output(settings) / "report.json")
    columns = {(cell["row"], cell["column"]) for cell in record["cells"]}
    assert columns == {(row, column) for row in mixes for column in ("sst2", "conll2003", "features")}
    assert not list(tmp_path.rglob("features"))  # the cached states are deleted
    claim = next(claim for claim in record["claims"] if claim["columns"] == ["features"])
    assert claim["difference"]["low"] < claim["difference"]["high"]  # over examples, although there is one seed


def test_table6_compares_shapes_by_held_out_perplexity(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", "table6", seeds=1, steps=10, tasks=("sst2",))
    printed = run_experiment(settings, columns=160)
    record = read_json(output(settings) / "report.json")
    assert any("0.0008 at hidden size 192" in note for note in record["notes"])
    cells = {cell["row"]: cell for cell in record["cells"] if cell["column"] == "perplexity"}
    assert list(cells)[::5] == ["L1 H128 A2 (paper: L3 H768 A12)", "L6 H192 A3 (paper: L24 H1024 A16)"]
    assert [cell["paper"] for cell in cells.values()] == [5.84, 5.24, 4.68, 3.99, 3.54, 3.23]
    assert all(cell["mean"] > 1 and cell["seeds"] == 1 for cell in cells.values())
    claim = next(claim for claim in record["claims"] if claim["columns"] == ["perplexity"])
    assert len({cell["mean"] for cell in cells.values()}) == 6
    smaller, larger, *_ = cells.values()
    for cell in cells.values():
        low, high = cell["interval"]
        assert low < cell["mean"] < high
        assert f"{cell['mean']:.2f} ({low:.2f} to {high:.2f}) [" in printed
    low, mean, high, p = (claim["difference"][name] for name in ("low", "mean", "high", "p"))
    assert mean == pytest.approx(np.log(smaller["mean"] / larger["mean"]))
    assert low < mean < high
    assert claim["verdict"] == ("shown" if low > 0 else "reversed" if high < 0 else "not shown")
    paired = np.log(smaller["interval"][1] / larger["interval"][0])
    assert high < paired  # both are scored on the same sequences
    assert f"{mean:+.2f} nats per token, 95 % interval {low:+.2f} to {high:+.2f}, {format_p(p)}; paper +0.11" in printed


def test_table7_has_the_features_that_the_model_has_layers_for(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path / "work", "table7", seeds=2, model=str(tiny_bert), store=None)
    printed = run_experiment(settings, columns=140)
    record = read_json(output(settings) / "report.json")
    names = ["embeddings", "second-to-last", "last", "sum-all"]
    assert [cell["row"] for cell in record["cells"]] == ["fine-tuned", *(f"features: {name}" for name in names)]
    assert all(cell["seeds"] == 2 for cell in record["cells"])
    assert [cell["paper"] for cell in record["cells"]] == pytest.approx([96.4, 91.0, 95.6, 94.9, 95.5])
    assert "too few for sum-last-four, concat-last-four" in " ".join(
        (output(settings) / "report.md").read_text().split()
    )
    assert "[91.0]" in printed  # as the paper prints it
    assert "The last layer is better than the embeddings: " in printed
    assert any("1-layer BiLSTM of 128 outputs" in note for note in record["notes"])


def test_table1_scores_a_model_folder_on_all_tasks(make: Make, tmp_path: Path, data: Path, tiny_bert: Path) -> None:
    files = shutil.copytree(data, tmp_path / "data")
    shutil.copytree(files / "glue" / "SST-2", files / "glue" / "MRPC")
    for path in (files / "glue" / "MRPC").iterdir():
        rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
        lines = [
            "Quality\t#1 String\t#2 String",
            *(f"{int(label == 'good')}\t{text}\tthe bear" for text, label in rows),
        ]
        path.write_text("\n".join(lines) + "\n")
    (files / "glue" / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tthe bear sees\n")
    (files / "conll2003" / "test.txt").write_text(sentences(30, 5))
    answers = [{"text": "forest", "answer_start": 16}]
    questions = [{"id": str(n), "question": "where is the bear", "answers": answers} for n in range(8)]
    article = {"title": "", "paragraphs": [{"context": "the bear in the forest", "qas": questions}]}
    (files / "squad").mkdir()
    for name in ("train", "dev"):
        (files / "squad" / f"{name}-v1.1.json").write_text(json.dumps({"data": [article]}))
    settings = make(tmp_path / "work", "table1", data=files, seeds=2, model=str(tiny_bert), store=None)
    printed = run_experiment(settings, columns=250)
    record = read_json(output(settings) / "report.json")
    cells = {cell["column"]: cell for cell in record["cells"]}
    assert {cell["row"] for cell in record["cells"]} == {"ours"}
    assert cells.keys() == {"sst2", "mrpc", "squad", "squad EM", "conll2003", "conll2003 test", "GLUE average"}
    assert all(cell["seeds"] == 2 for cell in cells.values())
    assert cells["GLUE average"]["mean"] == pytest.approx((cells["sst2"]["mean"] + cells["mrpc"]["mean"]) / 2)
    work = JobRunner(settings.work.resolve())
    test_scores = [
        read_json(work.folder(trial.job) / "run" / "report.json")["scores"]["test"]["f1"]
        for trial in plan_of(settings).trials
        if trial.column == "conll2003 test"
    ]
    assert cells["conll2003 test"]["scores"] == test_scores
    markdown = (output(settings) / "report.md").read_text()
    lines = [line[2:-2].split(" | ") for line in markdown.splitlines() if line.startswith("|")]
    base = lines[0].index("BERT BASE")
    assert {line[0]: line[base] for line in lines[2:]} == {
        "sst2 acc.": "[93.5, test]", "mrpc F1": "[88.9, test]", "GLUE average of 2": "[91.2, test]",
        "squad F1": "[88.5]", "squad EM": "[80.8]", "conll2003 F1": "[96.4]", "conll2003 F1, test": "[92.4]",
    }  # fmt: skip
    assert "[91.2, test]" in printed
    assert str(tiny_bert) in markdown
    assert any(note.startswith("sst2: not scored on test") for note in record["notes"])


def test_the_rate_of_a_test_score_is_selected_on_dev() -> None:
    class Results:
        """Work in which the first rate is better on dev and the second one on test."""

        def result(self, job: Any) -> JobResult:
            return JobResult({"dev": 0.9 - job, "test_f1": 0.5 + job}, 0.0, None, {})

        def examples(self, *_: object) -> None:
            return None

    trials = [Trial("ours", "conll2003 test", 0, rate, rate, "test_f1", "dev") for rate in (0.1, 0.2)]  # type: ignore[arg-type]
    finished = [(trial, Results().result(trial.job)) for trial in trials]
    cell = report._read_cell(finished, Results())  # type: ignore[arg-type]
    assert (cell.learning_rate, cell.summary.mean) == (0.1, 0.6)


def test_an_average_is_over_the_seeds_that_all_columns_have() -> None:
    def cell(scores: dict[int, float]) -> report.Cell:
        return report.Cell(scores, 0.1)

    average = report._average([cell({0: 0.5, 1: 0.6, 2: 0.7}), cell({0: 0.7, 2: 0.9})])
    assert average is not None
    assert average.scores == {0: pytest.approx(0.6), 2: pytest.approx(0.8)}
    assert average.learning_rate is None
    assert report._average([cell({0: 0.5}), cell({1: 0.5})]) is None


def test_figures_on_another_split_are_marked() -> None:
    columns = ["mrpc", "mrpc test", "stsb", "squad_v2", "swag", "GLUE average"]
    figures, splits = published_figures(columns, ["mrpc", "stsb"])
    assert figures["BERT LARGE"] == {
        "mrpc test": 89.3, "stsb": 86.5, "squad_v2": 81.9, "swag": 86.6, "GLUE average": pytest.approx(87.9)
    }  # fmt: skip
    assert {column for row, column in splits if row == "BERT LARGE"} == {"stsb", "GLUE average"}
    assert figures["OpenAI GPT"]["swag"] == 78.0
    assert splits["OpenAI GPT", "swag"] == "test"


def test_the_average_of_all_tasks_of_glue_is_that_of_the_paper() -> None:
    figures, _ = published_figures([*GLUE, "GLUE average"], GLUE)
    averages = {row: round(found["GLUE average"], 1) for row, found in figures.items() if "GLUE average" in found}
    assert averages == {"BiLSTM+ELMo+Attn": 70.9, "OpenAI GPT": 75.1, "BERT BASE": 79.6, "BERT LARGE": 82.1}


def test_a_model_of_the_user_is_tuned_on_all_examples_as_in_the_paper(make: Make, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"limit": None, "word_task_limit": None, "seeds": None, "store": None, "steps": None}
    for name, seeds in (("demo", 2), ("night", 5), ("paper", 5)):
        level = choose_level(make(tmp_path, "table1", level=name, model="folder", **sizes))
        assert (level.limit, level.word_task_limit, level.seeds) == (None, None, seeds)
        assert level.task_recipes["squad_v2"] == TaskRecipe(2.0, 48, (5e-5,))
        assert len(level.recipe.learning_rates) == (4 if name == "paper" else 1)
    assert choose_level(make(tmp_path, "table1", model="folder", **sizes | {"limit": 70})).limit == 70


def test_the_weights_of_a_model_folder_decide_the_keys(
    make: Make, tmp_path: Path, tiny_bert: Path, one_layer_folder: Path
) -> None:
    def keys(model: Path) -> set[str]:
        return {job.key for job in plan_of(make(tmp_path, "table1", model=str(model), store=None)).jobs}

    shutil.copytree(tiny_bert, tmp_path / "copy")
    assert keys(tmp_path / "copy") == keys(tiny_bert)
    assert not keys(one_layer_folder) & keys(tiny_bert)
    vocabulary = tmp_path / "copy" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("\nbear\n", "\nBear\n"))
    assert not keys(tmp_path / "copy") & keys(tiny_bert)


# Sharing and resuming


def test_a_second_experiment_shares_the_pre_trainings(
    finished_run: tuple[ExperimentSettings, str], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished_run

    def fail(*_: object) -> None:
        raise AssertionError("a pre-training that exists is done again")

    monkeypatch.setattr(jobs, "pretrain", fail)
    figure = make(settings.work, "figure5", seeds=1, tasks=("sst2",))
    printed = run_experiment(figure)
    assert printed.count("95 % interval without the variance between seeds of ") == 3
    record = read_json(output(figure) / "report.json")
    assert [cell["row"] for cell in record["cells"]][:2] == ["MLM, 2 steps", "MLM, 4 steps"]
    assert record["finished"] == record["total"] == 20
    last = {cell["row"]: cell["scores"][0] for cell in record["cells"]}["LTR, 20 steps"]
    table5 = read_json(output(settings) / "report.json")["cells"]
    assert last == next(c["scores"][0] for c in table5 if (c["row"], c["column"]) == ("LTR", "sst2"))


def test_a_finished_experiment_runs_nothing(
    finished_run: tuple[ExperimentSettings, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished_run
    before = (output(settings) / "report.json").read_bytes()
    for name in ("pretrain", "finetune"):
        monkeypatch.setattr(jobs, name, None)
    run_experiment(settings)
    assert (output(settings) / "report.json").read_bytes() == before


def test_killed_experiments_end_with_the_same_bits(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path
) -> None:
    unbroken, _ = finished_run
    broken = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    rng, kills = random.Random(0), 0
    while True:
        process = start_process(experiment, broken)
        if kills < 3:
            before = len(list(broken.work.glob("jobs/*/result.json")))
            while process.is_alive() and len(list(broken.work.glob("jobs/*/result.json"))) <= before:
                time.sleep(0.01)
            process.join(rng.random())
        else:
            process.join()
        if process.exitcode is None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills
    assert results(broken).items() <= results(unbroken).items()
    for job in all_jobs(plan_of(broken).jobs):
        if isinstance(job, PretrainJob):
            folders = [JobRunner(settings.work.resolve()).run_folder(job) / "model" for settings in (unbroken, broken)]
            assert same_weights(*folders)
    assert not list(broken.work.rglob(".*.part-*"))


def test_a_begun_job_of_a_moved_work_folder_starts_again(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path
) -> None:
    unbroken, _ = finished_run
    first = make(tmp_path / "first", seeds=1, tasks=("sst2",))
    job = next(job for job in plan_of(first).jobs if isinstance(job, FinetuneJob))
    work = JobRunner(first.work.resolve())
    work.run_all(job.parents, Console(quiet=True))
    settings = replace(job.settings, run=work.run_folder(job), model=str(work.run_folder(job.parents[0]) / "model"))
    finetune(settings, Console(quiet=True))  # as if killed before its result was written
    first.work.rename(tmp_path / "second")
    second = make(tmp_path / "second", seeds=1, tasks=("sst2",))
    run_experiment(second)
    assert results(second).items() <= results(unbroken).items()


def test_a_begun_pre_training_continues_with_a_moved_store(
    finished_run: tuple[ExperimentSettings, str],
    make: Make,
    tmp_path: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unbroken, _ = finished_run
    moved = make(tmp_path / "work", seeds=1, tasks=("sst2",), store=tmp_path / "store")
    shutil.copytree(store, tmp_path / "store")
    job = next(job for job in all_jobs(plan_of(moved).jobs) if isinstance(job, PretrainJob))
    run = JobRunner(moved.work.resolve()).run_folder(job)
    pretrain(replace(job.settings, run=run, store=store), Console(quiet=True))  # as if killed before its result
    resumed = []

    def record(settings: PretrainSettings, console: Console) -> None:
        resumed.append(settings.resume)
        pretrain(settings, console)

    monkeypatch.setattr(jobs, "pretrain", record)
    JobRunner(moved.work.resolve()).run_all([job], Console(quiet=True))
    assert resumed == [True]
    assert results(moved)[job.key] == results(unbroken)[job.key]


def test_two_processes_share_the_jobs(finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path) -> None:
    unbroken, _ = finished_run
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    processes = [start_process(experiment, settings) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert results(settings).items() <= results(unbroken).items()
    for job in plan_of(settings).jobs:  # each run was started once
        log = (JobRunner(settings.work.resolve()).folder(job) / "log.txt").read_text()
        assert log.count("Scores after step") == 1


def test_the_processes_of_torchrun_share_the_jobs(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path
) -> None:
    unbroken, _ = finished_run
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "--", "bertwright", "experiment", "table5", "--store", str(settings.store), "--data"]
    options = (
        f"{settings.data} --work {settings.work} --seeds 1 --tasks sst2 --steps 20 --limit 60 --word-task-limit 40"
    )
    device = ["--device", "cpu", "--dtype", "float32", "--threads", "1"]
    done = subprocess.run(
        [*launcher, *command, *options.split(), *device], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert results(settings).items() <= results(unbroken).items()
    assert done.stdout.count("Table 5: pre-training objectives: 11 jobs") == 1
    assert done.stdout.count("report.json") == 1
    for job in plan_of(settings).jobs:  # each run was started once
        log = (JobRunner(settings.work.resolve()).folder(job) / "log.txt").read_text()
        assert log.count("Scores after step") == 1


def test_a_claimed_job_cannot_be_claimed_again(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work")
    job, work = plan_of(settings).jobs[0], JobRunner(settings.work)
    with lock_if_free(work.folder(job)) as first, lock_if_free(work.folder(job)) as second:
        assert (first, second) == (True, False)
    with lock_if_free(work.folder(job)) as third:
        assert third


def test_a_file_that_changes_after_planning_stops_its_jobs(make: Make, tmp_path: Path, data: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "data")
    settings = make(tmp_path / "work", data=copy, tasks=("sst2",))
    job = next(one for one in plan_of(settings).jobs if isinstance(one, FinetuneJob))
    work = JobRunner(settings.work)
    work.folder(job).mkdir(parents=True)
    with (copy / "glue" / "SST-2" / "dev.tsv").open("a") as file:
        file.write("the bear\tgood\n")
    with pytest.raises(ValueError, match=r"fine-tune .*: dev changed .*planned"):
        work.run(job)
    assert work.result(job) is None


def test_a_model_that_changes_during_a_job_gives_no_result(
    make: Make, tmp_path: Path, tiny_bert: Path, one_layer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(tiny_bert, tmp_path / "copy")
    settings = make(tmp_path / "work", "table1", model=str(model), tasks=("sst2",))
    (job, *_), work = plan_of(settings).jobs, JobRunner(settings.work)
    work.folder(job).mkdir(parents=True)

    def change(*_: object) -> dict[str, float]:
        shutil.copyfile(one_layer_folder / "model.safetensors", model / "model.safetensors")
        return {"dev": 1.0}

    monkeypatch.setattr(FinetuneJob, "execute", change)
    with pytest.raises(ValueError, match=r"fine-tune .*: the initial weights changed .*planned"):
        work.run(job)
    assert work.result(job) is None


def test_a_store_that_changes_after_planning_stops_its_pre_trainings(make: Make, tmp_path: Path) -> None:
    job = next(one for one in all_jobs(plan_of(make(tmp_path / "work")).jobs) if one.kind == "pretrain")
    job.check_inputs()
    with pytest.raises(ValueError, match=r"pre-train .*: store changed .*planned"):
        replace(job, digests=(("store", "0" * 32),)).check_inputs()


@pytest.mark.parametrize("content", ["{}", "null", "[]", '{"scores": {}'])
def test_a_damaged_result_is_named(make: Make, tmp_path: Path, content: str) -> None:
    settings = make(tmp_path / "work")
    job, work = plan_of(settings).jobs[0], JobRunner(settings.work)
    path = work.folder(job) / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"result\.json"):
        experiment(settings)


def test_what_a_killed_process_left_is_deleted(finished_run: tuple[ExperimentSettings, str], tmp_path: Path) -> None:
    settings, _ = finished_run
    work = JobRunner(shutil.copytree(settings.work, tmp_path / "work"))
    job = next(one for one in plan_of(settings).jobs if isinstance(one, FinetuneJob))
    left = work.run_folder(job) / ".model.part-1-1"
    left.mkdir()
    run_experiment(replace(settings, work=work.path))
    assert not left.exists()


# Keys


def test_the_key_of_a_job_is_its_content(make: Make, tmp_path: Path, data: Path) -> None:
    def keys(**changes: Any) -> list[str]:
        return [job.key for job in all_jobs(plan_of(make(tmp_path / "work", **changes)).jobs)]

    before = keys()
    assert len({*before}) == len(before) == 4 + 3 + 20
    assert keys(device=DeviceSettings("cpu", "float32", threads=2)) == before
    assert keys(device=DeviceSettings(device="cpu")) in (before, keys(device=DeviceSettings("cpu", "bfloat16")))
    assert not {*keys(device=DeviceSettings(device="cpu", dtype="bfloat16"))} & {*before}
    assert {*keys(seeds=3)} > {*before}
    assert not {*keys(steps=30)} & {*before}
    assert keys(limit=30)[0] == before[0]
    moved = tmp_path / "moved"
    moved.symlink_to(data)
    assert keys(data=moved) == before


def test_each_shape_of_table6_is_a_pre_training_of_its_own(make: Make, tmp_path: Path) -> None:
    found = all_jobs(plan_of(make(tmp_path, "table6", seeds=1, tasks=("sst2",))).jobs)
    assert [job.kind for job in found] == ["pretrain", "finetune"] * 6


def test_results_of_another_version_are_not_reused(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {job.key for job in all_jobs(plan_of(make(tmp_path)).jobs)}
    monkeypatch.setattr(jobs, "RESULTS_VERSION", jobs.RESULTS_VERSION + 1)
    assert not before & {job.key for job in all_jobs(plan_of(make(tmp_path)).jobs)}


def test_the_vocabulary_of_the_store_decides_the_keys(make: Make, tmp_path: Path, store: Path) -> None:
    """A token that the text does not contain leaves all token ids as they are."""
    tokens = Tokenizer.load(store / "tokenizer").tokens
    corpus = CorpusSettings((str(store.parent / "text.txt"),))
    larger = Tokenizer.from_tokens([*tokens, "walrus"], lowercase=True)
    build(tmp_path / "store", corpus, larger, BuildSettings(held_out=0.1, workers=1))
    arrays = [
        [file.digest for file in TokenStore.open(one / "train").header.files] for one in (store, tmp_path / "store")
    ]
    assert arrays[0] == arrays[1]
    before, after = (
        {job.key for job in plan_of(make(tmp_path, store=one)).jobs} for one in (store, tmp_path / "store")
    )
    assert not before & after


def test_the_settings_of_a_preset_decide_the_keys_of_its_task_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> dict[str, set[str]]:
        plan = plan_of(make(tmp_path))
        return {
            task: {trial.job.key for trial in plan.trials if trial.column == task} for task in ("sst2", "conll2003")
        }

    before = keys()
    preset = PRESETS["conll2003"]
    monkeypatch.setitem(PRESETS, "conll2003", preset._replace(task=replace(preset.task, max_length=32)))
    assert keys()["sst2"] == before["sst2"]
    assert not keys()["conll2003"] & before["conll2003"]


def test_a_changed_training_file_changes_the_keys_of_its_task_alone(make: Make, tmp_path: Path, data: Path) -> None:
    copied = tmp_path / "data" / "SST-2"
    copied.mkdir(parents=True)
    for name in ("train", "dev"):
        (copied / f"{name}.tsv").write_text((data / "glue" / "SST-2" / f"{name}.tsv").read_text())
    settings = make(tmp_path / "work", data=copied.parent, tasks=("sst2",))
    before = {job.key for job in all_jobs(plan_of(settings).jobs)}
    with (copied / "train.tsv").open("a") as file:
        file.write("the bear sees\tgood\n")
    after = {job.key for job in all_jobs(plan_of(settings).jobs)}
    assert len(before & after) == 4 + 3  # the pre-trainings and composed models
    assert len(after) == len(before)


# Fair comparisons


def test_all_objectives_start_from_the_same_weights(make: Make, tmp_path: Path) -> None:
    pretrainings = [job for job in all_jobs(plan_of(make(tmp_path)).jobs) if isinstance(job, PretrainJob)]
    models = []
    for job in pretrainings:
        model = job.settings.objective.new_model(job.settings.model, 100, job.settings.data.seed)
        models.append(model.state_dict())
    assert len(models) == 4
    for other in models[1:]:
        assert all(bool((models[0][name] == other[name]).all()) for name in models[0])


def test_the_new_lstm_has_a_rate_of_its_own(make: Make, tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path, level="night", seeds=1))
    rates = {job.settings.lstm_learning_rate for job in all_jobs(plan.jobs) if isinstance(job, ComposeJob)}
    assert rates == {1e-3}
    assert any(
        "2-layer BiLSTM of 256 outputs" in note and "a peak rate of its own, 0.001" in note for note in plan.notes
    )


def test_objectives_without_next_sentences_read_the_same_sequences(make: Make, tmp_path: Path, store: Path) -> None:
    tokenizer = Tokenizer.load(store / "tokenizer")
    read = {}
    for job in all_jobs(plan_of(make(tmp_path)).jobs):
        if isinstance(job, PretrainJob):
            (examples,) = job.settings.objective.open_examples(store / "train", tokenizer, [job.settings.data])
            batch, *_ = examples.batches_for_step(5)
            ids = batch.input.input_ids.clone()
            ids[batch.mlm_positions] = (
                batch.mlm_labels if job.settings.data.objective == "mlm" else ids[batch.mlm_positions]
            )
            read[job.settings.data.objective] = ids.tolist(), batch.packing.cu_seqlens.tolist()
    assert read["mlm"] == read["ltr"] == read["rtl"]


def test_fine_tuning_and_heads_on_features_read_the_same_examples(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path / "work", "table7", seeds=1, model=str(tiny_bert), store=None)
    tuning, probe = plan_of(settings).jobs[:2]
    assert isinstance(tuning, FinetuneJob)
    assert isinstance(probe, ProbeJob)
    with execution_context(settings.device) as context:
        state = open_finetuning(replace(tuning.settings, run=tmp_path / "run"), context, Console(quiet=True))
        probed = open_probe(replace(probe.settings, run=tmp_path / "run"), context, Console(quiet=True)).splits
    assert state.dev is not None
    assert [split.name for split in probed] == ["train", "dev"]
    assert [len(split.examples) for split in probed] == [40, 40]
    assert [list(split.examples) for split in probed] == [list(state.train.examples), list(state.dev.examples)]


# Failures


def test_a_diverged_pre_training_is_reported_and_its_fine_tunings_fail(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(settings: Any, console: Any) -> None:
        if settings.data.objective == "ltr":
            raise DivergedError("step 3: not finite")
        pretrain(settings, console)

    pretrain = jobs.pretrain
    monkeypatch.setattr(jobs, "pretrain", diverge)
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    printed = run_experiment(settings, columns=140)
    assert "pre-train ltr: diverged: step 3" in printed
    record = read_json(output(settings) / "report.json")
    assert {cell["row"] for cell in record["cells"]} == {"MLM + NSP", "MLM"}
    diverged = {one["row"]: one["diverged"] for one in record["without_results"]}
    assert diverged == {"LTR": 1, "LTR + BiLSTM": 1, "LTR + RTL": 1}
    assert printed.count("1 diverged") == 3
    failed = [job for job in plan_of(settings).jobs if "LTR on" in job.name]
    result = JobRunner(settings.work.resolve()).result(failed[0])
    assert result is not None
    assert result.failure == "pre-train ltr: step 3: not finite"


def test_the_report_says_what_an_uncased_vocabulary_and_an_untrained_pooler_cost(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, _ = finished_run
    notes = read_json(output(settings) / "report.json")["notes"]
    assert any("cannot see the capital letters of conll2003" in note for note in notes)
    assert any("Only next-sentence prediction trains the pooler" in note for note in notes)


def test_figure5_keeps_the_checkpoints_of_few_steps(make: Make, tmp_path: Path) -> None:
    for steps in (10, 12, 19, 36, 89, 99):
        job = next(one for one in all_jobs(plan_of(make(tmp_path, "figure5", steps=steps)).jobs) if not one.parents)
        every, keep_last = job.settings.save_every, job.settings.keep_last
        saved = [*range(every, steps, every), steps]
        assert {*list_checkpoint_steps(steps)} <= {*saved[-keep_last:]}


def test_figure5_reads_positions_that_all_checkpoints_have_trained(make: Make, tmp_path: Path, data: Path) -> None:
    files = shutil.copytree(data, tmp_path / "data")
    (files / "squad").mkdir()
    for name in ("train", "dev"):
        (files / "squad" / f"{name}-v1.1.json").write_text('{"version": "1.1", "data": []}')
    plan = plan_of(make(tmp_path, "figure5", data=files, tasks=("sst2", "conll2003", "squad")))
    lengths = {job.settings.task.build_task().max_length for job in plan.jobs}
    assert lengths == {job.settings.data.max_length for job in all_jobs(plan.jobs) if not job.parents} == {64}
    assert any("have up to 64 tokens" in note for note in plan.notes)


@pytest.mark.parametrize(("level", "length"), [("demo", 64), ("evening", 64), ("night", 64), ("paper", 512)])
def test_tagging_reads_positions_that_a_short_pretraining_trains(
    make: Make, tmp_path: Path, level: str, length: int
) -> None:
    plan = plan_of(make(tmp_path, "table8", level=level))
    lengths = {(job.settings.task.task, job.settings.task.build_task().max_length) for job in plan.jobs if job.parents}
    assert lengths == {("sst2", 128), ("conll2003", length)}
    assert any("Sequences of conll2003 have up to 64 tokens" in note for note in plan.notes) == (length == 64)


def test_tagging_with_a_given_model_has_the_context_of_its_positions(
    make: Make, tmp_path: Path, tiny_bert: Path
) -> None:
    plan = plan_of(make(tmp_path, "table7", store=None, steps=None, model=str(tiny_bert), level="evening"))
    assert {job.settings.task.build_task().max_length for job in plan.jobs} == {512}
    assert not any("Sequences of" in note for note in plan.notes)


def test_a_pretraining_that_learned_token_frequencies_alone_is_reported(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, printed = finished_run
    found = results(settings)
    pretrainings = {job.name: found[job.key] for job in all_jobs(plan_of(settings).jobs) if not job.parents}
    warned = {note.split(":")[0] for note in read_json(output(settings) / "report.json")["notes"] if "entropy" in note}
    assert warned == {"pre-train mlm", "pre-train mlm+nsp"}  # in 20 steps, LTR and RTL learn the adjacent words
    for name in warned:
        assert f"{name}: the held-out loss of {pretrainings[name]['mlm_loss']:.2f}" in printed
    assert "near that of the token frequencies" in printed


def test_a_pretraining_that_learned_context_is_not_on_the_plateau() -> None:
    learned = JobResult({"mlm_loss": 5.0, jobs.ENTROPY: 6.8}, 1.0, None, {})
    assert not learned.is_on_plateau
    assert learned._replace(scores={"mlm_loss": 6.7, jobs.ENTROPY: 6.8}).is_on_plateau
    assert not learned._replace(scores={"dev": 0.5}).is_on_plateau


def test_report_only_prints_what_is_finished(finished_run: tuple[ExperimentSettings, str], make: Make) -> None:
    settings, _ = finished_run
    printed = run_experiment(make(settings.work, seeds=3, report_only=True), columns=140)
    assert "incomplete: 20 of 30 results" in printed
    run_experiment(settings)


def test_report_only_of_an_unknown_budget_is_rejected(make: Make, tmp_path: Path) -> None:
    free: dict[str, Any] = {"steps": None, "limit": None, "word_task_limit": None, "budget": 10.0}
    with pytest.raises(ValueError, match=r"--budget 10: .* has no sizes"):
        experiment(make(tmp_path / "work", report_only=True, **free))


def test_report_only_without_results_says_so(make: Make, tmp_path: Path) -> None:
    assert "nothing to report" in run_experiment(make(tmp_path / "work", report_only=True))


# Plans and budgets


def test_dry_run_prints_jobs_and_time_and_writes_nothing(make: Make, tmp_path: Path) -> None:
    printed = run_experiment(make(tmp_path / "work", dry_run=True))
    assert [line.split()[:2] for line in printed.splitlines() if line.startswith(("  pre-t", "  fine-t"))][:2] == [
        ["pre-training", "4"],
        ["fine-tuning", "20"],
    ]
    assert "estimated time: " in printed
    assert not (tmp_path / "work").exists()


def test_dry_run_of_table8_measures_heads(make: Make, tmp_path: Path) -> None:
    printed = run_experiment(make(tmp_path / "work", "table8", seeds=1, dry_run=True))
    assert re.search(r"heads on frozen features +6 +0 ", printed)


def cost_of(job: Any, examples: int | None = None) -> JobCost:
    """Return 3 + 100 s for a pre-training; for others 2 s to open it and 10 s for its limit, or 1,500 examples."""
    if isinstance(job, PretrainJob | ComposeJob):
        return JobCost(3.0, (SplitCost(100.0, job.settings.steps),)) if isinstance(job, PretrainJob) else JobCost(0.0)
    limit = job.settings.limit if isinstance(job, ProbeJob) else job.settings.tuning.limit
    return JobCost(2.0, (SplitCost(10.0, examples or limit or 1_500),), limit)


def fit(settings: ExperimentSettings, examples: int | None = None) -> ExperimentLevel:
    plan = plan_of(settings)
    costs = {job.key: cost_of(job, examples) for job in all_jobs(plan.jobs)}
    return setup.fit_budget(settings, choose_level(settings), plan, costs)


def test_budget_scales_steps_and_examples(make: Make, tmp_path: Path) -> None:
    """Four pre-trainings of 3 + 100 s and twenty fine-tunings of 2 + 10 s in 10.4 minutes: 312 s for each kind."""
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, budget=10.4)
    level, fitted = choose_level(settings), fit(settings)
    assert (level.steps, level.limit, level.word_task_limit) == (1_000, 1_000, 1_500)
    assert (fitted.steps, fitted.limit, fitted.word_task_limit) == (750, 1_300, 2_000)


def test_budget_scales_heads_on_frozen_features(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    """Two fine-tunings and one probe of 2 + 10 s in 18 s: 4 s for the examples of each."""
    model = {"model": str(tiny_bert), "store": None}
    settings = make(tmp_path / "work", "table7", steps=None, limit=None, word_task_limit=None, budget=0.3, **model)
    assert fit(settings).word_task_limit == 600


def test_budget_reduces_the_limit_below_the_examples_of_small_tasks(make: Make, tmp_path: Path) -> None:
    """Ten fine-tunings of 2 + 10 s in 90 s: the time of a task of 100 examples falls only if the limit is below 100."""
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, tasks=("sst2",), budget=3.0)
    assert fit(settings, examples=100).limit == 70


def test_budget_of_a_level_without_limits(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", level="paper", steps=None, limit=None, word_task_limit=None, tasks=("sst2",))
    assert fit(replace(settings, budget=60.0), examples=100).limit is None
    assert fit(replace(settings, budget=10.0), examples=100).limit == 55


def test_budget_is_measured_once_for_the_same_inputs(
    make: Make, tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(plan: TablePlan, _: Console) -> dict[str, JobCost]:
        measured.append(len(plan.jobs))
        return {job.key: cost_of(job) for job in all_jobs(plan.jobs)}

    monkeypatch.setattr(command, "measure", measure)
    free: dict[str, Any] = {"steps": None, "limit": None, "word_task_limit": None, "budget": 10.4}
    settings = make(tmp_path / "work", **free)

    def sizes(**changes: Any) -> tuple[int, int | None]:
        changed = replace(settings, **changes)
        level = command.apply_budget(changed, choose_level(changed), plan_of(changed), Console(quiet=True))
        return level.steps, level.limit

    assert sizes() == sizes() == sizes(report_only=True) == (750, 1_300)
    assert measured == [20]
    assert sizes(tasks=("sst2",)) == (750, 2_900)
    assert sizes(seeds=1) == (750, 2_900)
    assert sizes(budget=20.4) == (1_500, 2_800)
    assert measured == [20, 10, 10, 20]
    sizes(experiment="table7", model=str(tiny_bert), store=None)
    sizes(experiment="table7")
    assert len(measured) == 6


def test_damaged_sizes_of_a_budget_are_named(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, budget=10.0, report_only=True)
    path = setup.budget_file(settings, plan_of(settings))
    path.parent.mkdir(parents=True)
    path.write_text('{"steps": 100}')
    with pytest.raises(ValueError, match=r"budget\.json: damaged; delete it"):
        experiment(settings)


def test_the_estimate_of_a_pretraining_separates_steps_from_evaluations(make: Make, tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path / "work"))
    (job, *_) = [one for one in all_jobs(plan.jobs) if isinstance(one, PretrainJob)]
    cost = estimate_costs([job], lambda _: None)[job.key]
    (steps,) = cost.splits
    assert steps.examples == job.settings.steps
    assert min(cost.fixed, steps.seconds) > 0
    assert cost.seconds == pytest.approx(cost.fixed + steps.seconds)


def test_reports_of_other_settings_are_in_other_folders(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path)
    changes: list[dict[str, Any]] = [
        {}, {"tasks": ("sst2",)}, {"seeds": 1}, {"steps": 30}, {"limit": 30}, {"experiment": "table7"},
        {"experiment": "table7", "model": str(tiny_bert), "store": None, "steps": None},
    ]  # fmt: skip
    assert len({output(replace(settings, **change)) for change in changes}) == len(changes)
    assert output(replace(settings, device=replace(settings.device, threads=2))) == output(settings)
    assert output(settings).name.startswith("table5-demo-")


def test_a_budget_that_is_too_small_is_rejected(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, budget=0.1)
    with pytest.raises(ValueError, match=r"--budget 0\.1: too little for 27 jobs"):
        experiment(settings)


def test_levels_grow() -> None:
    evening, night = LEVELS["evening"], LEVELS["night"]
    assert [level.shape for level in LEVELS.values()] == [SIZES[name] for name in ("tiny", "mini", "mini", "base")]
    assert evening.steps * evening.batch_size * evening.max_length == pytest.approx(10e6, rel=0.05)
    assert night.steps * night.batch_size * night.max_length == pytest.approx(30e6, rel=0.05)
    assert replace(evening, **{name: getattr(night, name) for name in CHANGED}) == night


CHANGED = (
    "steps",
    "optimizer",
    "wide_learning_rates",
    "recipe",
    "task_recipes",
    "limit",
    "word_task_limit",
    "curve_seeds",
)


@pytest.mark.parametrize(("level", "jobs"), [("demo", 40), ("evening", 40), ("night", 80), ("paper", 800)])
def test_figure5_has_fewer_restarts(make: Make, tmp_path: Path, level: str, jobs: int) -> None:
    """Two tasks, two objectives, ten checkpoints; at night two restarts, at the paper's level five and four rates."""
    settings = make(tmp_path, "figure5", level=level, seeds=None, steps=None, limit=None, word_task_limit=None)
    assert sum(job.kind == "finetune" for job in all_jobs(plan_of(settings).jobs)) == jobs
    more = replace(settings, seeds=7)
    assert choose_level(more).seeds == 7


# Misuse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "--data FOLDER"),
        ({"data": Path("taks")}, "--data taks: no such folder; name one with the files of tasks"),
        ({"data": Path(__file__)}, "test_experiment.py: not a folder; name one with the files of tasks"),
        ({"store": None}, "--store FOLDER, as `bertwright prepare` wrote it$"),
        ({"store": None, "experiment": "table1"}, "--store FOLDER, .* .or --model FOLDER, to fine-tune"),
        ({"tasks": ("mrpc",)}, r"no folder with the files of mrpc, such as mrpc/train\.tsv"),
    ],
)
def test_missing_inputs_are_named(make: Make, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiment(make(tmp_path / "work", **changes))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("mprc",)}, 'no task "mprc"; did you mean "mrpc"'),
        ({"budget": 0.0}, "budget: .*got 0.0"),
        ({"budget": 5.0}, "--budget decides --steps, --limit, --word-task-limit"),
        ({"dry_run": True, "report_only": True}, "choose one"),
        ({"seeds": 0}, "seeds: expected at least 1"),
        ({"model": "bert"}, "--model: table5 compares pre-trainings"),
        ({"experiment": "table1", "model": "bert", "store": Path("store")}, "--store: with --model, nothing is pre"),
        ({"experiment": "table7", "model": "bert", "steps": 20}, "--steps: with --model, nothing is pre-trained"),
        ({"experiment": "table7", "tasks": ("sst2",)}, "--tasks: table7 is about conll2003, got sst2"),
    ],
)
def test_wrong_settings_are_named(make: Make, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "work", **changes)


def test_a_task_with_a_single_file_is_split(make: Make, tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "data" / "qnli"
    folder.mkdir(parents=True)
    lines = [f"{n}\tthe bear\tthe wolf sees {n}\t{('entailment', 'not_entailment')[n % 2]}" for n in range(50)]
    (folder / "dev.tsv").write_text("\n".join(["index\tquestion\tsentence\tlabel", *lines]) + "\n")
    plan = plan_of(make(tmp_path / "work", data=folder.parent))
    job = plan.jobs[0]
    assert isinstance(job, FinetuneJob)
    assert job.settings.tuning.validation_fraction == 0.2
    assert plan.notes[:1] == ["qnli: trained and scored on a fixed split of dev.tsv (20% dev)"]
    assert json.dumps(job.identity).count(str(tmp_path)) == 0
    assert replace(job.settings, seed=0) == job.settings


def test_the_folder_of_another_task_must_have_the_dev_file(tmp_path: Path) -> None:
    """MNLI's tasks have the training file in common, and squad_v2's dev file alone may be split."""
    (tmp_path / "MNLI").mkdir()
    for name in ("train.tsv", "dev_matched.tsv"):
        (tmp_path / "MNLI" / name).touch()
    assert find_task(tmp_path, "mnli") is not None
    assert find_task(tmp_path, "mnli_mismatched") is None
    (tmp_path / "MNLI" / "dev_mismatched.tsv").touch()
    found = find_task(tmp_path, "mnli_mismatched")
    assert found is not None
    assert [Path(path).name for path in found.settings.dev] == ["dev_mismatched.tsv"]
    for folder, file, task in (
        ("squad", "dev-v2.0.json", "squad_v2"),
        ("squad-2", "train-v2.0.json", "squad_v2"),
        ("UD-EWT", "en_ewt-ud-train.conllu", "ud_pos"),
    ):
        (tmp_path / folder / folder.removesuffix("-2")).mkdir(parents=True)
        (tmp_path / folder / folder.removesuffix("-2") / file).touch()
        found = find_task(tmp_path / folder, task)
        assert found is not None
        assert found.validation_fraction == 0.2


def test_a_test_file_with_unknown_labels_is_not_scored(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data / "glue" / "SST-2", tmp_path / "SST-2")
    shutil.copyfile(folder / "dev.tsv", folder / "test.tsv")
    found = find_task(tmp_path, "sst2")
    assert found is not None
    task, note = add_test_files(found)
    assert (len(task.settings.test), note) == (1, None)
    (folder / "test.tsv").write_text("sentence\tlabel\nthe bear\t-1\n")
    task, note = add_test_files(found)
    assert task == found
    assert note is not None
    assert re.search(r"sst2: not scored on test .*test\.tsv.*-1", note)


def test_a_task_folder_may_be_a_link(tmp_path: Path, data: Path) -> None:
    target = shutil.copytree(next(data.rglob("SST-2")), tmp_path / "x17")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "SST-2").symlink_to(target)
    found = find_task(tmp_path / "data", "sst2")
    assert found is not None
    assert Path(found.settings.train[0]).parent.samefile(target)
