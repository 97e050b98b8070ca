"""Plans: comparisons are fair, levels and limits are kept, and inputs that are not usable are named."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_experiments import Make, output, plan_of

from bertwright.base.reporter import SILENT
from bertwright.base.settings import read_toml
from bertwright.finetuning.finetune_state import open_run as open_finetuning
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.training.context import execution_context
from bertwright.trials.composed_model import Compose
from bertwright.trials.experiment import choose_level, describe_level, experiment, format_command
from bertwright.trials.levels import TaskRecipe
from bertwright.trials.paper.figure5 import list_checkpoint_steps
from bertwright.trials.paper_table import FLOORS
from bertwright.trials.pretrain_trials import BestRate, Pretrain, SameRate
from bertwright.trials.probe_data import open_probe
from bertwright.trials.runner import Runner
from bertwright.trials.task_trials import Finetune, Probe
from bertwright.trials.trial import all_trials
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer


def test_all_objectives_start_from_the_same_weights(make: Make, tmp_path: Path) -> None:
    pretrainings = [job for job in all_trials(plan_of(make(tmp_path)).ordered) if isinstance(job, Pretrain)]
    models = []
    for job in pretrainings:
        model = job.settings.objective.new_model(job.settings.model, 100, job.settings.data.seed)
        models.append(model.state_dict())
    assert len(models) == 8  # two rates each
    for other in models[1:]:
        assert all(bool((models[0][name] == other[name]).all()) for name in models[0])


def test_the_new_lstm_has_a_rate_of_its_own(make: Make, tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path, level="night", seeds=1))
    rates = {job.settings.lstm_learning_rate for job in all_trials(plan.ordered) if isinstance(job, Compose)}
    assert rates == {1e-3}
    assert any(
        "2-layer BiLSTM of 256 outputs" in note and "a peak rate of its own, 0.001" in note for note in plan.notes
    )


def test_all_objectives_read_the_same_pairs(make: Make, tmp_path: Path, store: Path) -> None:
    tokenizer = Tokenizer.load(store / "tokenizer")
    read = {}
    for job in all_trials(plan_of(make(tmp_path)).ordered):
        if isinstance(job, Pretrain):
            (examples,) = job.settings.objective.open_examples(store / "train", tokenizer, [job.settings.data])
            batch, *_ = examples.batches_for_step(5)
            ids = batch.input.input_ids.clone()
            ids[batch.mlm_positions] = (
                batch.mlm_labels if job.settings.data.objective.startswith("mlm") else ids[batch.mlm_positions]
            )
            types = batch.input.token_type_ids.tolist()
            read[job.settings.data.objective] = ids.tolist(), batch.packing.cu_seqlens.tolist(), types
    assert read["mlm+nsp"] == read["mlm"] == read["ltr"] == read["rtl"]


def test_the_first_seed_chooses_the_rate_of_all_seeds(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", "table7", pretraining_seeds=2)
    jobs = all_trials(plan_of(settings).ordered)
    (choice,) = [job for job in jobs if isinstance(job, BestRate)]
    (repeated,) = [job for job in jobs if isinstance(job, SameRate)]
    assert [job.settings.data.seed for job in (*choice.parents, repeated)] == [0, 0, 1]
    assert len({job.key for job in jobs}) == len(jobs)
    runner = Runner(settings.work)
    runner.run_all([repeated], SILENT)
    chosen, scored = runner.result(choice), runner.result(repeated)
    assert chosen is not None
    assert scored is not None
    assert scored.scores["learning_rate"] == chosen.scores["learning_rate"]
    trained = read_toml(runner.run_folder(repeated) / "settings.toml")
    assert trained["optimizer"]["learning_rate"] == chosen.scores["learning_rate"]
    assert trained["data"]["seed"] == 1


def test_without_bias_correction_fine_tuning_is_another_job(make: Make, tmp_path: Path) -> None:
    usual, without = make(tmp_path, "table7"), make(tmp_path, "table7", bias_correction=False)
    corrected = {
        job.settings.optimizer.bias_correction: job.key
        for settings in (usual, without)
        for job in all_trials(plan_of(settings).ordered)
        if isinstance(job, Finetune)
    }
    assert corrected.keys() == {True, False}
    assert corrected[True] != corrected[False]
    assert output(usual) != output(without)
    assert "--no-bias-correction" in format_command(without)
    assert "bias_correction False" in describe_level(choose_level(without), None)["optimizer of fine-tuning"]


def test_jobs_fill_each_cell_once_with_floors_first(make: Make, tmp_path: Path) -> None:
    plan = plan_of(make(tmp_path, pretraining_seeds=2, tasks=("conll2003",)))
    order = {job.key: number for number, job in reversed([*enumerate(plan.ordered)])}
    first, later = [], []
    for trial in plan.trials:
        (later if trial.seed or trial.pretraining else first).append(order[trial.key])
    assert max(first) < min(later)
    floors = [order[trial.key] for trial in plan.trials if trial.row in FLOORS and not trial.pretraining]
    assert sorted(floors)[:2] == [0, 1]


def test_fine_tuning_and_heads_on_features_read_the_same_examples(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path / "work", "table7", seeds=1, model=str(tiny_bert), store=None)
    jobs = plan_of(settings).ordered
    tuning = next(job for job in jobs if isinstance(job, Finetune))
    probe = next(job for job in jobs if isinstance(job, Probe))
    with execution_context(settings.device) as context:
        state = open_finetuning(replace(tuning.settings, run=tmp_path / "run"), context, SILENT)
        probed = open_probe(replace(probe.settings, run=tmp_path / "run"), context, SILENT).splits
    assert state.dev is not None
    assert [split.name for split in probed] == ["train", "dev"]
    assert [len(split.examples) for split in probed] == [settings.word_task_limit] * 2
    assert [list(split.examples) for split in probed] == [list(state.train.examples), list(state.dev.examples)]


def test_figure5_keeps_the_checkpoints_of_few_steps(make: Make, tmp_path: Path) -> None:
    for steps in (10, 12, 19, 36, 89, 99):
        jobs = all_trials(plan_of(make(tmp_path, "figure5", steps=steps)).ordered)
        job = next(job for job in jobs if isinstance(job, Pretrain))
        every, keep_last = job.settings.save_every, job.settings.keep_last
        saved = [*range(every, steps, every), steps]
        assert {*list_checkpoint_steps(steps)} <= {*saved[-keep_last:]}


def test_figure5_reads_positions_that_all_checkpoints_have_trained(make: Make, tmp_path: Path, data: Path) -> None:
    files = shutil.copytree(data, tmp_path / "data")
    (files / "squad").mkdir()
    for name in ("train", "dev"):
        (files / "squad" / f"{name}-v1.1.json").write_text('{"version": "1.1", "data": []}')
    plan = plan_of(make(tmp_path, "figure5", data=files, tasks=("sst2", "conll2003", "squad")))
    tasks = [job.settings.task.build_task() for job in plan.ordered]
    pretrainings = [job for job in all_trials(plan.ordered) if isinstance(job, Pretrain)]
    assert {task.max_length for task in tasks} == {job.settings.data.max_length for job in pretrainings} == {64}
    assert {(task.doc_stride, task.max_query_length) for task in tasks if isinstance(task, QuestionAnswering)} == {
        (32, 16)
    }
    assert any("of up to 64 tokens" in note and "windows of 64 tokens, one every 32" in note for note in plan.notes)


@pytest.mark.parametrize(("level", "length"), [("demo", 64), ("evening", 128), ("night", 128), ("paper", 512)])
def test_fine_tuning_reads_positions_that_most_steps_train(make: Make, tmp_path: Path, level: str, length: int) -> None:
    plan = plan_of(make(tmp_path, "table8", level=level))
    lengths = {
        (job.settings.task.task, job.settings.task.build_task().max_length) for job in plan.ordered if job.parents
    }
    assert lengths == {("sst2", min(length, 128)), ("conll2003", length)}
    assert any("Fine-tuning reads sequences of up to" in note for note in plan.notes) == (length < 512)
    for job in all_trials(plan.ordered):
        if isinstance(job, Pretrain) and level != "paper":
            assert {phase.data.max_length for phase in job.settings.phases} == {length}


def test_tagging_with_a_given_model_has_the_context_of_its_positions(
    make: Make, tmp_path: Path, tiny_bert: Path
) -> None:
    plan = plan_of(make(tmp_path, "table7", store=None, steps=None, model=str(tiny_bert), level="evening"))
    assert {job.settings.task.build_task().max_length for job in plan.ordered} == {512}
    assert not any("reads sequences of" in note for note in plan.notes)


def test_a_model_of_the_user_is_tuned_on_all_examples_as_in_the_paper(make: Make, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"limit": None, "word_task_limit": None, "seeds": None, "store": None, "steps": None}
    for name, seeds in (("demo", 2), ("night", 5), ("paper", 5)):
        level = choose_level(make(tmp_path, "table1", level=name, model="folder", **sizes))
        assert (level.limit, level.word_task_limit, level.seeds) == (None, None, seeds)
        assert level.task_recipes["squad_v2"] == TaskRecipe(2.0, 48, (5e-5,))
        assert len(level.recipe.learning_rates) == (4 if name == "paper" else 1)
    assert choose_level(make(tmp_path, "table1", model="folder", **sizes | {"limit": 70})).limit == 70


@pytest.mark.parametrize(("level", "jobs"), [("demo", 42), ("evening", 84), ("night", 168), ("paper", 840)])
def test_figure5_has_fewer_restarts(make: Make, tmp_path: Path, level: str, jobs: int) -> None:
    """Two tasks, 20 checkpoints and random weights; in the evening two rates, at night also two restarts."""
    settings = make(tmp_path, "figure5", level=level, seeds=None, steps=None, limit=None, word_task_limit=None)
    assert sum(job.kind == "finetune" for job in all_trials(plan_of(settings).ordered)) == jobs
    more = replace(settings, seeds=7)
    assert choose_level(more).seeds == 7


def test_reports_of_other_settings_are_in_other_folders(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    settings = make(tmp_path)
    changes: list[dict[str, Any]] = [
        {}, {"tasks": ("sst2",)}, {"seeds": 1}, {"steps": 30}, {"limit": 30}, {"experiment": "table7"},
        {"experiment": "table7", "model": str(tiny_bert), "store": None, "steps": None},
    ]  # fmt: skip
    assert len({output(replace(settings, **change)) for change in changes}) == len(changes)
    assert output(replace(settings, device=replace(settings.device, threads=2))) == output(settings)
    assert output(settings).name.startswith("table5-demo-")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "--data FOLDER"),
        ({"data": Path("taks")}, "--data taks: no such folder; name one with the files of tasks"),
        ({"data": Path(__file__)}, "test_experiment_plans.py: not a folder; name one with the files of tasks"),
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
