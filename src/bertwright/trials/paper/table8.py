"""Table 8 of the paper: masking strategies."""

from __future__ import annotations

from bertwright.models.representations import RepresentationName
from bertwright.objectives.masking import Mix
from bertwright.trials.job_maker import PAPER_MIX, JobMaker, describe_heads
from bertwright.trials.table_plan import FEATURES, FLOORS, RANDOM, Claim, Figures, TablePlan, Trial, column_titles

TITLE = "Table 8: masking strategies (MASK/SAME/RND, percent)"

MIXES: dict[str, Mix] = {
    "80/10/10": PAPER_MIX,
    "100/0/0": (1.0, 0.0, 0.0),
    "80/0/20": (0.8, 0.0, 0.2),
    "80/20/0": (0.8, 0.2, 0.0),
    "0/20/80": (0.0, 0.2, 0.8),
    "0/0/100": (0.0, 0.0, 1.0),
}

# NER by fine-tuning, NER on frozen features.
FIGURES: Figures = {
    "80/10/10": {"mnli": 84.2, "conll2003": 95.4, "features": 94.9},
    "100/0/0": {"mnli": 84.3, "conll2003": 94.9, "features": 94.0},
    "80/0/20": {"mnli": 84.1, "conll2003": 95.2, "features": 94.6},
    "80/20/0": {"mnli": 84.4, "conll2003": 95.2, "features": 94.7},
    "0/20/80": {"mnli": 83.7, "conll2003": 94.8, "features": 94.6},
    "0/0/100": {"mnli": 83.6, "conll2003": 94.9, "features": 94.6},
}


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of table 8: masking strategies."""
    tasks = maker.find_tasks(("mnli" if maker.has_mnli else "sst2", "conll2003"))
    trials: list[Trial] = []
    representation: RepresentationName = "concat-last-four" if maker.level.shape[0] >= 4 else "sum-all"
    for row, mix in MIXES.items():
        parent = maker.pretrain(
            f"mlm+nsp, masks {row}", "mlm+nsp", data={"mask_mix": mix} if mix != PAPER_MIX else None
        )
        trials += [trial for name, task in tasks.items() for trial in maker.finetune(row, name, task, parent)]
        if "conll2003" in tasks:
            cell = (row, FEATURES)
            trials += maker.probe({representation: cell}, tasks["conll2003"], parent, f"model, masks {row}")
    trials += maker.floors(tasks)
    if "conll2003" in tasks:
        cells = {representation: (RANDOM, FEATURES)}
        trials += maker.probe(cells, tasks["conll2003"], maker.start_random(), "random weights")
    titles = column_titles(tasks)
    claims = [
        Claim("[MASK] alone is worse than the mix, if NER reads features", "80/10/10", "100/0/0", (FEATURES,)),
        Claim("[MASK] alone is worse than the mix, if NER is fine-tuned", "80/10/10", "100/0/0", ("conll2003",)),
        Claim("Random tokens alone are worse than the mix", "80/10/10", "0/0/100", tuple(tasks)),
    ]
    if "conll2003" in tasks:
        titles[FEATURES] = "conll2003 features F1"
        maker.notes.append(f"Features are {representation}. {describe_heads(maker.level)}")
    maker.notes.append("Held-out losses of rows with other mixes are of other inputs, so that they cannot be compared.")
    return TablePlan("table8", TITLE, titles, (*MIXES, *FLOORS), trials, claims, FIGURES, maker.notes)
