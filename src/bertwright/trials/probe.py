"""Feature probe: heads are trained on a frozen BERT's states, layer by layer as in table 7.

RUN/settings.toml    all settings                    RUN/features/    the states, computed once, memory-mapped
RUN/results.jsonl    one line per head: its scores   RUN/report.json  means and deviations over the seeds
RUN/examples/        numbers per dev example of each head, for intervals over examples (see `metrics.example_scores`)
RUN/layers.png       with --representations each-layer: the score of each layer

The heads themselves are not saved: settings, seed and features reproduce each of them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bertwright.base.description import Description, describe_progress, read_settings_with
from bertwright.base.files import digest_bytes, ensure_folder, read_bytes, remove_stale_parts, save_figure, write_json
from bertwright.base.messages import format_duration
from bertwright.base.optional import is_installed
from bertwright.base.reporter import MUTE, SILENT, Fields, Heading, Line, Outputs, Reporter, Rows
from bertwright.base.settings import write_settings
from bertwright.finetuning.pooling_choice import PoolingChoice, choose_pooling
from bertwright.finetuning.settings import TuningSettings
from bertwright.inference.feature_cache import (
    HEADER,
    Features,
    LayerStates,
    check_cache_key,
    encoder_digest,
    input_digest,
    load_or_compute_features,
    open_features,
)
from bertwright.interop.huggingface import check_vocabulary, load_model
from bertwright.interop.model_files import model_folder
from bertwright.metrics.seed_summary import SeedSummary
from bertwright.models.encoder import TextEncoder
from bertwright.models.feature_head import FeatureHead, FeatureHeadConfig
from bertwright.models.representations import (
    PAPER_F1,
    PAPER_FINE_TUNED_F1,
    REPRESENTATIONS,
    Representation,
    expand_representations,
    select_layers,
    single_layers,
)
from bertwright.tables.tag_schemes import split_tag
from bertwright.tasks.presets import SPLITS
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import SplitData, data_warnings, read_splits, within_positions
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.cost import format_bytes
from bertwright.training.distributed import check_single_process
from bertwright.training.fit import FitSettings, fit
from bertwright.training.interrupt import until_stopped
from bertwright.training.run_folder import check_run_directory, locked_run, read_run_settings
from bertwright.trials.head_results import RESULTS_FILE, read_results, write_results
from bertwright.trials.probe_settings import RESUME_OVERRIDES, ProbeSettings, ProbeTrial
from bertwright.trials.probe_training import HeadData, make_spec, predict, score
from bertwright.trials.table import Score, read_cells
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

EXAMPLES = "examples"  # folder
TIMED_EXAMPLES = 64  # examples of each split with which heads are timed
BYTES_PER_NUMBER = 2  # of the features, float16
CONLL_2003 = {"LOC", "MISC", "ORG", "PER"}  # the entity types of table 7


@dataclass(frozen=True)
class ProbeResult:
    """Scores of one head: a line of results.jsonl."""

    representation: str
    learning_rate: float
    seed: int
    epoch: int
    """Epoch with the best dev score, from 1."""
    dev: dict[str, float]
    test: dict[str, float] | None
    seconds: float
    source: str
    """Digest of features and targets."""

    @property
    def trial(self) -> ProbeTrial:
        """The trial that has these scores."""
        return ProbeTrial(self.representation, self.learning_rate, self.seed)


class ProbeRow(NamedTuple):
    """Scores of a representation over the seeds, at the rate that is best on dev."""

    representation: str
    learning_rate: float
    dev: SeedSummary
    test: SeedSummary | None

    def to_record(self) -> dict[str, Any]:
        """Return the row for a JSON file."""
        return self._asdict() | {"dev": self.dev._asdict(), "test": self.test._asdict() if self.test else None}


def table_rows(results: Sequence[ProbeResult], metric: str) -> list[ProbeRow]:
    """Return one row per representation, with the rate whose mean on dev is best; the rows of table 7 come first.

    A rate with fewer seeds than another ranks below it.
    """
    scores = [Score(one.representation, "dev", one.dev[metric], one.seed, one.learning_rate) for one in results]
    scores += [
        Score(one.representation, "test", one.test[metric], one.seed, one.learning_rate, selected_by=one.dev[metric])
        for one in results
        if one.test
    ]
    cells = read_cells(scores)
    names = dict.fromkeys([*REPRESENTATIONS, *(one.representation for one in results)])
    rows = [(name, cells[name, "dev"], cells.get((name, "test"))) for name in names if (name, "dev") in cells]
    return [
        ProbeRow(name, dev.learning_rate or 0.0, dev.summary, test.summary if test else None)
        for name, dev, test in rows
    ]


def probe(settings: ProbeSettings, reporter: Reporter = SILENT) -> list[ProbeRow]:
    """Compute the features, train all heads that are missing, and print and return the table; none in a dry run.

    Ctrl-C loses only the current head. Raises ValueError for settings, files and folders that are not usable, and
    DivergedError for a loss that is not finite.
    """
    check_single_process("a probe")
    if settings.dry_run:
        check_run_directory(settings, RESUME_OVERRIDES)
        print_plan(settings, reporter)
        return []
    with locked_run(settings, RESUME_OVERRIDES) as context:
        if settings.resume:
            settings = settings.extend(read_run_settings(ProbeSettings, settings.run))
        run = open_probe(settings, context, reporter)
        try:
            return run.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"finished heads and features are saved; resume with: bertwright probe --run "
                f"{shlex.quote(str(settings.run))} --resume"
            ) from None


class ProbeCost(NamedTuple):
    """Estimated seconds of a probe."""

    opening: float
    features: float
    """The states of all examples."""
    heads: float
    """One head of each representation."""
    examples: int
    """Training examples."""


def measure_probe(settings: ProbeSettings) -> ProbeCost:
    """Estimate the time of a probe from heads on a few examples, in a folder that is deleted.

    A second seed gives the time of the heads; the features take the rest.
    """
    started = time.perf_counter()
    with execution_context(settings.device) as context:
        examples = len(open_probe(settings, context, MUTE).splits[0].examples)
    opening, seconds = time.perf_counter() - started, list[float]()
    limit = min(examples, TIMED_EXAMPLES)
    sample = replace(
        settings, learning_rates=settings.learning_rates[:1], limit=limit, features=None, resume=False, dry_run=False
    )
    with TemporaryDirectory() as folder:
        for seeds in ((0,), (0, 1)):
            started = time.perf_counter()
            probe(replace(sample, run=Path(folder) / str(len(seeds)), seeds=seeds), MUTE)
            seconds.append(time.perf_counter() - started)
    heads = max(0.0, seconds[1] - seconds[0])
    features, factor = max(0.0, seconds[0] - heads), examples / limit
    return ProbeCost(opening, factor * features, factor * heads, examples)


def print_plan(settings: ProbeSettings, reporter: Reporter) -> None:
    """Print the data, the heads that are missing, and their estimated time; write nothing."""
    if settings.resume:
        settings = settings.extend(read_run_settings(ProbeSettings, settings.run))
    with execution_context(settings.device) as context:
        run = open_probe(settings, context, reporter)
        run.print_summary(len(run.trials))
        pending, numbers = len(run.pending(run.read_results())), run.count_numbers()
        cached = all(run.features_folder(split).exists() for split in run.splits)
    cost = measure_probe(settings)
    features = 0.0 if cached else cost.features
    heads = cost.heads * pending / len(run.representations)
    reporter.record(Heading("The whole run, estimated on this machine"))
    reporter.record(
        Fields(
            {
                "heads": f"{pending:,} to train",
                "estimated time": format_duration(cost.opening + features + heads),
                "features": "cached already" if cached else format_duration(features),
                "disk space": f"{format_bytes(BYTES_PER_NUMBER * numbers)} for the features",
            }
        )
    )


def open_probe(settings: ProbeSettings, context: ExecutionContext, reporter: Reporter) -> ProbeRun:
    """Read and check model, examples and cached features; nothing has been written at that point."""
    folder = model_folder(settings.model)
    encoder, tokenizer = load_model(folder, heads="optional").model.encoder, open_tokenizer(folder)
    check_vocabulary(tokenizer, encoder.config, folder)
    encoder.compute_dtype = context.dtype
    representations = expand_representations(settings.representations, encoder.config.num_layers)
    task, examples = read_splits(settings.task, settings.validation_fraction, settings.limit)
    if "dev" not in examples:
        raise ValueError("no dev examples: name files with --dev, or a published task's folder with --data")
    if task.head.kind == "span":
        raise ValueError(f"{task.kind}: reads the states of all tokens, too many to cache; fine-tune the model instead")
    task = within_positions(task, settings.task.overrides, encoder.config.max_positions)
    splits = [SplitData(name, split, task.encode(split, tokenizer)) for name, split in examples.items()]
    pooling = choose_pooling(TuningSettings(pooling=settings.pooling), task, folder)
    encoder.to(context.device)
    run = ProbeRun(settings, context, reporter, task, encoder, tokenizer, splits, representations, pooling)
    if cached := [split for split in splits if run.features_folder(split).exists()]:
        model = encoder_digest(run.encoder, run.pooling.modes)
        for split in cached:
            check_cache_key(run.features_folder(split), model, input_digest(split.encoded))
    return run


@dataclass
class ProbeRun:
    """A probe: encoder, task and data."""

    settings: ProbeSettings
    context: ExecutionContext
    reporter: Reporter
    task: AnyTask
    encoder: TextEncoder
    tokenizer: TextTokenizer
    splits: list[SplitData]
    representations: Mapping[str, Representation]
    pooling: PoolingChoice
    """What the vector of a text is, for tasks that read one; no modes: the state of [CLS] or of the last token."""

    def run(self) -> list[ProbeRow]:
        """Compute the features, train the heads, print and return the table."""
        run = self.settings.run
        started = replace(self.settings, resume=False)  # usable as --config of another run
        write_settings(run / "settings.toml", started, "bertwright probe: all settings, defaults included")
        remove_stale_parts(run)
        trials = self.trials
        self.print_summary(len(trials))
        features = {split.name: self.compute_features(split) for split in self.splits}
        source = self.digest_source(features)
        path, results = run / RESULTS_FILE, self.read_results()
        if any(result.source != source for result in results):
            raise ValueError(f"{path}: results of other data or another --dtype; restore both, or start another run")
        pending = self.pending(results)
        if len(pending) < len(trials):
            self.reporter.record(Line(f"{len(trials) - len(pending)} of {len(trials)} heads are already finished"))
        for trial in until_stopped(pending):
            results.append(self.train(trial, features, source))
            write_results(path, map(asdict, results))
        rows = table_rows(results, self.task.metric)
        self.finish(rows)
        return rows

    @property
    def trials(self) -> list[ProbeTrial]:
        """All heads, the finished ones included."""
        rates, seeds = self.settings.learning_rates, self.settings.seeds
        return [ProbeTrial(name, rate, seed) for name, rate, seed in product(self.representations, rates, seeds)]

    def read_results(self) -> list[ProbeResult]:
        """Read the scores of the finished heads."""
        path = self.settings.run / RESULTS_FILE
        return read_results(path, lambda record: parse_result(record, self.task.metric))

    def pending(self, results: Sequence[ProbeResult]) -> list[ProbeTrial]:
        """Return the heads without a result."""
        done = {result.trial for result in results}
        return [trial for trial in self.trials if trial not in done]

    def count_numbers(self) -> int:
        """Count the numbers of the features of all splits."""
        states = sum(len(split.encoded.positions) for split in self.splits)
        layers = {layer for name in self.representations for layer in self.layers(name)}
        return states * len(layers) * max(1, len(self.pooling.modes)) * self.encoder.config.hidden_size

    def print_summary(self, heads: int) -> None:
        """Print the task, the encoder, the data and the heads, then warnings about the data."""
        config, settings, head = self.encoder.config, self.settings, self.head_config(next(iter(self.representations)))
        lstm = f"{head.lstm_layers}-layer BiLSTM of {head.lstm_size}, " if head.lstm_layers else ""
        name, kind = settings.task.task, self.task.kind
        fields = {
            "task": f"{name if name == kind else f'{name} ({kind})'}, best by {self.task.metric}",
            "frozen": f"{config}, from {settings.model}",
        }
        if self.pooling.modes:
            fields["text vector"] = self.pooling.describe()
        for split in self.splits:
            fields[split.name] = f"{len(split.examples):,} examples, {len(split.encoded.positions):,} states"
        epochs = f"{settings.epochs} epochs in batches of {settings.batch_size}"
        fields["head"] = f"{lstm}linear, {head.outputs} outputs; {epochs}"
        fields["heads"] = f"{heads}, of {len(self.representations)} representations"
        fields["device"] = str(self.context)
        self.reporter.record(Fields(fields))
        for warning in data_warnings(self.task, settings.task, self.splits, self.tokenizer, config.max_positions):
            self.reporter.note(warning)

    def compute_features(self, split: SplitData) -> Features:
        """Return the states of one split; compute them if they are not cached."""
        layers = {layer for name in self.representations for layer in self.layers(name)}
        with self.reporter.progress(f"features of {split.name}", split.encoded.num_items) as advance:
            states = LayerStates(self.encoder, sorted(layers), self.task.head.reads_sequence_state, self.pooling.modes)
            return load_or_compute_features(states, split.encoded, self.features_folder(split), advance)

    def features_folder(self, split: SplitData) -> Path:
        """Return the cache folder of a split."""
        return (self.settings.features or self.settings.run / "features") / split.name

    def digest_source(self, features: Mapping[str, Features]) -> str:
        """Return the digest of the data that heads are trained and scored on."""
        digests = []
        for split in self.splits:
            header = features[split.name].header
            digests += [header.model, header.data, digest_bytes(split.encoded.labels.tobytes())]
        return digest_bytes(*(digest.encode() for digest in digests))

    def layers(self, name: str) -> tuple[int, ...]:
        """Return the layers of a representation."""
        return select_layers(self.representations[name], self.encoder.config.num_layers)

    def head_config(self, name: str) -> FeatureHeadConfig:
        """Return the configuration of a head that reads a representation."""
        head, settings = self.task.head, self.settings
        return FeatureHeadConfig(
            num_layers=len(self.layers(name)),
            weighted=self.representations[name].weighted,
            hidden_size=max(1, len(self.pooling.modes)) * self.encoder.config.hidden_size,
            outputs=head.outputs,
            lstm_size=settings.lstm_size,
            lstm_layers=settings.lstm_layers if head.kind == "token" else 0,
        )

    def train(self, trial: ProbeTrial, features: Mapping[str, Features], source: str) -> ProbeResult:
        """Train one head from its seed; return the scores of its best epoch. Raises KeyboardInterrupt as `fit` does."""
        started = time.perf_counter()
        settings, layers, metric = self.settings, self.layers(trial.representation), self.task.metric
        data = {split.name: HeadData(split, features[split.name], layers, self.context.device) for split in self.splits}
        head = FeatureHead(self.head_config(trial.representation), trial.seed).to(self.context.device)
        spec = replace(
            make_spec(head, self.task, data, settings, trial),
            format_metrics=lambda metrics: f"{trial}: loss {metrics['loss']:.3f}",
            format_scores=None,
        )
        per_epoch = data["train"].count_steps(settings.batch_size)
        steps = settings.epochs * per_epoch
        fit_settings = FitSettings(None, steps, eval_steps=range(per_epoch, steps, per_epoch), metric=metric)
        best = fit(fit_settings, spec, self.context, self.reporter)
        if numbers := self.task.example_scores(data["dev"].split.examples, predict(head, self.task, data["dev"])):
            ensure_folder(settings.run / EXAMPLES)
            numbers.save(settings.run / EXAMPLES / f"{trial.name}.npz")
        test = score(head, self.task, data["test"]) if "test" in data else None
        epoch, seconds = best.step // per_epoch, time.perf_counter() - started
        scores = f"{metric} {100 * best.scores[metric]:.2f} on dev after epoch {epoch}"
        scores += f", {100 * test[metric]:.2f} on test" if test else ""
        self.reporter.record(Line(f"{trial}: {scores}; {seconds:,.0f} s"))
        name, rate, seed = trial
        return ProbeResult(name, rate, seed, epoch, dev=best.scores, test=test, seconds=seconds, source=source)

    def finish(self, rows: Sequence[ProbeRow]) -> None:
        """Print the table, with the paper's scores if the data set is the same, and write it as JSON."""
        types = {split_tag(name)[1] for name in self.task.label_names} - {""}
        comparable = self.task.head.kind == "token" and self.task.metric == "f1" and types == CONLL_2003
        metric = self.task.metric.replace("_", " ")
        self.reporter.record(
            Heading(
                f"{metric} on the frozen states, percent, mean ± deviation over the seeds; "
                f"dev: the best of {self.settings.epochs} epochs"
            )
        )
        paper = ("paper",) if comparable else ()
        columns = ("", "rate", "seeds", "dev", *(("test",) if rows[0].test else ()), *paper)
        cells = []
        for row in rows:
            scores = [summary.format(digits=2) for summary in (row.dev, row.test) if summary]
            f1 = PAPER_F1.get(row.representation)
            published = (f"{100 * f1:.1f}" if f1 else "",) if comparable else ()
            cells.append((row.representation, f"{row.learning_rate:g}", str(row.dev.seeds), *scores, *published))
        self.reporter.record(Rows(columns, cells))
        if comparable:
            fine_tuned = f"{100 * PAPER_FINE_TUNED_F1:.1f}"
            self.reporter.record(
                Line(f"paper: BERT BASE on the dev set of CoNLL-2003 (table 7; fine-tuned {fine_tuned})")
            )
        run = self.settings.run
        write_json(run / "report.json", {"metric": self.task.metric, "rows": [row.to_record() for row in rows]})
        outputs = {"all heads": run / RESULTS_FILE}
        if "each-layer" in self.settings.representations:
            by_name = {row.representation: row for row in rows}
            layers = [by_name[name] for name in single_layers(self.encoder.config.num_layers)]
            plot_layers(layers, metric, run / "layers.png")
            outputs["plot"] = run / "layers.png"
        self.reporter.record(Outputs(outputs))


def plot_layers(rows: Sequence[ProbeRow], metric: str, path: Path) -> None:
    """Plot the scores of each layer, from the embeddings on, with their deviation over the seeds, as a PNG file."""
    if not is_installed("matplotlib"):  # extra "plot"
        return
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    for split in ("dev", "test"):
        scores = [summary for row in rows if (summary := getattr(row, split))]
        if scores:
            means, deviations = [100 * score.mean for score in scores], [100 * (score.std or 0) for score in scores]
            panel.errorbar(range(len(scores)), means, yerr=deviations, marker="o", capsize=3, label=split)
    panel.set_xticks(range(len(rows)))
    panel.set_xlabel("layer (0: embeddings)")
    panel.set_ylabel(f"{metric}, percent")
    panel.grid(alpha=0.3)
    panel.legend()
    save_figure(figure, path)


def parse_result(record: Any, metric: str) -> ProbeResult:
    """Return a record of results.jsonl as a result. Raises ValueError or TypeError for other content."""
    result = ProbeResult(**record)
    for scores in (result.dev, *([result.test] if result.test else [])):
        if not isinstance(scores, dict) or not isinstance(scores.get(metric), float):
            raise ValueError(f"{metric} of {result.trial} is {scores!r}")
    return result


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the finished heads of a probe; None for another folder."""
    results = folder / RESULTS_FILE
    if (settings := read_settings_with(folder, "representations", "learning_rates", "seeds")) is None:
        return None
    names, planned = settings["representations"], None
    cache = Path(settings.get("features", folder / "features")) / SPLITS[0]
    if "each-layer" in names and (cache / HEADER).is_file():  # the number of heads depends on the model's layers
        names = [*expand_representations(names, max(open_features(cache).header.layers))]
    if "each-layer" not in names:
        planned = prod(map(len, (names, settings["learning_rates"], settings["seeds"])))
    done = len(read_bytes(results).splitlines()) if results.is_file() else 0
    return Description("probe of frozen features", describe_progress(folder, done, planned))
