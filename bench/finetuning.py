"""Fine-tuning steps of 32 examples on the real lengths of SST-2 and MRPC, side by side with `transformers`.

    python bench/finetuning.py DATA [--models minilm base] [--tasks sst2 mrpc both] [--steps 5] [--rounds 7]

DATA is the folder with glue/SST-2 and glue/MRPC; "both" mixes them, two of SST-2 to one of MRPC, whose pairs are read
as one text: lengths that differ much, 26 tokens on average. The models: MiniLM-L6 (real weights, L6 H384) and base
(random ones, L12 H768). The same recipe on every side: hidden and attention dropout 0.1, AdamW with decay 0.01 (theirs
fused), clipping at 1.0. Everything is encoded beforehand; batches are put together within the time.

Every contender is a process of its own, which gives its peak memory and its own memory settings (thresholds of malloc,
huge pages), and is asked for one block of steps at a time in turn, so that a machine whose speed drifts drifts for all.
The examples of a block are the same for all: whole batches of what length grouping (as in `transformers`, within 50
batches) makes of 1,600 random examples, every tenth for blocks of 5. The contender with length grouping takes these
batches as they are, longest first; for the others the examples are shuffled among the block's batches, as they come
without grouping. The first round is not counted. Ratios are taken within a round; their median counts.

The last row are the block's matrix products alone, last layer at [CLS] only, at the speed of the fastest product known
here (`measure_peak_flops`) in the same round: what no program could surpass in these dtypes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertwright.kernels.cpu import peak_resident_memory
from bertwright.models.heads import TaskBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.task import AnyTask
from bertwright.training.context import supports_bfloat16
from bertwright.training.optimizer import OptimizerSettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from contenders import Child, step_in_turns
from environment import (
    describe_machine,
    format_range,
    format_ratio,
    keep_printed,
    load_bert_config,
    make_parser,
    minilm,
    use_threads,
)
from pretraining import MEMORY

BATCH, GROUPED = 32, 50  # examples per step; batches within which transformers groups by length
FILES = {"sst2": Path("glue", "SST-2", "train.tsv"), "mrpc": Path("glue", "MRPC", "train.tsv")}
TASKS = (*FILES, "both")
LENGTH = 128
CEILING = "the products alone"
RECIPE = OptimizerSettings(learning_rate=3e-5, bias_correction=True)

Ints = np.ndarray[Any, np.dtype[np.int64]]
Block = Callable[[int], float]  # number of a block -> mean loss of its steps


def contenders(bfloat16: bool, compiled: bool) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Map each contender's name to (arguments of the child, environment)."""
    grouped = ["theirs", "--padding", "grouped"]
    fixed = ["theirs", "--padding", "fixed"]
    listed: dict[str, tuple[list[str], dict[str, str]]] = {
        "transformers, as the example scripts run it (padded to 128, fp32)": (fixed, {}),
        "transformers, dynamic padding, memory settings": (["theirs", "--padding", "dynamic"], MEMORY),
        "transformers, the same with length grouping": (grouped, MEMORY),
        "bertwright": (["ours"], {}),
    }
    if compiled:
        listed["transformers, with length grouping, compiled"] = ([*grouped, "--compile"], MEMORY)
    if bfloat16:
        dynamic = ["theirs", "--padding", "dynamic", "--bfloat16"]
        listed["transformers, in random order, bf16 autocast"] = (dynamic, MEMORY)
        listed["transformers, with length grouping, bf16 autocast"] = ([*grouped, "--bfloat16"], MEMORY)
        listed["bertwright, bf16"] = (["ours", "--bfloat16"], {})
    return listed | {CEILING: (["ceiling", *["--bfloat16"] * bfloat16], {})}


def block_examples(lengths: Ints, number: int, steps: int) -> Ints:
    """Choose a block's examples, steps × BATCH: evenly spaced batches of 1,600 random examples sorted by length."""
    drawn = np.random.default_rng(number)
    among = drawn.permutation(len(lengths))[: BATCH * GROUPED]
    batches = len(among) // BATCH
    longest_first = among[np.argsort(-lengths[among], kind="stable")][: batches * BATCH].reshape(batches, BATCH)
    offsets = (drawn.random() + np.arange(steps)) * batches / steps
    return longest_first[offsets.astype(np.int64)]


def shuffle(examples: Ints, number: int) -> Ints:
    """Shuffle the same examples across batches."""
    return np.random.default_rng(number).permutation(examples.reshape(-1)).reshape(examples.shape)


def theirs(chosen: argparse.Namespace) -> Block:
    import transformers

    from transformers_baseline import SequencePeer, adamw, train_step

    task, examples = read(chosen.data, chosen.task)
    peer = SequencePeer(str(minilm()), task, examples)
    items = peer.items(examples)
    lengths = np.array([item.length for item in items])
    if chosen.model == "minilm":
        model = peer.model(dropout=0.1)
    else:
        config = transformers.AutoConfig.for_model(
            "bert", attn_implementation="sdpa", num_labels=2
        )  # its default: base
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    model.train()
    optimizer = adamw(model, RECIPE)
    forward = torch.compile(model, dynamic=True) if chosen.compile else model

    def block(number: int) -> float:
        batches = block_examples(lengths, number, chosen.steps)
        total = 0.0
        for rows in batches if chosen.padding == "grouped" else shuffle(batches, number):
            inputs = peer.batch([items[row] for row in rows], LENGTH if chosen.padding == "fixed" else None)
            total += train_step(
                forward, inputs, optimizer, RECIPE.max_grad_norm, "bfloat16" if chosen.bfloat16 else "float32"
            )
        return total / chosen.steps

    return block


def ours(chosen: argparse.Namespace) -> Block:
    from bertwright.base.seeding import TaskStream, derive_key
    from bertwright.interop.huggingface import start_task_model
    from bertwright.kernels.cpu import configure_malloc
    from bertwright.models.task_model import EncoderForTask
    from bertwright.systems.bert.bert_encoder import BertEncoder
    from bertwright.tasks.collation import collate
    from bertwright.training.loop import LossOutput, train_steps
    from bertwright.training.optimizer import Optimizer

    configure_malloc()  # as `bertwright finetune` does
    task, encoded = encode(chosen.data, chosen.task)
    if chosen.model == "minilm":
        model = start_task_model(minilm(), task.head, 0, dropout=0.1).model
    else:
        model = EncoderForTask(BertEncoder(shape(chosen.model)), task.head)
    model.encoder.compute_dtype = torch.bfloat16 if chosen.bfloat16 else torch.float32
    model.encoder.sparse_gradients = True  # as `bertwright finetune` does
    model.train()
    optimizer = Optimizer(dict(model.named_parameters()), RECIPE)

    def compute(batch: TaskBatch) -> LossOutput:
        loss = task.loss(model(batch), batch) / batch.num_labels
        return LossOutput(loss, {"loss": loss.detach()})

    def step_batch(rows: Ints, step: int) -> TaskBatch:
        made = collate(encoded, rows)
        return replace(made, input=made.input.with_dropout(derive_key(0, TaskStream.DROPOUT, step)))

    def block(number: int) -> float:
        rows = shuffle(block_examples(encoded.lengths, number, chosen.steps), number)
        batches = ([step_batch(row, number * chosen.steps + step)] for step, row in enumerate(rows))
        results = train_steps(compute, batches, optimizer, lambda _: RECIPE.learning_rate)
        return statistics.fmean(result.sums["loss"] for result in results)

    return block


def ceiling(chosen: argparse.Namespace) -> Block:
    """Measure the seconds that the matrix products of a block take, in context of a loss."""
    from bertwright.training.context import ExecutionContext
    from bertwright.training.throughput import measure_peak_flops

    config, (_, encoded) = shape(chosen.model), encode(chosen.data, chosen.task)
    dtype = torch.bfloat16 if chosen.bfloat16 else torch.float32
    context = ExecutionContext(torch.device("cpu"), dtype, chosen.threads)

    def block(number: int) -> float:
        batches = encoded.lengths[block_examples(encoded.lengths, number, chosen.steps)]
        work = sum(config.count_training_flops(lengths, num_predictions=0, pooled=True) for lengths in batches)
        return work / measure_peak_flops(context, config.hidden_size, seconds=2.0)

    return block


def shape(model: str) -> BertConfig:
    """Return the encoder configuration of a contender."""
    if model == "minilm":
        return load_bert_config(minilm())
    return BertConfig.from_size("base", Tokenizer.load(minilm()).vocab_size)


def read(data: Path, name: str) -> tuple[AnyTask, list[Any]]:
    """Read a task and its training examples."""
    if name == "both":
        task, single = read(data, "sst2")
        _, pairs = read(data, "mrpc")
        joined = [one._replace(text=f"{one.text} {one.text_pair}", text_pair=None) for one in pairs]
        return task, [*single[: 2 * len(pairs)], *joined]
    task = PRESETS[name].task
    return task, list(task.read(str(data / FILES[name])))


def encode(data: Path, name: str) -> tuple[AnyTask, Encoded]:
    """Encode a task's training examples; also return the task with its labels."""
    task, examples = read(data, name)
    task = task.with_labels_of(examples)
    return task, task.encode(examples, Tokenizer.load(minilm()))


def serve(chosen: argparse.Namespace) -> None:
    """Run one block per input line; print seconds, mean loss and peak memory."""
    use_threads(chosen.threads)
    torch.manual_seed(0)
    block = {"ours": ours, "theirs": theirs, "ceiling": ceiling}[chosen.serve](chosen)
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    for number, _ in enumerate(sys.stdin):
        started = clock()
        loss = block(number)
        seconds = clock() - started
        print(json.dumps({"seconds": seconds, "result": loss, "peak": peak_resident_memory()}), flush=True)


class Contender(Child):
    """The process of one contender."""

    def __init__(self, chosen: argparse.Namespace, arguments: list[str], environment: dict[str, str]) -> None:
        same = {name: str(getattr(chosen, name)) for name in ("model", "task", "steps", "threads")}
        flags = [worker for name, value in same.items() for worker in (f"--{name}", value)]
        flags += ["--cpu-time"] * chosen.cpu_time
        command = [sys.executable, __file__, str(chosen.data), "--serve", *arguments, *flags]
        super().__init__(command, environment)


def compare(chosen: argparse.Namespace, bfloat16: bool) -> None:
    """Print one table."""
    listed = contenders(bfloat16, chosen.compiled).items()
    selected = {name: how for name, how in listed if not any(worker in name for worker in chosen.without)}
    children = {name: Contender(chosen, *how) for name, how in selected.items()}
    step_in_turns(children.values(), chosen.rounds)
    length = encode(chosen.data, chosen.task)[1].lengths.mean()
    print(f"\n### {chosen.model}, {chosen.task}: {length:.1f} tokens per example\n")
    print("| | examples/s (minimum to most) | bertwright is, × as fast (minimum to most) | peak memory, GB | loss |")
    print("|---|---:|---:|---:|---:|")
    own = {name: child.seconds for name, child in children.items() if name.startswith("bertwright")}
    fastest = min(own.values(), key=statistics.median)
    products = children.pop(CEILING, None)
    for name, child in children.items():
        speeds = [BATCH * chosen.steps / seconds for seconds in child.seconds]
        ratio = "" if name in own else format_ratio(child.seconds, fastest)
        speed = format_range(speeds, ".1f")
        loss = statistics.fmean(child.results)
        print(f"| {name} | {speed} | {ratio} | {child.peak / 1e9:.2f} | {loss:.3f} |", flush=True)
    if products:
        speed = BATCH * chosen.steps / statistics.median(products.results)
        share = statistics.median(minimum / ours for minimum, ours in zip(products.results, fastest, strict=True))
        print(f"| {CEILING} | {speed:.1f} | {share:.2f} | | |", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", nargs="+", default=["minilm", "base"], choices=("minilm", "base"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--steps", type=int, default=5, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each contender that are counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds: one thread on a busy machine")
    parser.add_argument("--compiled", action="store_true", help="let transformers compete under torch.compile, too")
    parser.add_argument("--without", nargs="+", default=[], help="leave out contenders whose name contains this")
    parser.add_argument("--serve", choices=("ours", "theirs", "ceiling"), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--padding", choices=("fixed", "dynamic", "grouped"), help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bfloat16", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen)
        return
    seconds = "CPU seconds" if chosen.cpu_time else "seconds of the clock"
    keep_printed(__file__, chosen.threads)
    print(f"{describe_machine(chosen.threads)}; {chosen.rounds} rounds of {chosen.steps} × {BATCH} examples, {seconds}")
    for model, task in product(chosen.models, chosen.tasks):
        chosen.model, chosen.task = model, task
        compare(chosen, supports_bfloat16(torch.device("cpu")))


if __name__ == "__main__":
    main()
