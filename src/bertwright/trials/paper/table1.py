"""Tables 1 to 4 of the paper: one model on all tasks whose files are found, next to the paper's systems."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bertwright.tasks.presets import PRESETS
from bertwright.trials.job_maker import JobMaker
from bertwright.trials.table_plan import FLOORS, Figures, TablePlan, Trial, column_titles
from bertwright.trials.task_files import add_test_files

TITLE = "Tables 1 to 4: all tasks"
PARTS = "table2 table3 table4"
TAKES_MODEL = True

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

OURS, AVERAGE, ON_TEST = "ours", "GLUE average", "test"
TABLE1_TASKS = (
    "mnli", "mnli_mismatched", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "squad", "squad_v2", "swag",
    "conll2003", "codah", "conll2000", "ud_pos", "nsmc", "korquad",
)  # fmt: skip


def make_plan(maker: JobMaker) -> TablePlan:
    """Return the plan of tables 1 to 4: one model on all tasks whose files are found, next to the paper's systems."""
    tasks, parent = maker.find_tasks(TABLE1_TASKS), maker.start()
    trials, titles = list[Trial](), dict[str, str]()
    for name, found in tasks.items():
        task, note = add_test_files(found)
        maker.notes += [note] if note else []
        scores = {name: "dev"}
        titles |= column_titles({name: task})
        if PRESETS[name].task.kind == "question-answering":
            scores[f"{name} EM"] = "exact_match"
            titles[f"{name} EM"] = f"{name} EM"
        if task.settings.test:
            scores[f"{name} {ON_TEST}"] = f"test_{task.settings.build_task().metric}"
            titles[f"{name} {ON_TEST}"] = f"{titles[name]}, test"
        tuned = maker.finetune(OURS, name, task, parent) + maker.floors({name: task})
        trials += [trial._replace(column=column, score=score) for column, score in scores.items() for trial in tuned]
    glue = tuple(name for name in tasks if name in GLUE)
    for name, others in OTHER_SYSTEMS.items():
        if name in tasks or (name == "GLUE" and glue):
            maker.notes.append(f"Other systems in the paper, {name}: {others}.")
    averages = {}
    if len(glue) > 1:
        averages[AVERAGE], titles[AVERAGE] = glue, f"GLUE average of {len(glue)}"
    figures, splits = published_figures(list(titles), glue)
    rows = (OURS, *FLOORS, *(row for row in SYSTEMS if figures[row]))
    return TablePlan(
        "table1", TITLE, titles, rows, trials, [], figures, maker.notes,
        averages=averages, figure_splits=splits, is_transposed=True,
    )  # fmt: skip


def published_figures(columns: Sequence[str], glue: Sequence[str]) -> tuple[Figures, dict[tuple[str, str], str]]:
    """Return the figures of tables 1 to 4 in our columns, and the split of each figure that is on another split.

    Column TASK is on dev, TASK test on test. Without a test column, the paper's test score is in the dev column.
    `glue`: the tasks of the average.
    """
    figures: Figures = {row: {} for row in SYSTEMS}
    splits: dict[tuple[str, str], str] = {}
    for row in figures:
        dev, test = DEV.get(row, {}), TEST.get(row, {})
        test_columns = {f"{task} {ON_TEST}": figure for task, figure in test.items()}
        same_split = {column: figure for column, figure in (dev | test_columns).items() if column in columns}
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
