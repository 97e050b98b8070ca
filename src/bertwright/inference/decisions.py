"""What `evaluate` learns from the scores of a model: temperature, thresholds, abstentions, slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertwright.base.files import read_json
from bertwright.base.settings import check_limit, check_not_str
from bertwright.metrics.calibration import Bools, Floats, choose_threshold, fit_temperature, measure_reliability, temper
from bertwright.tables.tables import read_rows
from bertwright.tasks.classification import Classification
from bertwright.tasks.encoded import Encoded, Outputs
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.score_formats import DisplayTable, format_score

if TYPE_CHECKING:
    from bertwright.tasks.task import AnyTask

LENGTH, LABEL = "length", "label"
LENGTH_BINS, MAX_VALUES = 4, 20  # slices by length, and of a column
NO_SHARES = ("temperature", "threshold", "cost before", "cost after", "calibration error")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class DecisionSettings:
    """Choices that follow from the scores of labeled files."""

    calibrate: bool = False
    """Classification, multi-label: find the temperature that makes probabilities as large as the share of right
    answers, and print the expected calibration error before and after."""
    costs: tuple[float, ...] = ()
    """Multi-label, or two labels: two numbers, the cost of a label that is predicted but wrong and of one that is
    missed, as in 1 10. The threshold of each label that costs least is found."""
    label_costs: Path | None = None
    """JSON file with both costs by label, such as {"spam": [5, 1]}; labels that it lacks have --costs, or 1 and 1."""
    save_decisions: bool = False
    """Write the temperature and the thresholds into the model's task.json, so that predict uses them."""
    abstain_below: float | None = None
    """Classification: also print the share of examples whose label has at least this probability, and their scores."""
    slices: tuple[str, ...] = ()
    """Also print the scores by length (in tokens), by label, or by the values of a column of the files."""

    def __post_init__(self) -> None:
        check_not_str(self, "slices")
        check_limit(self, "from 0 to 1", "abstain_below")
        if self.costs and (len(self.costs) != 2 or min(self.costs) <= 0):
            given = " ".join(f"{cost:g}" for cost in self.costs)
            raise ValueError(f"--costs {given}: expected two numbers above 0, of a wrong label and of a missed one")
        if self.save_decisions and not (self.calibrate or self.costs or self.label_costs):
            raise ValueError("--save-decisions: nothing to save; add --calibrate or --costs")


class Scored(NamedTuple):
    """Labeled examples, and a model's outputs for them."""

    examples: Sequence[Any]
    encoded: Encoded
    outputs: Outputs

    def decode(self, task: AnyTask) -> list[Any]:
        """Return the predictions that a task makes of the outputs."""
        return task.decode(self.examples, self.encoded, self.outputs)


def decide(
    settings: DecisionSettings, task: AnyTask, scored: Scored, inputs: Sequence[str]
) -> tuple[AnyTask, dict[str, list[Record]]]:
    """Choose temperature and thresholds on examples, then score abstentions and slices with them.

    Returns the task with what was chosen, and rows of numbers by subject. `inputs`: the files of the examples. Raises
    ValueError for a task type that has no such choice, and for unknown columns and labels.
    """
    found = dict[str, list[Record]]()
    if settings.calibrate:
        task, found["calibration"] = calibrate(task, scored)
    if settings.costs or settings.label_costs:
        labeled = _check_kind(task, "--costs")
        task, found["thresholds"] = choose_thresholds(labeled, scored, _read_costs(settings, labeled))
    if settings.abstain_below is not None:
        found["abstention"] = measure_abstention(task, scored, settings.abstain_below)
    return task, found | {f"by {name}": score_slices(name, task, scored, inputs) for name in settings.slices}


def make_tables(found: Mapping[str, Sequence[Record]]) -> list[DisplayTable]:
    """Format rows of numbers by subject as tables for people: shares in percent."""
    return [
        DisplayTable(
            (subject, *list(rows[0])[1:]), [tuple(_format(name, row.get(name, "")) for name in rows[0]) for row in rows]
        )
        for subject, rows in found.items()
    ]


def _format(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if name in NO_SHARES else format_score(value, name)
    return f"{value:,}" if isinstance(value, int) else str(value)


def calibrate(task: AnyTask, scored: Scored) -> tuple[AnyTask, list[Record]]:
    """Return the task with the temperature of lowest loss, which moves no decision, and both calibration errors."""
    before = _check_kind(task, "--calibrate")
    targets = before.encode_labels(scored.examples)
    temperature = fit_temperature(scored.outputs, targets > 0 if task.is_multi_label else targets.astype(np.int64))
    factor = before.temperature / temperature
    changes: dict[str, Any] = {"temperature": temperature, "threshold": temper(before.threshold, factor)}
    if isinstance(before, MultiLabel):
        changes["thresholds"] = tuple(temper(threshold, factor) for threshold in before.thresholds)
    after = replace(before, **changes)
    rows: list[Record] = [
        {
            "": name,
            "temperature": one.temperature,
            "calibration error": measure_reliability(*outcomes(one, scored)).error,
        }
        for name, one in (("before", before), ("after", after))
    ]
    return after, rows


def outcomes(task: AnyTask, scored: Scored) -> tuple[Floats, Bools]:
    """Return the probability of each predicted label, in multi-label of each label, and whether it is right."""
    predictions = scored.decode(task)
    if isinstance(task, MultiLabel):
        shares = np.array([[*prediction.probabilities.values()] for prediction in predictions])
        return shares.ravel(), task.encode_labels(scored.examples).ravel() > 0
    right = [
        example.label == prediction.label for example, prediction in zip(scored.examples, predictions, strict=True)
    ]
    return np.array([prediction.probability for prediction in predictions]), np.array(right)


def choose_thresholds(
    task: Classification | MultiLabel, scored: Scored, costs: Mapping[str, tuple[float, float]]
) -> tuple[AnyTask, list[Record]]:
    """Return the task with the threshold of each label that costs least, and the sum of its costs."""
    predictions, rows = scored.decode(task), list[Record]()
    for label, (wrong, missed) in costs.items():
        shares = np.array([prediction.probabilities[label] for prediction in predictions])
        if isinstance(task, MultiLabel):
            number = task.labels.index(label)
            right, before = task.encode_labels(scored.examples)[:, number] > 0, task.label_thresholds()[number]
        else:
            right, before = np.array([example.label == label for example in scored.examples]), task.threshold
        after = choose_threshold(shares, right, wrong, missed)
        row: dict[str, Any] = {"label": label, "threshold": after}
        for name, threshold in (("cost before", before), ("cost after", after)):
            chosen = shares > threshold
            row[name] = float(wrong * (chosen & ~right).sum() + missed * (right & ~chosen).sum())
        rows.append(row)
    thresholds = tuple(row["threshold"] for row in rows)
    if isinstance(task, MultiLabel):
        return replace(task, thresholds=thresholds), rows
    return replace(task, threshold=thresholds[0]), rows


def _read_costs(settings: DecisionSettings, task: Classification | MultiLabel) -> Mapping[str, tuple[float, float]]:
    """Return the costs of a wrong and of a missed label, by label; of two labels, of the positive one."""
    if isinstance(task, Classification) and len(task.labels) != 2:
        raise ValueError(f"--costs: expected multi-label or two labels, got {len(task.labels)} labels; omit it")
    labels = (task.f1_label,) if isinstance(task, Classification) else task.label_names
    common = settings.costs or (1.0, 1.0)
    costs = dict.fromkeys(labels, (common[0], common[1]))
    given = read_json(settings.label_costs) if settings.label_costs else {}
    for label, pair in given.items() if isinstance(given, dict) else [("", given)]:
        match pair:
            case [int() | float() as wrong, int() | float() as missed] if label in costs and min(pair) > 0:
                costs[label] = (wrong, missed)
            case _:
                expected = f'two numbers above 0 by label, as in {{"{labels[0]}": [1, 10]}}'
                raise ValueError(f"{settings.label_costs}: expected {expected}, got {label!r}: {str(pair)[:60]}")
    return costs


def measure_abstention(task: AnyTask, scored: Scored, *below: float) -> list[Record]:
    """Return the share of examples with a label of at least some probability, and their scores."""
    check_abstains(task)
    pairs, rows = list(zip(scored.examples, scored.decode(task), strict=True)), list[Record]()
    for bound in below:
        answered = [pair for pair in pairs if pair[1].probability >= bound]
        scores = task.score(*zip(*answered, strict=True)) if answered else {}
        rows.append({"probability": f"{bound:g}", "answered": len(answered) / len(pairs)} | scores)
    return rows


def check_abstains(task: AnyTask) -> None:
    """Raise ValueError for a task type that cannot leave an example without a label."""
    if not isinstance(task, Classification):
        raise ValueError(f"--abstain-below: expected a model for classification, got one for {task.kind}; omit it")


def score_slices(name: str, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> list[Record]:
    """Return number and scores of the examples of each slice, by length, by label, or by the values of a column."""
    pairs = list(zip(scored.examples, scored.decode(task), strict=True))
    slices = dict[str, list[Any]]()
    for values, pair in zip(_slice(name, task, scored, inputs), pairs, strict=True):
        for value in values:
            slices.setdefault(value, []).append(pair)
    order = (lambda item: int(item[0].split()[0])) if name == LENGTH else (lambda item: (-len(item[1]), item[0]))
    chosen = sorted(slices.items(), key=order)[:MAX_VALUES]
    if name == LABEL:  # examples of one label alone have no F1
        right = {value: float(np.mean([task.is_right(*pair) for pair in own])) for value, own in chosen}
        return [{name: value, "examples": len(own), "right": right[value]} for value, own in chosen]
    return [{name: value, "examples": len(own)} | task.score(*zip(*own, strict=True)) for value, own in chosen]


def _slice(name: str, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the slices that each example belongs to."""
    if name == LENGTH:
        if scored.encoded.num_items != len(scored.examples):
            raise ValueError(f"--slices {LENGTH}: the examples of {task.kind} are divided into windows; omit it")
        lengths = scored.encoded.item_lengths
        bounds = np.unique(np.quantile(lengths, np.arange(1, LENGTH_BINS) / LENGTH_BINS, method="lower"))
        bins = np.searchsorted(bounds, lengths)
        names = {
            n: f"{lengths[bins == n].min()} to {lengths[bins == n].max()} tokens" for n in np.unique(bins).tolist()
        }
        yield from ([names[number]] for number in bins.tolist())
        return
    if name == LABEL and any(task.count_gold([example]) for example in scored.examples[:1]):
        yield from ([*task.count_gold([example])] for example in scored.examples)
        return
    schema = task.passthrough_schema((name,), "choose columns with --slices")
    if schema is None or not inputs:
        raise ValueError(f"--slices {name}: {task.kind} has no labels and no columns to divide examples by; omit it")
    values = {location: str(value) for path in inputs for location, (value,) in read_rows(path, schema)}
    yield from ([values[example.location]] for example in scored.examples)


def _check_kind(task: AnyTask, flag: str) -> Classification | MultiLabel:
    """Return a task of labels with probabilities. Raises ValueError, naming the flag, for another one."""
    if isinstance(task, Classification | MultiLabel):
        return task
    expected = "expected a model for classification or multi-label"
    raise ValueError(f"{flag}: {expected}, got one for {task.kind}; omit it")
