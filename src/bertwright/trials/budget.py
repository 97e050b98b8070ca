"""Estimated time of trials, and the sizes that fit a budget.

The first trial of each kind is measured with a few steps, and the others take as long.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bertwright.base.reporter import Reporter
from bertwright.training.fit import graceful_shutdown
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.levels import ExperimentLevel
from bertwright.trials.pretrain_trials import Pretrain
from bertwright.trials.task_trials import Finetune, Probe
from bertwright.trials.trial import Cost, Trial, write_untrained

MIN_STEPS, MIN_EXAMPLES = 100, 50
SCALES = [10 ** (power / 1_000) for power in range(-5_000, 2_001)]  # factors of the limits, which a budget chooses from
PRETRAINING_SHARE = 0.5  # share of a budget that pre-training gets
UNLIMITED = 400_000  # examples that a level without limits is scaled from: MNLI, the largest task, has 392,702


def estimate_costs(trials: Sequence[Trial], reporter: Reporter) -> dict[str, Cost]:
    """Return the estimated time of each trial by its key; of trials that take as long, the first is measured.

    No files are left behind. Raises ValueError as the runs do for settings and files that are not usable.
    """
    by_kind: dict[Hashable, Cost] = {}
    by_key: dict[str, Cost] = {}
    with reporter.progress("measuring", len(trials)) as advance, graceful_shutdown() as stop_signals:
        for trial in trials:
            if stop_signals:  # during the last step of a measurement, which is then finished
                raise KeyboardInterrupt
            if trial.likeness not in by_kind:
                with TemporaryDirectory() as folder:
                    models = write_untrained(trial.parents, Path(folder)) if isinstance(trial, Finetune | Probe) else []
                    by_kind[trial.likeness] = trial.measure(models)
            by_key[trial.key] = by_kind[trial.likeness]
            advance(1)
    return by_key


def fit_budget(
    settings: ExperimentSettings, level: ExperimentLevel, trials: Sequence[Trial], costs: dict[str, Cost]
) -> ExperimentLevel:
    """Return the level with as many steps and examples as fit the budget; limits keep their proportion.

    `costs`: time of each trial at this level, by key. Raises ValueError if the budget is too small for anything.
    """
    assert settings.budget is not None
    pretraining = [costs[trial.key] for trial in trials if isinstance(trial, Pretrain)]
    tuning = [costs[trial.key] for trial in trials if isinstance(trial, Finetune | Probe)]
    seconds = 60 * settings.budget
    share, steps = 0.0, level.steps
    if pretraining:
        share = PRETRAINING_SHARE
        fixed = sum(cost.fixed for cost in pretraining)  # the number of evaluations does not depend on the steps
        steps = _round_down(level.steps * (seconds * share - fixed) / sum(cost.training for cost in pretraining))

    def tuning_seconds(scale: float) -> float:
        return sum(cost.with_limit(_scale(cost.limit, scale)) for cost in tuning)

    scale = [0.0, *SCALES][bisect(SCALES, seconds * (1 - share), key=tuning_seconds)]
    limits = [_scale(limit, scale) for limit in (level.limit, level.word_task_limit)]
    examples = min((limit for limit in limits if limit is not None), default=MIN_EXAMPLES)
    if steps < MIN_STEPS or examples < MIN_EXAMPLES:
        raise ValueError(
            f"--budget {settings.budget:g}: too little for {len(trials)} runs ({steps} steps and {examples} examples "
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
