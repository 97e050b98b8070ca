"""`bertwright report`: runs as one page of HTML, from the files that they have left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import check_absent, new_file, read_json
from bertwright.base.reporter import SILENT, Outputs, Reporter
from bertwright.base.settings import Positional, check_not_str, flatten, from_table, read_toml
from bertwright.inference import decisions
from bertwright.metrics.calibration import measure_reliability
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.metrics.statistics import Sample, difference, estimate
from bertwright.reports.check_labels import COLUMNS, FOLDS, find_suspects, format_suspects
from bertwright.reports.page import escape, make_bars, make_chart, make_page, make_table
from bertwright.reports.setting_origins import DEFAULT, find_origins
from bertwright.tables.neighbours import join_as_glob
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.score_formats import format_score
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.metrics_log import drop_short_windows, read_metrics, smooth

WORST = 20  # rows of the tables of errors
MAX_CHECKED = 20_000  # different training texts, up to which their labels are checked
DRAWS = 4_000  # of the bootstrap
ABSTENTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
WITHOUT_ERRORS = ("embedding", "distillation")
PARTS = {
    "scores": 2,
    "linear_floor": 3,
    "seconds_by_part": 1,
    "held_out_after": 1,
}  # of report.json: objects in objects
TEXTS = ("kind", "row", "column")  # the other values are numbers
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
    costs: tuple[float, ...] = (1.0, 1.0)
    """Multi-label, or two labels: the costs of a wrong label and of a missed one, as in 1 10, for their thresholds."""
    slices: tuple[str, ...] = (decisions.LENGTH, decisions.LABEL)
    """What divides the dev examples into slices: length (in tokens), label, or a column of the dev files."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "runs")
        decisions.DecisionSettings(costs=self.costs, slices=self.slices)  # raises ValueError
        if self.output.suffix != ".html":
            raise ValueError(f"--output {self.output}: expected a file with the suffix .html")
        if not self.runs:
            raise ValueError("no run given; for example: bertwright report runs/sst2 --output report.html")


class Predicted(NamedTuple):
    """A run's task with its outputs on its dev examples."""

    task: AnyTask
    scored: decisions.Scored
    predictions: list[Any]
    train: Sequence[Any]
    inputs: Sequence[str]
    """Files of the dev examples."""


class RunRecord(NamedTuple):
    """What a run has left in its folder."""

    folder: Path
    settings: dict[str, Any]
    report: dict[str, Any]
    """Empty while the run is unfinished."""
    records: list[dict[str, Any]]
    predicted: Predicted | None
    """None if the model or the dev file is not there, or has changed."""

    @property
    def metric(self) -> str:
        """The score that the run is judged by; of pre-training, its held-out loss."""
        return str(self.report.get("metric", "bleu" if "train_source" in self.settings else "loss"))

    def scores(self) -> dict[str, Mapping[str, float]]:
        held_out = self.report.get("held_out_after")
        return {**self.report.get("scores", {}), **({"held-out": held_out} if held_out else {})}

    @property
    def scale(self) -> tuple[int, float]:
        """Decimals and factor of the metric for people: the scores of a task are shares, except a squared error."""
        return (2, 100) if "task" in self.settings and self.metric != "mse" else (4, 1)


def report(settings: ReportSettings, reporter: Reporter = SILENT) -> Path:
    """Write the page; return its path. Raises ValueError for folders that are no runs, and for damaged files."""
    check_absent(settings.output)
    runs = [read_run(Path(name), settings, reporter) for name in settings.runs]
    parts = [*compare_runs(runs)] if len(runs) > 1 else []
    for run in runs:
        parts += [f"<h2>{escape(run.folder)}</h2>", *describe_run(run)]
        if run.predicted:
            parts += describe_errors(run.predicted, settings)
        elif settings.errors and has_errors(run.settings):
            parts.append("<p>No errors are shown: the model or the dev file is not there, or has changed.</p>")
        parts += describe_settings(run)
    with new_file(settings.output) as temporary:
        temporary.write_text(make_page(f"bertwright: {', '.join(run.folder.name for run in runs)}", parts), "utf-8")
    reporter.record(Outputs({"report": settings.output}))
    return settings.output


def read_run(folder: Path, settings: ReportSettings, reporter: Reporter) -> RunRecord:
    """Read the records of a run, and predict its dev examples if errors are wanted."""
    if not (folder / "settings.toml").is_file():
        raise ValueError(f"{folder}: expected a run folder, got no settings.toml in it")
    table, path = read_toml(folder / "settings.toml"), folder / "report.json"
    written = read_report(path) if path.is_file() else {}
    if not isinstance(table.get("task", {}), dict):
        raise ValueError(f"{folder / 'settings.toml'}: expected a table as task, got {table['task']!r}; restore it")
    predicted = predict_dev(folder, settings.device, reporter) if settings.errors and has_errors(table) else None
    return RunRecord(folder, table, written, read_metrics(folder), predicted)


def read_report(path: Path) -> dict[str, Any]:
    """Read the report of a run, without what is null. Raises ValueError for parts of other types than a run writes."""
    written = read_json(path)
    if not isinstance(written, dict):
        raise ValueError(f"{path}: expected an object, got a {type(written).__name__}; restore the file")
    written = {name: value for name, value in written.items() if value is not None}
    wrong = [name for name, depth in PARTS.items() if not _is_nested(written.get(name, {}), depth)]
    needed, cells = {"row", "column", *SeedSummary._fields}, written.get("cells", [])
    if wrong or not isinstance(cells, list) or not all(isinstance(one, dict) and needed <= one.keys() for one in cells):
        raise ValueError(f"{path}: damaged {wrong[0] if wrong else 'cells'}; restore the file")
    return written


def _is_nested(value: Any, depth: int) -> bool:
    """Return whether a value is objects in objects, so many levels deep, around other values.

    >>> _is_nested({"dev": {"f1": 0.5}}, 2), _is_nested({"dev": 0.5}, 2)
    (True, False)
    """
    return isinstance(value, dict) == (depth > 0) and all(
        _is_nested(one, depth - 1) for one in (value.values() if depth else ())
    )


def has_errors(table: Mapping[str, Any]) -> bool:
    """Return whether a run's settings are of a task whose predictions can be wrong."""
    return "task" in table and table["task"].get("task") not in WITHOUT_ERRORS


def predict_dev(run: Path, device: DeviceSettings, reporter: Reporter) -> Predicted | None:
    """Predict the dev examples of a fine-tuning again; None if model or files are gone, or have changed."""
    from bertwright.finetuning.training_examples import read_training_examples
    from bertwright.inference.load_task_models import load_for_task
    from bertwright.tasks.prediction import predict_logits
    from bertwright.training.context import execution_context

    splits = read_training_examples(run / "model") if (run / "model").is_dir() else None
    if splits is None or not (examples := splits.get("dev")):
        return None
    with execution_context(device) as context:
        models = load_for_task((str(run),), TaskOptions(), None, context)
        encoded = models.task.encode(examples, models.first.tokenizer, labeled=False)
        with reporter.progress(f"predicting dev of {run}", encoded.num_items) as advance:
            outputs = predict_logits(models.members[0].model, encoded, advance)
    scored = decisions.Scored(examples, encoded, outputs)
    task = from_table(TaskSettings, read_toml(run / "settings.toml")["task"], "settings.toml: task")
    files = join_as_glob(task.files("dev") or task.files("train"))  # without dev files, a share of the training files
    return Predicted(models.task, scored, scored.decode(models.task), splits["train"], files)


def describe_run(run: RunRecord) -> Iterator[str]:
    """Yield scores, curves and the time of a run; of a series of runs, its table."""
    if cells := run.report.get("cells"):
        summaries = [SeedSummary(*(one[name] for name in SeedSummary._fields)).format(*run.scale) for one in cells]
        rows = [(one["row"], one["column"], mean, one["seeds"]) for one, mean in zip(cells, summaries, strict=True)]
        yield make_table(("row", "column", f"{run.metric}, mean ± sd", "seeds"), rows, (0, 1))
        return
    splits = run.scores()
    names = dict.fromkeys(name for scores in splits.values() for name in scores if name not in ("kind", "step"))
    lines = [
        (name, *(format_score(scores.get(name), name if run.scale[0] == 2 else "mse") for scores in splits.values()))
        for name in names
    ]
    for floor, found in run.report.get("linear_floor", {}).items():
        of_splits = (found.get(split, {}).get(run.metric) for split in splits)
        lines.append((f"{run.metric}, {floor}", *(format_score(score, run.metric) for score in of_splits)))
    yield "<h3>Scores</h3>" + (make_table(("", *splits), lines) if lines else "<p>None yet.</p>")
    yield f'<h3>Curves</h3><div class="charts">{"".join(draw_curves(run))}</div>'
    if parts := run.report.get("seconds_by_part"):
        yield "<h3>Where the time went</h3>" + make_bars(parts, "s")
        whole = f"{sum(parts.values()):,.2f} of the {run.report['seconds_of_this_process']:,.2f} seconds"
        yield f"<p>{whole} of the run's last process, after it had opened data and model. On a GPU, forward and "
        yield "backward are the time to start its work; wait is the time until it has done it.</p>"


def draw_curves(run: RunRecord) -> Iterator[str]:
    """Yield the charts of a run: loss, the metric of its evaluations, learning rate, gradient norm."""
    factors = {run.metric: run.scale[1]}
    for metric in dict.fromkeys(("loss", run.metric, "learning_rate", "gradient_norm")):
        curves = dict[str, Sequence[tuple[float, float]]]()
        for kind in dict.fromkeys(record["kind"] for record in run.records):
            found = [one for one in run.records if one["kind"] == kind and metric in one]
            points = [(one["step"], factors.get(metric, 1) * one[metric]) for one in found]
            if points:
                curves[kind.replace("_", " ")] = smooth(drop_short_windows(points)) if kind == "train" else points
        if curves:
            yield make_chart(f"{metric.replace('_', ' ')} by step", curves)


def describe_errors(found: Predicted, settings: ReportSettings) -> Iterator[str]:
    """Yield confusions, decisions, slices, calibration, the worst errors, and suspicious training labels."""
    task, scored, rows = found.task, found.scored, dict[str, Sequence[decisions.Record]]()
    tables = [*task.score_tables(scored.examples, found.predictions)]
    if isinstance(task, Classification):
        rows["label at least as probable as"] = decisions.measure_abstention(task, scored, *ABSTENTIONS)
    if isinstance(task, MultiLabel) or (isinstance(task, Classification) and len(task.labels) == 2):
        chosen = decisions.DecisionSettings(costs=settings.costs)
        [rows["costs {:g} and {:g}".format(*settings.costs)]] = decisions.decide(chosen, task, scored, ())[1].values()
    for name in settings.slices:
        try:
            rows[f"by {name}"] = decisions.score_slices(name, task, scored, found.inputs)
        except ValueError:  # a task type without such slices
            if name not in (decisions.LENGTH, decisions.LABEL):
                raise
    tables += decisions.make_tables(rows)
    yield "<h3>On dev</h3>"
    yield from (f"<p></p>{make_table(table.columns, table.rows)}" for table in tables)
    if isinstance(task, Classification | MultiLabel):
        yield _draw_reliability(task, scored)
    yield from _list_errors(found)
    if isinstance(task, Classification) and FOLDS <= len({*task.group_keys(found.train)}) <= MAX_CHECKED:
        suspects = find_suspects(task, found.train)
        yield f"<h3>Training labels: {len(suspects):,} of {len(found.train):,} are probably wrong (check-labels)</h3>"
        yield make_table(COLUMNS, format_suspects(suspects[:WORST]), (0, 1, 2))


def _draw_reliability(task: AnyTask, scored: decisions.Scored) -> str:
    """Return a chart of the share of right answers by probability, as the model is and with the best temperature."""
    after, (before_row, after_row) = decisions.calibrate(task, scored)
    curves: dict[str, list[tuple[float, float]]] = {"ideal": [(0, 0), (1, 1)]}
    for one, row in ((task, before_row), (after, after_row)):
        bins = measure_reliability(*decisions.outcomes(one, scored))
        name = f"temperature {row['temperature']:.3g}, calibration error {row['calibration error']:.4f}"
        curves[name] = list(zip(bins.confidence.tolist(), bins.accuracy.tolist(), strict=True))
    return "<h3>Calibration on dev (evaluate --calibrate)</h3>" + make_chart("right by probability", curves)


def _list_errors(found: Predicted) -> Iterator[str]:
    """Yield the wrong predictions with their texts, the most confident or most distant ones first."""
    task, pairs = found.task, list(zip(found.scored.examples, found.predictions, strict=True))
    if task.is_regression:
        wrong = sorted(pairs, key=lambda pair: -abs(pair[0].label - pair[1]))
    else:
        try:
            wrong = [pair for pair in pairs if not task.is_right(*pair)]
        except ValueError:  # a type whose predictions are not right or wrong
            return
        wrong.sort(key=lambda pair: -getattr(pair[1], "probability", 0.0))
    rows = []
    for example, prediction in wrong[:WORST]:
        gold = task.gold_columns(example)
        texts = " / ".join(str(value) for name, value in gold.items() if name not in ("location", "gold"))
        record = task.to_record(example, prediction)
        place = str(gold.get("location", "")).rpartition("/")[2]
        if {"words", "tags"} <= record.keys():
            spans = (_join_tagged(record["words"], tags) for tags in (gold["gold"], record["tags"]))
            rows.append((place, " ".join(record["words"]), *spans))
            continue
        shown = (value for name, value in record.items() if not name.startswith("p("))
        rows.append((place, texts, _plain(gold.get("gold")), ", ".join(map(_plain, shown))))
    yield f"<h3>Worst of {len(wrong):,} errors in {len(pairs):,} dev examples</h3>"
    yield make_table(("place", "text", "gold", "predicted"), rows, (0, 1, 2, 3))


def _join_tagged(words: Sequence[str], tags: Sequence[str]) -> str:
    """Return the words with another tag than O, each with its tag.

    >>> _join_tagged(["Ada", "lives", "in", "Bonn"], ["B-PER", "O", "O", "B-LOC"])
    'Ada (B-PER), Bonn (B-LOC)'
    """
    return ", ".join(f"{word} ({tag})" for word, tag in zip(words, tags, strict=False) if tag != "O")


def describe_settings(run: RunRecord) -> Iterator[str]:
    """Yield all settings with their origins; then the digests of the data."""
    origins = find_origins(run.settings, run.folder)
    rows = [(name, _plain(value), origins.get(name, "")) for name, value in flatten(run.settings)]
    yield "<h3>Settings</h3><p>“by …”: the settings that a value follows from; “stated”: in Python, or by a grid.</p>"
    for is_default in (False, True):  # the defaults are many, and folded
        shown = [row for row in rows if (row[2] == DEFAULT) == is_default]
        table = make_table(("", "value", "origin"), shown, (0, 1, 2))
        yield f"<details><summary>{len(shown)} defaults</summary>{table}</details>" if is_default else table
    if (run.folder / "data.json").is_file():
        yield "<h3>Data</h3>" + make_table(("name", "digest"), [*read_json(run.folder / "data.json").items()], (0, 1))


def compare_runs(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Yield mean and deviation of runs that differ in their seed only, and the difference between such groups."""
    groups = dict[str, list[RunRecord]]()
    for run in runs:
        method = {name: value for name, value in flatten(run.settings) if not NOT_OF_THE_METHOD.fullmatch(name)}
        groups.setdefault(json.dumps(method, sort_keys=True), []).append(run)
    tables = [json.loads(key) for key in groups]
    varied = sorted({name for one in tables for name in one for other in tables if one[name] != other.get(name)})
    rows, samples = list[tuple[str, ...]](), dict[str, Sample]()
    for table, members in zip(tables, groups.values(), strict=True):
        title = ", ".join(f"{name} {_plain(table.get(name, 'unset'), exact=True)}" for name in varied) or "all"
        metric = members[0].metric
        for split in dict.fromkeys(split for run in members for split in run.scores()):
            scores = [run.scores()[split][metric] for run in members if metric in run.scores().get(split, {})]
            if scores:
                mean = summarize_seeds(scores).format(*members[0].scale)
                rows.append((title, split, metric, mean, str(len(scores))))
        if metric == runs[0].metric and all(metric in run.scores().get("dev", {}) for run in members):
            samples[title] = Sample([run.scores()["dev"][metric] for run in members], _example_scores(members))
    yield "<h2>Comparison</h2>" + make_table(("runs", "split", "metric", "mean ± sd", "runs"), rows, (0, 1, 2))
    sizes = {len(one.values) for sample in samples.values() for one in sample.examples}
    if len(sizes) != 1 or not all(sample.examples for sample in samples.values()):  # other dev examples, or none
        samples = {title: sample._replace(examples=()) for title, sample in samples.items()}
    estimates = estimate("dev", samples, DRAWS)
    for title in [*samples][1:]:
        first = next(iter(samples))
        found = difference([(estimates[title], estimates[first])])
        digits, factor = runs[0].scale
        bounds = [f"{factor * bound:+.{digits}f}" for bound in found.interval or ()]
        interval = f"95 % interval {' to '.join(bounds)} (bootstrap)" if bounds else "without an interval"
        mean = f"{factor * found.mean:+.{digits}f}"
        yield f"<p>{escape(title)} minus {escape(first)}, on dev: {mean}, {interval}.</p>"


def _example_scores(runs: Sequence[RunRecord]) -> list[Any]:
    """Return the numbers of the dev examples of each run, from which its metric follows; empty if one has none."""
    predicted = [run.predicted for run in runs if run.predicted]
    numbers = [one.task.example_scores(one.scored.examples, one.predictions) for one in predicted]
    return numbers if len(predicted) == len(runs) and None not in numbers else []


def _plain(value: Any, exact: bool = False) -> str:
    """Return a value of a record or of a setting as text; `exact`: with all digits of a number that has more than 4."""
    if isinstance(value, list | tuple):
        return ", ".join(_plain(one, exact) for one in value)
    short = f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(value) if exact and isinstance(value, float) and float(short) != value else short
