"""The ladder: its rungs, its runs, its table, and what happens after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE, Reporter
from bertwright.base.settings import to_table
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.info import InfoSettings, info
from bertwright.tasks.linear_floor import LINEAR
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials import task_trials
from bertwright.trials.ladder import ladder, list_trials, make_table, pretraining_work
from bertwright.trials.ladder_settings import FLOOR, LadderSettings
from bertwright.trials.runner import Result
from harness import run_and_capture

CPU = DeviceSettings(device="cpu", dtype="float32", threads=1)
run_ladder = partial(run_and_capture, ladder, columns=160)


@pytest.fixture
def settings(tmp_path: Path, review_files: Path, tiny_bert: Path) -> LadderSettings:
    files = {split: (str(review_files / f"{split}.tsv"),) for split in ("train", "dev", "test")}
    task = TaskSettings("classification", **files)
    return LadderSettings(
        tmp_path / "ladder",
        task,
        bert=str(tiny_bert),
        seeds=2,
        learning_rates=(1e-3,),
        word_epochs=1.0,
        epochs=1.0,
        limit=64,
        device=CPU,
    )


def test_every_system_has_a_row_with_its_step_and_its_cost(settings: LadderSettings) -> None:
    printed = run_ladder(settings)
    report = read_json(settings.run / "report.json")
    scores = {(cell["row"], cell["column"]): cell["scores"] for cell in report["cells"]}
    rows = [
        FLOOR, LINEAR, "BiLSTM", "+ characters", "BERT, random weights", "BERT, frozen", "BERT, fine-tuned",
    ]  # fmt: skip
    assert {*scores} == {(row, split) for row in rows for split in ("dev", "test")}
    assert all(name in printed for name in rows)
    assert len(scores[FLOOR, "test"]) == len(scores[LINEAR, "test"]) == 1
    steps = {one["row"]: one for one in report["differences"]}
    assert {row: one["from"] for row, one in steps.items()} == {
        "+ characters": "BiLSTM", "BERT, fine-tuned": "BERT, random weights"
    }  # fmt: skip
    for name in rows:
        assert all(0 <= score <= 1 for score in scores[name, "dev"] + scores[name, "test"])
        known = name not in ("BERT, frozen", "BERT, fine-tuned")  # a model folder without its run
        assert report["details"]["tokens before"].get(name, "") == ("" if known else "?")
        assert report["details"]["minutes"][name]
    low, high = scores["BERT, random weights", "test"], scores["BERT, fine-tuned", "test"]
    step = steps["BERT, fine-tuned"]
    assert step["mean"] == pytest.approx((sum(high) - sum(low)) / 2)
    assert step["low"] < step["mean"] < step["high"]
    table = (settings.run / "ladder.md").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith(tuple(f"| {row} |" for row in rows)) for line in table) == len(rows) + len(steps)
    assert not list(settings.run.rglob("*.safetensors"))
    assert not (settings.run / "features").exists()
    assert {*report["inputs"]} == {"train", "dev", "test", "bert"}
    assert report["details"]["capitals"] == dict(zip(rows[2:], ["no", "yes", "no", "no", "no"], strict=True))
    described = " ".join(run_and_capture(info, InfoSettings(settings.run)).split())
    assert "ladder of systems state finished runs done 12 table Ladder of classification" in described
    assert f"BERT, fine-tuned dev {100 * sum(scores['BERT, fine-tuned', 'dev']) / 2:.2f}, test" in described


def test_an_interrupted_ladder_continues_with_the_runs_that_it_lacks(
    settings: LadderSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(settings, bert=None, seeds=1)
    train, trained = task_trials.finetune, list[str]()

    def stop_in_the_second(tuning: FinetuneSettings, reporter: Reporter) -> object:
        if trained:
            raise KeyboardInterrupt
        trained.append(tuning.run.parent.name)
        return train(tuning, reporter)

    monkeypatch.setattr(task_trials, "finetune", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt, match=r"3 of 4 runs are finished.*--resume"):
        run_ladder(small)
    assert trained == ["bilstm-rate0.001-seed0"]
    monkeypatch.setattr(task_trials, "finetune", train)
    assert "4 runs, 1 of them pending" in run_ladder(replace(small, resume=True))
    assert "0 of them pending" in run_ladder(replace(small, resume=True))
    (small.run / "results.jsonl").touch()
    with pytest.raises(ValueError, match=r"results\.jsonl: .*earlier version; .*--run"):
        run_ladder(replace(small, resume=True))


def test_ladder_whose_runs_all_diverged_shows_how_many(settings: LadderSettings) -> None:
    trials = [trial for trial in list_trials(replace(settings, linear_floor=False)) if trial.row != FLOOR]
    rows = [*dict.fromkeys(trial.row for trial in trials)]
    table = make_table(settings, rows, [(trial, Result({}, 1.0, "the loss is not finite", {})) for trial in trials])
    header, *lines = table.to_text()
    assert header[:2] == ["", "dev"]
    assert [line[:2] for line in lines] == [[row, "2 diverged"] for row in rows]


def test_pretraining_counts_every_run_that_a_system_stands_on_once(tmp_path: Path) -> None:
    def write_run(name: str, tokens: int, settings: str = "") -> str:
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "report.json").write_text(json.dumps({"tokens": tokens, "seconds": tokens / 10}))
        (tmp_path / name / "settings.toml").write_text(settings)
        return str(tmp_path / name)

    vectors = write_run("vectors", 1_000)
    general = write_run("general", 200)
    translation = write_run("translation", 30, f"vectors = '{vectors}/vectors.txt'")
    task_text = write_run("task-text", 4, f"[model]\ninit = '{general}/model'")
    assert pretraining_work([]) == (0, 0)
    assert pretraining_work([f"{task_text}/model"]) == (204, 20.4)
    assert pretraining_work([f"{vectors}/vectors.txt", translation]) == (1_030, 103)
    assert pretraining_work([translation, str(tmp_path / "elsewhere")]) is None

    task = TaskSettings("classification", train=("train.tsv",))
    settings = LadderSettings(tmp_path, task, vectors=vectors, cove=translation, elmo=general, bert=task_text)
    sources = {rung.name: rung.sources() for rung in settings.rungs()}
    assert sources["+ characters"] == sources["BERT, random weights"] == []
    assert sources["ELMo"] == [vectors, general]
    assert sources["BCN + CoVe"] == [vectors, translation]
    assert sources["BERT, frozen"] == [task_text]


FILES = {"vectors": "v.txt", "elmo": "lm", "cove": "mt", "ulmfit": "lm", "gpt": "gpt", "bert": "bert"}


def list_rungs(tmp_path: Path, task: str, **files: str) -> LadderSettings:
    return LadderSettings(tmp_path, TaskSettings(task, train=("train.txt",), dev=("dev.txt",)), **files)  # type: ignore[arg-type]


def test_tagging_has_the_rungs_of_its_papers(tmp_path: Path) -> None:
    rungs = list_rungs(tmp_path, "conll2003", **FILES).rungs()
    assert [(rung.name, rung.step.published.get("conll2003")) for rung in rungs] == [
        ("window network", 81.47), ("window network, word vectors", 88.67), ("BiLSTM", None), ("+ CRF", None),
        ("+ characters", 80.76), ("word vectors", None), ("word vectors + characters", 91.21), ("TagLM", 91.93),
        ("CoVe", None), ("ELMo", 92.22), ("ULMFiT", None), ("GPT, fine-tuned", None), ("BERT, random weights", None),
        ("BERT, frozen", None), ("BERT, fine-tuned", 92.4),
    ]  # fmt: skip


# What a rung changes of the rung that it is compared with: no more than its name says.
VECTORS = {"words.vectors", "words.unknown_words"}
CHANGES = {
    "window network, word vectors": VECTORS,
    "+ CRF": {"architecture"},
    "+ characters": {"words.char_model"},
    "word vectors": VECTORS,
    "word vectors + characters": {"words.char_model"},
    "TagLM": {"architecture", "words.language_model", "words.lm_layers", "words.lm_places"},
    "CoVe": {"architecture", "words.translation_model", "words.lm_layers"},
    "ELMo": {"architecture", "words.language_model", "words.lm_mix_penalty"},
    "BCN + CoVe": {"words.translation_model"},
    "BCN + ELMo": {"words.language_model", "words.lm_layers", "words.lm_mix_penalty"},
    "BERT, fine-tuned": {"tuning.from_scratch"},
}


@pytest.mark.parametrize("task", ["conll2003", "sst2"])
@pytest.mark.parametrize("left_out", ["", "vectors"])
def test_a_rung_differs_from_the_one_that_it_is_compared_with_in_what_its_name_says(
    tmp_path: Path, task: str, left_out: str
) -> None:
    settings = list_rungs(tmp_path, task, **{name: file for name, file in FILES.items() if name != left_out})
    rungs = {rung.name: rung for rung in settings.rungs()}
    tables = {
        name: flatten(to_table(settings.finetune_settings(rung, 3, 0.01))) | {"run": ""} for name, rung in rungs.items()
    }
    compared = {name: rung.over for name, rung in rungs.items() if rung.over}
    assert {*compared} == {*CHANGES} & {*rungs}
    for name, over in compared.items():
        own, other = tables[name], tables[over]
        changed = {key for key in own.keys() | other.keys() if own.get(key) != other.get(key)}
        expected = CHANGES[name]
        if name == "+ CRF":
            expected = expected | {"task.overrides.tag_head"}
        assert changed == expected, name
    strategies = {table["words.unknown_words"] for table in tables.values() if "words.vectors" in table}
    assert strategies <= {"pretrained"}  # one for all that read vectors
    assert {table["optimizer.learning_rate"] for table in tables.values()} == {0.01}


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in table.items():
        values |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def test_every_rung_is_trained_with_each_rate_and_shows_the_best_one_on_dev(settings: LadderSettings) -> None:
    small = replace(settings, bert=None, seeds=1, learning_rates=(1e-4, 1e-2), linear_floor=False)
    names = [trial.name for trial in list_trials(small)]
    assert names[1:] == [f"{name}-rate{rate}-seed0" for name in ("bilstm", "characters") for rate in ("0.0001", "0.01")]
    run_ladder(small)
    report = read_json(small.run / "report.json")
    rates = report["details"]["rate"]
    for cell in report["cells"]:
        if cell["column"] == "dev" and cell["row"] in rates:
            scores = {float(rate): score for rate, score in cell["rates"].items()}
            assert float(rates[cell["row"]]) == max(scores, key=scores.__getitem__)


def test_the_floor_of_tagging_is_the_most_frequent_tag_although_the_first_rung_scores_paths(tmp_path: Path) -> None:
    lines = {"train": "Ada B-PER\nsleeps O\nwell O\n\nBob B-PER\nruns O\n", "dev": "Eve B-PER\nruns O\n"}
    files = {split: (str(tmp_path / f"{split}.txt"),) for split in lines}
    for split, text in lines.items():
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    for metric, score in (("accuracy", 0.5), ("f1", 0.0)):
        task = TaskSettings("tagging", overrides=TaskOptions(metric=metric), **files)
        floor, *_ = list_trials(LadderSettings(tmp_path / "run", task, device=CPU))
        assert floor.run(tmp_path / metric / "run", (), MUTE)["dev"] == score


def test_texts_have_the_classifier_of_cove_with_and_without_it(tmp_path: Path) -> None:
    task = TaskSettings("classification", train=("train.tsv",))
    settings = LadderSettings(tmp_path, task, vectors="v.txt", cove="mt")
    rungs = {rung.name: settings.finetune_settings(rung, 0, 1e-3).words for rung in settings.rungs()}
    assert list(rungs)[-4:] == ["word vectors + characters", "CoVe", "BCN", "BCN + CoVe"]
    assert [rungs[name].translation_model for name in list(rungs)[-4:]] == [None, "mt", None, "mt"]
    assert rungs["BCN"].freeze_vectors
    assert rungs["BCN"] == replace(rungs["BCN + CoVe"], translation_model=None)
