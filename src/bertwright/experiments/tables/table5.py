"""Table 5 of the paper: pre-training objectives."""

from __future__ import annotations

from bertwright.experiments.composed_models import ComposeJob, ComposeSettings
from bertwright.experiments.job_maker import ACCURACY, UNTRAINED_POOLER, JobMaker
from bertwright.experiments.jobs import Job, PretrainJob
from bertwright.experiments.table_plan import Claim, Figures, TablePlan, column_titles

TITLE = "Table 5: pre-training objectives"

SENTENCE_TASKS = ("mnli", "qnli", "mrpc", "rte", "sst2", "stsb")
SPAN_TASKS = ("conll2003", "squad")

FIGURES: Figures = {
    "MLM + NSP": {"mnli": 84.4, "qnli": 88.4, "mrpc": 86.7, "sst2": 92.7, "squad": 88.5},
    "MLM": {"mnli": 83.9, "qnli": 84.9, "mrpc": 86.5, "sst2": 92.6, "squad": 87.9},
    "LTR": {"mnli": 82.1, "qnli": 84.3, "mrpc": 77.5, "sst2": 92.1, "squad": 77.8},
    "LTR + BiLSTM": {"mnli": 82.1, "qnli": 84.1, "mrpc": 75.7, "sst2": 91.6, "squad": 84.9},
}


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of table 5: pre-training objectives."""
    tasks = maker.find_tasks((*SENTENCE_TASKS, *SPAN_TASKS), ACCURACY)
    ltr, rtl = maker.pretrain("ltr", "ltr"), maker.pretrain("rtl", "rtl")
    seeds = range(maker.level.seeds)
    parents: dict[str, Job | dict[int, Job]] = {
        "MLM + NSP": maker.pretrain("mlm+nsp", "mlm+nsp"),
        "MLM": maker.pretrain("mlm", "mlm"),
        "LTR": ltr,
        "LTR + BiLSTM": {
            seed: _compose(maker, "LTR + BiLSTM", (ltr,), maker.level.lstm_layers, seed) for seed in seeds
        },
        "LTR + RTL": _compose(maker, "LTR + RTL", (ltr, rtl), 0, 0),
    }
    trials = [
        trial
        for row, parent in parents.items()
        for name, task in tasks.items()
        for trial in maker.finetune(row, name, task, parent)
    ]
    every, sentences = tuple(tasks), tuple(name for name in tasks if name in SENTENCE_TASKS)
    claims = [
        Claim("Next-sentence prediction helps on QNLI, MNLI and SQuAD", "MLM + NSP", "MLM", ("qnli", "mnli", "squad")),
        Claim("The bidirectional model is better than the left-to-right one over all tasks", "MLM", "LTR", every),
        Claim("The bidirectional model is better than the left-to-right one on SQuAD", "MLM", "LTR", ("squad",)),
        Claim("The bidirectional model is better than the left-to-right one on NER", "MLM", "LTR", ("conll2003",)),
        Claim("A BiLSTM improves the left-to-right model on SQuAD", "LTR + BiLSTM", "LTR", ("squad",)),
        Claim("A BiLSTM improves the left-to-right model on NER", "LTR + BiLSTM", "LTR", ("conll2003",)),
        Claim("The bidirectional model is better than LTR + BiLSTM on SQuAD", "MLM", "LTR + BiLSTM", ("squad",)),
        Claim("A BiLSTM hurts the left-to-right model on sentence tasks", "LTR", "LTR + BiLSTM", sentences),
        Claim("The bidirectional model is better than LTR and RTL concatenated", "MLM", "LTR + RTL", every),
    ]
    level = maker.level
    maker.notes += [
        "Sentence tasks read [CLS] of bidirectional models, the token that is read last of LTR and RTL, and of the "
        "BiLSTM the last output of each direction. LTR + RTL has twice the parameters and states of twice the size.",
        UNTRAINED_POOLER,
        f"LTR + BiLSTM: a {level.lstm_layers}-layer BiLSTM of {level.shape[1]} outputs, half of them for each "
        f"direction (the paper gives no size), with a peak rate of its own, {level.lstm_learning_rate:g}, since its "
        "weights are new.",
    ]
    return TablePlan("table5", TITLE, column_titles(tasks), tuple(parents), trials, claims, FIGURES, maker.notes)


def _compose(maker: JobMaker, name: str, parents: tuple[PretrainJob, ...], lstm_layers: int, seed: int) -> ComposeJob:
    """Return the job of a composed model."""
    described = f"compose {name}, seed {seed}" if lstm_layers else f"compose {name}"
    settings = ComposeSettings(lstm_layers, maker.level.lstm_learning_rate, seed, maker.inputs.device)
    return ComposeJob(described, (), parents, settings)
