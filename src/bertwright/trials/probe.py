"""Feature probe: heads are trained on a frozen BERT's states, layer by layer as in table 7.

RUN/settings.toml   all settings
RUN/runs/NAME/      result.json: scores of a finished head; log.txt: what its training printed
RUN/features/       the states, computed once, memory-mapped
RUN/examples/       numbers per dev example of each head, for intervals over examples (see `metrics.example_scores`)
RUN/report.json     means and deviations over the seeds
RUN/layers.png      with --representations each-layer: the score of each layer

The heads themselves are not saved: settings, seed and features reproduce each of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, NamedTuple

from bertwright.base.description import Description, describe_progress, read_settings_with
from bertwright.base.files import remove_stale_parts, write_json
from bertwright.base.messages import format_duration
from bertwright.base.reporter import MUTE, SILENT, Fields, Heading, Line, Outputs, Reporter
from bertwright.inference.feature_cache import HEADER, open_features
from bertwright.models.representations import REPRESENTATIONS, expand_representations, single_layers
from bertwright.tasks.presets import SPLITS
from bertwright.training.context import execution_context
from bertwright.training.cost import format_bytes
from bertwright.training.distributed import check_single_process
from bertwright.training.loop import DivergedError
from bertwright.training.run_folder import check_run_directory, locked_run, write_run_settings
from bertwright.trials.paper.table7 import FINE_TUNED_F1, PAPER_F1
from bertwright.trials.probe_data import ProbeData, open_probe
from bertwright.trials.probe_settings import RESUME_OVERRIDES, ProbeSettings, ProbeTrial
from bertwright.trials.runner import Result, Runner, count_results
from bertwright.trials.table import Table
from bertwright.trials.table_plot import plot
from bertwright.trials.trial import Digests, Trial

TIMED_EXAMPLES = 64  # examples of each split with which heads are timed
BYTES_PER_NUMBER = 2  # of the features, float16


@dataclass(frozen=True)
class Head(Trial):
    """A head on frozen states; its row is the representation, its input the features and the targets."""

    settings: ProbeSettings
    data: ProbeData = field(kw_only=True)
    """What the head is trained on."""

    kind: ClassVar[str] = "head"
    described: ClassVar[str] = "heads on frozen features"

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        return self.data.train(ProbeTrial(self.row, self.learning_rate, self.seed), reporter)

    def digest_inputs(self) -> Digests:
        """Return the digest of the features, which are open while heads are trained."""
        return self.digests


def probe(settings: ProbeSettings, reporter: Reporter = SILENT) -> Table | None:
    """Compute the features, train all heads that are missing, and print and return the table; None in a dry run.

    Ctrl-C loses only the current head. A head that diverges is recorded as such, and the others continue. Raises
    ValueError for settings, files and folders that are not usable, and DivergedError if all heads diverged.
    """
    check_single_process("a probe")
    if settings.dry_run:
        check_run_directory(settings, RESUME_OVERRIDES)
        print_plan(settings, reporter)
        return None
    with locked_run(settings, RESUME_OVERRIDES) as context:
        runner = Runner.of_series(settings.run, "probe")
        data = open_probe(settings, context, reporter)
        write_run_settings(data.settings, "probe")
        remove_stale_parts(settings.run)
        data.print_summary()
        with runner.counted(list_heads(data)):  # the digest needs the features, which are computed now
            heads = list_heads(data, (("features", data.digest_source()),))
        if finished := len(runner.results(heads)):
            reporter.record(Line(f"{finished} of {len(heads)} heads are already finished"))
        runner.run_all(heads, reporter)
        return finish(data, runner, heads, reporter)


def list_heads(data: ProbeData, digests: Digests = ()) -> list[Head]:
    """Return all heads, the finished ones included."""
    return [
        Head(one.name, digests, (), data.settings, one.representation, "dev", one.seed, 0, one.learning_rate, data=data)
        for one in data.trials
    ]


class ProbeCost(NamedTuple):
    """Estimated seconds of a probe."""

    opening: float
    features: float
    """The states of all examples."""
    heads: float
    """One head of each representation."""
    examples: int
    """Training examples."""


def measure_probe(settings: ProbeSettings, reporter: Reporter) -> tuple[ProbeData, ProbeCost]:
    """Open a probe, print its summary, and estimate its time: the features of a few examples, and a few steps of heads.

    Nothing is left behind.
    """
    with execution_context(settings.device) as context, TemporaryDirectory() as folder:
        started = time.perf_counter()
        data = open_probe(settings, context, reporter)
        opening = time.perf_counter() - started
        data.print_summary()
        examples = len(data.splits[0].examples)
        limit = min(examples, TIMED_EXAMPLES)
        sample = replace(data.settings, run=Path(folder), limit=limit, features=None, resume=False)
        few = open_probe(sample, context, MUTE)
        started = time.perf_counter()
        few.digest_source()
        features = time.perf_counter() - started
        heads = sum(few.time_head(name) for name in few.representations)
    factor = examples / limit
    return data, ProbeCost(opening, factor * features, factor * heads, examples)


def print_plan(settings: ProbeSettings, reporter: Reporter) -> None:
    """Print the data, the heads that are missing, and their estimated time; write nothing."""
    runner = Runner.of_series(settings.run, "probe")
    data, cost = measure_probe(settings, reporter)
    heads = list_heads(data)
    pending = len(heads) - runner.count(heads)
    is_cached = all(data.features_folder(split).exists() for split in data.splits)
    features = 0.0 if is_cached else cost.features
    training = cost.heads * pending / len(data.representations)
    reporter.record(Heading("The whole run, estimated on this machine"))
    reporter.record(
        Fields(
            {
                "heads": f"{pending:,} to train",
                "estimated time": format_duration(cost.opening + features + training),
                "features": "cached already" if is_cached else format_duration(features),
                "disk space": f"{format_bytes(BYTES_PER_NUMBER * data.count_numbers())} for the features",
            }
        )
    )


def finish(data: ProbeData, runner: Runner, heads: Sequence[Head], reporter: Reporter) -> Table:
    """Print the table, and write it as JSON; return it. Raises DivergedError if all heads diverged."""
    run, metric, results = data.settings.run, data.task.metric, runner.results(heads)
    table = make_table(data, results)
    if not table.cells:
        raise DivergedError(f"all heads diverged; the first one: {results[0][1].failure}")
    write_json(run / "report.json", {"metric": metric} | table.to_record())
    table.show(reporter)
    outputs = {"all heads": run / "runs", "table": run / "report.json"}
    if "each-layer" in data.settings.representations:
        outputs["plot"] = run / "layers.png"
        places = {
            name: (metric.replace("_", " "), number)
            for number, name in enumerate(single_layers(data.encoder.config.num_layers))
        }
        plot(replace(table, rows=[*places]), run / "layers.png", places, "layer (0: embeddings)")
    reporter.record(Outputs(outputs))
    return table


def make_table(data: ProbeData, results: Sequence[tuple[Head, Result]]) -> Table:
    """Return the table of the representations, in the order of table 7, with the paper's scores for CoNLL-2003."""
    names = {head.row for head, _ in results}
    rows = [name for name in dict.fromkeys([*REPRESENTATIONS, *data.representations]) if name in names]
    title = f"{data.task.metric.replace('_', ' ')} on the frozen states"
    legend = f"Mean ± standard deviation (number of seeds), in percent; dev: the best of {data.settings.epochs} epochs."
    if data.is_conll_2003:
        legend += f" Paper: BERT BASE on the dev set of CoNLL-2003 (table 7; fine-tuned {FINE_TUNED_F1:.1f})."
    table = Table.of_series(title, rows, results, legend, digits=2)
    rates = {row: f"{cell.learning_rate:g}" for (row, column), cell in table.cells.items() if column == "dev"}
    paper = {"paper": {name: f"{f1:.1f}" for name, f1 in PAPER_F1.items()}} if data.is_conll_2003 else {}
    return replace(table, details={"rate": rates} | paper)


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the finished heads of a probe; None for another folder."""
    if (settings := read_settings_with(folder, "representations", "learning_rates", "seeds")) is None:
        return None
    names, planned = settings["representations"], None
    cache = Path(settings.get("features", folder / "features")) / SPLITS[0]
    if "each-layer" in names and (cache / HEADER).is_file():  # the number of heads depends on the model's layers
        names = [*expand_representations(names, max(open_features(cache).header.layers))]
    if "each-layer" not in names:
        planned = prod(map(len, (names, settings["learning_rates"], settings["seeds"])))
    return Description("probe of frozen features", describe_progress(folder, count_results(folder), planned))
