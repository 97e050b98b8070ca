"""`bertwright export`: write a model as a graph for ONNX Runtime or OpenVINO, with a program that runs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertwright.base.files import check_absent, digest_file, write_json, write_text
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional, check_choice, check_minimum
from bertwright.interop.model_files import CLASSES, CONFIG, check_model, model_folder, new_folder
from bertwright.text.sources import check_exist

if TYPE_CHECKING:
    from bertwright.exporting.export_graph import NamedGraph
    from bertwright.exporting.gate import GateResult
    from bertwright.exporting.quantize import Arrays
    from bertwright.inference.bert import Bert
    from bertwright.tasks.encoded import Encoded

TOLERANCE = 1e-4  # of float32 outputs against the packed model, in units of the largest one if that exceeds 1
COSTED = 32  # sequences on which the cost of single layers is measured
LABELS = "labels.json"


@dataclass(frozen=True)
class ExportSettings:
    """Write a model with attention as a graph for other programs: head, pooling and normalization are inside."""

    model: Positional[str]
    """Model folder, run folder or hub name: text vectors, a task, a re-ranker, or a masked LM."""
    output: Positional[Path]
    """New folder: the graph, the tokenizer, run.py, which needs no torch, and report.json. bertwright.load opens it."""
    to: Literal["onnx", "openvino"] = "onnx"
    """onnx: for ONNX Runtime; openvino: OpenVINO's own format."""
    int8: bool = False
    """Multiply in 8 bits. The folder is only written if the answers on the --dev file stay right."""
    calibrate: str | None = None
    """File with texts like those of the application, from which --int8 measures the ranges of numbers; labels are not
    read. Unset: the --dev file."""
    dev: str | None = None
    """Labeled file in the format of training, on which --int8 is compared with the model."""
    max_drop: float | None = None
    """Points of the metric that --int8 may lose. Unset: 0.5; of text vectors 0.3. At least 99 % of the labels must be
    equal, and 99 % of the vectors have a cosine of 0.99 with the model's."""
    half_range: bool | None = None
    """Weights in 7 bits: on processors without VNNI, sums of 8-bit products overflow. Unset: as this processor needs
    it."""

    def __post_init__(self) -> None:
        check_choice(self, "to")
        check_minimum(self, 0, "max_drop")
        if self.int8 and self.dev is None:
            raise ValueError("--int8: expected --dev FILE, labeled, on which it is compared with the model; name one")
        given = {"calibrate": self.calibrate, "dev": self.dev, "max-drop": self.max_drop, "half-range": self.half_range}
        if not self.int8 and (odd := [name for name, value in given.items() if value is not None]):
            raise ValueError(f"--{odd[0]}: an option of --int8; add --int8 or omit it")


def check_inputs(settings: ExportSettings) -> None:
    """Check files and folders without torch."""
    check_absent(settings.output)
    check_model(settings.model)
    check_exist([path for path in (settings.dev, settings.calibrate) if path is not None])


def export(settings: ExportSettings, reporter: Reporter = SILENT) -> None:
    """Write the graph of a model into a new folder, after it has been run beside the model.

    Raises ValueError, and writes nothing, for a model without a graph, for outputs that differ, and for int8 that loses
    more than the settings allow.
    """
    check_inputs(settings)
    import torch

    from bertwright.exporting.export_graph import OPSET, make_graph, write_onnx
    from bertwright.exporting.quantize import convert_graph
    from bertwright.inference.bert import open_model
    from bertwright.inference.exported_folder import FILES

    folder = model_folder(settings.model)
    bert = open_model(folder, "cpu", torch.float32)
    graph = make_graph(bert)
    with new_folder(settings.output) as temporary, reporter.progress("exporting", None):
        max_length = bert.task.max_length if bert.task else bert.config.max_positions
        source, path = temporary / "float32.onnx", temporary / FILES[settings.to]
        write_onnx(graph.module, source, bert.config.max_positions)
        _copy_files(folder, temporary, bert, graph, settings.to, max_length)
        convert_graph(source, path)
        packages = ("torch", "onnx", "onnxruntime" if settings.to == "onnx" else "openvino")
        report: dict[str, Any] = {"graph": settings.to, "kind": graph.kind, "numbers": "float32", "opset": OPSET}
        report |= {"inputs": graph.module.inputs, "outputs": graph.module.outputs, "model": settings.model}
        report["versions"] = {name: version(name) for name in packages}
        _write_report(temporary, path, report)
        report["parity"] = check_parity(bert, temporary, graph)
        if settings.int8:
            report |= _quantize(settings, bert, _Work(source, path, temporary, report), reporter)
        source.unlink()
        _write_report(temporary, path, report)
        size = sum(file.stat().st_size for file in path.parent.iterdir())
    reporter.record(Heading(f"{settings.output}: {graph.kind} for {settings.to}, {report['numbers']}"))
    shown = {"size": f"{size / 1e6:,.1f} MB", "largest difference in float32": f"{report['parity']['difference']:.1e}"}
    reporter.record(Fields(shown | report.get("summary", {})))
    reporter.record(Line(f"{settings.output}/run.py predicts without torch; bertwright.load opens the folder"))


def _copy_files(folder: Path, target: Path, bert: Bert, graph: NamedGraph, to: str, max_length: int) -> None:
    """Write all but the graph: configuration, tokenizer, task, modules, labels and `run.py`."""
    from bertwright.exporting.run_program import make_runner
    from bertwright.interop.sentence_modules import write_sentence_modules
    from bertwright.tasks.task_folder import TASK_FILE

    for name in (CONFIG, TASK_FILE, CLASSES):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    bert.tokenizer.save(target, max_length=bert.config.max_positions)
    write_sentence_modules(target, bert.sentence_modules)
    write_json(target / LABELS, list(bert.task.label_names if bert.task else ()))
    limit = bert.sentence_modules.max_length if bert.sentence_modules else None
    write_text(target / "run.py", make_runner(bert, graph.kind, to, min(max_length, limit or max_length)))


def _write_report(folder: Path, path: Path, report: dict[str, Any]) -> None:
    """Write the report with the digests of the graph's files, and the checksums of the folder."""
    from bertwright.inference.exported_folder import REPORT
    from bertwright.interop.checksums import write_checksums

    files = sorted(path.parent.iterdir())
    write_json(folder / REPORT, report | {"digests": {file.name: digest_file(file) for file in files}})
    write_checksums(folder)


def check_parity(bert: Bert, folder: Path, graph: NamedGraph) -> dict[str, Any]:
    """Run an exported folder beside the model, on sequences of all lengths in batches of several sizes.

    Returns the largest difference. Raises ValueError if it exceeds TOLERANCE.
    """
    import numpy as np
    import torch

    from bertwright.base.seeding import make_rng
    from bertwright.exporting.parity import compute_outputs
    from bertwright.inference.bert import open_model
    from bertwright.models.packing import pack

    exported, rng, longest = open_model(folder, "cpu", torch.float32), make_rng(0), bert.config.max_positions
    batches = [[1], [longest], [longest, 1], [1 + longest * n // 7 for n in range(7)], [1 + n % 9 for n in range(64)]]
    difference = 0.0
    for lengths in batches:
        batch = pack([rng.integers(bert.tokenizer.vocab_size, size=min(length, longest)) for length in lengths])
        expected, found = (compute_outputs(model, graph.kind, batch) for model in (bert, exported))
        for name, values in expected.items():
            scale = max(1.0, float(np.abs(values).max()))
            difference = max(difference, float(np.abs(values - found[name]).max()) / scale)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"export: expected the outputs of the model to {TOLERANCE:g}, got a difference of {difference:.2g}; please "
            "report it with the model's name"
        )
    return {"difference": difference, "lengths": f"1 to {longest}", "batches": [1, 2, 7, 64]}


class _Work(NamedTuple):
    """A graph on its way to int8."""

    source: Path
    """ONNX in float32."""
    path: Path
    folder: Path
    report: dict[str, Any]


def _quantize(settings: ExportSettings, bert: Bert, work: _Work, reporter: Reporter) -> dict[str, Any]:
    """Write the int8 graph that passes the gate; return what the report says of it.

    If all layers in int8 lose too much, the layers that cost most go back to float32, up to half of them. Raises
    ValueError if the gate is missed with half of the layers.
    """
    import torch

    from bertwright.exporting.gate import compare, measure, read_dev
    from bertwright.exporting.quantize import CALIBRATION, FULL, HALF, has_vnni, layer_names, quantize_graph
    from bertwright.inference.bert import open_model
    from bertwright.inference.exported_folder import MASKED_LM

    if work.report["kind"] == MASKED_LM:
        raise ValueError(f"--int8: {settings.model} is a masked LM, which no dev file scores; fine-tune it first")
    dev = read_dev(bert, str(settings.dev))
    half_range = not has_vnni() if settings.half_range is None else settings.half_range
    reference = measure(bert, dev)
    encoded = encode_calibration(bert, settings.calibrate, dev.examples if dev.task else reference.texts)
    calibration = to_arrays(encoded, work.report["inputs"], CALIBRATION)

    def build(layers: Sequence[str], arrays: Sequence[Arrays]) -> None:
        quantize_graph(work.source, work.path, arrays, layers, half_range)
        _write_report(work.folder, work.path, work.report)

    def pass_gate(layers: Sequence[str]) -> GateResult:
        build(layers, calibration)
        result = compare(reference, measure(open_model(work.folder, "cpu", torch.float32), dev), settings.max_drop)
        reporter.record(Line(f"{len(layers)} of {len(names)} layers in int8: {result}", "minor"))
        return result

    names = layer_names(work.source)
    quantized, costs = names, dict[str, float]()
    result = pass_gate(names)
    if not result.passed:
        costs = measure_costs(names, work, calibration[:COSTED], build)
        reporter.record(Rows(("layer", "relative error alone in int8"), [(n, f"{c:.4f}") for n, c in costs.items()]))
    for count in range(1, len(names) // 2 + 1):
        if result.passed:
            break
        quantized = [name for name in names if name not in sorted(costs, key=costs.__getitem__)[-count:]]
        result = pass_gate(quantized)
    if not result.passed:
        shares = ", ".join(f"{name} {cost:.3f}" for name, cost in costs.items())
        raise ValueError(
            f"--int8: expected at most {result.figures['points allowed']} points lost and equal answers on "
            f"{settings.dev}, got {result}, with {len(quantized)} of {len(names)} layers in int8; nothing was written. "
            f"Errors by layer: {shares}. Export in float32, or allow more with --max-drop"
        )
    chosen = HALF if half_range else FULL
    summary = {"int8 layers": ", ".join(quantized), "weights": chosen, "gate": str(result)}
    gate = result.figures | {"layers": quantized, "costs": costs, "weights": chosen, "dev": settings.dev}
    versions = work.report["versions"] | {"nncf": version("nncf")}
    return {"numbers": "int8", "int8": gate, "summary": summary, "versions": versions}


def measure_costs(
    names: Sequence[str],
    work: _Work,
    arrays: Sequence[Arrays],
    build: Callable[[Sequence[str], Sequence[Arrays]], None],
) -> dict[str, float]:
    """Measure what each layer alone costs in int8: the relative error of the output on some sequences."""
    import numpy as np
    import torch

    from bertwright.exporting.quantize import convert_graph
    from bertwright.inference.exported_folder import LOGITS, SESSIONS, VECTOR

    def run_graph() -> Any:
        session = SESSIONS[work.report["graph"]](work.path, torch.get_num_threads())
        output = VECTOR if VECTOR in session.outputs else LOGITS
        return np.concatenate([session.run(one, output).ravel() for one in arrays])

    convert_graph(work.source, work.path)
    expected, costs = run_graph(), {}
    for name in names:
        build([name], arrays)
        costs[name] = float(np.linalg.norm(run_graph() - expected) / np.linalg.norm(expected))
    return costs


def encode_calibration(bert: Bert, path: str | None, dev: Any) -> Encoded:
    """Encode the texts of a file, or dev examples or texts, as the model reads them."""
    from bertwright.tables.text_roles import read_text_table
    from bertwright.tasks.embedding import Embedding
    from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments

    task, modules = bert.task, bert.sentence_modules
    if task is not None and not isinstance(task, Embedding):
        examples = dev if path is None else list(task.read(path, labeled=False))
        return task.encode(examples, bert.tokenizer, labeled=False)
    texts = dev
    if path is not None:
        rows = read_text_table(path, Embedding().table_options).rows
        texts = [text for row in rows for text in row.texts]
    content = SegmentTokens.of_typed(texts, bert.tokenizer, bool(modules and modules.lowercase))
    longest = bert.config.max_positions
    limit = min(modules.max_length or longest, longest) if modules else longest
    return encode_segments([content], NO_LABELS, bert.tokenizer, limit)


def to_arrays(encoded: Encoded, inputs: Sequence[str], limit: int) -> list[Arrays]:
    """Return at most `limit` sequences, spread over all, as inputs of a graph in batches of one."""
    import numpy as np

    count = len(encoded.lengths)
    arrays = []
    for number in np.unique(np.linspace(0, count - 1, min(limit, count)).astype(int)).tolist():
        tokens = slice(encoded.starts[number], encoded.starts[number + 1])
        ids, types = encoded.input_ids[tokens], encoded.token_type_ids
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        given["token_type_ids"] = np.zeros_like(ids) if types is None else types[tokens]
        arrays.append({name: given[name].astype(np.int64)[None] for name in inputs})
    return arrays
