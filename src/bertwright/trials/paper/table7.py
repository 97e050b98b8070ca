"""Table 7 of the paper: fine-tuning and six kinds of features, on CoNLL-2003."""

from __future__ import annotations

from bertwright.interop.huggingface import load_config
from bertwright.interop.model_files import model_folder
from bertwright.models.representations import PAPER_F1, PAPER_FINE_TUNED_F1, REPRESENTATIONS
from bertwright.trials.job_maker import JobMaker, describe_heads
from bertwright.trials.table_plan import FLOORS, RANDOM, Claim, TablePlan

TITLE = "Table 7: features and fine-tuning"
TAKES_MODEL = True
ONLY_TASK = "conll2003"

FINE_TUNED = "fine-tuned"


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of table 7: fine-tuning and six kinds of features, on CoNLL-2003."""
    task = maker.find_tasks(("conll2003",))["conll2003"]
    parent, model = maker.start(), maker.inputs.model
    layers = maker.level.shape[0] if model is None else load_config(model_folder(model)).num_layers
    names = [name for name, features in REPRESENTATIONS.items() if layers >= -(features.layers.start or 0)]
    if skipped := [name for name in REPRESENTATIONS if name not in names]:
        maker.notes.append(f"The model has {layers} layers, too few for {', '.join(skipped)}.")
    maker.notes.append(describe_heads(maker.level))
    cells = {name: (f"features: {name}", "conll2003") for name in names}
    trials = maker.finetune(FINE_TUNED, "conll2003", task, parent)
    trials += maker.probe(cells, task, parent, model or "model")
    trials += maker.floors({"conll2003": task})
    rows = (FINE_TUNED, *(row for row, _ in cells.values()), *FLOORS)
    if model is None:
        frozen = {names[-1]: (f"{RANDOM}: {names[-1]}", "conll2003")}
        trials += maker.probe(frozen, task, maker.start_random(), "random weights")
        rows = (*rows, f"{RANDOM}: {names[-1]}")
    figures = {row: {"conll2003": 100 * PAPER_F1[name]} for name, (row, _) in cells.items()}
    figures[FINE_TUNED] = {"conll2003": 100 * PAPER_FINE_TUNED_F1}

    def claim(text: str, better: str, worse: str) -> list[Claim]:
        rows = [better, worse]
        return [Claim(text, better, worse, ("conll2003",))] if all(row in figures for row in rows) else []

    last, four, every = ("features: last", "features: concat-last-four", "features: sum-all")
    claims = [
        *claim("Fine-tuning is better than the last four layers as features", FINE_TUNED, four),
        *claim("The last four layers are better features than the last one", four, last),
        *claim("All layers are better features than the last one", every, last),
        *claim("The last layer is better than the embeddings", last, "features: embeddings"),
    ]
    titles = {"conll2003": "conll2003 F1"}
    return TablePlan("table7", TITLE, titles, rows, trials, claims, figures, maker.notes)
