"""Experiments of the paper: choose the level, plan, run the trials, report.

WORK/jobs/                       runs, shared by all experiments (see `trials.runner`)
WORK/NAME-LEVEL-KEY/report.md    the table next to the paper's, and the claims; report.json, plot.png
WORK/budgets/                    the sizes that budgets gave, so that the same command resumes with the same ones
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertwright.base.files import local_folder, lock_if_free, read_json, write_json, write_text
from bertwright.base.messages import format_duration
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.base.settings import from_table, read_toml, to_arguments, to_table
from bertwright.executors.open_executor import open_executor
from bertwright.executors.ray_executor import CallResources
from bertwright.interop.model_files import model_folder
from bertwright.models.shapes import format_shape
from bertwright.pretraining.prepare import PrepareSettings
from bertwright.tokenstore.store import read_header
from bertwright.training.context import select_device, select_dtype
from bertwright.training.distributed import independent_ranks
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.trials.budget import estimate_costs, fit_budget
from bertwright.trials.experiment_plan import ExperimentInputs, Plan
from bertwright.trials.experiment_settings import BUDGETED, ExperimentSettings
from bertwright.trials.levels import LEVELS, ExperimentLevel
from bertwright.trials.planner import Planner
from bertwright.trials.pretrain_trials import digest_store
from bertwright.trials.report import Report, make_report
from bertwright.trials.runner import WAIT_S, Runner
from bertwright.trials.table_plot import plot
from bertwright.trials.trial import Trial, all_trials
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer

SEEDS = ("seeds", "pretraining_seeds")
# --model at levels below "paper": one rate instead of four, and epochs of heads for all examples.
MODEL_RATES, MODEL_PROBE_EPOCHS = (5e-5,), 5


def experiment(settings: ExperimentSettings, reporter: Reporter = SILENT) -> Path | None:
    """Run or resume an experiment; return the folder of its report.

    Returns None for a dry run, for a report without results, and on ranks other than 0.

    The processes of torchrun share the runs as processes that were started one by one do; rank 0 reports.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. Raises ValueError and OSError as the runs do
    for inputs that are not usable; a run that diverges is reported, and the others continue.
    """
    with independent_ranks() as rank:
        return run_experiment(settings, reporter, rank)


def run_experiment(settings: ExperimentSettings, reporter: Reporter, rank: int) -> Path | None:
    """Run, plan or report an experiment as one of the processes that share it."""
    if rank > 0 and (settings.dry_run or settings.report_only):
        return None
    level = choose_level(settings)
    runner, plan = Runner(settings.work.resolve()), plan_experiment(settings, level)
    if settings.budget is not None:
        level = apply_budget(settings, level, plan, reporter)
        plan = plan_experiment(settings, level)
    if settings.dry_run:
        print_plan(plan, describe_level(level, settings.model), runner, reporter)
        return None
    if not settings.report_only:
        if rank == 0:
            reporter.record(Line(f"{plan.title}: {len(all_trials(plan.ordered))} runs in {runner.path}"))
        if settings.execution.executor == "ray":
            on_gpu = select_device(settings.device).type == "cuda"
            each = CallResources(cpus=settings.device.threads or 1, gpus=int(on_gpu))
            with open_executor(settings.execution, call=each) as executor:
                runner.run_on(executor, plan.ordered, reporter)
        else:
            runner.run_all(plan.ordered, reporter)
    if rank > 0:
        return None
    folder = report_folder(settings, plan)
    report = make_report(plan, runner)
    if not report.finished:
        reporter.note("no run is finished yet, so there is nothing to report")
        return None
    write_report(report, describe_setup(settings, level, report), folder, reporter)
    return folder


def choose_level(settings: ExperimentSettings) -> ExperimentLevel:
    """Return the level with the settings that override it; a budget decides its sizes later.

    The user's own model is fine-tuned as in the paper, on all examples; below level "paper" with a single rate.
    """
    level, full = LEVELS[settings.level], LEVELS["paper"]
    if settings.table.is_curve:
        recipe = replace(level.recipe, learning_rates=level.curve_learning_rates)
        level = replace(level, seeds=level.curve_seeds, recipe=recipe)
    if settings.model is not None:
        rates, epochs = (
            (full.recipe.learning_rates, full.probe_epochs)
            if settings.level == "paper"
            else (MODEL_RATES, MODEL_PROBE_EPOCHS)
        )
        level = replace(
            level, recipe=replace(full.recipe, learning_rates=rates), task_recipes=full.task_recipes,
            probe_epochs=epochs, limit=None, word_task_limit=None,
        )  # fmt: skip
    changes = {name: value for name in (*SEEDS, *BUDGETED) if (value := getattr(settings, name)) is not None}
    return replace(level, bias_correction=settings.bias_correction, **changes)


def report_folder(settings: ExperimentSettings, plan: Plan) -> Path:
    """Return the folder of a report; its name has a digest of all that decides the numbers, such as seeds and files."""
    return settings.work / f"{settings.experiment}-{settings.level}-{plan.key}"


def budget_file(settings: ExperimentSettings, plan: Plan) -> Path:
    """Return the file with the sizes that a budget gave; `plan`: the plan without the budget."""
    name = f"{settings.experiment}-{settings.level}-{settings.budget:g}min-{plan.key}"
    return settings.work / "budgets" / name / "budget.json"


def plan_experiment(settings: ExperimentSettings, level: ExperimentLevel) -> Plan:
    """Return the plan of an experiment. Raises ValueError for inputs that are missing or not usable."""
    if settings.data is None:
        raise ValueError("no tasks given: --data FOLDER, with the files of tasks in its sub-folders")
    if not settings.data.is_dir():
        problem = "not a folder" if settings.data.exists() else "no such folder"
        raise ValueError(f"--data {settings.data}: {problem}; name one with the files of tasks in its sub-folders")
    device = replace(settings.device, dtype=select_dtype(settings.device))
    store, digest = None, ""
    if settings.model is not None:
        vocabulary = model_folder(settings.model)
    elif settings.store is not None:
        store = local_folder(settings.store).resolve()
        digest, vocabulary = digest_store(store), store / "tokenizer"
    else:
        own = " (or --model FOLDER, to fine-tune a model of your own)" if settings.table.takes_model else ""
        raise ValueError(f"no token store given: --store FOLDER, as `bertwright prepare` wrote it{own}")
    lowercase = open_tokenizer(vocabulary).lowercase
    inputs = ExperimentInputs(
        level, store, digest, settings.data, lowercase, settings.tasks, device, settings.linear_floor, settings.model
    )
    return Planner(inputs).plan(settings.experiment, settings.table)


def apply_budget(
    settings: ExperimentSettings, level: ExperimentLevel, plan: Plan, reporter: Reporter
) -> ExperimentLevel:
    """Return the level with the sizes that the budget gives: the recorded ones, so that the same command resumes.

    The first time, one of several processes measures and records them, and the others wait. Raises ValueError for a
    damaged file.
    """
    path, trials = budget_file(settings, plan), all_trials(plan.ordered)
    while not path.is_file():
        if settings.report_only:
            raise ValueError(
                f"--budget {settings.budget:g}: {settings.work} has no sizes of such an experiment; run it first, or "
                "omit --budget"
            )
        if settings.dry_run:
            return fit_budget(settings, level, trials, estimate_costs(trials, reporter))
        with lock_if_free(path.parent) as is_locked:
            if is_locked and not path.is_file():
                fitted = fit_budget(settings, level, trials, estimate_costs(trials, reporter))
                write_json(path, {name: getattr(fitted, name) for name in BUDGETED})
        if not is_locked:
            time.sleep(WAIT_S)
    sizes = read_json(path)
    if not (isinstance(sizes, dict) and sizes.keys() == {*BUDGETED}):
        raise ValueError(f"{path}: damaged; delete it to measure the sizes again")
    return replace(level, **sizes)


def print_plan(plan: Plan, common: Mapping[str, str], runner: Runner, reporter: Reporter) -> None:
    """Measure the time of a plan's trials; print them by kind, the finished ones, and the time of the others."""
    trials = all_trials(plan.ordered)
    costs = estimate_costs(trials, reporter)
    reporter.record(Heading(plan.title))
    rows = []
    total = 0.0
    for described in dict.fromkeys(trial.described for trial in sorted(trials, key=Trial.count_generations)):
        chosen = [trial for trial in trials if trial.described == described]
        pending = [trial for trial in chosen if not runner.result(trial)]
        seconds = sum(costs[trial.key].seconds for trial in pending)
        rows.append((described, str(len(chosen)), str(len(chosen) - len(pending)), format_duration(seconds)))
        total += seconds
    reporter.record(Rows(("", "runs", "finished", "time of the others"), rows))
    reporter.record(Fields(common))
    for note in plan.notes:
        reporter.note(note)
    time = f"estimated time: {format_duration(total)} of one process"
    reporter.record(Line(f"{time}; start the same command several times to share it"))


def describe_level(level: ExperimentLevel, model: str | None) -> dict[str, str]:
    """Return what the models of an experiment have in common, for people; `model`: the folder that the user gave."""
    rates = " or ".join(f"{rate:g}" for rate in level.pretraining_rates)
    rule = ""
    if len(level.pretraining_rates) > 1:
        rule = ", the better one on held-out loss" + (" of the first seed" if level.pretraining_seeds > 1 else "")
    lengths = f"length {level.max_length}" + (
        f", the last tenth {level.max_positions}" if level.long.long_ratio else ""
    )
    own_recipes = "".join(f"; {task}: {recipe}" for task, recipe in level.task_recipes.items())
    limit = "all" if level.limit is None else f"at most {level.limit:,}"
    words = "all" if level.word_task_limit is None else f"at most {level.word_task_limit:,}"
    trained = {
        "model": f"{format_shape(*level.shape)} unless stated; the same initial weights ({level.init_scheme} "
        "initialization) for all objectives",
        "pre-training": f"{level.steps:,} steps of {level.batch_size} sequences, {lengths}, dropout {level.dropout:g}, "
        f"peak rate {rates}{rule}",
        "optimizer": format_optimizer(level.optimizer),
    }
    return (trained if model is None else {"model": model}) | {
        "fine-tuning": f"{level.recipe}{own_recipes}; dropout 0.1; the last step is scored",
        "optimizer of fine-tuning": format_optimizer(level.tuning_optimizer),
        "examples": f"{limit} of each split of a sentence task, {words} of tagging and question answering",
    }


def format_optimizer(optimizer: OptimizerSettings) -> str:
    """Return the settings of an optimizer for people, without its rate."""
    return ", ".join(f"{name} {value}" for name, value in to_table(optimizer).items() if name != "learning_rate")


def format_command(settings: ExperimentSettings) -> str:
    """Return the command with the options that decide the results, without paths."""
    words = ["bertwright experiment", settings.experiment, "--level", settings.level]
    for name in ("budget", *SEEDS, *BUDGETED):
        if (value := getattr(settings, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    words += [] if settings.bias_correction else ["--no-bias-correction"]
    words += [] if settings.linear_floor else ["--no-linear-floor"]
    words += ["--tasks", *settings.tasks] if settings.tasks else []
    return " ".join([*words, "--dtype", select_dtype(settings.device)])


def describe_setup(settings: ExperimentSettings, level: ExperimentLevel, report: Report) -> dict[str, str]:
    """Return what was trained, where and when, for the report."""
    machines = [f"{text} ({count} runs)" for text, count in report.environments.most_common()]
    return {
        "command": format_command(settings),
        **describe_level(level, settings.model),
        **(describe_store(settings.store) if settings.store else {}),
        "computed on": "; ".join(machines),
        "date": datetime.now(UTC).date().isoformat(),
    }


def describe_store(store: Path) -> dict[str, str]:
    """Return names and values of what a token store contains, and the commands that made it, as far as they are known.

    The digest of a text is computed from all documents in order, so that it recognizes the text whatever its files.
    """
    train, held_out = (read_header(store / split) for split in ("train", "held_out"))
    tokenizer = open_tokenizer(store / "tokenizer")
    sizes = [f"{part.num_documents:,} documents, {part.num_tokens:,} tokens" for part in (train, held_out)]
    described = {
        "text": f"{sizes[0]}, digest {train.corpus_digest}; held out {sizes[1]}, digest {held_out.corpus_digest}",
        "vocabulary": f"{tokenizer.vocab_size:,} tokens, {'uncased' if tokenizer.lowercase else 'cased'}, digest "
        f"{tokenizer.digest}",
        "store": f"digest {digest_store(store)}",
    }
    preparation = read_command("prepare", PrepareSettings, store)
    if preparation is None:
        return described
    prepare, settings = preparation
    learning = read_command("vocabulary", LearnSettings, Path(settings.vocabulary))
    commands = {"command of the vocabulary": learning[0]} if learning else {}
    return described | commands | {"command of the store": prepare}


def read_command(name: str, cls: type[Any], folder: Path) -> tuple[str, Any] | None:
    """Return the command that made a folder, with its settings; None if the folder has no settings of this command."""
    try:
        settings = from_table(cls, read_toml(folder / "settings.toml"), str(folder / "settings.toml"))
    except (OSError, ValueError):
        return None
    return shlex.join(["bertwright", name, *to_arguments(settings)]), settings


def write_report(report: Report, setup: dict[str, str], folder: Path, reporter: Reporter) -> None:
    """Print the table and the claims; write them as Markdown, JSON and a plot."""
    further = report.format_pretrainings()
    write_text(folder / "report.md", report.table.to_markdown(setup, further))
    write_json(folder / "report.json", report.to_record(setup))
    plot(report.table, folder / "plot.png", report.plan.steps, "steps of pre-training")
    report.table.show(reporter)
    for names, *lines in further.values():
        reporter.record(Rows(names, lines, texts=(0,)))
    for name in ("report.md", "report.json", "plot.png"):
        reporter.record(Line(str(folder / name)))
