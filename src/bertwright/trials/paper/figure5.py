"""Figure 5 of the paper: scores against the steps of pre-training."""

from __future__ import annotations

from bertwright.trials.job_maker import CURVE_CHECKPOINTS, UNTRAINED_POOLER, JobMaker, Objective
from bertwright.trials.table_plan import FLOORS, Claim, TablePlan, column_titles

TITLE = "Figure 5: scores against the steps of pre-training"
IS_CURVE = True


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of figure 5: scores against the steps of pre-training."""
    candidates = ("mnli",) if maker.has_mnli else ("sst2", "conll2003")
    tasks = maker.find_tasks(candidates, max_length=maker.level.max_length)
    steps, trials = dict[str, tuple[str, int]](), []
    saved = list_checkpoint_steps(maker.level.steps)
    objectives: dict[str, Objective] = {"MLM": "mlm", "LTR": "ltr"}
    for series, objective in objectives.items():
        parent = maker.pretrain(objective, objective)
        for step in saved:
            row = f"{series}, {step:,} steps"
            steps[row] = (series, step)
            checkpoint = None if step == saved[-1] else step
            trials += [t for name, task in tasks.items() for t in maker.finetune(row, name, task, parent, checkpoint)]
    first, half, last = saved[0], saved[len(saved) // 2 - 1], saved[-1]
    every = tuple(tasks)
    trials += maker.floors(tasks)
    claims = [
        Claim("The second half of pre-training helps", f"MLM, {last:,} steps", f"MLM, {half:,} steps", every),
        Claim("MLM is better than LTR almost at once", f"MLM, {first:,} steps", f"LTR, {first:,} steps", every),
        Claim("MLM is better than LTR in the end", f"MLM, {last:,} steps", f"LTR, {last:,} steps", every),
    ]
    maker.notes.append(UNTRAINED_POOLER)
    return TablePlan("figure5", TITLE, column_titles(tasks), (*steps, *FLOORS), trials, claims, {}, maker.notes, steps)


def list_checkpoint_steps(steps: int) -> list[int]:
    """Return the steps of figure 5: every tenth of a pre-training.

    >>> list_checkpoint_steps(4_005)[-3:]
    [3200, 3600, 4005]
    """
    every = max(1, steps // CURVE_CHECKPOINTS)
    return [*range(every, CURVE_CHECKPOINTS * every, every), steps]
