"""Table 6 of the paper: model size, with held-out perplexity."""

from __future__ import annotations

from itertools import pairwise

from bertwright.models.shapes import format_shape
from bertwright.trials.job_maker import ACCURACY, JobMaker
from bertwright.trials.table_plan import FLOORS, PERPLEXITY, Claim, Figures, TablePlan, Trial, column_titles

TITLE = "Table 6: model size"

FIGURES: Figures = {
    "L3 H768 A12": {"perplexity": 5.84, "mnli": 77.9, "mrpc": 79.8, "sst2": 88.4},
    "L6 H768 A3": {"perplexity": 5.24, "mnli": 80.6, "mrpc": 82.2, "sst2": 90.7},
    "L6 H768 A12": {"perplexity": 4.68, "mnli": 81.9, "mrpc": 84.8, "sst2": 91.3},
    "L12 H768 A12": {"perplexity": 3.99, "mnli": 84.4, "mrpc": 86.7, "sst2": 92.9},
    "L12 H1024 A16": {"perplexity": 3.54, "mnli": 85.7, "mrpc": 86.9, "sst2": 93.3},
    "L24 H1024 A16": {"perplexity": 3.23, "mnli": 86.6, "mrpc": 87.8, "sst2": 93.7},
}


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of table 6: model sizes, with held-out perplexity."""
    tasks = maker.find_tasks(("mnli", "mrpc", "sst2"), ACCURACY)
    trials, figures = list[Trial](), Figures()
    for shape, (published, scores) in zip(maker.level.shapes, FIGURES.items(), strict=True):
        row = format_shape(*shape)
        starts = maker.pretrain(f"mlm+nsp, {row}", "mlm+nsp", shape)
        row = row if row == published else f"{row} (paper: {published})"
        figures[row] = scores
        for seed, start in enumerate(starts):
            trials.append(Trial(row, PERPLEXITY, 0, 0.0, start, PERPLEXITY, PERPLEXITY, seed))
        trials += [trial for name, task in tasks.items() for trial in maker.finetune(row, name, task, starts)]
    trials += maker.floors(tasks)
    rows = tuple(figures)
    claims = [Claim("The largest model is better than the smallest one", rows[-1], rows[0], tuple(tasks))]
    claims += [
        Claim(f"{larger} has a lower perplexity than {smaller}", larger, smaller, (PERPLEXITY,))
        for smaller, larger in pairwise(rows)
    ]
    maker.notes.append(
        f"Perplexity is on held-out sequences of up to {maker.level.max_length} tokens. Random weights are of "
        f"{format_shape(*maker.level.shape)}."
    )
    titles = {PERPLEXITY: "held-out perplexity"} | column_titles(tasks)
    return TablePlan("table6", TITLE, titles, (*rows, *FLOORS), trials, claims, figures, maker.notes)
