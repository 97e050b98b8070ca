"""Training of the recurrent models in float32 and bfloat16, with and without `csrc/lstm.h`: time and held-out scores.

    python bench/recurrent_layers.py --store STORE --data shared/data [--systems elmo cove ulmfit tagger] [--steps 100]

Single layers, then whole models. elmo: the bidirectional language model `mini` on STORE, a prepared text of words,
64 texts of up to 32 words a step; ulmfit: the AWD-LSTM `mini` on STORE, 32 streams of 70 words; cove: the translation
model `tiny` on Multi30k, 2,000 tokens; tagger: the BiLSTM-CNN-CRF on CoNLL-2003, 32 sentences. Whole steps with loss
and optimizer, one thread, the same first weights and batches, a step of each way in turn: float32, bfloat16 with
PyTorch's operations between the products, bfloat16 with the native recurrence. Time is the CPU time of the process,
since other programs may run on the machine: the median, and the median ratio to the native recurrence with its 10th and
90th percentile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.finetuning.finetune_state import open_run as open_finetuning
from bertwright.finetuning.run import FinetuneRun
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.models.packed_lstm import NO_CLIPS, LstmWeights, run_layer
from bertwright.pretraining.run import open_run as open_pretraining
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.context import ExecutionContext
from bertwright.training.fit import TrainingSpec
from bertwright.training.loop import train_steps
from bertwright.translation.run import open_run as open_translation
from bertwright.translation.settings import TrainTranslationSettings
from environment import describe_machine, keep_printed, make_parser, use_threads

LAYERS = {  # directions, sequences, words of each, inputs, cells, states
    "ELMo tiny": (2, 128, 32, 64, 256, 64),
    "ELMo mini": (2, 128, 32, 128, 512, 128),
    "CoVe base": (2, 64, 13, 300, 300, 300),
    "CoVe tiny, layer 2": (2, 64, 13, 256, 128, 128),
    "ULMFiT mini, layer 2": (1, 32, 70, 256, 256, 256),
    "tagger, 32 sentences": (2, 32, 15, 130, 200, 200),
    "tagger, 10 sentences": (2, 10, 15, 130, 200, 200),
    "32 states, 8 sentences": (2, 8, 10, 32, 32, 32),
}
WAYS = {"float32": torch.float32, "bfloat16, PyTorch": torch.bfloat16, "bfloat16": torch.bfloat16}
NATIVE = "bfloat16"
SYSTEMS = ("elmo", "ulmfit", "cove", "tagger")
SCORES = ("loss", "f1")
WARM_UP = 3  # steps that are not timed
RUN = "not-written"


def open_spec(system: str, dtype: torch.dtype, options: argparse.Namespace) -> TrainingSpec[Any]:
    """Make a model and its batches; nothing is written."""
    context, reporter = ExecutionContext(torch.device("cpu"), dtype, 1, 0, 1), MUTE
    device = {"dtype": str(dtype).removeprefix("torch."), "threads": 1}
    base: dict[str, Any] = {"run": RUN, "device": device}
    if system == "tagger":
        task = {"task": "conll2003", "data": str(options.data / "conll2003")}
        table = {**base, "task": task, "architecture": "bilstm-crf", "tuning": {"limit": 2000}}
        settings = from_table(FinetuneSettings, table, system)
        return FinetuneRun(open_finetuning(settings, context, reporter, None), settings, context, reporter, True).spec()
    if system == "cove":
        folder = options.data / "multi30k"
        files = {
            f"{split}_{side}": [str(folder / f"{name}.lc.norm.tok.{language}")]
            for split, name in (("train", "train"), ("dev", "val"))
            for side, language in (("source", "en"), ("target", "de"))
        }
        table = {**base, **files, "architecture": "mt-lstm", "size": "tiny", "vocab_size": 5000}
        table["steps"] = options.steps
        return open_translation(from_table(TrainTranslationSettings, table, system), context, reporter).spec()
    sizes = {"batch_size": 64, "max_length": 32} if system == "elmo" else {"batch_size": 32}
    model = {"architecture": system, "size": "mini"}
    table = {**base, "store": str(options.store), "steps": options.steps, "model": model, "data": sizes}
    table["optimizer"] = {"learning_rate": 4e-3, "bias_correction": True}
    return open_pretraining(from_table(PretrainSettings, table, system), context, reporter).spec()


def compare_layers(rounds: int) -> None:
    """Time forward and backward pass of single layers in both dtypes, in turn; print a row for each."""
    for name, (directions, sequences, length, inputs, cells, states) in LAYERS.items():
        shapes = [(directions, 4 * cells, inputs), (directions, 4 * cells), (directions, 4 * cells, states)]
        shapes += [(directions, states, cells)] * (states != cells)
        by_inputs, *others = ((0.05 * torch.randn(shape)).requires_grad_() for shape in shapes)
        weights = LstmWeights(by_inputs.unbind(), *others)
        words = torch.randn(directions, sequences * length, inputs, requires_grad=True)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(1 + rounds):
            for way, dtype in WAYS.items():
                with recurrence(way):
                    started = time.process_time()
                    values = run_layer(words.to(dtype), weights, [sequences] * length, NO_CLIPS)
                    torch.autograd.backward(values.states.sum())
                    times[way].append(time.process_time() - started)
        print(f"| {' | '.join([name, *format_times({way: times[way][1:] for way in WAYS})])} |", flush=True)


def recurrence(way: str) -> AbstractContextManager[Any]:
    """Return a context in which LSTMs are computed in a way."""
    if way == NATIVE:
        return nullcontext()
    return patch("bertwright.models.packed_lstm.uses_native_lstm", return_value=False)


def format_times(times: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the medians in milliseconds, and the other ways' ratios to the native one with their percentiles."""
    native = np.array(times[NATIVE])
    ms = [f"{1e3 * np.median(seconds):.1f}" for seconds in times.values()]
    ratios = [np.percentile(np.array(times[way]) / native, (50, 10, 90)) for way in WAYS if way != NATIVE]
    return [*ms, *("{:.2f} ({:.2f} to {:.2f})".format(*found) for found in ratios)]


def compare(system: str, options: argparse.Namespace) -> None:
    """Train in each way, in turn; print a row."""
    specs = {way: open_spec(system, dtype, options) for way, dtype in WAYS.items()}
    runs = {}
    for way, spec in specs.items():
        spec.model.train()
        runs[way] = train_steps(spec.loss, spec.batches(0), spec.optimizer, spec.schedule)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.steps):
        for way, run in runs.items():
            with recurrence(way):
                started = time.process_time()
                next(run)
                times[way].append(time.process_time() - started)
    timed = format_times({way: times[way][WARM_UP:] for way in WAYS})
    scores = [format_scores(spec.evaluate()) if spec.evaluate else "" for spec in specs.values()]
    print(f"| {' | '.join([system, *timed, *scores])} |", flush=True)


def format_scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {scores[name]:.4f}" for name in SCORES if name in scores)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=[*SYSTEMS])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7, help="of the table of single layers; 0: no such table")
    options = parser.parse_args()
    use_threads(1)
    keep_printed(__file__, 1)
    print(describe_machine(1))
    columns = f"{' | '.join(f'{way}, ms' for way in WAYS)} | float32 / native | PyTorch / native"
    if options.rounds:
        print(f"| one layer, forward and backward | {columns} |\n|---|---:|---:|---:|---|---|")
        compare_layers(options.rounds)
    print(f"| {options.steps} steps | {columns} | {' | '.join(f'held out, {way}' for way in WAYS)} |")
    print("|---|---:|---:|---:|---|---|---|---|---|")
    for system in options.systems:
        compare(system, options)


if __name__ == "__main__":
    main()
