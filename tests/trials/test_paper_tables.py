"""Tables 1, 6, 7 and 8: each has its rows, columns and figures of the paper."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_experiments import Make, output, plan_of, run_experiment, sentences

from bertwright.base.files import read_json
from bertwright.base.settings import flatten, to_table
from bertwright.tasks.linear_floor import LINEAR, LOOKUP
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.levels import LEVELS
from bertwright.trials.paper import describe_tables, find_table, table_names
from bertwright.trials.paper.table1 import GLUE, published_figures
from bertwright.trials.paper.table8 import MIXES
from bertwright.trials.paper_table import FLOORS, FREQUENT, RANDOM
from bertwright.trials.pretrain_trials import BestRate
from bertwright.trials.runner import Runner
from bertwright.trials.trial import all_trials


@pytest.mark.parametrize(("name", "hint"), [("table3", "it is part of table1"), ("tabel5", 'did you mean "table5"')])
def test_a_name_without_a_table_gets_the_table_to_ask_for(name: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf'EXPERIMENT: no experiment "{name}"; {hint}'):
        ExperimentSettings(experiment=name, work=tmp_path)


def test_a_table_is_found_by_the_name_of_its_file() -> None:
    assert {"figure5", "table1", "table5", "table6", "table7", "table8"} <= {*table_names()}
    assert "table7 (Table 7: features and fine-tuning)" in describe_tables()
    assert [name for name in table_names() if find_table(name).takes_model] == ["table1", "table7"]
    assert [name for name in table_names() if find_table(name).is_curve] == ["figure5"]


@pytest.mark.slow
def test_table8_has_a_column_of_frozen_features(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixes = dict(list(MIXES.items())[:2])
    monkeypatch.setattr("bertwright.trials.paper.table8.MIXES", mixes)
    settings = make(tmp_path / "work", "table8", seeds=1, word_task_limit=None)
    run_experiment(settings)
    record = read_json(output(settings) / "report.json")
    columns = {(cell["row"], cell["column"]) for cell in record["cells"]}
    floors = {
        *((row, name) for row in (FREQUENT, LINEAR) for name in ("sst2", "conll2003")),
        (LOOKUP, "conll2003"),
        *((RANDOM, name) for name in ("sst2", "conll2003", "features")),
    }
    assert columns == floors | {(row, column) for row in mixes for column in ("sst2", "conll2003", "features")}
    assert not list(tmp_path.rglob("features"))  # the cached states are deleted
    assert all(claim["verdict"] == "no verdict" for claim in record["claims"])  # one seed


@pytest.mark.slow  # one of the tables; the others take less
def test_table6_compares_shapes_by_held_out_perplexity(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = ((1, 32, 2), (2, 32, 1), (2, 32, 2), (3, 32, 2), (3, 48, 3), (4, 48, 3))
    monkeypatch.setitem(LEVELS, "demo", replace(LEVELS["demo"], shapes=shapes))
    settings = make(tmp_path / "work", "table6", seeds=1, steps=10, limit=20, tasks=("sst2",))
    printed = run_experiment(settings, columns=160)
    record = read_json(output(settings) / "report.json")
    cells = {cell["row"]: cell for cell in record["cells"] if cell["column"] == "perplexity"}
    assert list(cells)[::5] == ["L1 H32 A2 (paper: L3 H768 A12)", "L4 H48 A3 (paper: L24 H1024 A16)"]
    assert [cell["paper"] for cell in cells.values()] == [5.84, 5.24, 4.68, 3.99, 3.54, 3.23]
    assert all(cell["mean"] > 1 and cell["seeds"] == 1 for cell in cells.values())
    claim = next(claim for claim in record["claims"] if claim["columns"] == ["perplexity"])
    assert len({cell["mean"] for cell in cells.values()}) == 6
    smaller, larger, *_ = cells.values()
    for cell in cells.values():
        low, high = cell["interval"]
        assert low < cell["mean"] < high
        assert f"{cell['mean']:.2f} ({low:.2f} to {high:.2f}) [" in printed
    low, mean, high = (claim["difference"][name] for name in ("low", "mean", "high"))
    assert mean == pytest.approx(np.log(smaller["mean"] / larger["mean"]))
    assert low < mean < high
    assert claim["verdict"] == "no verdict"  # each shape is pre-trained once
    paired = np.log(smaller["interval"][1] / larger["interval"][0])
    assert high < paired  # both are scored on the same sequences
    interval = f"95 % interval {low:+.2f} to {high:+.2f}, which could show {(high - low) / 2:.2f} or more"
    assert f"{mean:+.2f} nats per token, {interval}; paper +0.11; a single run of" in printed


def test_table7_has_the_features_that_the_model_has_layers_for(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path / "work", "table7", seeds=2, model=str(tiny_bert), store=None)
    printed = run_experiment(settings, columns=140)
    record = read_json(output(settings) / "report.json")
    names = ["embeddings", "second-to-last", "last", "sum-all"]
    rows = ["fine-tuned", *(f"features: {name}" for name in names)]
    cells = {cell["row"]: cell for cell in record["cells"]}
    assert {*cells} == {*rows, *FLOORS}
    assert all(cell["seeds"] == 2 for row, cell in cells.items() if row in (*rows, RANDOM))
    assert [cells[row]["paper"] for row in rows] == pytest.approx([96.4, 91.0, 95.6, 94.9, 95.5])
    assert "too few for sum-last-four, concat-last-four" in " ".join(
        (output(settings) / "report.md").read_text().split()
    )
    assert "[91.0]" in printed  # as the paper prints it
    assert "The last layer is better than the embeddings, conll2003: " in printed or record["at_floor"] == ["conll2003"]
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
    cells = {cell["column"]: cell for cell in record["cells"] if cell["row"] == "ours"}
    assert {cell["row"] for cell in record["cells"]} == {"ours", *FLOORS}
    assert cells.keys() == {"sst2", "mrpc", "squad", "squad EM", "conll2003", "conll2003 test", "GLUE average"}
    assert all(cell["seeds"] == 2 for cell in cells.values())
    assert cells["GLUE average"]["mean"] == pytest.approx((cells["sst2"]["mean"] + cells["mrpc"]["mean"]) / 2)
    work = Runner(settings.work.resolve())
    test_scores = [
        read_json(work.folder(trial) / "run" / "report.json")["scores"]["test"]["f1"]
        for trial in plan_of(settings).trials
        if (trial.row, trial.column) == ("ours", "conll2003 test")
    ]
    assert cells["conll2003 test"]["scores"] == test_scores
    markdown = (output(settings) / "report.md").read_text()
    plain = markdown.partition("Differences from")[0].replace("*", "").replace(", at the floor", "")
    lines = [line[2:-2].split(" | ") for line in plain.splitlines() if line.startswith("|")]
    base = lines[0].index("BERT BASE")
    assert {line[0]: line[base] for line in lines[2:]} == {
        "sst2 acc.": "[93.5, test]", "mrpc F1": "[88.9, test]", "GLUE average of 2": "[91.2, test]",
        "squad F1": "[88.5]", "squad EM": "[80.8]", "conll2003 F1": "[96.4]", "conll2003 F1, test": "[92.4]",
    }  # fmt: skip
    assert "[91.2, test]" in printed
    assert str(tiny_bert) in markdown
    assert any(note.startswith("sst2: not scored on test") for note in record["notes"])


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


def test_ablations_differ_from_bert_in_one_choice(make: Make, tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path / "work", "ablations", seeds=1))
    jobs = {job.name: job for job in all_trials(plan.ordered) if isinstance(job, BestRate)}
    base = dict(flatten(to_table(jobs["pre-train mlm+nsp"].settings)))
    changes = {}
    for name, job in jobs.items():
        changes[name.removeprefix("pre-train mlm+nsp").removeprefix(", ")] = {
            key: new for key, new in flatten(to_table(job.settings)) if base.get(key) != new and key != "keep_last"
        }
    shares = {f"{percent} % masked": {"data.mlm_probability": percent / 100} for percent in (5, 10, 20, 30, 40, 50)}
    normal = {"model.init_scheme": "normal"}
    assert changes == {"": {}} | shares | {
        "ReLU": {"model.activation": "relu"},
        "learned positions, normal initialization": normal,
        "sinusoidal positions": normal | {"model.sinusoidal_positions": True},
    }
    assert {claim.worse for claim in plan.claims} <= {*plan.rows}
    assert {claim.better for claim in plan.claims} <= {*plan.rows}
