"""Sweep the layers of models by a linear probe: each layer alone, with nothing that could repair it, on POS and NER.

usage: python bench/layer_sweep.py NAME=MODEL [NAME=MODEL …] --data FOLDER [--limit 600] [--output FILE.json]

A head is one linear layer on the state of each word's first token; the encoder is frozen. Seeds, epochs and the rate
are the same for all layers and models and are no options. The floors are the most frequent tag, and the same network
with random weights. The score is the best epoch on dev. A sweep that is stopped resumes with the same command and
--work.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bertwright.base.files import read_json, write_json
from bertwright.cli.render.terminal import terminal_reporter
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.interop.huggingface import save_model
from bertwright.models.heads import EncoderModel
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.probe import probe
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.trials.task_files import FoundTask, find_task
from bertwright.trials.task_trials import FrequentAnswer
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from environment import describe_machine, load_bert_config, minilm, use_threads

TASKS = ("ud_pos", "conll2003")
SEEDS, RATE, EPOCHS = (0, 1, 2), 1e-2, 10
DEVICE = DeviceSettings(device="cpu", threads=1)


def write_random(model: Path, folder: Path) -> None:
    """Write a network with the shape and the vocabulary of a model, and random weights."""
    if not folder.exists():
        save_model(folder, EncoderModel(BertEncoder(load_bert_config(model))), open_tokenizer(model))


def sweep(model: Path, task: FoundTask, run: Path, limit: int) -> list[dict[str, Any]]:
    """Train the heads on each layer; return mean and deviation per layer, the embeddings first."""
    settings = ProbeSettings(
        run=run,
        task=task.settings,
        model=str(model),
        validation_fraction=task.validation_fraction,
        limit=limit,
        representations=("each-layer",),
        seeds=SEEDS,
        learning_rates=(RATE,),
        epochs=EPOCHS,
        lstm_layers=0,
        dropout=0.0,
        resume=(run / "settings.toml").exists(),
        device=DEVICE,
    )
    probe(settings, terminal_reporter())
    return [{"layer": row["representation"]} | row["dev"] for row in read_json(run / "report.json")["rows"]]


def score_frequent(model: Path, task: FoundTask, run: Path, limit: int) -> float:
    """Return the score of the most frequent tag."""
    tuning = TuningSettings(validation_fraction=task.validation_fraction, limit=limit)
    settings = FinetuneSettings(run=run, task=task.settings, model=str(model), tuning=tuning, device=DEVICE)
    return FrequentAnswer("most frequent tag", (), (), settings).run(run, (), terminal_reporter())["dev"]


def main() -> None:
    """Print and write a table for each task: layers × models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="NAME=FOLDER, or minilm")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--limit", type=int, default=600, help="sentences of each split")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    use_threads(1)
    models = dict[str, Path]()
    for argument in arguments.models:
        name, _, folder = argument.partition("=")
        models[name] = Path(folder) if folder else minilm()
        write_random(models[name], arguments.work / f"random-{name}")
        models[f"{name}, random weights"] = arguments.work / f"random-{name}"
    rules = f"linear heads, {arguments.limit} sentences of each split, {EPOCHS} epochs, rate {RATE:g}, seeds {SEEDS}"
    record: dict[str, Any] = {"machine": describe_machine(1), "rules": rules, "cells": []}
    for name in TASKS:
        task = find_task(arguments.data, name)
        if task is None:
            raise SystemExit(f"--data {arguments.data}: no files of {name}")
        first = next(iter(models.values()))
        frequent = score_frequent(first, task, arguments.work / f"frequent-{name}", arguments.limit)
        print(f"{name}: most frequent tag {100 * frequent:.1f}")
        record["cells"].append({"row": "most frequent tag", "column": name, "mean": frequent, "std": None})
        for model, folder in models.items():
            run = arguments.work / f"{name}-{folder.name if 'random' in model else model}"
            for row in sweep(folder, task, run, arguments.limit):
                print(f"{name}, {model}, {row['layer']}: {100 * row['mean']:.1f}")
                record["cells"].append({"row": f"{model}, {row.pop('layer')}", "column": name} | row)
            if arguments.output:
                write_json(arguments.output, record)


if __name__ == "__main__":
    main()
