"""What `evaluate` learns from the scores of a model: temperature, thresholds, abstentions, slices.

N examples, C labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertwright.base.files import read_json
from bertwright.base.settings import check_limit, check_not_str
from bertwright.metrics.calibration import Bools, Ints, choose_threshold, fit_temperature, measure_reliability
from bertwright.tables.tables import read_rows
from bertwright.tasks.classification import Classification
from bertwright.tasks.encoded import Encoded, Floats, Outputs
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.score_formats import DisplayTable, format_percent, format_score

if TYPE_CHECKING:
    from bertwright.tasks.task import AnyTask

LENGTH, LABEL = "length", "label"
LENGTH_BINS, MAX_VALUES = 4, 20  # slices by length, and of a column


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
    """Labeled examples and a model's outputs for them."""

    examples: Sequence[Any]
    encoded: Encoded
    outputs: Outputs


class Decisions(NamedTuple):
    """A task with what was chosen, and how good it is."""

    task: AnyTask
    record: dict[str, Any]
    """For the file of `evaluate`."""
    tables: list[DisplayTable]


def decide(settings: DecisionSettings, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> Decisions:
    """Choose temperature and thresholds on examples; score abstentions and slices with them.

    Raises ValueError for a task type that has no such choice, and for unknown columns and labels.
    """
    record, tables = dict[str, Any](), list[DisplayTable]()
    if settings.calibrate:
        task, record["calibration"] = calibrate(task, scored)
        rows = [(name, f"{value:.4f}") for name, value in record["calibration"].items()]
        tables.append(DisplayTable(("calibration", "value"), rows))
    if settings.costs or settings.label_costs:
        task, found = choose_thresholds(task, scored, read_costs(settings, task))
        record["thresholds"] = found
        rows3 = [(label, f"{row['threshold']:.3f}", f"{row['before']:g}", f"{row['after']:g}") for label, row in found.items()]
        tables.append(DisplayTable(("label", "threshold", "cost before", "cost after"), rows3))
    if settings.abstain_below is not None:
        record["abstention"] = measure_abstention(task, scored, settings.abstain_below)
        tables.append(DisplayTable(("with abstentions", "value"), [(n, format_percent(v)) for n, v in record["abstention"].items()]))
    for name in settings.slices:
        found_slices = score_slices(name, task, scored, inputs)
        record.setdefault("slices", {})[name] = found_slices
        tables.append(slice_table(name, task, found_slices))
    return Decisions(task, record, tables)


def calibrate(task: AnyTask, scored: Scored) -> tuple[AnyTask, dict[str, float]]:
    """Return the task with the temperature of lowest loss, and the expected calibration errors."""
    _check_kind(task, "--calibrate")
    logits = scored.outputs
    if isinstance(task, MultiLabel):
        temperature = fit_temperature(logits, task.encode_labels(scored.examples) > 0)
        # A label is predicted above the same logit as before.
        moved = [_sigmoid(_logit(share) * task.temperature / temperature) for share in task.label_thresholds()]
        common = _sigmoid(_logit(task.threshold) * task.temperature / temperature)
        after = replace(task, temperature=temperature, threshold=common, thresholds=tuple(moved) if task.thresholds else ())
    else:
        temperature = fit_temperature(logits, task.encode_labels(scored.examples))
        common = task.threshold
        if task.threshold != 0.5:
            common = _sigmoid(_logit(task.threshold) * task.temperature / temperature)
        after = replace(task, temperature=temperature, threshold=common)
    errors = [measure_reliability(*confidences(one, scored)).error for one in (task, after)]
    return after, {"temperature": temperature, "error before": errors[0], "error after": errors[1]}


def confidences(task: AnyTask, scored: Scored) -> tuple[Floats, Bools]:
    """Return probabilities and whether they came true: of each predicted label; in multi-label, of each label."""
    predictions = task.decode(scored.examples, scored.encoded, scored.outputs)
    if isinstance(task, MultiLabel):
        shares = np.array([[*prediction.probabilities.values()] for prediction in predictions])
        return shares.ravel(), task.encode_labels(scored.examples).ravel() > 0
    shares = np.array([prediction.probability for prediction in predictions])
    pairs = zip(scored.examples, predictions, strict=True)
    return shares, np.array([task.is_right(example, prediction) for example, prediction in pairs])


def read_costs(settings: DecisionSettings, task: AnyTask) -> Mapping[str, tuple[float, float]]:
    """Return the costs of a wrong and of a missed label, by label: in classification, of its positive label alone."""
    _check_kind(task, "--costs")
    labels = task.label_names
    if isinstance(task, Classification):
        if len(labels) != 2:
            raise ValueError(f"--costs: expected multi-label or two labels, got {len(labels)} labels; omit it")
        labels = (task.f1_label,)
    costs = dict.fromkeys(labels, (settings.costs[0], settings.costs[1]) if settings.costs else (1.0, 1.0))
    given = read_json(settings.label_costs) if settings.label_costs else {}
    for label, pair in given.items() if isinstance(given, dict) else [("", given)]:
        numbers = isinstance(pair, list) and len(pair) == 2 and all(type(one) in (int, float) and one > 0 for one in pair)
        if label not in costs or not numbers:
            raise ValueError(
                f'{settings.label_costs}: expected two numbers above 0 by label, as in {{"{labels[0]}": [1, 10]}}, got '
                f"{label!r}: {str(pair)[:60]}"
            )
        costs[label] = (float(pair[0]), float(pair[1]))
    return costs


def choose_thresholds(
    task: AnyTask, scored: Scored, costs: Mapping[str, tuple[float, float]]
) -> tuple[AnyTask, dict[str, dict[str, float]]]:
    """Return the task with the threshold of each label that costs least, and by label its sum of costs."""
    predictions = task.decode(scored.examples, scored.encoded, scored.outputs)
    found = dict[str, dict[str, float]]()
    for label, (wrong, missed) in costs.items():
        shares = np.array([prediction.probabilities[label] for prediction in predictions])
        if isinstance(task, MultiLabel):
            right = task.encode_labels(scored.examples)[:, task.labels.index(label)] > 0
            chosen = np.array([label in prediction.labels for prediction in predictions])
        else:
            right = np.array([example.label == label for example in scored.examples])
            chosen = np.array([prediction.label == label for prediction in predictions])
        threshold = choose_threshold(shares, right, wrong, missed)
        sums = [wrong * float((marks & ~right).sum()) + missed * float((right & ~marks).sum()) for marks in (chosen, shares > threshold)]
        found[label] = {"threshold": threshold, "before": sums[0], "after": sums[1]}
    thresholds = tuple(row["threshold"] for row in found.values())
    if isinstance(task, MultiLabel):
        return replace(task, thresholds=thresholds), found
    return replace(task, threshold=thresholds[0]), found  # type: ignore[type-var]


def measure_abstention(task: AnyTask, scored: Scored, below: float) -> dict[str, float]:
    """Return the share of examples with a label of at least this probability, and their scores."""
    check_abstains(task)
    predictions = task.decode(scored.examples, scored.encoded, scored.outputs)
    pairs = [(one, guess) for one, guess in zip(scored.examples, predictions, strict=True) if guess.probability >= below]
    scores = task.score(*zip(*pairs, strict=True)) if pairs else {}
    return {"coverage": len(pairs) / len(predictions)} | scores


def check_abstains(task: AnyTask) -> None:
    """Raise ValueError for a task type that cannot leave an example without a label."""
    if not isinstance(task, Classification):
        raise ValueError(f"--abstain-below: expected a model for classification, got one for {task.kind}; omit it")


def score_slices(name: str, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of the examples of each slice, by length, by label, or by the values of a column."""
    predictions = task.decode(scored.examples, scored.encoded, scored.outputs)
    slices = list(SLICERS.get(name, _by_column)(name, task, scored, inputs))
    return [
        {"slice": value, "examples": len(chosen)}
        | task.score([scored.examples[number] for number in chosen], [predictions[number] for number in chosen])
        for value, chosen in slices
    ]


def slice_table(name: str, task: AnyTask, slices: Sequence[Mapping[str, Any]]) -> DisplayTable:
    """Format the metric of each slice."""
    rows = [(str(row["slice"]), f"{row['examples']:,}", format_score(row[task.metric], task.metric)) for row in slices]
    return DisplayTable((name, "examples", task.metric.replace("_", " ")), rows)


Slices = Iterator[tuple[str, Sequence[int]]]


def _by_length(name: str, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> Slices:
    """Yield quarters of the examples by their number of tokens; windows of an example count together."""
    encoded = scored.encoded
    if encoded.num_items != len(scored.examples):
        raise ValueError(f"--slices {LENGTH}: the examples of {task.kind} are divided into windows; omit it")
    lengths: Ints = encoded.item_lengths.astype(np.int64)
    bounds = np.unique(np.quantile(lengths, np.arange(1, LENGTH_BINS) / LENGTH_BINS, method="lower"))
    bins = np.searchsorted(bounds, lengths)
    for number in np.unique(bins):
        chosen = np.flatnonzero(bins == number)
        yield f"{lengths[chosen].min()} to {lengths[chosen].max()} tokens", chosen.tolist()


def _by_label(name: str, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> Slices:
    yield from _most_frequent([tuple(task.count_gold([example])) for example in scored.examples], name, task)


def _by_column(name: str, task: AnyTask, scored: Scored, inputs: Sequence[str]) -> Slices:
    schema = task.passthrough_schema((name,), "choose columns with --slices")
    if schema is None:
        raise ValueError(f"--slices {name}: expected {LENGTH} or {LABEL}, because {task.kind} reads no tables")
    values = {location: str(value) for path in inputs for location, (value,) in read_rows(path, schema)}
    yield from _most_frequent([(values[example.location],) for example in scored.examples], name, task)


SLICERS: dict[str, Callable[[str, AnyTask, Scored, Sequence[str]], Slices]] = {LENGTH: _by_length, LABEL: _by_label}


def _most_frequent(values: Sequence[tuple[str, ...]], name: str, task: AnyTask) -> Slices:
    """Yield the examples with each of the most frequent values; an example may have several."""
    found = dict[str, list[int]]()
    for number, own in enumerate(values):
        for value in own:
            found.setdefault(value, []).append(number)
    if not found:
        raise ValueError(f"--slices {name}: gold answers of {task.kind} are no classes; omit it")
    yield from sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:MAX_VALUES]


def _check_kind(task: AnyTask, flag: str) -> None:
    if not isinstance(task, Classification | MultiLabel):
        raise ValueError(f"{flag}: expected a model for classification or multi-label, got one for {task.kind}; omit it")


def _logit(share: float) -> float:
    share = min(max(share, 1e-9), 1 - 1e-9)
    return float(np.log(share / (1 - share)))


def _sigmoid(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))
