"""The same fine-tuning steps on both sides: the same initial weights, batches and order, without dropout.

    python bench/finetuning_parity.py DATA [--task conll2003_context] [--steps 20] [--dtype float32] [--threads 2]

What `finetuning_scores.py` cannot tell apart from chance shows here: with nothing left to chance, `transformers` and
bertwright must have the same loss at every step, and end with the same weights. Ours is `bertwright finetune` as it is;
the peer's side takes the sequences and their order from ours, and its model, optimizer, loss and clipping are its own.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from bertwright.batching.batch import offsets_from_lengths
from bertwright.commands.finetune.settings import FinetuneSettings, TuningSettings
from bertwright.interop.huggingface import start_task_model
from bertwright.tasks.collation import collate, step_items
from bertwright.tasks.data import read_examples
from bertwright.tasks.task import Encoded
from bertwright.tasks.task_io import TaskModel, save_task_folder
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.tokenizer import Tokenizer
from environment import describe_machine, minilm, use_threads
from finetuning_scores import DTYPES, MINILM, WORKS, Run, ours, settings_of
from transformers_baseline import IGNORED, Item, TaggingPeer, steps


def items_of(encoded: Encoded) -> list[Item]:
    """Convert our sequences of a tagging task to items of the `transformers` baseline."""
    whole = collate(encoded, np.arange(encoded.num_items))
    ids, rows, targets = whole.batch.input_ids.numpy(), whole.positions.numpy(), np.asarray(whole.labels)
    labels = np.full(len(ids), IGNORED)
    labels[rows] = targets
    begins = offsets_from_lengths(encoded.item_lengths)
    spans = [slice(first, last) for first, last in pairwise(begins)]
    return [
        Item([ids[span].tolist()], [[0] * (span.stop - span.start)], labels[span].tolist(), number)
        for number, span in enumerate(spans)
    ]


def theirs(settings: FinetuneSettings, folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train with `transformers`; return the loss of each step and the final weights. `folder` gets the initial ones."""
    read = read_examples(settings.task.build_task(), settings.task, "train")
    task, tokenizer = settings.task.build_task().with_labels_of(read), Tokenizer.load(minilm())
    first = start_task_model(minilm(), task.head, settings.seed, dropout=0.0).model
    save_task_folder(folder, TaskModel(first, task), tokenizer)
    model = transformers.BertForTokenClassification.from_pretrained(folder).train()
    items = items_of(task.encode(read, tokenizer))
    order = (step_items(len(items), settings.batch_size, step, settings.seed).tolist() for step in count())
    return list(steps(TaggingPeer(str(minilm()), task, read), model, items, settings, order)), model.state_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="conll2003_context", choices=("conll2003", "conll2003_context"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--examples", type=int, default=2000, help="of which the steps take what they need")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    print(f"{describe_machine(chosen.threads)}; {chosen.task}, {chosen.dtype}\n")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(chosen.task, "ours", 0, 1.0, 1e-4, MINILM, chosen.examples, 40, chosen.dtype)
        settings = settings_of(run, WORKS[chosen.task], chosen.data, Path(folder), chosen.threads)
        read = read_examples(settings.task.build_task(), settings.task, "train")
        epochs = (chosen.steps - 0.5) * settings.batch_size / len(read)
        settings = replace(settings, tuning=TuningSettings(dropout=0.0), epochs=epochs, log_every=1)
        ours(settings)
        own = [record["loss"] for record in read_metrics(settings.run) if record["kind"] == "train"]
        others, weights = theirs(settings, Path(folder) / "first")
        first = load_file(Path(folder) / "first" / "model.safetensors")
        last = load_file(settings.run / "checkpoints" / f"step-{len(own):08d}" / "model.safetensors")
    print("| step | loss, bertwright | loss, transformers |")
    print("|---:|---:|---:|")
    for step, (one, other) in enumerate(zip(own, others, strict=True), 1):
        print(f"| {step} | {one:.5f} | {other:.5f} |")
    way = torch.cat([(weights[name] - first[name]).flatten() for name in first]).norm()
    apart = torch.cat([(weights[name] - last[name]).flatten() for name in first]).norm()
    print(f"\nlast weights: {apart / way:.1e} of the way that they have gone separates both sides")


if __name__ == "__main__":
    main()
