"""`bertwright report`: runs as one page of HTML, from the files that they have left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertwright.base.files import check_absent, new_file, read_json
from bertwright.base.reporter import SILENT, Outputs, Reporter
from bertwright.base.settings import Positional, check_not_str, default_table, differences, read_toml, to_table
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.reports.page import escape, make_bars, make_chart, make_page, make_table
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.metrics_log import drop_short_windows, read_metrics, smooth

if TYPE_CHECKING:
    from bertwright.inference.decisions import Scored
    from bertwright.metrics.statistics import Sample
    from bertwright.tasks.task import AnyTask

WORST, SUSPECTS = 20, 15  # rows of the tables of errors
MAX_CHECKED = 20_000  # training examples whose labels are checked
ABSTENTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
RATES = {"learning_rate": "learning rate", "gradient_norm": "gradient norm"}
NOT_OF_THE_METHOD = re.compile(r"(run|seed|resume|log_every|keep_\w+|device|track|show_examples)(\..*)?")


@dataclass(frozen=True)
class ReportSettings:
    """Write one page of HTML about runs: curves, scores, errors, time, settings; it needs no network and no script.

    A model is loaded again to show its errors, if its dev file is there with the content that it had.
    """

    runs: Positional[tuple[str, ...]]
    """Run folders of pretrain, finetune, distill and train-translation; of a grid, ladder or probe, its table."""
    output: Path
    """New .html file."""
    errors: bool = True
    """Also show confusions, calibration, slices, the worst errors, and training rows whose label is probably wrong."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "runs")
        if self.output.suffix != ".html":
            raise ValueError(f"--output {self.output}: expected a file with the suffix .html")
        if not self.runs:
            raise ValueError("no run given; for example: bertwright report runs/sst2 --output report.html")


def check_inputs(settings: ReportSettings) -> None:
    """Raise ValueError for folders that are no runs, and for an output that is there."""
    check_absent(settings.output)
    for name in settings.runs:
        if not (Path(name) / "settings.toml").is_file():
            raise ValueError(f"{name}: expected a run folder, got no settings.toml in it")


class RunRecord(NamedTuple):
    """What a run has left in its folder."""

    folder: Path
    settings: dict[str, Any]
    report: dict[str, Any]
    """Empty while the run is unfinished."""
    records: list[dict[str, Any]]

    @property
    def metric(self) -> str:
        """The score that the run is judged by; of pre-training, its held-out loss."""
        return str(self.report.get("metric", "bleu" if "train_source" in self.settings else "loss"))

    def scores(self) -> dict[str, Mapping[str, float]]:
        """Return the scores by split."""
        held_out = self.report.get("held_out_after")
        return dict(self.report.get("scores") or {}) | ({"held-out": held_out} if held_out else {})


class Predicted(NamedTuple):
    """A run's task with its outputs on its dev examples."""

    task: AnyTask
    scored: Scored
    predictions: list[Any]
    train: Sequence[Any]


def report(settings: ReportSettings, reporter: Reporter = SILENT) -> Path:
    """Write the page; return its path. Raises ValueError for folders that are no runs."""
    check_inputs(settings)
    runs = [read_run(Path(name)) for name in settings.runs]
    predicted = [predict_dev(run, settings.device, reporter) if settings.errors else None for run in runs]
    parts = [*compare_runs(runs, predicted)] if len(runs) > 1 else []
    for run, found in zip(runs, predicted, strict=True):
        parts += [f"<h2>{escape(run.folder)}</h2>", *describe_run(run), *describe_errors(run, found)]
        parts += describe_settings(run)
    title = f"bertwright: {runs[0].folder.name}" if len(runs) == 1 else f"bertwright: {len(runs)} runs"
    with new_file(settings.output) as temporary:
        temporary.write_text(make_page(title, parts), encoding="utf-8")
    reporter.record(Outputs({"report": settings.output}))
    return settings.output


def read_run(folder: Path) -> RunRecord:
    """Read the records of a run; nothing is loaded."""
    path = folder / "report.json"
    written = read_json(path) if path.is_file() else {}
    if not isinstance(written, dict):
        raise ValueError(f"{path}: expected an object; restore the file")
    return RunRecord(folder, read_toml(folder / "settings.toml"), written, read_metrics(folder))


def describe_run(run: RunRecord) -> Iterator[str]:
    """Yield scores, curves and the time of a run; of a series of runs, its table."""
    if cells := run.report.get("cells"):
        rows = [(one["row"], one["column"], f"{one['mean']:.4f}", _format(one["std"]), one["seeds"]) for one in cells]
        yield make_table(("row", "column", "mean", "sd", "seeds"), rows, (0, 1))
        return
    if not run.report:
        yield "<p>This run is unfinished: it has no scores yet.</p>"
    columns = run.scores()
    if names := list(dict.fromkeys(name for scores in columns.values() for name in scores if name not in ("kind", "step"))):
        rows = [(name, *(_format(scores.get(name)) for scores in columns.values())) for name in names]
        for floor, by_split in run.report.get("linear_floor", {}).items():
            rows.append((f"{run.metric}, {floor}", *(_format(by_split.get(s, {}).get(run.metric)) for s in columns)))
        yield "<h3>Scores</h3>" + make_table(("", *columns), rows)
    yield f'<h3>Curves</h3><div class="charts">{"".join(draw_curves(run))}</div>'
    if parts := run.report.get("seconds_by_part"):
        total = run.report["seconds_of_this_process"]
        yield "<h3>Where the time went</h3>" + make_bars(parts, "s")
        yield f"<p>{sum(parts.values()):,.2f} of the {total:,.2f} seconds of the run's last process. On a GPU, forward "
        yield "and backward are the time to start its work; wait is the time until it has done it.</p>"


def draw_curves(run: RunRecord) -> Iterator[str]:
    """Yield the charts of a run: loss, the metric of each evaluation, learning rate, gradient norm."""
    kinds = list(dict.fromkeys(record["kind"] for record in run.records))
    names = {"loss": "loss"} | ({run.metric: run.metric.replace("_", " ")} if run.metric != "loss" else {}) | RATES
    for metric, title in names.items():
        curves = dict[str, list[tuple[float, float]]]()
        for kind in kinds:
            points = [(one["step"], one[metric]) for one in run.records if one["kind"] == kind and metric in one]
            if points:
                curves[kind.replace("_", " ")] = smooth(drop_short_windows(points)) if kind == "train" else points
        if curves:
            yield make_chart(f"{title} by step", curves)


def predict_dev(run: RunRecord, device: DeviceSettings, reporter: Reporter) -> Predicted | None:
    """Load the model of a fine-tuning and predict its dev examples; None if model, files or their content are gone."""
    if "task" not in run.settings or not (run.folder / "model").is_dir():
        return None
    from bertwright.finetuning.training_examples import read_training_examples
    from bertwright.inference.decisions import Scored
    from bertwright.inference.load_task_models import load_for_task
    from bertwright.tasks.prediction import predict_logits
    from bertwright.tasks.task_types import TaskOptions
    from bertwright.training.context import execution_context

    splits = read_training_examples(run.folder / "model")
    if splits is None or not splits.get("dev") or run.settings["task"]["task"] in ("embedding", "distillation"):
        return None
    examples = splits["dev"]
    with execution_context(device) as context:
        models = load_for_task((str(run.folder),), TaskOptions(), None, context)
        encoded = models.task.encode(examples, models.first.tokenizer, labeled=False)
        with reporter.progress(f"predicting dev of {run.folder}", encoded.num_items) as advance:
            outputs = predict_logits(models.members[0].model, encoded, advance)
    predictions = models.task.decode(examples, encoded, outputs)
    return Predicted(models.task, Scored(examples, encoded, outputs), predictions, splits["train"])


def describe_errors(run: RunRecord, found: Predicted | None) -> Iterator[str]:
    """Yield confusions, calibration, abstentions, slices, the worst errors and suspicious training labels."""
    from bertwright.inference import decisions
    from bertwright.tasks.classification import Classification
    from bertwright.tasks.multi_label import MultiLabel

    if found is None:
        if "task" in run.settings:
            yield "<h3>Errors</h3><p>Not shown: the model or the dev file is not there, or the file has changed.</p>"
        return
    task, scored = found.task, found.scored
    for table in task.score_tables(scored.examples, found.predictions):
        yield "<h3>Confusions, or scores by type</h3>" + make_table(table.columns, table.rows)
    if isinstance(task, Classification | MultiLabel):
        yield from _describe_calibration(task, scored)
    if isinstance(task, Classification):
        rows = [(f"{p:g}", decisions.measure_abstention(task, scored, p)) for p in ABSTENTIONS]
        yield "<h3>If improbable labels are left out (predict --abstain-below)</h3>" + make_table(
            ("probability at least", "answered", task.metric),
            [(name, _format(row["coverage"]), _format(row.get(task.metric))) for name, row in rows],
        )
    for name in (decisions.LENGTH, decisions.LABEL):
        try:
            table = decisions.slice_table(name, task, decisions.score_slices(name, task, scored, ()))
        except ValueError:  # a task type without such slices
            continue
        yield f"<h3>By {name}, on dev</h3>" + make_table(table.columns, table.rows)
    yield from _list_errors(found)
    if isinstance(task, Classification) and len(found.train) <= MAX_CHECKED:
        yield from _list_suspects(task, found.train)


def _describe_calibration(task: AnyTask, scored: Scored) -> Iterator[str]:
    """Yield the share of right answers by probability, as the model is and with the best temperature."""
    from bertwright.inference.decisions import calibrate, confidences
    from bertwright.metrics.calibration import measure_reliability

    after, numbers = calibrate(task, scored)
    curves: dict[str, Sequence[tuple[float, float]]] = {"ideal": [(0, 0), (1, 1)]}
    for name, one in (("as it is", task), (f"temperature {numbers['temperature']:.3g}", after)):
        bins = measure_reliability(*confidences(one, scored))
        curves[name] = list(zip(bins.confidence, bins.accuracy, strict=True))
    chart = make_chart("share that is right, by probability", curves)
    before, error = numbers["error before"], numbers["error after"]
    yield f"<h3>Calibration</h3>{chart}<p>Expected calibration error {before:.4f}, with the temperature {error:.4f}; "
    yield "both on dev. evaluate --calibrate --save-decisions writes it into a model.</p>"


def _list_errors(found: Predicted) -> Iterator[str]:
    """Yield the wrong predictions with their texts, the most confident ones first."""
    task, pairs = found.task, list(zip(found.scored.examples, found.predictions, strict=True))
    try:
        wrong = [pair for pair in pairs if not task.is_right(*pair)]
    except ValueError:  # numbers are not right or wrong
        wrong = sorted(pairs, key=lambda pair: -abs(getattr(pair[0], "label", 0) - pair[1]))
    wrong.sort(key=lambda pair: -getattr(pair[1], "probability", 0.0))
    rows = []
    for example, prediction in wrong[:WORST]:
        gold = task.gold_columns(example)
        texts = " / ".join(str(value) for name, value in gold.items() if name not in ("location", "gold"))
        shown = [value for name, value in task.to_record(example, prediction).items() if not name.startswith("p(")]
        location = str(gold["location"]).rpartition("/")[2]
        rows.append((location, texts, _plain(gold["gold"]), ", ".join(map(_plain, shown))))
    yield f"<h3>Worst errors: {len(wrong):,} of {len(pairs):,} dev examples are wrong</h3>"
    yield make_table(("place", "text", "gold", "predicted"), rows, (0, 1, 2, 3))


def _list_suspects(task: Any, train: Sequence[Any]) -> Iterator[str]:
    from bertwright.reports.check_labels import find_suspects, format_suspects

    suspects = find_suspects(task, train)
    yield f"<h3>Training labels: {len(suspects):,} of {len(train):,} are probably wrong</h3>"
    yield "<p>By linear models that have not seen the row; check-labels lists all.</p>"
    rows = format_suspects(suspects[:SUSPECTS])
    yield make_table(("text", "label", "probably", "probability"), rows, (0, 1, 2))


def describe_settings(run: RunRecord) -> Iterator[str]:
    """Yield all settings, and whether they are defaults or were stated; then the digests of the data."""
    stated = _stated(run)
    rows = [(name, _plain(value), "stated" if name in stated else "default") for name, value in _flatten(run.settings)]
    yield "<h3>Settings</h3><p>Stated: by a flag, a file or a recipe.</p>" + make_table(("", "value", "origin"), rows, (0, 1, 2))
    data = run.folder / "data.json"
    if data.is_file():
        yield "<h3>Data</h3>" + make_table(("name", "digest"), list(read_json(data).items()), (0, 1))


def _stated(run: RunRecord) -> set[str]:
    """Return the names of the settings that are not defaults; of a kind of run without such, all of them."""
    from bertwright.base.settings import derived_defaults, from_table, merge
    from bertwright.finetuning.settings import FinetuneSettings
    from bertwright.pretraining.settings import PretrainSettings
    from bertwright.translation.settings import TrainTranslationSettings

    table = run.settings
    cls: Any = FinetuneSettings if "tuning" in table else TrainTranslationSettings if "train_source" in table else PretrainSettings
    try:
        whole = to_table(from_table(cls, table | {"run": str(run.folder)}, "settings.toml"))
        defaults = merge(default_table(from_table(cls, table | {"run": str(run.folder)}, "")), derived_defaults(cls, table))
    except ValueError:  # a run of a grid or of an earlier version
        return {name for name, _ in _flatten(table)}
    return {*differences(defaults, whole)}


def compare_runs(runs: Sequence[RunRecord], predicted: Sequence[Predicted | None]) -> Iterator[str]:
    """Yield mean and deviation of runs that differ in their seed only, and the difference between such groups."""
    from bertwright.metrics.statistics import Sample, difference, estimate

    groups = dict[str, list[int]]()
    for number, run in enumerate(runs):
        method = {n: v for n, v in _flatten(run.settings) if not NOT_OF_THE_METHOD.fullmatch(n)}
        groups.setdefault(json.dumps(method, sort_keys=True), []).append(number)
    tables = [json.loads(key) for key in groups]
    varied = sorted({name for one in tables for name in one for other in tables if one.get(name) != other.get(name)})
    rows, samples = list[tuple[str, ...]](), dict[str, Sample]()
    for table, members in zip(tables, groups.values(), strict=True):
        title = ", ".join(f"{name} {_plain(table.get(name, ''))}" for name in varied) or "all"
        for split in dict.fromkeys(split for number in members for split in runs[number].scores()):
            metric = runs[members[0]].metric
            scores = [runs[n].scores()[split][metric] for n in members if metric in runs[n].scores().get(split, {})]
            if scores:
                rows.append((title, split, metric, summarize_seeds(scores).format(4, 1), str(len(scores))))
        if sample := _sample([runs[n] for n in members], [predicted[n] for n in members]):
            samples[title] = sample
    yield "<h2>Comparison</h2>" + make_table(("runs", "split", "metric", "mean ± sd", "runs"), rows, (0, 1, 2))
    first, *others = samples or [""]
    counts = {len(one.values) for sample in samples.values() for one in sample.examples}
    if len(counts) > 1 or any(not sample.examples for sample in samples.values()):
        samples = {title: sample._replace(examples=()) for title, sample in samples.items()}
    estimates = estimate("dev", samples, 4_000)
    for title in others:
        found = difference([(estimates[title], estimates[first])])
        interval = f", 95 % interval {found.interval.low:+.4f} to {found.interval.high:+.4f}" if found.interval else ""
        yield f"<p>{escape(title)} minus {escape(first)}, on dev: {found.mean:+.4f}{interval} (bootstrap).</p>"


def _sample(runs: Sequence[RunRecord], predicted: Sequence[Predicted | None]) -> Sample | None:
    """Return the dev scores of runs and, if all have been predicted, the numbers of their examples."""
    from bertwright.metrics.statistics import Sample

    scores = [score for run in runs for name, score in run.scores().get("dev", {}).items() if name == run.metric]
    if len(scores) < len(runs):
        return None
    numbers = [one.task.example_scores(one.scored.examples, one.predictions) for one in predicted if one]
    known = [one for one in numbers if one is not None]
    return Sample(scores, known if len(known) == len(runs) else ())


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _format(value: Any) -> str:
    return "" if value is None else f"{value:.4f}"


def _plain(value: Any) -> str:
    """Return a value of a record or of a setting as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
