"""Tables 1 to 4 of the paper: one model on all tasks whose files are found, next to the paper's systems."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bertwright.trials.paper_table import Figures, PaperTable, Row

if TYPE_CHECKING:
    from bertwright.trials.experiment_plan import Plan

# Table 1 (GLUE test), tables 2 and 3 (SQuAD 1.1 and 2.0), table 4 (SWAG), table 7 (CoNLL-2003). WNLI is left out.
TEST: Figures = {
    "BiLSTM+ELMo+Attn": {
        "mnli": 76.4, "mnli_mismatched": 76.1, "qqp": 64.8, "qnli": 79.8, "sst2": 90.4, "cola": 36.0, "stsb": 73.3,
        "mrpc": 84.9, "rte": 56.8,
    },
    "OpenAI GPT": {
        "mnli": 82.1, "mnli_mismatched": 81.4, "qqp": 70.3, "qnli": 87.4, "sst2": 91.3, "cola": 45.4, "stsb": 80.0,
        "mrpc": 82.3, "rte": 56.0, "swag": 78.0,
    },
    "ELMo": {"conll2003": 92.2},
    "ESIM+GloVe": {"swag": 52.7},
    "ESIM+ELMo": {"swag": 59.2},
    "BERT BASE": {
        "mnli": 84.6, "mnli_mismatched": 83.4, "qqp": 71.2, "qnli": 90.5, "sst2": 93.5, "cola": 52.1, "stsb": 85.8,
        "mrpc": 88.9, "rte": 66.4, "conll2003": 92.4,
    },
    "BERT LARGE": {
        "mnli": 86.7, "mnli_mismatched": 85.9, "qqp": 72.1, "qnli": 92.7, "sst2": 94.9, "cola": 60.5, "stsb": 86.5,
        "mrpc": 89.3, "rte": 70.1, "squad_v2 EM": 80.0, "squad_v2": 83.1, "swag": 86.3, "conll2003": 92.8,
    },
    "BERT LARGE, ensemble + TriviaQA": {"squad EM": 87.4, "squad": 93.2},
}  # fmt: skip
DEV: Figures = {
    "ESIM+GloVe": {"swag": 51.9},
    "ESIM+ELMo": {"swag": 59.1},
    "ELMo": {"conll2003": 95.7},
    "BERT BASE": {"squad EM": 80.8, "squad": 88.5, "swag": 81.6, "conll2003": 96.4},
    "BERT LARGE": {
        "squad EM": 84.1, "squad": 90.9, "squad_v2 EM": 78.7, "squad_v2": 81.9, "swag": 86.6, "conll2003": 96.6,
    },
    "BERT LARGE, ensemble + TriviaQA": {"squad EM": 86.2, "squad": 92.2},
}  # fmt: skip
SYSTEMS = (
    "BiLSTM+ELMo+Attn", "ESIM+GloVe", "ESIM+ELMo", "ELMo", "OpenAI GPT", "BERT BASE", "BERT LARGE",
    "BERT LARGE, ensemble + TriviaQA",
)  # fmt: skip
GLUE = ("mnli", "mnli_mismatched", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
"""Columns of table 1; its average is their mean, both halves of MNLI counted."""
# Rows of the paper for one task or one table: they are listed below the table, which has no room for their columns.
OTHER_SYSTEMS = {
    "GLUE": "before OpenAI GPT: MNLI 80.6 and 80.1, QQP 66.1, QNLI 82.3, SST-2 93.2, CoLA 35.0, STS-B 81.0, MRPC 86.0, "
    "RTE 61.7, on average 74.0 (test)",
    "squad": "exact match and F1: human 82.3 and 91.2 (test), nlnet ensemble 86.0 and 91.7 (test), QANet ensemble 84.5 "
    "and 90.5 (test), BiDAF+ELMo F1 85.6 (dev) and 85.8 (test), R.M. Reader ensemble 81.2 and 87.9 (dev), 82.3 and "
    "88.5 (test), BERT LARGE ensemble 85.8 and 91.8 (dev), BERT LARGE single + TriviaQA 84.2 and 91.1 (dev), 85.1 and "
    "91.8 (test)",
    "squad_v2": "exact match and F1: human 86.3 and 89.0 (dev), 86.9 and 89.5 (test), MIR-MRC (F-Net) 74.8 and 78.0, "
    "nlnet 74.2 and 77.1, unet ensemble 71.4 and 74.9, SLQA+ 71.4 and 74.4 (test)",
    "swag": "human expert 85.0, five human annotations 88.0 (test)",
    "conll2003": "CVT 92.6, CSE 93.1 (test)",
}

AVERAGE, ON_TEST = "GLUE average", "test"
TABLE1_TASKS = (
    "mnli", "mnli_mismatched", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "squad", "squad_v2", "swag",
    "conll2003", "codah", "conll2000", "ud_pos", "nsmc", "korquad",
)  # fmt: skip


def finish(plan: Plan) -> Plan:
    """Return the plan with the average of GLUE, the rows of the paper, and other systems in the notes."""
    glue = tuple(column for column in plan.columns if column in GLUE)
    named = [*(["GLUE"] if glue else []), *(name for name in OTHER_SYSTEMS if name in plan.columns)]
    notes = [f"Other systems in the paper, {name}: {OTHER_SYSTEMS[name]}." for name in named]
    averages = {AVERAGE: glue} if len(glue) > 1 else {}
    columns = plan.columns | {name: f"GLUE average of {len(columns)}" for name, columns in averages.items()}
    figures, splits = published_figures([*columns], glue)
    return replace(
        plan,
        rows=(*plan.rows, *(row for row in SYSTEMS if figures[row])),
        columns=columns,
        notes=[*plan.notes, *notes],
        averages=averages,
        figures=figures,
        figure_splits=splits,
        is_transposed=True,
    )


def published_figures(columns: Sequence[str], glue: Sequence[str]) -> tuple[Figures, dict[tuple[str, str], str]]:
    """Return the figures of tables 1 to 4 in our columns, and the split of each figure that is on another split.

    Column TASK is on dev, TASK test on test. Without a test column, the paper's test score is in the dev column.
    `glue`: the tasks of the average.
    """
    figures = dict[str, dict[str, float]]()
    splits: dict[tuple[str, str], str] = {}
    for row in SYSTEMS:
        dev, test = DEV.get(row, {}), TEST.get(row, {})
        test_columns = {f"{task} {ON_TEST}": figure for task, figure in test.items()}
        same_split = {column: figure for column, figure in {**dev, **test_columns}.items() if column in columns}
        on_test = {
            task: figure
            for task, figure in test.items()
            if task in columns and task not in dev and f"{task} {ON_TEST}" not in columns
        }
        if AVERAGE in columns and all(task in test for task in glue):
            on_test[AVERAGE] = statistics.fmean(test[task] for task in glue)
        figures[row] = same_split | on_test
        splits |= {(row, column): ON_TEST for column in on_test}
    return figures, splits


TABLE = PaperTable(
    title="Tables 1 to 4: all tasks",
    tasks=(TABLE1_TASKS,),
    rows={"ours": Row()},
    takes_model=True,
    has_all_scores=True,
    parts=("table2", "table3", "table4"),
    finish=finish,
)
