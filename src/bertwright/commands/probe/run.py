"""Feature-based use, assembled: heads are trained on a frozen BERT's states, layer by layer as in table 7.

RUN/settings.toml    the settings in force           RUN/features/    the states, computed once, memory-mapped
RUN/results.jsonl    one line a head: its scores     RUN/report.json  means and deviations over the seeds

The heads themselves are not kept: settings, seed and features give each of them again.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bertwright.commands.finetune.setup import SplitData, notes, read_examples, within_positions
from bertwright.commands.probe.head_training import HeadData, HeadHyperParams, total_steps, train
from bertwright.console import heading, item_progress, key_value_table, make_table, notice, say
from bertwright.files import digest_bytes, remove_stale_parts, write_json, write_text
from bertwright.inference.feature_cache import Features, cached_features, check_cache_key, encoder_digest, rows_digest
from bertwright.interop.huggingface import check_vocabulary, load_model
from bertwright.interop.model_files import model_folder
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.metrics.tag_schemes import split_tag
from bertwright.models.feature_head import (
    REPRESENTATIONS,
    FeatureHead,
    FeatureHeadConfig,
    RepresentationName,
    layers_of,
)
from bertwright.models.text_encoder import TextEncoder
from bertwright.seeding import check_seed
from bertwright.settings import write_settings
from bertwright.tasks.presets import SPLITS, TaskSettings
from bertwright.tasks.task_io import AnyTask
from bertwright.training.context import DeviceSettings, ExecutionContext
from bertwright.training.run_directory import locked_run, saved_settings
from bertwright.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True)
class ProbeSettings:
    """Train heads on a frozen BERT and compare what its layers give (section 5.3); with --resume, go on."""

    run: Path
    """Run folder, to be made; with --resume, one that exists."""
    task: TaskSettings
    model: str | None = None
    """Model folder, run folder or hub name. Needed unless --resume finds it in the run's settings."""
    resume: bool = False
    """Train the heads that are still missing in the run folder. Representations, rates and seeds that are given are
    added to those that stand there."""
    representations: tuple[RepresentationName, ...] = tuple(REPRESENTATIONS)
    """What a word's vector is made of (paper, table 7: these six). A sum has learned weights; the embeddings are those
    that the first layer reads."""
    features: Path | None = None
    """Folder for the states of all words, computed once; runs on the same model and files may share it. Unset: in the
    run folder. It takes 2 bytes × words × hidden size × layers."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """One head for each: its weights, the order of the examples and dropout are drawn from it (paper: 5 restarts)."""
    learning_rates: tuple[float, ...] = (1e-3,)
    """Peak rates; of several, the table shows the one that is best on dev."""
    epochs: int = 10
    """Passes over the training examples; the one that is best on dev counts."""
    batch_size: int = 32
    """Examples a step."""
    lstm_size: int = 768
    """Numbers that the BiLSTM gives for a word, both directions together (paper: "768-dimensional")."""
    lstm_layers: int = 2
    """Layers of the BiLSTM (paper: 2). Only tagging has one: of a text there is one vector, the state of [CLS], which a
    linear layer reads."""
    dropout: float = 0.3
    """Dropout before, between and after the layers of the BiLSTM (the paper does not say)."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        for name in ("representations", "seeds", "learning_rates"):
            values = getattr(self, name)
            if not values or len({*values}) < len(values):
                raise ValueError(f"{name} = {[*values]}: one or more, each once, are needed")
        for name, least in (("epochs", 1), ("batch_size", 1), ("lstm_size", 2), ("lstm_layers", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for seed in self.seeds:
            check_seed(seed, "one of seeds")
        if self.lstm_size % 2:
            raise ValueError(f"lstm_size must be even, half for each direction, not {self.lstm_size}")
        if not all(rate > 0 and math.isfinite(rate) for rate in self.learning_rates):
            raise ValueError(f"learning_rates must be above 0, not {[*self.learning_rates]}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a share, from 0 to below 1, not {self.dropout}")

    def added_to(self, kept: ProbeSettings) -> ProbeSettings:
        """These settings with the heads that `truncate_longest_first` asks for, too: its own first, so that they stay in their order."""
        return replace(
            self,
            representations=tuple(dict.fromkeys(kept.representations + self.representations)),
            learning_rates=tuple(dict.fromkeys(kept.learning_rates + self.learning_rates)),
            seeds=tuple(dict.fromkeys(kept.seeds + self.seeds)),
        )


CONLL_2003 = {"LOC", "MISC", "ORG", "PER"}  # the entities of table 7
# May differ between a run and its resumption: they add heads, or say where and not what is computed.
FREE = ("run", "resume", "representations", "features", "seeds", "learning_rates", "device")


class ProbeTrial(NamedTuple):
    """One head to be trained."""

    representation: RepresentationName
    learning_rate: float
    seed: int

    def __str__(self) -> str:
        return f"{self.representation}, rate {self.learning_rate:g}, seed {self.seed}"


@dataclass(frozen=True)
class Result:
    """What became of one head: a line of results.jsonl."""

    representation: RepresentationName
    learning_rate: float
    seed: int
    epoch: int
    """The one that was best on dev, from 1."""
    dev: dict[str, float]
    test: dict[str, float] | None
    seconds: float
    source: str
    """Digest of features and targets."""

    @property
    def trial(self) -> ProbeTrial:
        return ProbeTrial(self.representation, self.learning_rate, self.seed)


class ProbeRow(NamedTuple):
    """What a representation is worth, at the rate that is best on dev."""

    representation: RepresentationName
    learning_rate: float
    dev: SeedSummary
    test: SeedSummary | None

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return self._asdict() | {"dev": self.dev._asdict(), "test": self.test and self.test._asdict()}


def table_rows(results: Sequence[Result], metric: str) -> list[ProbeRow]:
    """One row a representation, in the order of table 7; of several rates, the one with the best mean on dev.

    A rate that lacks some of the seeds stands behind all that have them: the mean of fewer may be a lucky one.
    """
    seeds = {result.seed for result in results}
    alike: dict[tuple[RepresentationName, float], list[Result]] = {}
    for result in results:
        alike.setdefault((result.representation, result.learning_rate), []).append(result)
    best: dict[RepresentationName, tuple[bool, ProbeRow]] = {}
    for (name, rate), found in alike.items():
        tests = [result.test[metric] for result in found if result.test]
        row = ProbeRow(
            name,
            rate,
            summarize_seeds([result.dev[metric] for result in found]),
            summarize_seeds(tests) if tests else None,
        )
        whole = len(found) == len(seeds)
        if name not in best or (whole, row.dev.mean) > (best[name][0], best[name][1].dev.mean):
            best[name] = whole, row
    return [best[name][1] for name in REPRESENTATIONS if name in best]


def probe(settings: ProbeSettings, console: Console | None = None) -> list[ProbeRow]:
    """Compute the features, train every head that is still missing, and show and return the table.

    Ctrl-C loses no more than the head in hand. Raises ValueError for settings, files and folders that do not fit, and
    DivergedError for a loss that is not finite.
    """
    console = console or Console()
    with locked_run(settings, FREE) as place:
        if place.world_size > 1:
            raise ValueError("heads this small are trained in one process; start it without torchrun")
        if settings.resume:
            settings = settings.added_to(saved_settings(ProbeSettings, settings.run))
        run = _open(settings, place, console)
        try:
            return run.carry_out()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"finished heads and computed features are kept; go on with: bertwright probe --run "
                f"{shlex.quote(str(settings.run))} --resume"
            ) from None


def _open(settings: ProbeSettings, place: ExecutionContext, console: Console) -> _Run:
    """Read and check everything; nothing has been written then."""
    if settings.model is None:
        raise ValueError("no model given: --model FOLDER, a pre-trained BERT of yours or of the hub")
    folder = model_folder(settings.model)
    encoder, tokenizer = load_model(folder, heads="optional").model.encoder, Tokenizer.load(folder)
    check_vocabulary(tokenizer, encoder.config, folder)
    encoder.compute_dtype = place.dtype
    for name in settings.representations:
        layers_of(name, encoder.config.num_layers)
    task = settings.task.build_task()
    read = {name: read_examples(task, settings.task, name) for name in SPLITS}
    for part in ("train", "dev"):
        if not read[part]:
            raise ValueError(f"no {part} examples: name files with --{part}, or a published task's folder with --data")
    task = task.with_labels_of(read["train"])
    if task.head.kind == "span":
        raise ValueError(f"{task.kind} reads every token of every window, too many to keep; fine-tune it instead")
    for part in ("dev", "test"):
        task.check(read[part])
    task = within_positions(task, settings.task.overrides, encoder.config.max_positions)
    parts = [SplitData(name, examples, task.encode(examples, tokenizer)) for name, examples in read.items() if examples]
    run = _Run(settings, place, console, task, encoder.to(place.device), parts)
    if kept := [one for one in parts if run.features_folder(one).exists()]:
        model = encoder_digest(run.encoder)
        for one in kept:
            check_cache_key(run.features_folder(one), model, rows_digest(one.encoded))
    return run


@dataclass
class _Run:
    """An opened run being carried out at a place."""

    settings: ProbeSettings
    place: ExecutionContext
    console: Console
    task: AnyTask
    encoder: TextEncoder
    parts: list[SplitData]

    def carry_out(self) -> list[ProbeRow]:
        """Features, heads, table."""
        in_force = replace(self.settings, resume=False)  # so that they begin another run as well, with --config
        write_settings(self.settings.run / "settings.toml", in_force, "bertwright probe: the settings in force")
        remove_stale_parts(self.settings.run)
        asked = (self.settings.representations, self.settings.learning_rates, self.settings.seeds)
        trials = [ProbeTrial(*chosen) for chosen in product(*asked)]
        self.announce(len(trials))
        features = {part.name: self.features(part) for part in self.parts}
        source = self.source(features)
        results = self.results(source)
        done = {result.trial for result in results}
        if kept := done.intersection(trials):
            say(self.console, f"{len(kept)} of {len(trials)} heads are done already")
        for trial in trials:
            if trial not in done:
                results.append(self.train(trial, features, source))
                lines = (json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results)
                write_text(self.settings.run / "results.jsonl", "".join(lines))
        rows = table_rows(results, self.task.metric)
        self.report(rows)
        return rows

    def announce(self, heads: int) -> None:
        """What is about to happen, before it takes its time."""
        config, settings, shape = self.encoder.config, self.settings, self.shape("last")
        lstm = f"{shape.lstm_layers}-layer BiLSTM of {shape.lstm_size}, " if shape.lstm_layers else ""
        rows = {
            "task": f"{settings.task.task} ({self.task.kind}), best by {self.task.metric}",
            "frozen": f"{config}, from {settings.model}",
        }
        rows |= {
            part.name: f"{len(part.examples):,} examples, {len(part.encoded.positions):,} rows" for part in self.parts
        }
        rows |= {
            "head": f"{lstm}linear, {shape.outputs} outputs; {settings.epochs} epochs in batches of "
            f"{settings.batch_size}",
            "heads": f"{heads}, of {len(settings.representations)} representations",
            "place": str(self.place),
        }
        self.console.print(key_value_table(rows))
        for note in notes(self.task, settings.task, self.parts, config.max_positions):
            notice(self.console, note)

    def features(self, part: SplitData) -> Features:
        """The states of one part, computed or found on disk."""
        wanted = {layer for name in self.settings.representations for layer in self.layers(name)}
        with item_progress(self.console, f"features of {part.name}", part.encoded.num_items) as advance:
            return cached_features(
                self.encoder, part.encoded, sorted(wanted), self.features_folder(part), advance, self.task.head.pooled
            )

    def features_folder(self, part: SplitData) -> Path:
        return (self.settings.features or self.settings.run / "features") / part.name

    def source(self, features: Mapping[str, Features]) -> str:
        """Digest of all that heads are trained on and scored by."""
        digests = []
        for part in self.parts:
            header = features[part.name].header
            digests += [header.model, header.data, digest_bytes(part.encoded.labels.tobytes())]
        return digest_bytes(*(digest.encode() for digest in digests))

    def results(self, source: str) -> list[Result]:
        """What earlier runs in the folder left."""
        path = self.settings.run / "results.jsonl"
        if not path.is_file():
            return []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            found = [_result(json.loads(line), self.task.metric) for line in lines]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: not as it was written ({error}); without it, all heads are trained anew"
            ) from None
        if any(result.source != source for result in found):
            raise ValueError(f"{path}: its results are of other data; give the files their content back, or start anew")
        return found

    def layers(self, name: RepresentationName) -> tuple[int, ...]:
        return layers_of(name, self.encoder.config.num_layers)

    def shape(self, name: RepresentationName) -> FeatureHeadConfig:
        head, settings = self.task.head, self.settings
        return FeatureHeadConfig(
            layers=len(self.layers(name)),
            weighted=REPRESENTATIONS[name].weighted,
            hidden_size=self.encoder.config.hidden_size,
            outputs=head.outputs,
            lstm_size=settings.lstm_size,
            lstm_layers=settings.lstm_layers if head.kind == "token" else 0,
        )

    def train(self, trial: ProbeTrial, features: Mapping[str, Features], source: str) -> Result:
        """One head, from its seed."""
        started = time.perf_counter()
        layers, metric = self.layers(trial.representation), self.task.metric
        data = {part.name: HeadData(part, features[part.name], layers, self.place.device) for part in self.parts}
        head = FeatureHead(self.shape(trial.representation), trial.seed).to(self.place.device)
        settings = self.settings
        recipe = HeadHyperParams(
            settings.epochs, settings.batch_size, settings.dropout, trial.learning_rate, trial.seed
        )
        with item_progress(self.console, str(trial), total_steps(data["train"], recipe)) as advance:
            trained = train(head, self.task, data, recipe, advance)
        told = f"{metric} {100 * trained.dev[metric]:.2f} on dev after epoch {trained.epoch}"
        told += f", {100 * trained.test[metric]:.2f} on test" if trained.test else ""
        seconds = time.perf_counter() - started
        say(self.console, f"{trial}: {told}; {seconds:,.0f} s")
        return Result(*trial, *trained, seconds, source)

    def report(self, rows: Sequence[ProbeRow]) -> None:
        """Print the table, beside the paper's where it is of the same kind, and write it as JSON."""
        types = {split_tag(name)[1] for name in self.task.label_names} - {""}
        comparable = self.task.head.kind == "token" and self.task.metric == "f1" and types == CONLL_2003
        metric = self.task.metric.replace("_", " ")
        heading(self.console, f"{metric} on the frozen states, percent, mean ± deviation over the seeds")
        paper = ("paper",) if comparable else ()
        table = make_table("", "rate", "seeds", "dev", *(("test",) if rows[0].test else ()), *paper)
        for row in rows:
            scores = [found.format(2) for found in (row.dev, row.test) if found]
            given = [f"{100 * REPRESENTATIONS[row.representation].paper:.1f}"] if comparable else []
            table.add_row(row.representation, f"{row.learning_rate:g}", str(row.dev.seeds), *scores, *given)
        self.console.print(table)
        if comparable:
            say(self.console, "paper: BERT BASE on the dev set of CoNLL-2003 (table 7; fine-tuned 96.4)")
        run = self.settings.run
        write_json(run / "report.json", {"metric": self.task.metric, "rows": [row.plain() for row in rows]})
        say(self.console, f"every head   {run / 'results.jsonl'}")


def _result(line: Any, metric: str) -> Result:
    """A line of results.jsonl. Raises ValueError or TypeError for one of another form."""
    result = Result(**line)
    for scores in (result.dev, *([result.test] if result.test else [])):
        if not isinstance(scores, dict) or not isinstance(scores.get(metric), float):
            raise ValueError(f"{metric} of {result.trial} is {scores!r}")
    return result
