"""A model as one graph, with its head, pooling, further layers, normalization and activation, written as ONNX.

B sequences of N tokens, M positions, C outputs, H hidden size.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.base.optional import needs
from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import LOGITS, MASKED_LM, SCORES, STATES, VECTOR
from bertwright.interop.sentence_modules import MEAN, SentenceModules
from bertwright.models.encoder import PaddedEncoder
from bertwright.models.heads import TaskHead
from bertwright.models.pooling import pool_padded
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
from bertwright.systems.bert.padded_bert import masked_token_logits
from bertwright.tasks.task import AnyTask

OPSET = 20
MAX_BYTES = 2_000_000_000  # of a file of ONNX; beyond it, weights lie in other files


class Graph(nn.Module):
    """An encoder over padded sequences, and what follows it; `kind`: a task type, "embedding" or MASKED_LM."""

    def __init__(
        self, encoder: PaddedEncoder, kind: str, outputs: tuple[str, ...], reads_positions: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.kind, self.outputs = encoder, kind, outputs
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * encoder.reads_segments
        self.inputs = (*names, "positions") if reads_positions else tuple(names)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(self.inputs, given, strict=True))
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        states = self.encoder(ids, mask, inputs.get("token_type_ids", ids))
        return self.follow(states, mask, inputs.get("positions", ids))

    def follow(self, states: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs from the states."""
        raise NotImplementedError


class TaskGraph(Graph):
    """A task's logits and the scores that follow from them: calibrated probabilities or, of a regression, numbers."""

    def __init__(self, encoder: PaddedEncoder, head: TaskHead, task: AnyTask) -> None:
        super().__init__(encoder, task.kind, (LOGITS, SCORES))
        self.head, self.task = head, task

    def follow(self, states: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        head: Any = self.head
        if head.reads_all_tokens:
            logits = head.classify(pool_padded(states, mask, head.modes))
        else:
            logits = head(states[:, 0] if head.spec.reads_sequence_state else states, None, None)
        return logits, self.activate(logits, mask)

    def activate(self, logits: Tensor, mask: Tensor) -> Tensor:
        task, spec = self.task, self.head.spec
        if spec.kind == "span":  # over the tokens of a sequence
            return (logits - 1e9 * (1 - mask[:, :, None].float())).softmax(1)
        if (temperature := getattr(task, "temperature", 1.0)) != 1:
            logits = logits / temperature
        if task.is_multi_label or task.activation == "sigmoid":
            return logits.sigmoid()
        return logits.softmax(-1) if spec.outputs > 1 else logits * task.head_scale


class VectorGraph(Graph):
    """The states of all tokens, and the vector of each sequence as `Bert.embed` computes it."""

    def __init__(self, encoder: PaddedEncoder, modules: SentenceModules) -> None:
        super().__init__(encoder, "embedding", (STATES, VECTOR))
        self.modes, self.size, self.steps = modules.modes, modules.size, modules.layers
        self.modules_of_steps = nn.ModuleList(layer for layer in modules.layers if isinstance(layer, nn.Module))

    def follow(self, states: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        vectors = pool_padded(states, mask, self.modes)
        for layer in self.steps:
            vectors = layer(vectors)
        return states, vectors[:, : self.size]


class MaskedLMGraph(Graph):
    """The states of all tokens, and the logits and probabilities at positions, counted over B · N tokens."""

    def __init__(self, encoder: PaddedEncoder, model: MaskedLanguageModel) -> None:
        super().__init__(encoder, MASKED_LM, (STATES, LOGITS, SCORES), reads_positions=True)
        self.head, self.words = model.masked_token, model.encoder.embeddings.word

    def follow(self, states: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        logits = masked_token_logits(self.head, states.flatten(0, 1)[positions], self.words.weight)
        return states, logits, logits.softmax(-1)


def make_graph(bert: Bert) -> Graph:
    """Return the graph of a model. Raises ValueError, with the reason, for one without a graph."""
    network = bert.model
    encoder = network.encoder.padded()
    task, modules = bert.task, bert.choose_modules(None)
    if isinstance(network, EncoderForTask) and task is not None and task.head.kind != "vector":
        check_head(network.head)
        return TaskGraph(encoder, network.head, task).eval()
    has_head = "masked_token" not in bert.missing_heads
    if task is None and modules is None and has_head and isinstance(network, MaskedLanguageModel):
        return MaskedLMGraph(encoder, network).eval()
    if modules is not None and not modules.include_prompt and any(modules.prompts.values()):
        raise ValueError("export: the pooling of this model leaves out the prompt, whose length no graph knows")
    return VectorGraph(encoder, modules or MEAN).eval()


def check_head(head: TaskHead) -> None:
    """Raise ValueError for a head that a graph of padded sequences cannot contain."""
    if head.has_graph:
        return
    reasons = {
        "CrfHead": "the best path of a CRF depends on all words of a sentence; fine-tune with --tag-head linear",
        "BothOrdersHead": "its score adds two sequences of a pair; fine-tune without --both-orders",
    }
    reason = reasons.get(type(head).__name__, "no graph of it can be written")
    raise ValueError(f"export: expected a linear head, got a {type(head).__name__}: {reason}")


def write_onnx(graph: Graph, path: Path, max_length: int) -> None:
    """Write a graph with batches and lengths of any size; its operations are named after the layers.

    Raises ValueError for a model of more than 2 GB.
    """
    with needs("export", "export"):
        import onnx
        import onnxscript  # noqa: F401
    if sum(4 * tensor.numel() for tensor in graph.state_dict().values()) > MAX_BYTES:
        raise ValueError("export: expected a model of at most 2 GB, the largest file of ONNX; choose a smaller one")
    length = min(8, max_length)
    dims = {0: torch.export.Dim("batch", min=1, max=65_536), 1: torch.export.Dim("length", min=1, max=max_length)}
    shapes: list[Any] = [dims for _ in graph.inputs]
    given = [torch.ones(2, length, dtype=torch.int64) for _ in graph.inputs]  # equal tensors, but not the same one
    if graph.inputs[-1] == "positions":
        shapes[-1] = {0: torch.export.Dim("masks", min=1)}
        given[-1] = torch.arange(3)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph, tuple(given), dynamo=True, verbose=False, opset_version=OPSET, dynamic_shapes=(tuple(shapes),),
            input_names=graph.inputs, output_names=graph.outputs,
        )  # fmt: skip
    assert program is not None
    model = program.model_proto
    for number, node in enumerate(model.graph.node):
        scopes = next((entry.value for entry in node.metadata_props if entry.key.endswith("name_scopes")), "")
        inside = [name.strip("' ") for name in scopes.strip("[]").split(",")][:-1]
        node.name = f"{inside[-1] if inside else ''}/{node.op_type}_{number}"
        del node.metadata_props[:]
        node.doc_string = ""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    onnx.checker.check_model(str(path))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what exporters and quantizers print and log in the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
