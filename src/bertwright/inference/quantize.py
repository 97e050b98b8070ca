"""`bertwright quantize`: write a model that is served in int8, if a dev file shows that this costs little enough."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bertwright.base.files import atomic_folder, check_absent
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional, check_limit, check_not_str, check_range
from bertwright.interop.model_files import check_model, model_folder
from bertwright.kernels.cpu import MAX_THREADS
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import check_exist, check_unique
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from bertwright.inference.bert import Bert
    from bertwright.inference.int8_gate import DevData, Measured, Verdict
    from bertwright.inference.int8_model import LayerCost

SHOWN = 12  # layers in the table
SHARE_BACK = 4  # one layer in so many goes back to float32 if the gate is missed


@dataclass(frozen=True)
class QuantizeSettings:
    """Write a copy of a model that --dtype int8 computes in int8, if that costs little on labeled files."""

    model: Positional[str]
    """Folder of a fine-tuned model, of text vectors or of a task; a run folder, or a hub name."""
    output: Positional[Path]
    """New folder for the model."""
    dev: tuple[str, ...] = ()
    """Labeled files for the gate, as for bertwright evaluate: the score may drop by --max-drop, 99 % of the labels must
    be equal, and of text vectors the first percentile of cosines must be 0.99 or more."""
    max_drop: float | None = None
    """Points of the score that int8 may cost. Unset: 0.5, of text vectors 0.3."""
    kind: str | None = None
    """Text vectors: what the files are, as for bertwright evaluate."""
    split: str = "test"
    """Text vectors, BEIR's layout: the split whose judgements count."""
    threads: int | None = None
    """CPU threads; unset: `OMP_NUM_THREADS`, else all CPUs that this process may use."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_not_str(self, "dev")
        check_range(self, 1, MAX_THREADS, "threads")
        check_limit(self, "from 0", "max_drop")
        if not self.dev:
            raise ValueError("no labeled file for the gate; for example: bertwright quantize MODEL OUT --dev dev.tsv")


class GateError(RuntimeError):
    """A model that loses too much in int8."""


def check_inputs(settings: QuantizeSettings) -> None:
    """Check paths without torch."""
    check_absent(settings.output)
    check_unique(settings.dev)
    check_exist(settings.dev)
    check_model(settings.model)


def quantize(settings: QuantizeSettings, reporter: Reporter = SILENT) -> Verdict:
    """Measure int8 on the dev files and write the model with the figures; return the verdict.

    If the gate is missed, the quarter of the linear layers with the largest errors goes back to float32, once. Raises
    GateError if it is missed again, and ValueError for a model without int8 or without labels; nothing is written then.
    """
    check_inputs(settings)
    from bertwright.inference.bert import open_model
    from bertwright.inference.int8_gate import judge, measure, read_dev
    from bertwright.inference.int8_model import check_int8, linear_layers, quantize_layers, replace_layer, write_record
    from bertwright.interop.checksums import write_checksums
    from bertwright.training.context import execution_context

    with execution_context(DeviceSettings("cpu", "float32", settings.threads)) as context:
        folder = model_folder(settings.model)
        bert = open_model(folder, context.device)
        encoder = bert.model.encoder
        check_int8(encoder, context.device, settings.model)
        dev = read_dev(bert, settings.dev, settings.overrides, settings.split, settings.kind)
        layers = linear_layers(encoder)
        before, costs = probe_layers(bert, dev)
        quantize_layers(encoder)
        verdict, back = judge(before, measure(bert, dev), settings.max_drop), list[str]()
        report(reporter, verdict, costs, "all linear layers in int8")
        if not verdict.passed:
            back = [cost.layer for cost in costs[: -(-len(costs) // SHARE_BACK)]]
            for name in back:
                replace_layer(encoder, name, layers[name])
            verdict = judge(before, measure(bert, dev), settings.max_drop)
            report(reporter, verdict, costs, f"{len(back)} of {len(costs)} layers back in float32")
    if not verdict.passed:
        raise GateError(f"{settings.model}: int8 costs too much: {'; '.join(verdict.missed)}; nothing is written")
    with atomic_folder(settings.output) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        write_record(temporary, verdict, settings.dev, costs, back)
        write_checksums(temporary)
    reporter.record(Line(f"{settings.output}: written; --dtype int8 computes it in int8"))
    return verdict


def probe_layers(bert: Bert, dev: DevData) -> tuple[Measured, list[LayerCost]]:
    """Score the model in float32 and, on the way, measure the error of each layer in int8, largest first."""
    from bertwright.inference.int8_gate import measure
    from bertwright.inference.int8_model import LayerCost, LayerProbe, linear_layers, replace_layer

    encoder = bert.model.encoder
    layers = linear_layers(encoder)
    probes = {name: LayerProbe(layer) for name, layer in layers.items()}
    for name, probe in probes.items():
        replace_layer(encoder, name, probe)
    try:
        before = measure(bert, dev)
    finally:
        for name, layer in layers.items():
            replace_layer(encoder, name, layer)
    costs = [LayerCost(name, probe.relative_error) for name, probe in probes.items()]
    return before, sorted(costs, key=lambda cost: (not math.isnan(cost.error), -cost.error))


def report(reporter: Reporter, verdict: Verdict, costs: list[LayerCost], what: str) -> None:
    """Record the verdict and, if the gate is missed, which layers cost what."""
    reporter.record(Heading(what))
    reporter.record(Line(f"{verdict}: {'within the limits' if verdict.passed else 'missed'}"))
    if not verdict.passed:
        rows = [(cost.layer, f"{100 * cost.error:.2f}") for cost in costs[:SHOWN]]
        reporter.record(Rows(("layer", "error in int8, %"), rows, texts=(0,)))
