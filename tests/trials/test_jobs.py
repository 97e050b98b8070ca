"""Jobs: the key is the content of settings and inputs, and a job whose inputs change gives no result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from small_experiments import Make, plan_of

from bertwright.base.files import lock_if_free
from bertwright.corpus.documents import CorpusSettings
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.presets import PRESETS
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.experiment import experiment
from bertwright.trials.levels import LEVELS, ExperimentLevel
from bertwright.trials.pretrain_trials import BestRate, Pretrain
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.trials.runner import Runner
from bertwright.trials.task_trials import Finetune, LastStepFinetune
from bertwright.trials.trial import all_trials
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

SHARED = 8 + 4 + 3 + 1  # pre-trainings at two rates, the better of each, composed models, random weights


def test_the_key_of_a_job_is_its_content(make: Make, tmp_path: Path, data: Path) -> None:
    def keys(**changes: Any) -> list[str]:
        return [job.key for job in all_trials(plan_of(make(tmp_path / "work", **changes)).ordered)]

    def trained(**changes: Any) -> set[str]:
        jobs = all_trials(plan_of(make(tmp_path / "work", **changes)).ordered)
        return {job.key for job in jobs if job.kind in ("pretrain", "finetune")}

    before = keys()
    assert len({*before}) == len(before) == SHARED + 30 + 5  # fine-tunings, and the floors
    assert keys(device=DeviceSettings("cpu", "float32", threads=2)) == before
    assert keys(device=DeviceSettings(device="cpu")) in (before, keys(device=DeviceSettings("cpu", "bfloat16")))
    assert not trained(device=DeviceSettings(device="cpu", dtype="bfloat16")) & {*before}
    assert {*keys(seeds=3)} > {*before}
    assert len(trained(steps=30) & {*before}) == 6  # fine-tunings from random weights
    assert keys(limit=30)[0] == before[0]
    moved = tmp_path / "moved"
    moved.symlink_to(data)
    assert keys(data=moved) == before


def test_a_new_setting_with_its_default_leaves_the_key(make: Make, tmp_path: Path) -> None:
    """A later version has more settings, outer and inner ones; they count only where they are not the default."""

    @dataclass(frozen=True)
    class LaterData(DataSettings):
        new: int = 3

    @dataclass(frozen=True)
    class Later(PretrainSettings):
        new: float = 0.5

    job = next(one for one in all_trials(plan_of(make(tmp_path)).ordered) if isinstance(one, Pretrain))
    data = LaterData(**vars(job.settings.data))
    later = Later(**vars(job.settings) | {"data": data})
    assert replace(job, settings=later).key == job.key
    assert replace(job, settings=replace(later, new=0.6)).key != job.key
    assert replace(job, settings=replace(later, data=replace(data, new=4))).key != job.key


def test_a_result_of_other_defaults_is_refused(make: Make, tmp_path: Path) -> None:
    """The defaults of the parents count too: a key contains no default."""
    jobs = all_trials(plan_of(make(tmp_path)).ordered)
    job = next(one for one in jobs if isinstance(one, Finetune) and isinstance(one.parents[0], BestRate))
    work, record = Runner(tmp_path), {"scores": {"dev": 0.5}, "seconds": 1.0, "failure": None, "environment": {}}
    path = work.folder(job) / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record | {"identity": job.identity}))
    assert work.result(job) == ({"dev": 0.5}, 1.0, None, {})
    path.write_text(json.dumps(record | {"identity": job.identity}).replace('"linear"', '"cosine"'))
    with pytest.raises(ValueError, match=r"result\.json: .*parents\.0.*schedule: cosine before, linear now.*--work"):
        work.result(job)


def test_a_setting_that_may_be_unset_is_unset_by_default() -> None:
    """A key shows no difference between unset and the default, which is another value."""

    def list_fields(cls: type[Any]) -> Iterator[tuple[str, Any]]:
        hints = get_type_hints(cls)
        for field in fields(cls):
            hint = hints[field.name]
            if is_dataclass(hint):
                yield from list_fields(hint)
            elif type(None) in get_args(hint):
                yield f"{cls.__name__}.{field.name}", field.default

    tasks = {type(preset.task) for preset in PRESETS.values()}
    for cls in (PretrainSettings, FinetuneSettings, ProbeSettings, *tasks):
        assert [name for name, default in list_fields(cls) if default is not None] == []


@pytest.mark.parametrize("level", LEVELS.values(), ids=[*LEVELS])
def test_heads_on_features_have_steps_to_learn_at_every_level(level: ExperimentLevel) -> None:
    """A head on CoNLL-2003 that has 94 steps predicts no entity."""
    sentences = min(level.word_task_limit or 14_041, 14_041)
    assert sentences * level.probe_epochs / ProbeSettings.batch_size > 900


def test_the_weights_of_a_model_folder_decide_the_keys(
    make: Make, tmp_path: Path, tiny_bert: Path, one_layer_folder: Path
) -> None:
    def keys(model: Path) -> set[str]:
        return {job.key for job in plan_of(make(tmp_path, "table1", model=str(model), store=None)).ordered}

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
        {job.key for job in plan_of(make(tmp_path, store=one)).ordered} for one in (store, tmp_path / "store")
    )
    assert not before & after


def test_the_settings_of_a_preset_decide_the_keys_of_its_task_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> dict[str, set[str]]:
        plan = plan_of(make(tmp_path))
        return {task: {trial.key for trial in plan.trials if trial.column == task} for task in ("sst2", "conll2003")}

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
    before = {job.key for job in all_trials(plan_of(settings).ordered)}
    with (copied / "train.tsv").open("a") as file:
        file.write("the bear sees\tgood\n")
    after = {job.key for job in all_trials(plan_of(settings).ordered)}
    assert len(before & after) == SHARED
    assert len(after) == len(before)


def test_a_claimed_job_cannot_be_claimed_again(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work")
    job, work = plan_of(settings).ordered[0], Runner(settings.work)
    with lock_if_free(work.folder(job)) as first, lock_if_free(work.folder(job)) as second:
        assert (first, second) == (True, False)
    with lock_if_free(work.folder(job)) as third:
        assert third


def test_a_file_that_changes_after_planning_stops_its_jobs(make: Make, tmp_path: Path, data: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "data")
    settings = make(tmp_path / "work", data=copy, tasks=("sst2",))
    job = next(one for one in plan_of(settings).ordered if isinstance(one, Finetune))
    work = Runner(settings.work)
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
    (job, *_), work = plan_of(settings).ordered, Runner(settings.work)
    work.folder(job).mkdir(parents=True)

    def change(*_: object) -> dict[str, float]:
        shutil.copyfile(one_layer_folder / "model.safetensors", model / "model.safetensors")
        return {"dev": 1.0}

    monkeypatch.setattr(LastStepFinetune, "run", change)
    with pytest.raises(ValueError, match=r"fine-tune .*: the initial weights changed .*planned"):
        work.run(job)
    assert work.result(job) is None


def test_a_store_that_changes_after_planning_stops_its_pre_trainings(make: Make, tmp_path: Path) -> None:
    job = next(one for one in all_trials(plan_of(make(tmp_path / "work")).ordered) if one.kind == "pretrain")
    job.check_inputs()
    with pytest.raises(ValueError, match=r"pre-train .*: store changed .*planned"):
        replace(job, digests=(("store", "0" * 32),)).check_inputs()


@pytest.mark.parametrize("content", ["{}", "null", "[]", '{"scores": {}'])
def test_a_damaged_result_is_named(make: Make, tmp_path: Path, content: str) -> None:
    settings = make(tmp_path / "work")
    job, work = plan_of(settings).ordered[0], Runner(settings.work)
    path = work.folder(job) / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"result\.json"):
        experiment(settings)
