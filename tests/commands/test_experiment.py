"""Experiments: every job is done once and shared, a kill costs nothing, and the report says what the jobs found."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import run_and_capture, same_weights, start_process

from bertwright.commands.experiment import setup
from bertwright.commands.experiment.run import experiment
from bertwright.commands.experiment.settings import ExperimentSettings
from bertwright.commands.experiment.setup import chosen_level, plan_experiment
from bertwright.experiments import jobs
from bertwright.experiments.cost import JobCost
from bertwright.experiments.jobs import ComposeJob, FinetuneJob, PretrainJob, Work, all_jobs
from bertwright.experiments.plans import MIXES, Plan
from bertwright.files import read_json, write_json
from bertwright.models.config import SIZES
from bertwright.pretraining.data import PretrainingData
from bertwright.tokenstore.store import TokenStore
from bertwright.training.loop import DivergedError
from bertwright.training.settings import DeviceSettings
from bertwright.vocabulary.tokenizer import Tokenizer

Make = Callable[..., ExperimentSettings]
CLASSES = {"bear": "PER", "deer": "PER", "fish": "LOC", "wolf": "LOC", "crow": "ORG", "hare": "ORG"}
OTHERS = "the in sees hears fears finds".split()


@pytest.fixture(scope="module", autouse=True)
def _without_plots_of_runs() -> Iterator[None]:
    """Plots take half of the time of such small runs, and other tests check them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.training.run.plot_metrics", lambda *_: None)
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
        return ExperimentSettings(**({"experiment": name, "work": work} | fields | changes))

    return build


def plan_of(settings: ExperimentSettings) -> Plan:
    return plan_experiment(settings, chosen_level(settings))


run_experiment = partial(run_and_capture, experiment)


@pytest.fixture(scope="module")
def finished_run(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExperimentSettings, str]:
    """Return table 5, run without interruption, and its output."""
    settings = make(tmp_path_factory.mktemp("experiment") / "work")
    return settings, run_experiment(settings, columns=140)


def results(settings: ExperimentSettings) -> dict[str, Any]:
    """Return the scores of all jobs by key."""
    work = Work(settings.work.resolve())
    found = {job.key: work.result(job) for job in all_jobs(plan_of(settings).jobs)}
    return {key: result and result.scores for key, result in found.items()}


# Front door


def test_table5_reports_every_cell_beside_the_paper(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    record = read_json(settings.work / "table5-demo" / "report.json")
    cells = {(cell["row"], cell["column"]): cell for cell in record["cells"]}
    assert {row for row, _ in cells} == {"MLM + NSP", "MLM", "LTR", "LTR + BiLSTM", "LTR + RTL"}
    assert {column for _, column in cells} == {"sst2", "conll2003"}
    assert all(cell["seeds"] == 2 == len(cell["scores"]) for cell in cells.values())
    assert cells["LTR", "sst2"]["paper"] == 92.1
    assert cells["MLM", "conll2003"]["mean"] > 0
    assert record["finished"] == record["total"] == 20
    assert "LTR" in printed
    assert "[92.1]" in printed
    markdown = (settings.work / "table5-demo" / "report.md").read_text()
    assert "| MLM + NSP |" in markdown
    assert "mimetic" in markdown  # the initialization is named in every table
    assert (settings.work / "table5-demo" / "plot.png").stat().st_size > 1_000


def test_each_claim_has_one_sentence_with_verdict_and_interval(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    claims = read_json(settings.work / "table5-demo" / "report.json")["claims"]
    every, words = ["sst2", "conll2003"], ["conll2003"]
    assert [claim["columns"] for claim in claims] == [every, words, words, ["sst2"], every]
    for claim in claims:
        low, mean, high = (claim["difference"][name] for name in ("low", "mean", "high"))
        assert low <= mean <= high
        assert claim["verdict"] == ("shown" if low > 0 else "reversed" if high < 0 else "not shown")
        assert f"{claim['text']}: {claim['verdict']} at this budget" in printed


def test_a_cell_is_the_score_of_the_last_step(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, _ = finished_run
    work = Work(settings.work.resolve())
    for job in plan_of(settings).jobs:
        report = read_json(work.folder(job) / "run" / "report.json")
        assert report["best_step"] == report["steps"]
        result = work.result(job)
        assert result is not None
        assert result.scores["dev"] == report["scores"]["dev"][report["metric"]]


def test_finished_jobs_keep_metrics_but_no_fine_tuned_weights(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, _ = finished_run
    work = Work(settings.work.resolve())
    for job in all_jobs(plan_of(settings).jobs):
        weights = list((work.folder(job) / "run").rglob("*.safetensors"))
        assert bool(weights) == isinstance(job, PretrainJob | ComposeJob)
        assert isinstance(job, ComposeJob) or (work.folder(job) / "run" / "metrics.jsonl").is_file()


def test_table8_has_a_column_of_frozen_features(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixes = dict(list(MIXES.items())[:2])
    monkeypatch.setattr("bertwright.experiments.plans.MIXES", mixes)
    run_experiment(make(tmp_path / "work", "table8", seeds=1))
    record = read_json(tmp_path / "work" / "table8-demo" / "report.json")
    columns = {(cell["row"], cell["column"]) for cell in record["cells"]}
    assert columns == {(row, column) for row in mixes for column in ("sst2", "conll2003", "features")}
    assert not list(tmp_path.rglob("features"))  # the cached states are deleted


def test_table6_compares_shapes_by_held_out_perplexity(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", "table6", seeds=1, steps=10, tasks=("sst2",))
    printed = run_experiment(settings, columns=160)
    record = read_json(settings.output / "report.json")
    cells = {cell["row"]: cell for cell in record["cells"] if cell["column"] == "perplexity"}
    assert list(cells)[::5] == ["L1 H128 A2 (paper: L3 H768 A12)", "L6 H192 A3 (paper: L24 H1024 A16)"]
    assert [cell["paper"] for cell in cells.values()] == [5.84, 5.24, 4.68, 3.99, 3.54, 3.23]
    assert all(cell["mean"] > 1 and cell["seeds"] == 1 for cell in cells.values())
    claim = next(claim for claim in record["claims"] if claim["columns"] == ["perplexity"])
    smaller, larger, *_ = (cell["mean"] for cell in cells.values())
    assert claim["verdict"] == ("shown" if larger < smaller else "reversed")
    assert claim["difference"] == {"mean": pytest.approx(np.log(smaller / larger))}
    assert "nats per token, one run each; paper +0.11" in printed


def test_table7_has_the_features_that_the_model_has_layers_for(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path / "work", "table7", seeds=2, model=str(tiny_bert), store=None)
    printed = run_experiment(settings, columns=140)
    record = read_json(settings.output / "report.json")
    names = ["embeddings", "second-to-last", "last", "sum-all"]
    assert [cell["row"] for cell in record["cells"]] == ["fine-tuned", *(f"features: {name}" for name in names)]
    assert all(cell["seeds"] == 2 for cell in record["cells"])
    assert [cell["paper"] for cell in record["cells"]] == pytest.approx([96.4, 91.0, 95.6, 94.9, 95.5])
    assert "too few for sum-last-four, concat-last-four" in " ".join(
        (settings.output / "report.md").read_text().split()
    )
    assert "The last layer is better than the embeddings: " in printed


def test_table1_scores_a_model_folder_on_all_tasks(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path / "work", "table1", seeds=1, model=str(tiny_bert), store=None)
    printed = run_experiment(settings, columns=140)
    record = read_json(settings.output / "report.json")
    assert {(cell["row"], cell["column"]) for cell in record["cells"]} == {("ours", "sst2"), ("ours", "conll2003")}
    assert "[93.5]" in next(line for line in printed.splitlines() if "BERT BASE" in line)
    assert str(tiny_bert) in (settings.output / "report.md").read_text()


def test_the_weights_of_a_model_folder_decide_the_keys(
    make: Make, tmp_path: Path, tiny_bert: Path, one_layer_folder: Path
) -> None:
    def keys(model: Path) -> set[str]:
        return {job.key for job in plan_of(make(tmp_path, "table1", model=str(model), store=None)).jobs}

    shutil.copytree(tiny_bert, tmp_path / "copy")
    assert keys(tmp_path / "copy") == keys(tiny_bert)
    assert not keys(one_layer_folder) & keys(tiny_bert)


# Sharing and resuming


def test_a_second_experiment_shares_the_pre_trainings(
    finished_run: tuple[ExperimentSettings, str], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished_run

    def fail(*_: object) -> None:
        raise AssertionError("a pre-training that exists is done again")

    monkeypatch.setattr(jobs, "pretrain", fail)
    run_experiment(make(settings.work, "figure5", seeds=1, tasks=("sst2",)))
    record = read_json(settings.work / "figure5-demo" / "report.json")
    assert [cell["row"] for cell in record["cells"]][:2] == ["MLM, 2 steps", "MLM, 4 steps"]
    assert record["finished"] == record["total"] == 20
    last = {cell["row"]: cell["scores"][0] for cell in record["cells"]}["LTR, 20 steps"]
    table5 = read_json(settings.work / "table5-demo" / "report.json")["cells"]
    assert last == next(c["scores"][0] for c in table5 if (c["row"], c["column"]) == ("LTR", "sst2"))


def test_a_finished_experiment_runs_nothing(
    finished_run: tuple[ExperimentSettings, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished_run
    before = (settings.work / "table5-demo" / "report.json").read_bytes()
    for name in ("pretrain", "finetune"):
        monkeypatch.setattr(jobs, name, None)
    run_experiment(settings)
    assert (settings.work / "table5-demo" / "report.json").read_bytes() == before


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
            folders = [Work(settings.work.resolve()).model_folder(job) for settings in (unbroken, broken)]
            assert same_weights(*folders)
    assert not list(broken.work.rglob(".*.part-*"))


def test_two_processes_share_the_jobs(finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path) -> None:
    unbroken, _ = finished_run
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    processes = [start_process(experiment, settings) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert results(settings).items() <= results(unbroken).items()
    for job in plan_of(settings).jobs:  # each run was started once
        log = (Work(settings.work.resolve()).folder(job) / "log.txt").read_text()
        assert log.count("Scores after step") == 1


def test_a_claimed_job_cannot_be_claimed_again(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work")
    job, work = plan_of(settings).jobs[0], Work(settings.work)
    with work.claim(job) as first, work.claim(job) as second:
        assert (first, second) == (True, False)
    with work.claim(job) as third:
        assert third


# Keys


def test_the_key_of_a_job_is_its_content(make: Make, tmp_path: Path, data: Path) -> None:
    def keys(**changes: Any) -> list[str]:
        return [job.key for job in all_jobs(plan_of(make(tmp_path / "work", **changes)).jobs)]

    before = keys()
    assert len({*before}) == len(before) == 4 + 3 + 20
    assert keys(device=DeviceSettings(device="cpu", threads=2)) == before
    assert {*keys(seeds=3)} > {*before}
    assert not {*keys(steps=30)} & {*before}
    assert keys(limit=30)[0] == before[0]
    moved = tmp_path / "moved"
    moved.symlink_to(data)
    assert keys(data=moved) == before


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
        data = job.settings.data
        config = job.settings.model.config(100, data.is_causal, is_reversed=data.objective == "rtl")
        models.append(job.settings.model.new_model(config, job.settings.data.seed).state_dict())
    assert len(models) == 4
    for other in models[1:]:
        assert all(bool((models[0][name] == other[name]).all()) for name in models[0])


def test_objectives_without_next_sentences_read_the_same_sequences(make: Make, tmp_path: Path, store: Path) -> None:
    tokenizer = Tokenizer.load(store / "tokenizer")
    train = TokenStore.open(store / "train", tokenizer.digest)
    read = {}
    for job in all_jobs(plan_of(make(tmp_path)).jobs):
        if isinstance(job, PretrainJob):
            batch, *_ = PretrainingData(train, tokenizer, job.settings.data).batches_for_step(5)
            ids = batch.batch.input_ids.clone()
            ids[batch.mlm_positions] = (
                batch.mlm_labels if job.settings.data.objective == "mlm" else ids[batch.mlm_positions]
            )
            read[job.settings.data.objective] = ids.tolist(), batch.batch.cu_seqlens.tolist()
    assert read["mlm"] == read["ltr"] == read["rtl"]


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
    record = read_json(settings.work / "table5-demo" / "report.json")
    assert {cell["row"] for cell in record["cells"]} == {"MLM + NSP", "MLM"}
    failed = [job for job in plan_of(settings).jobs if "LTR on" in job.name]
    result = Work(settings.work.resolve()).result(failed[0])
    assert result is not None
    assert result.failure == "pre-train ltr: step 3: not finite"


def test_report_only_prints_what_is_finished(finished_run: tuple[ExperimentSettings, str], make: Make) -> None:
    settings, _ = finished_run
    printed = run_experiment(make(settings.work, seeds=3, report_only=True), columns=140)
    assert "incomplete: 20 of 30 results" in printed
    run_experiment(settings)


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


def test_budget_scales_steps_and_examples(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pre-trainings of 100 s and twenty fine-tunings of 10 s in ten minutes: 300 s for each kind."""
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, budget=10.0)
    level = chosen_level(settings)
    plan = plan_of(settings)
    seconds = {PretrainJob: 100, FinetuneJob: 10, ComposeJob: 0}
    costs = {job.key: JobCost(0, seconds[type(job)]) for job in all_jobs(plan.jobs)}
    fitted = setup.fit_budget(settings, level, plan, costs)
    assert (level.steps, level.limit, level.word_task_limit) == (3_000, 2_000, 2_500)
    assert (fitted.steps, fitted.limit, fitted.word_task_limit) == (2_200, 3_000, 3_700)


def test_budget_is_measured_once(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, budget=10.0)
    write_json(settings.output / "budget.json", {"steps": 500, "limit": 70, "word_task_limit": 80})
    level = chosen_level(settings)
    assert (level.steps, level.limit, level.word_task_limit) == (500, 70, 80)


def test_a_budget_that_is_too_small_is_rejected(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", steps=None, limit=None, word_task_limit=None, budget=0.1)
    with pytest.raises(ValueError, match=r"--budget 0\.1: too little for 27 jobs"):
        experiment(settings)


def test_demo_is_the_smallest_level() -> None:
    assert setup.LEVELS["demo"].shape == SIZES["tiny"]
    assert setup.LEVELS["paper"].shape == SIZES["base"]


# Misuse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "--data FOLDER"),
        ({"store": None}, "--store FOLDER"),
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
        ({"budget": 0.0}, "budget: expected minutes above 0"),
        ({"budget": 5.0}, "--budget decides --steps, --limit, --word-task-limit"),
        ({"dry_run": True, "report_only": True}, "choose one"),
        ({"seeds": 0}, "seeds is 0"),
        ({"model": "bert"}, "--model: table5 compares pre-trainings"),
    ],
)
def test_wrong_settings_are_named(make: Make, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "work", **changes)


def test_torchrun_is_rejected(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="start the same command several times"):
        experiment(make(tmp_path / "work"))


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
