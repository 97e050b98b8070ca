"""Helpers for tests of small experiments: settings to plan, report folder, output and scores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.trials.experiment import choose_level, experiment, plan_experiment, report_folder
from bertwright.trials.experiment_plan import Plan
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.pretrain_trials import Pretrain
from bertwright.trials.runner import Runner
from bertwright.trials.trial import Trial, all_trials
from harness import run_and_capture

Make = Callable[..., ExperimentSettings]

CLASSES = {"bear": "PER", "deer": "PER", "fish": "LOC", "wolf": "LOC", "crow": "ORG", "hare": "ORG"}
OTHERS = "the in sees hears fears finds".split()


def sentences(number: int, seed: int) -> str:
    """Return CoNLL columns in which the word alone decides its tag."""
    rng = np.random.default_rng(seed)
    lines = ["-DOCSTART- -X- O O", ""]
    for _ in range(number):
        words = rng.choice([*CLASSES, *OTHERS], int(rng.integers(3, 8)))
        lines += [f"{word} N O {'B-' + CLASSES[word] if word in CLASSES else 'O'}" for word in words] + [""]
    return "\n".join(lines)


def plan_of(settings: ExperimentSettings) -> Plan:
    return plan_experiment(settings, choose_level(settings))


def output(settings: ExperimentSettings) -> Path:
    return report_folder(settings, plan_of(settings))


run_experiment = partial(run_and_capture, experiment)


def results(settings: ExperimentSettings) -> dict[str, Any]:
    """Return the scores of all jobs by key."""
    work = Runner(settings.work.resolve())
    found = {job.key: work.result(job) for job in all_trials(plan_of(settings).ordered)}
    return {key: result and result.scores for key, result in found.items()}


def copy_results(finished: ExperimentSettings, begun: ExperimentSettings, is_missing: Callable[[Trial], bool]) -> None:
    """Copy the jobs of a finished experiment into a work folder, except missing ones and the jobs that need them."""
    source, target = Runner(finished.work.resolve()), Runner(begun.work)
    for job in all_trials(plan_of(begun).ordered):
        if not any(map(is_missing, all_trials([job]))):
            shutil.copytree(source.folder(job), target.folder(job), symlinks=True)


def is_pretraining(objective: str) -> Callable[[Trial], bool]:
    """Return a function that tells the pre-trainings of an objective from other jobs."""
    return lambda job: isinstance(job, Pretrain) and job.settings.data.objective == objective
