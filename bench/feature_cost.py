"""Measure the cost of frozen features against fine-tuning, per training example of a tagging task.

usage: python bench/feature_cost.py MODEL --data FOLDER [--task conll2003] [--examples 200] [--rounds 3]

Per example, in milliseconds of one thread: the features (the last four layers, computed once and cached), an epoch of
the BiLSTM head on them (paper, section 5.3: two layers, 768 outputs), and an epoch of fine-tuning. Parts alternate in
each round. Seconds are CPU seconds of the process, which a busy machine changes less than the time of day.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertwright.base.reporter import MUTE
from bertwright.finetuning.finetune_state import make_spec as make_tuning_spec
from bertwright.finetuning.finetune_state import open_run
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.models.feature_head import FeatureHead
from bertwright.models.representations import RepresentationName
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.fit import TrainingSpec, train_until_stopped
from bertwright.trials.probe_data import open_probe
from bertwright.trials.probe_settings import ProbeSettings, ProbeTrial
from bertwright.trials.probe_training import HeadData
from bertwright.trials.probe_training import make_spec as make_head_spec
from bertwright.trials.task_files import find_task
from environment import describe_machine, use_threads

FEATURES: RepresentationName = "concat-last-four"
BATCH = 32


def cpu_seconds(work: Callable[[], object]) -> float:
    """Run something; return its CPU seconds."""
    started = time.process_time()
    work()
    return time.process_time() - started


def train(spec: TrainingSpec[Any], context: ExecutionContext) -> None:
    """Take all steps of a schedule."""
    for _ in train_until_stopped(spec, context, ()):
        pass


def measure(folder: Path, arguments: argparse.Namespace, context: ExecutionContext) -> dict[str, float]:
    """Return the CPU milliseconds per training example of each part."""
    task = find_task(arguments.data, arguments.task)
    if task is None:
        raise SystemExit(f"--data {arguments.data}: no files of {arguments.task}")
    device, model = DeviceSettings(device="cpu", threads=1), str(arguments.model)
    probing = ProbeSettings(
        run=folder / "probe",
        task=task.settings,
        model=model,
        limit=arguments.examples,
        representations=(FEATURES,),
        epochs=1,
        batch_size=BATCH,
        device=device,
    )
    probe, reporter = open_probe(probing, context, MUTE), MUTE
    features = {}

    def compute_features() -> None:
        features.update({split.name: probe.compute_features(split) for split in probe.splits[:1]})

    def train_head() -> None:
        data = {"train": HeadData(probe.splits[0], features["train"], probe.layers(FEATURES), context.device)}
        trial = ProbeTrial(FEATURES, 1e-3, 0)
        head = FeatureHead(probe.head_config(FEATURES), trial.seed)
        train(make_head_spec(head, probe.task, data, probing, trial), context)

    tuning = FinetuneSettings(
        run=folder / "run",
        task=task.settings,
        model=model,
        epochs=1.0,
        batch_size=BATCH,
        tuning=TuningSettings(limit=arguments.examples, head_init="random"),
        device=device,
    )
    state = open_run(tuning, context, reporter)
    parts = {
        "features, once": compute_features,
        "epoch of the BiLSTM head": train_head,
        "epoch of fine-tuning": lambda: train(make_tuning_spec(state, tuning, context), context),
    }
    examples = len(state.train.examples)
    return {name: 1_000 * cpu_seconds(work) / examples for name, work in parts.items()}


def main() -> None:
    """Print the median of each part over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", default="conll2003")
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    arguments = parser.parse_args()
    use_threads(1)
    rounds = []
    with execution_context(DeviceSettings(device="cpu", dtype=arguments.dtype, threads=1)) as context:
        for _ in range(arguments.rounds):
            with TemporaryDirectory() as folder:
                rounds.append(measure(Path(folder), arguments, context))
    print(describe_machine(1))
    print(f"{arguments.model}, {arguments.task}, {arguments.examples} examples, {arguments.dtype}")
    for name in rounds[0]:
        values = [part[name] for part in rounds]
        print(f"{name:28} {statistics.median(values):8.2f} ms per example ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
