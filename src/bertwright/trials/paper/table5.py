"""Table 5 of the paper: pre-training objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertwright.trials.compose_job import ComposeJob, ComposeSettings
from bertwright.trials.job_maker import ACCURACY, UNTRAINED_POOLER, JobMaker, Starts
from bertwright.trials.jobs import Job
from bertwright.trials.table_plan import FLOORS, RANDOM, Claim, Figures, TablePlan, column_titles

TITLE = "Table 5: pre-training objectives"

MEAN_POOLING = ", mean pooling"  # ending of the names of rows
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
    sentences = {name: task for name, task in tasks.items() if name in SENTENCE_TASKS}
    mlm, ltr, rtl = maker.pretrain("mlm", "mlm"), maker.pretrain("ltr", "ltr"), maker.pretrain("rtl", "rtl")
    layers, seeds = maker.level.lstm_layers, range(maker.level.seeds)
    rows: dict[str, Starts | Sequence[Mapping[int, Job]]] = {
        "MLM + NSP": maker.pretrain("mlm+nsp", "mlm+nsp"),
        "MLM": mlm,
        "LTR": ltr,
        "LTR + BiLSTM": [
            {seed: _compose(maker, "LTR + BiLSTM", (job,), layers, seed) for seed in seeds} for job in ltr
        ],
        "LTR + RTL": tuple(_compose(maker, "LTR + RTL", pair, 0, 0) for pair in zip(ltr, rtl, strict=True)),
    }
    trials = [
        trial
        for row, starts in rows.items()
        for name, task in tasks.items()
        for trial in maker.finetune(row, name, task, starts)
    ]
    means = {"MLM": mlm, "LTR": ltr, RANDOM: maker.start_random()} if sentences else {}
    pooled = {f"{name}{MEAN_POOLING}": start for name, start in means.items()}
    for row, start in pooled.items():
        trials += [
            t for name, task in sentences.items() for t in maker.finetune(row, name, task, start, pooling="mean")
        ]
    trials += maker.floors(tasks)
    every = tuple(tasks)
    claims = [
        Claim("Next-sentence prediction helps on QNLI, MNLI and SQuAD", "MLM + NSP", "MLM", ("qnli", "mnli", "squad")),
        Claim("The bidirectional model is better than the left-to-right one", "MLM", "LTR", every),
        Claim("A BiLSTM improves the left-to-right model", "LTR + BiLSTM", "LTR", SPAN_TASKS),
        Claim("The bidirectional model is better than LTR + BiLSTM", "MLM", "LTR + BiLSTM", ("squad",)),
        Claim("A BiLSTM hurts the left-to-right model on sentence tasks", "LTR", "LTR + BiLSTM", tuple(sentences)),
        Claim("The bidirectional model is better than LTR and RTL concatenated", "MLM", "LTR + RTL", every),
    ]
    level = maker.level
    maker.notes += [
        "All rows are pre-trained on the same pairs of segments, also without next-sentence prediction (NSP), so that "
        "NSP differs from MLM by its loss alone, and held-out losses of both are of the same examples.",
        "Sentence tasks read [CLS] of bidirectional models, the token that is read last of LTR and RTL, and of the "
        "BiLSTM the last output of each direction. LTR + RTL has twice the parameters and states of twice the size.",
        f"{UNTRAINED_POOLER} Rows with mean pooling read the mean of all states instead.",
        f"LTR + BiLSTM: a {level.lstm_layers}-layer BiLSTM of {level.shape[1]} outputs, half of them for each "
        f"direction (the paper gives no size), with a peak rate of its own, {level.lstm_learning_rate:g}, since its "
        "weights are new.",
    ]
    names = (*rows, *pooled, *FLOORS)
    return TablePlan("table5", TITLE, column_titles(tasks), names, trials, claims, FIGURES, maker.notes)


def _compose(maker: JobMaker, name: str, parents: tuple[Job, ...], lstm_layers: int, seed: int) -> ComposeJob:
    """Return the job of a composed model."""
    described = f"compose {name}, seed {seed}" if lstm_layers else f"compose {name}"
    settings = ComposeSettings(lstm_layers, maker.level.lstm_learning_rate, seed, maker.inputs.device)
    return ComposeJob(described, (), parents, settings)
