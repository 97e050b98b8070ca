"""`bertwright export`: write a model as a graph for ONNX Runtime or OpenVINO, with a program that runs it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertwright.base.files import digest_file, write_json, write_text
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.exporting.export_graph import OPSET, Graph, make_graph, write_onnx
from bertwright.exporting.export_settings import ExportSettings, check_inputs
from bertwright.exporting.int8_graph import (
    CALIBRATION,
    FULL,
    HALF,
    Arrays,
    convert_graph,
    has_vnni,
    layer_names,
    quantize_graph,
)
from bertwright.exporting.parity import check_parity
from bertwright.exporting.run_program import make_runner
from bertwright.inference.bert import Bert, open_model
from bertwright.inference.exported_folder import FILES, LOGITS, MASKED_LM, REPORT, SESSIONS, VECTOR
from bertwright.inference.int8_gate import Verdict, judge, measure, read_dev
from bertwright.inference.text_vectors import encode_sentences
from bertwright.interop.checksums import write_checksums
from bertwright.interop.model_files import CLASSES, CONFIG, model_folder, new_folder
from bertwright.interop.sentence_modules import SentenceModules, write_sentence_modules
from bertwright.tables.text_roles import read_text_table
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.task_folder import TASK_FILE
from bertwright.tasks.task_types import TaskOptions

COSTED = 32  # sequences on which the cost of single layers is measured
LABELS = "labels.json"


def export(settings: ExportSettings, reporter: Reporter = SILENT) -> None:
    """Write the graph of a model into a new folder, after it has been run beside the model.

    Raises ValueError, and writes nothing, for a model without a graph, for outputs that differ, and for int8 that loses
    more than the settings allow.
    """
    check_inputs(settings)
    folder = model_folder(settings.model)
    bert = open_model(folder, "cpu")
    graph = make_graph(bert)
    with new_folder(settings.output) as temporary, reporter.progress("exporting", None):
        source, path = temporary / "float32.onnx", temporary / FILES[settings.to]
        write_onnx(graph, source, bert.config.max_positions)
        _copy_files(folder, temporary, bert, graph, settings.to)
        convert_graph(source, path)
        packages = ("torch", "onnx", "onnxruntime" if settings.to == "onnx" else "openvino")
        report: dict[str, Any] = {"graph": settings.to, "kind": graph.kind, "numbers": "float32", "opset": OPSET}
        report |= {"inputs": graph.inputs, "outputs": graph.outputs, "model": settings.model}
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


def _copy_files(folder: Path, target: Path, bert: Bert, graph: Graph, to: str) -> None:
    """Write all but the graph: configuration, tokenizer, task, modules, labels and `run.py`."""
    for name in (CONFIG, TASK_FILE, CLASSES):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    bert.tokenizer.save(target, max_length=bert.config.max_positions)
    write_sentence_modules(target, bert.sentence_modules)
    write_json(target / LABELS, list(bert.task.label_names if bert.task else ()))
    max_length = bert.task.max_length if bert.task else bert.config.max_positions
    longest = bert.sentence_modules.limit(max_length) if bert.sentence_modules else max_length
    write_text(target / "run.py", make_runner(bert, graph.kind, to, longest))


def _write_report(folder: Path, path: Path, report: dict[str, Any]) -> None:
    """Write the report with the digests of the graph's files, and the checksums of the folder."""
    files = sorted(path.parent.iterdir())
    write_json(folder / REPORT, report | {"digests": {file.name: digest_file(file) for file in files}})
    write_checksums(folder)


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
    if work.report["kind"] == MASKED_LM:
        raise ValueError(f"--int8: {settings.model} is a masked LM, which no dev file scores; fine-tune it first")
    dev = read_dev(bert, [str(settings.dev)], settings.overrides)
    half_range = not has_vnni() if settings.half_range is None else settings.half_range
    reference = measure(bert, dev)
    encoded = encode_calibration(
        bert, settings.calibrate, dev.examples if dev.task else reference.texts, settings.overrides
    )
    calibration = to_arrays(encoded, work.report["inputs"], CALIBRATION)

    def pass_gate(layers: Sequence[str]) -> Verdict:
        quantize_graph(work.source, work.path, calibration, layers, half_range)
        _write_report(work.folder, work.path, work.report)
        result = judge(reference, measure(open_model(work.folder, "cpu"), dev), settings.max_drop)
        reporter.record(Line(f"{len(layers)} of {len(names)} layers in int8: {result}", "minor"))
        return result

    names = layer_names(work.source)
    quantized, costs = names, dict[str, float]()
    result = pass_gate(names)
    if not result.passed:
        costs = measure_costs(names, work, calibration[:COSTED], half_range)
        reporter.record(Rows(("layer", "relative error alone in int8"), [(n, f"{c:.4f}") for n, c in costs.items()]))
    by_cost = sorted(costs, key=lambda name: (np.isnan(costs[name]), costs[name]))
    for count in range(1, len(names) // 2 + 1):
        if result.passed:
            break
        quantized = [name for name in names if name not in by_cost[-count:]]
        result = pass_gate(quantized)
    if not result.passed:
        shares = ", ".join(f"{name} {cost:.3f}" for name, cost in costs.items())
        raise ValueError(
            f"--int8: {settings.dev}: {'; '.join(result.missed)}, with {len(quantized)} of {len(names)} layers in int8 "
            f"({result}); nothing was written. "
            f"Errors by layer: {shares}. Export in float32, or allow more with --max-drop"
        )
    chosen = HALF if half_range else FULL
    summary = {"int8 layers": ", ".join(quantized), "weights": chosen, "gate": str(result)}
    gate = result.to_record() | {"layers": quantized, "costs": costs, "weights": chosen, "dev": settings.dev}
    versions = work.report["versions"] | {"nncf": version("nncf")}
    return {"numbers": "int8", "int8": gate, "summary": summary, "versions": versions}


def measure_costs(names: Sequence[str], work: _Work, arrays: Sequence[Arrays], half_range: bool) -> dict[str, float]:
    """Measure what each layer alone costs in int8: the relative error of the output on some sequences."""

    def run_graph() -> Any:
        session = SESSIONS[work.report["graph"]](work.path, torch.get_num_threads())
        output = VECTOR if VECTOR in session.outputs else LOGITS
        return np.concatenate([session.run(one, output).ravel() for one in arrays])

    convert_graph(work.source, work.path)
    expected, costs = run_graph(), {}
    for name in names:
        quantize_graph(work.source, work.path, arrays, [name], half_range)
        costs[name] = float(np.linalg.norm(run_graph() - expected) / np.linalg.norm(expected))
    return costs


def encode_calibration(bert: Bert, path: str | None, dev: Any, overrides: TaskOptions) -> Encoded:
    """Encode the texts of a file, or dev examples or texts, as the model reads them."""
    task = overrides.apply_to(bert.task or Embedding())
    if not isinstance(task, Embedding):
        examples = dev if path is None else list(task.read(path, labeled=False))
        return task.encode(examples, bert.tokenizer, labeled=False)
    texts = dev
    if path is not None:
        rows = read_text_table(path, task.table_options).rows
        texts = [text for row in rows for text in row.texts]
    modules = bert.sentence_modules or SentenceModules()
    return encode_sentences(bert.tokenizer, texts, modules, "", modules.limit(bert.config.max_positions))[0]


def to_arrays(encoded: Encoded, inputs: Sequence[str], limit: int) -> list[Arrays]:
    """Return at most `limit` sequences, spread over all, as inputs of a graph in batches of one."""
    count = len(encoded.lengths)
    arrays: list[Arrays] = []
    for number in np.unique(np.linspace(0, count - 1, min(limit, count)).astype(int)).tolist():
        tokens = slice(encoded.starts[number], encoded.starts[number + 1])
        ids, types = encoded.input_ids[tokens], encoded.token_type_ids
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        given["token_type_ids"] = np.zeros_like(ids) if types is None else types[tokens]
        arrays.append({name: given[name].astype(np.int64)[None] for name in inputs})
    return arrays
