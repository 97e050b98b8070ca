"""`bertwright check-labels`: training rows whose label is probably wrong, by a linear model that has not seen them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertwright.base.example_order import permute
from bertwright.base.files import check_absent, new_file
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.seeding import derive_key
from bertwright.base.settings import Positional, check_minimum, check_not_str
from bertwright.inference.predict_outputs import PredictedExample, write_predictions
from bertwright.inference.predict_settings import TABLE_SUFFIXES
from bertwright.metrics.calibration import rank_suspects
from bertwright.tables.neighbours import join_as_glob
from bertwright.tasks.classification import Classification, LabelPrediction
from bertwright.tasks.encoded import Floats
from bertwright.tasks.linear_floor import LINEAR, train_floor
from bertwright.tasks.task import softmax
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import check_exist, check_unique

FOLDS, FOLD_SEED = 5, 2


@dataclass(frozen=True)
class CheckLabelsSettings:
    """List the rows of a classification whose label is probably wrong, for a person to look at.

    A linear model of words and bigrams is trained on four fifths of the rows and predicts the fifth, five times.
    """

    inputs: Positional[tuple[str, ...]]
    """Labeled files of a classification, in the format of the training files."""
    output: Path | None = None
    """Also write all these rows, with their probabilities, to this new .tsv, .csv or .jsonl file."""
    show: int = 20
    """Rows that are printed."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        check_minimum(self, 0, "show")
        if self.output is not None and self.output.suffix not in (".jsonl", *TABLE_SUFFIXES):
            raise ValueError(f"--output {self.output}: expected one of .jsonl, {', '.join(TABLE_SUFFIXES)}")


class Suspect(NamedTuple):
    """An example whose label is probably wrong."""

    example: Any
    prediction: LabelPrediction
    """Of a model that has not seen the example."""


def check_inputs(settings: CheckLabelsSettings) -> None:
    """Raise ValueError for files that are missing, and for an output that is there."""
    check_unique(settings.inputs)
    check_exist(settings.inputs)
    if settings.output is not None:
        check_absent(settings.output)


def check_labels(settings: CheckLabelsSettings, reporter: Reporter = SILENT) -> list[Suspect]:
    """Return the examples of all files whose label is probably wrong, the most suspicious one first."""
    check_inputs(settings)
    task = settings.overrides.apply_to(Classification())
    assert isinstance(task, Classification)
    examples = [example for path in join_as_glob(settings.inputs) for example in task.read(path)]
    task = task.with_labels_of(examples)
    with new_file(settings.output) if settings.output else nullcontext() as temporary:
        with reporter.progress("linear models", None):
            suspects = find_suspects(task, examples)
        if temporary is not None and settings.output is not None:
            rows = (PredictedExample(*suspect, task.gold_columns(suspect.example)) for suspect in suspects)
            with temporary.open("w", encoding="utf-8", newline="") as file:
                write_predictions(file, settings.output.suffix, task, rows)
    reporter.record(Heading(f"{len(suspects):,} of {len(examples):,} labels are probably wrong"))
    if suspects[: settings.show]:
        reporter.record(Rows(("text", "label", "probably", "probability"), format_suspects(suspects[: settings.show]), (0,)))
    if settings.output is not None:
        reporter.record(Line(f"{settings.output}: {len(suspects):,} rows written"))
    return suspects


def format_suspects(suspects: Sequence[Suspect]) -> list[tuple[str, str, str, str]]:
    """Return a row of text, label, predicted label and its probability for each suspect."""
    return [(str(one), str(one.label), guess.label, f"{guess.probability:.1%}") for one, guess in suspects]


def find_suspects(task: Classification, examples: Sequence[Any]) -> list[Suspect]:
    """Return the examples whose label is probably wrong, by out-of-fold probabilities; equal calls are equal.

    Raises ValueError for fewer examples than folds.
    """
    probabilities = predict_out_of_fold(task, examples)
    predictions = [
        LabelPrediction(task.labels[int(row.argmax())], dict(zip(task.labels, row.tolist(), strict=True)))
        for row in probabilities
    ]
    ranked = rank_suspects(probabilities, task.encode_labels(examples))
    return [Suspect(examples[number], predictions[number]) for number in ranked.tolist()]


def predict_out_of_fold(task: Classification, examples: Sequence[Any]) -> Floats:
    """Return the probabilities, N × C, of linear models that have not seen the text of the example."""
    groups = dict.fromkeys(task.group_keys(examples))
    if len(groups) < FOLDS:
        raise ValueError(f"{examples[0].location}: expected at least {FOLDS} different texts, got {len(groups)}")
    order = permute(np.arange(len(groups)), len(groups), derive_key(FOLD_SEED))
    fold_of = {key: int(place) % FOLDS for key, place in zip(groups, order, strict=True)}
    folds = np.array([fold_of[key] for key in task.group_keys(examples)])
    probabilities = np.empty((len(examples), len(task.labels)))
    for fold in range(FOLDS):
        train = [example for example, own in zip(examples, folds, strict=True) if own != fold]
        held = np.flatnonzero(folds == fold)
        floor = train_floor(LINEAR, task, {"train": train})
        probabilities[held] = softmax(floor.outputs([examples[number] for number in held]).astype(np.float32))
    return probabilities
