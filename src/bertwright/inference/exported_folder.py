"""Folders that `bertwright export` writes: a graph of ONNX or OpenVINO in place of weights, with the same methods.

B sequences, N tokens of the longest one, T tokens of the packed batch, M positions, C outputs.
"""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bertwright.base.description import Description
from bertwright.base.files import digest_file, read_json
from bertwright.base.foreign import check_link
from bertwright.base.messages import first_line
from bertwright.base.optional import needs
from bertwright.interop.huggingface import load_config
from bertwright.models.encoder import EncoderConfig, EncoderModel, TextEncoder, TokenPredictor
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.packing import TokenBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.tasks.task_folder import TaskModel, describe_shape, describe_task, read_task
from bertwright.vocabulary.open_tokenizer import describe_tokenizer

REPORT = "report.json"
FILES = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
STATES, VECTOR, LOGITS, SCORES = "last_hidden_state", "sentence_embedding", "logits", "scores"
NEEDED = {"input_ids", "attention_mask"}
INPUTS = NEEDED | {"token_type_ids", "positions"}
MASKED_LM = "masked LM"
ROWS = 32  # sequences of one run of the graph
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # OpenVINO keeps memory for every shape that it has seen
OWN_DOMAINS = ("", "ai.onnx", "com.microsoft")  # operations that ONNX Runtime has itself

Array = npt.NDArray[Any]


class GraphReport(NamedTuple):
    """What `report.json` says of the graph in a folder."""

    folder: Path
    format: str
    """A key of `FILES`."""
    kind: str
    """Its task type, "embedding" or MASKED_LM."""
    values: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return self.folder / FILES[self.format]

    def check_asked(self, device: str, dtype: str) -> None:
        """Raise ValueError for a device or a dtype that the graph does not have; "auto": whatever it has."""
        numbers = self.values.get("numbers", "float32")
        if device.partition(":")[0] not in ("auto", "cpu") or dtype not in ("auto", numbers):
            raise ValueError(
                f"{self.folder}: an exported graph in {numbers} for the CPU, got device {device} and dtype {dtype}; "
                "leave both out, load the model that it was made of, or write a graph in int8: bertwright export --int8"
            )

    def check_files(self) -> None:
        """Raise ValueError for a missing or damaged graph, and for links out of the folder."""
        for path in (self.path, self.path.with_suffix(".bin") if self.format == "openvino" else self.path):
            check_link(path, self.folder)
            if not path.is_file():
                raise ValueError(f"{path}: missing, but {self.folder / REPORT} names it; copy the whole folder")
            expected = self.values.get("digests", {}).get(path.name)
            if expected != digest_file(path):
                raise ValueError(f"{path}: damaged, or not the file of {self.folder / REPORT}; export the model again")


def find_export(folder: Path) -> GraphReport | None:
    """Read the report of a folder of `bertwright export`; None for another folder.

    Raises ValueError for a report of another form.
    """
    path = folder / REPORT
    if not path.is_file() or not isinstance(values := read_json(path), dict) or "graph" not in values:
        return None
    graph_format, kind = values["graph"], values.get("kind")
    objects = all(isinstance(values.get(name, {}), dict) for name in ("digests", "summary"))
    if graph_format not in [*FILES] or not isinstance(kind, str) or not objects:
        raise ValueError(
            f'{path}: expected "graph": {" or ".join(FILES)}, a "kind" and objects as "digests" and "summary", got '
            f"{graph_format!r}, {kind!r}; export the model again"
        )
    return GraphReport(folder, graph_format, kind, values)


@contextmanager
def graph_errors(path: Path) -> Iterator[None]:
    """Turn what a runtime raises of a graph into a ValueError that names the graph's file."""
    try:
        yield
    except Exception as error:  # the errors of ONNX Runtime have no other class in common; OpenVINO's are RuntimeErrors
        if not isinstance(error, RuntimeError) and "onnxruntime" not in type(error).__module__:
            raise
        raise ValueError(f"{path}: no graph that can be run ({first_line(error)}); export the model again") from None


class GraphSession(ABC):
    """A graph that is open in a runtime."""

    inputs: frozenset[str]
    outputs: tuple[str, ...]

    @abstractmethod
    def run(self, arrays: Mapping[str, Array], output: str) -> Array:
        """Compute one output."""

    def round_up(self, rows: int, length: int, max_length: int) -> tuple[int, int]:
        """Return the numbers of sequences and of tokens to which a batch is padded."""
        return rows, length


class OnnxSession(GraphSession):
    """A graph in ONNX Runtime, on the CPU; without its arena, which never gives memory back."""

    def __init__(self, path: Path, threads: int) -> None:
        with needs("export", f"{path}, an exported model,"):
            disable_reports()
            import onnxruntime
        check_onnx(path)
        options = onnxruntime.SessionOptions()
        options.enable_cpu_mem_arena, options.enable_mem_pattern = False, False
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = frozenset(one.name for one in self.session.get_inputs())
        self.outputs = tuple(one.name for one in self.session.get_outputs())

    def run(self, arrays: Mapping[str, Array], output: str) -> Array:
        computed: Array = self.session.run([output], arrays)[0]
        return computed


class OpenVinoSession(GraphSession):
    """A graph in OpenVINO, on the CPU, in float32 where the graph is; its shapes are rounded up to a few."""

    def __init__(self, path: Path, threads: int) -> None:
        with needs("export", f"{path}, an exported model,"):
            disable_reports()
            import openvino
        core = openvino.Core()
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        options["PERFORMANCE_HINT"] = "LATENCY"
        model = core.read_model(path, path.with_suffix(".bin"))
        self.compiled = core.compile_model(model, "CPU", options)
        self.inputs = frozenset(port.any_name for port in self.compiled.inputs)
        self.outputs = tuple(port.any_name for port in self.compiled.outputs)
        self.requests = threading.local()

    def run(self, arrays: Mapping[str, Array], output: str) -> Array:
        request = getattr(self.requests, "request", None)
        if request is None:
            request = self.requests.request = self.compiled.create_infer_request()
        request.infer(dict(arrays))
        computed: Array = request.get_tensor(output).data.copy()  # the next run writes there
        return computed

    def round_up(self, rows: int, length: int, max_length: int) -> tuple[int, int]:
        longer = next((bucket for bucket in LENGTHS if bucket >= length), -(-length // 512) * 512)
        return 1 << (rows - 1).bit_length(), min(longer, max_length)


def disable_reports() -> None:
    """Keep the runtimes from sending reports of their use to their makers: by default, importing them does that."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # importing it fails


SESSIONS: dict[str, type[OnnxSession] | type[OpenVinoSession]] = {"onnx": OnnxSession, "openvino": OpenVinoSession}


def check_onnx(path: Path) -> None:
    """Raise ValueError for tensors in other files, and for operations that are not ONNX Runtime's own."""
    with needs("export", f"{path}, an exported model,"):
        import onnx
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises its own errors
        raise ValueError(f"{path}: not a graph of ONNX ({error}); export the model again") from None
    outside = [domain for domain in (one.domain for one in model.opset_import) if domain not in OWN_DOMAINS]
    if outside or model.functions:
        raise ValueError(f"{path}: expected the operations of ONNX Runtime, got {outside or 'functions'}; export again")
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ValueError(
                f"{path}: {tensor.name}: expected numbers inside the file, got external data in "
                f"{str({one.key: one.value for one in tensor.external_data})[:80]}; export the model again"
            )


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield all tensors of a graph of ONNX and of the graphs inside it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for inner in (attribute.g, *attribute.graphs):
            yield from _tensors(inner)


class ExportedEncoder(TextEncoder):
    """A graph as an encoder over packed sequences; its only layer is the last one."""

    model_type: ClassVar[str] = "exported graph"

    def __init__(self, config: EncoderConfig, session: GraphSession, report: GraphReport) -> None:
        super().__init__(config)
        self.session, self.kind, self.path = session, report.kind, report.path
        digests = "".join(f"{name} {digest}" for name, digest in sorted(report.values.get("digests", {}).items()))
        # `Bert.device` asks the first parameter, and an index knows a model by its parameters: one of digests gives the
        # graph a device, and tells it from another graph.
        self.digests = nn.Parameter(torch.tensor([float(byte) for byte in digests.encode()]), requires_grad=False)

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the last layer's states. Raises ValueError for other layers, and for a graph without states."""
        if [*(layers or ())] != [self.config.num_layers] or STATES not in self.session.outputs:
            has = "the states of the last layer" if STATES in self.session.outputs else f"answers of {self.kind}"
            raise ValueError(f"an exported graph gives {has} alone; load the model that it was made of")
        states = self.compute(batch, STATES)
        return [states if positions is None else states[positions]]

    def compute(self, batch: TokenBatch, output: str, positions: Tensor | None = None) -> Tensor:
        """Compute an output for all sequences: B × C, T × C or, with `positions` (M int64 into T), M × C."""
        self.check_length(batch.packing)
        parts = [self._compute_rows(batch, start, output, positions) for start in range(0, len(batch.packing), ROWS)]
        return torch.from_numpy(np.concatenate(parts)).float()

    def _compute_rows(self, batch: TokenBatch, start: int, output: str, positions: Tensor | None) -> Array:
        """Compute an output for at most ROWS sequences from `start` on."""
        lengths = batch.packing.lengths[start : start + ROWS]
        first, last = batch.packing.cu_seqlens[[start, start + len(lengths)]].tolist()
        rows, length = self.session.round_up(len(lengths), int(lengths.max()), self.config.max_positions)
        real = np.arange(length) < np.pad(lengths, (0, rows - len(lengths)), constant_values=1)[:, None]
        is_token = real & (np.arange(rows) < len(lengths))[:, None]
        arrays: dict[str, Array] = {
            name: np.zeros((rows, length), np.int64) for name in ("input_ids", "token_type_ids")
        }
        arrays["input_ids"][is_token] = batch.input_ids[first:last].numpy()
        if batch.token_type_ids is not None:
            arrays["token_type_ids"][is_token] = batch.token_type_ids[first:last].numpy()
        arrays |= {"attention_mask": real.astype(np.int64), "positions": np.zeros(1, np.int64)}
        count = 0
        if positions is not None:
            chosen = positions[(positions >= first) & (positions < last)].numpy() - first
            count = len(chosen)
            places = np.flatnonzero(is_token)[chosen]
            arrays["positions"] = np.pad(places, (0, self.session.round_up(max(count, 1), 1, 1)[0] - count))
        with graph_errors(self.path):
            computed = self.session.run({name: arrays[name] for name in self.session.inputs}, output)
        if positions is not None:
            return computed[:count]
        return computed[is_token] if computed.ndim == 3 else computed[: len(lengths)]


class GraphHead(TaskHead):
    """A head whose layers are in the graph."""

    def forward(self, states: Tensor, batch: TaskBatch, drop: Any) -> Tensor:
        return states


class ExportedTaskModel(EncoderForTask):
    """The graph of a task, whose scores are its output."""

    encoder: ExportedEncoder

    def __init__(self, encoder: ExportedEncoder, spec: HeadSpec) -> None:
        super().__init__(encoder, GraphHead(spec))

    def predict_batch(self, batch: TaskBatch) -> Tensor:
        assert isinstance(batch.input, TokenBatch)
        spec = self.head.spec
        scores = self.encoder.compute(batch.input, VECTOR if spec.kind == "vector" else LOGITS)
        if spec.kind != "vector" and scores.shape[1:] != (spec.outputs,):
            raise ValueError(f"{self.encoder.path}: expected {spec.outputs} outputs, as in task.json; export again")
        return scores[batch.positions] if spec.kind in ("token", "span") else scores


class ExportedMaskedLM(TokenPredictor):
    """The graph of a masked LM."""

    encoder: ExportedEncoder

    def token_logits(self, batch: TokenBatch, positions: Tensor) -> Tensor:
        return self.encoder.compute(batch, LOGITS, positions)


def open_export(report: GraphReport) -> EncoderModel | TaskModel:
    """Open a graph with its task, if any. Raises ValueError, naming the file, for a damaged or unsuitable one."""
    report.check_files()
    with graph_errors(report.path):
        session = SESSIONS[report.format](report.path, torch.get_num_threads())
    task = read_task(report.folder)
    has_vectors = task.head.kind == "vector" if task else report.kind != MASKED_LM
    output = VECTOR if has_vectors else LOGITS
    if output not in session.outputs or not NEEDED <= session.inputs <= INPUTS:
        found = f"{', '.join(sorted(session.inputs))} and {', '.join(session.outputs)}"
        raise ValueError(
            f"{report.path}: expected inputs among {', '.join(sorted(INPUTS))} and the output {output}, got {found}; "
            "export again"
        )
    encoder = ExportedEncoder(load_config(report.folder), session, report)
    if task is not None:
        inferred = not (report.folder / "task.json").is_file()
        return TaskModel(ExportedTaskModel(encoder, task.head), task, inferred=inferred)
    return ExportedMaskedLM(encoder) if report.kind == MASKED_LM else EncoderModel(encoder)


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe an exported folder; None for another one."""
    report = find_export(folder)
    if report is None:
        return None
    report.check_files()
    fields = {"graph": FILES[report.format], "numbers": str(report.values.get("numbers", "?"))}
    fields["shape"] = describe_shape(load_config(folder))
    if task := read_task(folder):
        fields |= describe_task(task)
    fields |= describe_tokenizer(folder)
    fields |= {str(name): str(value) for name, value in report.values.get("summary", {}).items()}
    return Description(f"exported model for {report.kind}", fields, has_digests=True)
