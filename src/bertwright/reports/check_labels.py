"""`bertwright check-labels`: training rows whose label is probably wrong, by a linear model that has not seen them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.base.example_order import permute
from bertwright.base.files import check_absent, new_file
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.seeding import derive_key
from bertwright.base.settings import Positional, check_not_str
from bertwright.inference.predict_outputs import PredictedExample, write_predictions
from bertwright.inference.predict_settings import TABLE_SUFFIXES
from bertwright.metrics.calibration import rank_suspects
from bertwright.tables.neighbours import join_as_glob
from bertwright.tasks.classification import Classification, LabelPrediction
from bertwright.tasks.linear_floor import LINEAR, train_floor
from bertwright.tasks.task import softmax
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import check_exist, check_unique

FOLDS, FOLD_SEED = 5, 2
SHOWN = 20
COLUMNS = ("text", "label", "probably", "probability")


@dataclass(frozen=True)
class CheckLabelsSettings:
    """List the rows of a classification whose label is probably wrong, for a person to look at.

    A linear model of words and bigrams is trained on four fifths of the rows and predicts the fifth, five times.
    """

    inputs: Positional[tuple[str, ...]]
    """Labeled files of a classification, in the format of the training files."""
    output: Path | None = None
    """Also write all these rows, with their probabilities, to this new .tsv, .csv or .jsonl file."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        if self.output is not None and self.output.suffix not in (".jsonl", *TABLE_SUFFIXES):
            raise ValueError(f"--output {self.output}: expected one of .jsonl, {', '.join(TABLE_SUFFIXES)}")


def check_inputs(settings: CheckLabelsSettings) -> None:
    """Raise ValueError for files that are missing or named twice, and for an output that is there."""
    check_unique(settings.inputs)
    check_exist(settings.inputs)
    if settings.output is not None:
        check_absent(settings.output)


def check_labels(settings: CheckLabelsSettings, reporter: Reporter = SILENT) -> list[PredictedExample]:
    """Return the examples of all files whose label is probably wrong, the most suspicious one first."""
    check_inputs(settings)
    task = settings.overrides.apply_to(Classification())
    examples = [example for path in join_as_glob(settings.inputs) for example in task.read(path)]
    task = task.with_labels_of(examples)
    with new_file(settings.output) if settings.output else nullcontext() as temporary:
        with reporter.progress("linear models", None):
            suspects = find_suspects(task, examples)
        if temporary is not None and settings.output is not None:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                write_predictions(file, settings.output.suffix, task, suspects)
    reporter.record(Heading(f"{len(suspects):,} of {len(examples):,} labels are probably wrong"))
    if suspects:
        reporter.record(Rows(COLUMNS, format_suspects(suspects[:SHOWN]), texts=(0,)))
    if settings.output is not None:
        reporter.record(Line(f"{settings.output}: {len(suspects):,} rows written"))
    return suspects


def format_suspects(suspects: Sequence[PredictedExample]) -> list[tuple[str, ...]]:
    """Return the text, the label, the predicted label and its probability of each suspect."""
    return [(str(one), one.label, guess.label, f"{guess.probability:.1%}") for one, guess, _ in suspects]


def find_suspects(task: Any, examples: Sequence[Any]) -> list[PredictedExample]:
    """Return the examples of a classification whose label is probably wrong, with predictions that have not seen them.

    Equal texts are in the same fold. Equal calls have equal results. Raises ValueError for fewer texts than folds.
    """
    keys = task.group_keys(examples)
    groups = [*dict.fromkeys(keys)]
    if len(groups) < FOLDS:
        raise ValueError(f"{examples[0].location}: expected at least {FOLDS} different texts, got {len(groups)}")
    order = permute(np.arange(len(groups)), len(groups), derive_key(FOLD_SEED))
    fold_of = dict(zip(groups, (order % FOLDS).tolist(), strict=True))
    folds = np.array([fold_of[key] for key in keys])
    probabilities = np.empty((len(examples), len(task.labels)))
    for fold in range(FOLDS):
        train, held = ([*compress(examples, marks)] for marks in (folds != fold, folds == fold))
        outputs = train_floor(LINEAR, task, {"train": train}).outputs(held)
        probabilities[folds == fold] = softmax(outputs.astype(np.float32))
    suspects = []
    for number in rank_suspects(probabilities, task.encode_labels(examples)).tolist():
        shares = dict(zip(task.labels, probabilities[number].tolist(), strict=True))
        prediction = LabelPrediction(max(shares, key=shares.__getitem__), shares)
        suspects.append(PredictedExample(examples[number], prediction, task.gold_columns(examples[number])))
    return suspects
