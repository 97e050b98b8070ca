"""Files of published tasks are found by the names of folders and files."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

from small_experiments import Make, plan_of

from bertwright.trials.task_files import add_test_files, find_task
from bertwright.trials.task_trials import Finetune


def test_a_task_with_a_single_file_is_split(make: Make, tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "data" / "qnli"
    folder.mkdir(parents=True)
    lines = [f"{n}\tthe bear\tthe wolf sees {n}\t{('entailment', 'not_entailment')[n % 2]}" for n in range(50)]
    (folder / "dev.tsv").write_text("\n".join(["index\tquestion\tsentence\tlabel", *lines]) + "\n")
    plan = plan_of(make(tmp_path / "work", data=folder.parent))
    job = plan.ordered[0]
    assert isinstance(job, Finetune)
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
