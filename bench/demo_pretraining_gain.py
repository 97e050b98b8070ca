"""Gain from the demo's pre-training: its task learned from its model, and from the same network without pre-training.

    make demo && python bench/demo_pretraining_gain.py demo-run [--seeds 5] [--threads 2]

The untrained net has the run's configuration and vocabulary, and the weights that pre-training starts from, of the seed
of each run; all else is the demo's own fine-tuning. "Most frequent label" is what one reaches without reading.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.interop.huggingface import save_model
from bertwright.interop.model_files import model_folder
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.pretraining.settings import ModelSettings
from bertwright.systems.bert.bert_base import new_bert
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_data import read_examples
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.optimizer import OptimizerSettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import describe_machine, load_bert_config

OPTIMIZER = OptimizerSettings(learning_rate=5e-4, warmup_ratio=0.1, bias_correction=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="the folder that make demo wrote")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    labels = chosen.demo / "labels"
    task = TaskSettings("classification", train=(str(labels / "train.tsv"),), dev=(str(labels / "dev.tsv"),))
    pretrained = model_folder(str(chosen.demo / "run"))
    found: dict[str, list[float]] = {"untrained": [], "pre-trained": []}
    with tempfile.TemporaryDirectory() as work:
        for seed in range(chosen.seeds):
            untrained = Path(work, f"untrained-{seed}")
            save_model(
                untrained, new_bert(ModelSettings(), load_bert_config(pretrained), seed), Tokenizer.load(pretrained)
            )
            for name, model in (("untrained", untrained), ("pre-trained", pretrained)):
                settings = FinetuneSettings(
                    run=Path(work, f"{name}-{seed}-run"),
                    task=task,
                    model=str(model),
                    epochs=5.0,
                    seed=seed,
                    tuning=TuningSettings(head_init="random"),
                    optimizer=OPTIMIZER,
                    device=DeviceSettings(threads=chosen.threads),
                )
                finetune(settings, SILENT)
                found[name].append(read_json(settings.run / "report.json")["scores"]["dev"]["accuracy"])
    counts = Counter(example.label for example in read_examples(task.build_task(), task, "dev"))
    print(describe_machine(chosen.threads))
    print("\n| start | dev accuracy |\n|---|---:|")
    print(f"| most frequent label | {100 * max(counts.values()) / counts.total():.1f} |")
    for name, scores in found.items():
        print(f"| {name} | {summarize_seeds(scores)} |")


if __name__ == "__main__":
    main()
