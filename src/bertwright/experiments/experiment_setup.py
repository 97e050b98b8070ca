"""Setup of an experiment: its level, its inputs and its plan; nothing is run."""

from __future__ import annotations

from bisect import bisect
from dataclasses import replace
from pathlib import Path

from bertwright.experiments.experiment_settings import BUDGETED, OF_ONE_MODEL, ExperimentSettings
from bertwright.experiments.job_cost import JobCost
from bertwright.experiments.job_maker import ExperimentInputs
from bertwright.experiments.jobs import PretrainJob, TaskJob, all_jobs, digest_store
from bertwright.experiments.levels import LEVELS, ExperimentLevel
from bertwright.experiments.paper_tables import make_plan
from bertwright.experiments.table_plan import TablePlan
from bertwright.interop.model_files import model_folder
from bertwright.training.context import select_dtype
from bertwright.vocabulary.tokenizer import Tokenizer

MIN_STEPS, MIN_EXAMPLES = 100, 50
SCALES = [10 ** (power / 1_000) for power in range(-5_000, 2_001)]  # factors of the limits, which a budget chooses from
MODEL_RATES = (5e-5,)  # --model at levels below "paper": one rate instead of four
PRETRAINING_SHARE = 0.5  # share of a budget that pre-training gets
UNLIMITED = 400_000  # examples that a level without limits is scaled from: MNLI, the largest task, has 392,702


def choose_level(settings: ExperimentSettings) -> ExperimentLevel:
    """Return the level with the settings that override it; a budget decides its sizes later.

    A model of the user is fine-tuned as in the paper, on all examples; below the level of the paper with a single rate.
    """
    level, full = LEVELS[settings.level], LEVELS["paper"]
    if settings.experiment == "figure5":
        level = level.for_curve()
    if settings.model is not None:
        rates = full.recipe.learning_rates if settings.level == "paper" else MODEL_RATES
        recipe = replace(full.recipe, learning_rates=rates)
        level = replace(level, recipe=recipe, task_recipes=full.task_recipes, limit=None, word_task_limit=None)
    changes = {name: value for name in ("seeds", *BUDGETED) if (value := getattr(settings, name)) is not None}
    return replace(level, **changes)


def report_folder(settings: ExperimentSettings, plan: TablePlan) -> Path:
    """Return the folder of a report; its name has a digest of all that decides the numbers, such as seeds and files."""
    return settings.work / f"{settings.experiment}-{settings.level}-{plan.key}"


def budget_file(settings: ExperimentSettings, plan: TablePlan) -> Path:
    """Return the file with the sizes that a budget gave; `plan`: the level's, without the budget."""
    name = f"{settings.experiment}-{settings.level}-{settings.budget:g}min-{plan.key}"
    return settings.work / "budgets" / name / "budget.json"


def plan_experiment(settings: ExperimentSettings, level: ExperimentLevel) -> TablePlan:
    """Return the plan of an experiment. Raises ValueError for inputs that are missing or not usable."""
    if settings.data is None:
        raise ValueError("no tasks given: --data FOLDER, with the files of tasks in its sub-folders")
    if not settings.data.is_dir():
        problem = "not a folder" if settings.data.exists() else "no such folder"
        raise ValueError(f"--data {settings.data}: {problem}; name one with the files of tasks in its sub-folders")
    device = replace(settings.device, dtype=select_dtype(settings.device))
    if settings.model is not None:
        lowercase = Tokenizer.load(model_folder(settings.model)).lowercase
        inputs = ExperimentInputs(level, None, "", settings.data, lowercase, settings.tasks, device, settings.model)
        return make_plan(settings.experiment, inputs)
    if settings.store is None:
        own = " (or --model FOLDER, to fine-tune a model of your own)" if settings.experiment in OF_ONE_MODEL else ""
        raise ValueError(f"no token store given: --store FOLDER, as `bertwright prepare` wrote it{own}")
    store = settings.store.resolve()
    lowercase = Tokenizer.load(store / "tokenizer").lowercase
    inputs = ExperimentInputs(level, store, digest_store(store), settings.data, lowercase, settings.tasks, device)
    return make_plan(settings.experiment, inputs)


def fit_budget(
    settings: ExperimentSettings, level: ExperimentLevel, plan: TablePlan, costs: dict[str, JobCost]
) -> ExperimentLevel:
    """Return the level with as many steps and examples as fit the budget; limits keep their proportion.

    `costs`: of the plan's jobs at this level. Raises ValueError if the budget is too small for anything.
    """
    assert settings.budget is not None
    jobs = all_jobs(plan.jobs)
    pretraining = [costs[job.key] for job in jobs if isinstance(job, PretrainJob)]
    tuning = [costs[job.key] for job in jobs if isinstance(job, TaskJob)]
    seconds = 60 * settings.budget
    share, steps = 0.0, level.steps
    if pretraining:
        share = PRETRAINING_SHARE
        fixed = sum(cost.fixed for cost in pretraining)  # the number of evaluations does not depend on the steps
        training = sum(cost.seconds for cost in pretraining) - fixed
        steps = _round_down(level.steps * (seconds * share - fixed) / training)

    def tuning_seconds(scale: float) -> float:
        return sum(cost.with_limit(_scale(cost.limit, scale)) for cost in tuning)

    scale = [0.0, *SCALES][bisect(SCALES, seconds * (1 - share), key=tuning_seconds)]
    limits = [_scale(limit, scale) for limit in (level.limit, level.word_task_limit)]
    examples = min((limit for limit in limits if limit is not None), default=MIN_EXAMPLES)
    if steps < MIN_STEPS or examples < MIN_EXAMPLES:
        raise ValueError(
            f"--budget {settings.budget:g}: too little for {len(jobs)} jobs ({steps} steps and {examples} examples "
            "each); raise it, or choose fewer --tasks or --seeds"
        )
    return replace(level, steps=steps, limit=limits[0], word_task_limit=limits[1])


def _scale(limit: int | None, scale: float) -> int | None:
    """Return a limit times a factor, rounded down; None, no limit, becomes one only if the factor is below 1."""
    if limit is None and scale >= 1:
        return None
    return _round_down(scale * (UNLIMITED if limit is None else limit))


def _round_down(number: float) -> int:
    """Round down to two significant digits.

    >>> _round_down(12_345.6), _round_down(-3.0)
    (12000, 0)
    """
    if number < 1:
        return 0
    unit = 10 ** max(0, len(str(int(number))) - 2)
    return int(number // unit * unit)
