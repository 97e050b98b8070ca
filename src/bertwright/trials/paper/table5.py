"""Table 5 of the paper: pre-training objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertwright.trials.paper_table import ACCURACY, RANDOM, UNTRAINED_POOLER, Claim, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.planner import Planner

SENTENCE_TASKS = ("mnli", "qnli", "mrpc", "rte", "sst2", "stsb")
SPAN_TASKS = ("conll2003", "squad")


def notes(planner: Planner) -> tuple[str, ...]:
    level = planner.level
    return (
        "All rows are pre-trained on the same pairs of segments, also without next-sentence prediction (NSP), so that "
        "NSP differs from MLM by its loss alone, and held-out losses of both are of the same examples.",
        "Sentence tasks read [CLS] of bidirectional models, the token that is read last of LTR and RTL, and of the "
        "BiLSTM the last output of each direction. LTR + RTL has twice the parameters and states of twice the size.",
        f"{UNTRAINED_POOLER} Rows with mean pooling read the mean of all states instead.",
        f"LTR + BiLSTM: a {level.lstm_layers}-layer BiLSTM of {level.shape[1]} outputs, half of them for each "
        f"direction (the paper gives no size), with a peak rate of its own, {level.lstm_learning_rate:g}, since its "
        "weights are new.",
    )


TABLE = PaperTable(
    title="Table 5: pre-training objectives",
    tasks=((*SENTENCE_TASKS, *SPAN_TASKS),),
    metrics=ACCURACY,
    rows={
        "MLM + NSP": Row(),
        "MLM": Row("mlm"),
        "LTR": Row("ltr"),
        "LTR + BiLSTM": Row("ltr", has_lstm=True),
        "LTR + RTL": Row("ltr", beside="rtl"),
        "MLM, mean pooling": Row("mlm", pooling="mean", only=SENTENCE_TASKS),
        "LTR, mean pooling": Row("ltr", pooling="mean", only=SENTENCE_TASKS),
        f"{RANDOM}, mean pooling": Row(is_random=True, pooling="mean", only=SENTENCE_TASKS),
    },
    figures={
        "MLM + NSP": {"mnli": 84.4, "qnli": 88.4, "mrpc": 86.7, "sst2": 92.7, "squad": 88.5},
        "MLM": {"mnli": 83.9, "qnli": 84.9, "mrpc": 86.5, "sst2": 92.6, "squad": 87.9},
        "LTR": {"mnli": 82.1, "qnli": 84.3, "mrpc": 77.5, "sst2": 92.1, "squad": 77.8},
        "LTR + BiLSTM": {"mnli": 82.1, "qnli": 84.1, "mrpc": 75.7, "sst2": 91.6, "squad": 84.9},
    },
    claims=(
        Claim("Next-sentence prediction helps on QNLI, MNLI and SQuAD", "MLM + NSP", "MLM", ("qnli", "mnli", "squad")),
        Claim("The bidirectional model is better than the left-to-right one", "MLM", "LTR"),
        Claim("A BiLSTM improves the left-to-right model", "LTR + BiLSTM", "LTR", SPAN_TASKS),
        Claim("The bidirectional model is better than LTR + BiLSTM", "MLM", "LTR + BiLSTM", ("squad",)),
        Claim("A BiLSTM hurts the left-to-right model on sentence tasks", "LTR", "LTR + BiLSTM", SENTENCE_TASKS),
        Claim("The bidirectional model is better than LTR and RTL concatenated", "MLM", "LTR + RTL"),
    ),
    notes=notes,
)
