"""The same fine-tuning on both sides, for every task type: first weights, order and dropout masks are equal.

    OMP_WAIT_POLICY=PASSIVE python bench/finetuning_parity.py DATA --results FILE [--tasks tagging] [--every 8]

The plan is bench/plans/finetuning_parity.md. What `finetuning_scores.py` cannot tell apart from chance shows here: with
nothing left to chance, `transformers` and bertwright must have the same loss at every step, end with the same weights,
and predict the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from bertwright.base.reporter import SILENT
from bertwright.base.seeding import make_rng
from bertwright.finetuning.finetune_state import FinetuneState, make_spec, open_run
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.interop.head_config import HEAD_CLASSES, MULTI_LABEL
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import TokenBatch
from bertwright.models.pooling import HeadPoolingName
from bertwright.tasks.collation import collate, micro_batches
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.text_task import TextExample
from bertwright.training.context import execution_context
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.loop import evaluation_mode
from environment import append_result, describe_machine, make_parser, minilm, use_threads
from parity import Inputs, Padded, SharedMasks, run_lockstep
from study import read_trec

STEPS, RATE, DROPOUT = 24, 1e-4, 0.1
EXAMPLES, DEV_EXAMPLES = 1_000, 100
ENDINGS = 4  # of a prompt of CODAH
WHOLE_STEP = 1 << 30  # tokens of a micro-batch
ANSWERS = ("label", "labels", "choice", "tags", "text")  # the field of a prediction that is its answer


@dataclass(frozen=True)
class Work:
    """A task, its files, and the examples of a step."""

    task: TaskSettings
    train: str
    dev: str
    batch_size: int = 8
    pooling: HeadPoolingName | None = "cls"
    """What the head reads; None: it reads tokens, not sequences."""


WORKS = {
    "classification": Work(TaskSettings("mrpc"), "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"),
    "multi-label": Work(TaskSettings("multi-label"), "trec/TREC.train", "trec/TREC.test"),
    "regression": Work(TaskSettings("stsb"), "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv"),
    "multiple-choice": Work(TaskSettings("codah"), "codah/train.tsv", "codah/dev.tsv"),
    "tagging": Work(
        TaskSettings("conll2003", overrides=TaskOptions(context=False)), "conll2003/train.txt", "conll2003/valid.txt",
        pooling=None,
    ),
    "question-answering": Work(
        TaskSettings("squad", overrides=TaskOptions(max_length=128)), "squad/train-v1.1.json", "squad/dev-v1.1.json",
        batch_size=4, pooling=None,
    ),
}  # fmt: skip


def read(about: Work, path: Path, number: int) -> list[Any]:
    """Read a file and choose examples at random; a question of TREC has its coarse and its fine label."""
    if path.parent.name == "trec":
        pairs = zip(read_trec(path), read_trec(path, is_fine=True), strict=True)
        examples: list[Any] = [
            TextExample(one.text, None, (one.label, fine.label), one.location) for one, fine in pairs
        ]
    else:
        examples = list(about.task.build_task().read(str(path)))
    chosen = make_rng(0, 35).permutation(len(examples))[:number]
    return [examples[index] for index in sorted(chosen)]


def settings_of(about: Work) -> FinetuneSettings:
    return FinetuneSettings(
        run=Path("not-written"), task=about.task, model=str(minilm()), batch_size=about.batch_size,
        tuning=TuningSettings(head_init="random", dropout=DROPOUT, pooling=about.pooling),
        optimizer=replace(paper_optimizer(), learning_rate=RATE), device=DeviceSettings("cpu", "float32", 1),
    )  # fmt: skip


def make_model(task: AnyTask) -> Any:
    """Return the task's class of `transformers` in the shape of MiniLM."""
    fields: dict[str, Any] = {} if task.head.kind == "choice" else {"num_labels": task.head.outputs}
    fields |= {"problem_type": MULTI_LABEL} if task.is_multi_label else {}
    config = transformers.BertConfig.from_pretrained(
        minilm(), hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT, attn_implementation="eager",
        **fields,
    )  # fmt: skip
    return getattr(transformers, f"Bert{HEAD_CLASSES[task.head.kind].suffix}")(config)


def convert(task: AnyTask, batch: TaskBatch, padded: Padded) -> Inputs:
    """Return the peer's input with its targets."""
    inputs, labels = peer_inputs(task, batch, padded), batch.labels
    if task.head.kind == "span":
        return inputs | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    return inputs | {"labels": padded.labels(batch.positions, labels) if task.head.kind == "token" else labels}


def peer_inputs(task: AnyTask, batch: TaskBatch, padded: Padded) -> Inputs:
    """Return the peer's input; the endings of a choice have a dimension of their own."""
    assert isinstance(batch.input, TokenBatch)
    inputs = padded.inputs(batch.input)
    if task.head.kind != "choice":
        return inputs
    return {name: rows.view(-1, ENDINGS, rows.shape[-1]) for name, rows in inputs.items()}


def peer_loss(model: Any, inputs: Inputs) -> Tensor:
    """Compute the loss of the peer's class; of answers, as there, but without the places of the padding."""
    if "start_positions" not in inputs:
        loss: Tensor = model(**inputs).loss
        return loss
    read = {name: inputs[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    found, padding = model(**read), inputs["attention_mask"] == 0
    pairs = (found.start_logits, inputs["start_positions"]), (found.end_logits, inputs["end_positions"])
    start, end = (F.cross_entropy(logits.masked_fill(padding, -torch.inf), targets) for logits, targets in pairs)
    return (start + end) / 2


def peer_outputs(task: AnyTask, found: Any, batch: TaskBatch, padded: Padded) -> Tensor:
    """Return the peer's logits at the positions that our head reads, R × C."""
    if task.head.kind == "span":
        return torch.stack([found.start_logits, found.end_logits], -1)[padded.real]
    if task.head.kind == "token":
        tagged: Tensor = found.logits[padded.real][batch.positions]
        return tagged
    pooled: Tensor = found.logits.reshape(len(batch.positions), -1)
    return pooled


def answer(prediction: Any) -> Any:
    """Return what a prediction says, without its probabilities; a number to two digits."""
    name = next((name for name in ANSWERS if hasattr(prediction, name)), None)
    return round(float(prediction), 2) if name is None else getattr(prediction, name)


@torch.no_grad()
def compare_predictions(state: FinetuneState, examples: Sequence[Any], peer: Any) -> dict[str, Any]:
    """Return the number of dev examples and the share with equal predictions."""
    encoded = state.task.encode(examples, state.tokenizer, labeled=False)
    ours, theirs = [], []
    with evaluation_mode(state.model), evaluation_mode(peer):
        for first in range(0, encoded.num_items, 16):
            batch = collate(encoded, np.arange(first, min(first + 16, encoded.num_items)))
            padded = Padded.of(batch.packing)
            found = peer(**peer_inputs(state.task, batch, padded))
            ours.append(state.model.predict_batch(batch))
            theirs.append(peer_outputs(state.task, found, batch, padded))
    sides = (state.task.decode(examples, encoded, torch.cat(side).numpy()) for side in (ours, theirs))
    pairs = [(answer(own), answer(other)) for own, other in zip(*sides, strict=True)]
    return {"predictions": len(pairs), "equal_predictions": sum(own == other for own, other in pairs) / len(pairs)}


def train(name: str, data: Path, results: Path, every: int) -> None:
    """Train both sides on a task, and append rows to the results."""
    about = WORKS[name]
    settings = settings_of(about)
    examples = {"train": read(about, data / about.train, EXAMPLES)}
    dev = read(about, data / about.dev, DEV_EXAMPLES)

    def report(row: dict[str, Any]) -> None:
        append_result(results, {"task": name} | row, 1)
        print(name, row, flush=True)

    with execution_context(settings.device) as context:
        state = open_run(settings, context, SILENT, examples)
        task, encoded = state.task, state.train.encoded
        spec = replace(make_spec(state, settings, context), schedule=settings.optimizer.make_schedule(STEPS))
        batches = (
            micro_batches(encoded, step, about.batch_size, settings.seed, WHOLE_STEP)[0] for step in range(STEPS)
        )
        peer = run_lockstep(
            spec, batches, lambda batch, padded: convert(task, batch, padded), lambda: make_model(task), peer_loss,
            SharedMasks(DROPOUT), every, report,
        )  # fmt: skip
        report({"step": STEPS} | compare_predictions(state, dev, peer.model))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(WORKS), choices=WORKS)
    parser.add_argument("--every", type=int, default=8, help="steps between two rows")
    chosen = parser.parse_args()
    use_threads(1)
    print(describe_machine(1), flush=True)
    for name in chosen.tasks:
        train(name, chosen.data, chosen.results, chosen.every)


if __name__ == "__main__":
    main()
