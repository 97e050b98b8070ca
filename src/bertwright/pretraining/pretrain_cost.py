"""Estimated cost of a pre-training run, from a few steps and evaluations on its data."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bertwright.training.cost import CostEstimate, time_steps

if TYPE_CHECKING:
    from bertwright.pretraining.data import PretrainingData
    from bertwright.pretraining.run import PretrainRun

TIMED_SEQUENCES = 64  # of the held-out documents


def estimate_cost(run: PretrainRun) -> CostEstimate:
    """Estimate the steps and seconds of a whole run. This changes the optimizer's moments, so the run cannot train."""
    settings, seconds, evaluations = run.settings, 0.0, 0.0
    spec = replace(run.spec(), diagnose=None)
    for phase in settings.phases:
        seconds += (phase.end - phase.first) * time_steps(spec, run.context, phase.first)
    eval_steps = [*range(0, settings.steps, settings.eval_every), settings.steps]
    for index, data in enumerate(run.state.held_out):
        first = settings.phases[index].first if index else -1
        evaluations += sum(step > first for step in eval_steps) * time_evaluation(run, data)
    return CostEstimate(settings.steps, seconds + evaluations, evaluations)


def time_evaluation(run: PretrainRun, data: PretrainingData) -> float:
    """Return the seconds of an evaluation on held-out sequences of one length."""
    sample, whole = (
        min(sequences, data.examples_per_epoch) for sequences in (TIMED_SEQUENCES, run.settings.eval_sequences)
    )
    started = time.perf_counter()
    run.score(data, sample)
    return (time.perf_counter() - started) * whole / sample
