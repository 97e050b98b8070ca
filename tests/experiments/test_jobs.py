"""Jobs: the key is the content of settings and inputs, and a job whose inputs change gives no result."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_experiments import Make, plan_of

from bertwright.corpus.documents import CorpusSettings
from bertwright.experiments.experiment import experiment
from bertwright.experiments.job_runner import JobRunner, lock_if_free
from bertwright.experiments.jobs import FinetuneJob, all_jobs
from bertwright.tasks.presets import PRESETS
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.training.device_settings import DeviceSettings
from bertwright.vocabulary.tokenizer import Tokenizer

SHARED = 8 + 4 + 3 + 1  # pre-trainings at two rates, the better of each, composed models, random weights


def test_the_key_of_a_job_is_its_content(make: Make, tmp_path: Path, data: Path) -> None:
    def keys(**changes: Any) -> list[str]:
        return [job.key for job in all_jobs(plan_of(make(tmp_path / "work", **changes)).jobs)]

    def trained(**changes: Any) -> set[str]:
        jobs = all_jobs(plan_of(make(tmp_path / "work", **changes)).jobs)
        return {job.key for job in jobs if job.kind in ("pretrain", "finetune")}

    before = keys()
    assert len({*before}) == len(before) == SHARED + 28 + 2  # fine-tunings, and the most frequent answers
    assert keys(device=DeviceSettings("cpu", "float32", threads=2)) == before
    assert keys(device=DeviceSettings(device="cpu")) in (before, keys(device=DeviceSettings("cpu", "bfloat16")))
    assert not trained(device=DeviceSettings(device="cpu", dtype="bfloat16")) & {*before}
    assert {*keys(seeds=3)} > {*before}
    assert len(trained(steps=30) & {*before}) == 4  # fine-tunings from random weights
    assert keys(limit=30)[0] == before[0]
    moved = tmp_path / "moved"
    moved.symlink_to(data)
    assert keys(data=moved) == before


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
    assert len(before & after) == SHARED
    assert len(after) == len(before)


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
