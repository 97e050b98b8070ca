"""Fine-tuning on a GPU, with BASE in bfloat16, beside transformers.

    python bench/gpu_tasks.py [--examples .gpu/sst2.tsv] [--vocabulary .gpu/vocabulary]

Weights are random, since only speed is measured. Batches of 32 and 256 examples of SST-2; `transformers` makes the
Trainer's step (autocast, fused AdamW, dynamic padding of examples grouped by length), eager and compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.loop import LossOutput, train_steps
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import adamw, describe_machine, keep_printed, make_parser, train_step

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
SIZE = "base" if ON_GPU else "tiny"
WARMUP, STEPS = (40, 100) if ON_GPU else (1, 2)


def read_texts(path: Path) -> tuple[list[str], list[int]]:
    rows = [line.rstrip("\n").split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [row[0] for row in rows], [int(row[1]) for row in rows]


def time_steps(step: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the first step, and of all counted steps."""
    started = time.perf_counter()
    step()
    first = time.perf_counter() - started
    for _ in range(WARMUP):
        step()
    if ON_GPU:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    if ON_GPU:
        torch.cuda.synchronize()
    return first, time.perf_counter() - started


def ours(ids: Sequence[np.ndarray], labels: Sequence[int], batches: Sequence[np.ndarray]) -> Callable[[], object]:
    model = EncoderForTask(BertEncoder(BertConfig.from_size(SIZE, 30_522)), HeadSpec("sequence", 2)).train().to(DEVICE)
    model.encoder.compute_dtype = torch.bfloat16
    optimizer = Optimizer(dict(model.named_parameters()), OptimizerSettings())

    def loss(batch: TaskBatch) -> LossOutput:
        value = torch.nn.functional.cross_entropy(model(batch), batch.labels)
        return LossOutput(value, {"loss": value.detach()})

    def steps() -> Iterator[list[TaskBatch]]:
        for number, rows in enumerate(batches):
            packed = pack([ids[row] for row in rows]).with_dropout(number)
            batch = TaskBatch(
                packed, packed.packing.first_positions, labels=torch.tensor([labels[row] for row in rows])
            )
            yield [replace(batch).to(torch.device(DEVICE))]

    results = train_steps(loss, steps(), optimizer, lambda _: 1e-5)
    return lambda: next(results)


def theirs(
    ids: Sequence[np.ndarray], labels: Sequence[int], batches: Sequence[np.ndarray], compiled: bool
) -> Callable[[], object]:
    import transformers

    sizes = {} if ON_GPU else {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model("bert", num_labels=2, attn_implementation="sdpa", **sizes)
    model: Any = transformers.AutoModelForSequenceClassification.from_config(config).train().to(DEVICE)
    optimizer = adamw(model, OptimizerSettings(1e-5))
    forward = torch.compile(model, dynamic=True) if compiled else model
    remaining = iter(batches)

    def step() -> Tensor:
        rows = next(remaining)
        longest = max(len(ids[row]) for row in rows)
        longest += -longest % 8  # pad_to_multiple_of, which the Trainer's users set for tensor cores
        input_ids, mask = torch.zeros(2, len(rows), longest, dtype=torch.int64)
        for number, row in enumerate(rows):
            input_ids[number, : len(ids[row])] = torch.from_numpy(ids[row])
            mask[number, : len(ids[row])] = 1
        inputs = {"input_ids": input_ids, "attention_mask": mask, "labels": torch.tensor([labels[row] for row in rows])}
        given = {name: value.to(DEVICE) for name, value in inputs.items()}
        return train_step(model, lambda: forward(**given).loss, optimizer, True, DEVICE)

    return step


def finetune(texts: Sequence[str], labels: Sequence[int], vocabulary: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary)
    ids = [np.array([2, *row, 3], dtype=np.int64) for row in tokenizer.encode_raw(list(texts))]
    rng, needed = np.random.default_rng(0), 1 + WARMUP + STEPS
    print("| batch | contender | examples/s | ms per step | first step, s | peak memory, GB |")
    print("|---:|---|---:|---:|---:|---:|")
    for size in (32, 256) if ON_GPU else (4,):
        random = [rng.choice(len(ids), size, replace=False) for _ in range(needed)]
        by_length = rng.permutation(len(ids))[: 50 * size]
        by_length = by_length[np.argsort([-len(ids[row]) for row in by_length], kind="stable")]
        grouped = [by_length[begin : begin + size] for begin in rng.permutation(len(by_length) // size) * size]
        grouped = (grouped * (needed // len(grouped) + 1))[:needed]
        contenders = {
            "bertwright": partial(ours, ids, labels, random),
            "transformers, eager": partial(theirs, ids, labels, grouped, False),
        }
        if ON_GPU and size == 256:  # compiling takes minutes
            contenders["transformers, compiled"] = partial(theirs, ids, labels, grouped, True)
        for name, make_step in contenders.items():
            if ON_GPU:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            first, seconds = time_steps(make_step())
            peak = torch.cuda.max_memory_allocated() / 1e9 if ON_GPU else 0.0
            speed = f"{size * STEPS / seconds:,.0f} | {1000 * seconds / STEPS:.1f} | {first:.1f} | {peak:.1f}"
            print(f"| {size} | {name} | {speed} |", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--examples", type=Path, default=Path(".gpu/sst2.tsv"))
    parser.add_argument("--vocabulary", type=Path, default=Path(".gpu/vocabulary"))
    chosen = parser.parse_args()
    keep_printed(__file__, device=DEVICE)
    print(f"{describe_machine(device=DEVICE)}\n")
    finetune(*read_texts(chosen.examples), chosen.vocabulary)


if __name__ == "__main__":
    main()
