"""Score an ensemble against its members, and fine-tuning after another task against fine-tuning alone.

usage: python bench/ensemble_and_continued.py MODEL --data FOLDER [--examples 1500] [--seeds 3]

MODEL is fine-tuned on CoNLL-2003, once per seed: 3 epochs in batches of 32 at 3e-4, up to 64 tokens, the last step. The
ensemble averages the probabilities of these models. For the comparison, MODEL is first fine-tuned on CoNLL-2000
(chunking) with the same settings, then on CoNLL-2003 with a new head (paper, section 4.2: TriviaQA, then SQuAD). F1 is
in percent, on all of the dev file of CoNLL-2003.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bertwright.base.reporter import MUTE
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.task_files import FoundTask, find_task
from environment import describe_machine, use_threads

LENGTH, RATE = 64, 3e-4


def find(data: Path, name: str) -> FoundTask:
    """Find the files of a task."""
    task = find_task(data, name, TaskOptions(max_length=LENGTH))
    if task is None:
        raise SystemExit(f"--data {data}: no files of {name}")
    return task


def tune(run: Path, task: FoundTask, model: Path, seed: int, arguments: argparse.Namespace) -> Path:
    """Fine-tune a model; return the run folder."""
    finetune(
        FinetuneSettings(
            run=run,
            task=task.settings,
            model=str(model),
            epochs=3.0,
            batch_size=32,
            seed=seed,
            eval_every=sys.maxsize,
            tuning=TuningSettings(limit=arguments.examples, head_init="random", dropout=0.1),
            optimizer=replace(paper_optimizer(), learning_rate=RATE),
            device=DeviceSettings(device="cpu", dtype=arguments.dtype, threads=1),
        ),
        MUTE,
    )
    return run


def score(runs: list[Path], task: FoundTask, dtype: str) -> float:
    """Return the F1 of a model, or of the ensemble of several, in percent."""
    first, *others = map(str, runs)
    device = DeviceSettings(device="cpu", dtype=dtype, threads=1)  # type: ignore[arg-type]
    settings = EvaluateSettings(first, task.settings.dev, ensemble=tuple(others), device=device)
    return 100 * evaluate(settings, MUTE)["f1"]


def main() -> None:
    """Print the scores of the members, of the ensemble, and of the models that were fine-tuned twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=1_500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    arguments = parser.parse_args()
    use_threads(1)
    task, chunking = find(arguments.data, "conll2003"), find(arguments.data, "conll2000")
    print(describe_machine(1))
    with TemporaryDirectory() as name:
        folder, seeds = Path(name), range(arguments.seeds)
        members = [tune(folder / f"member{seed}", task, arguments.model, seed, arguments) for seed in seeds]
        print_scores("alone", [score([run], task, arguments.dtype) for run in members])
        print(f"ensemble of {len(members)}: {score(members, task, arguments.dtype):.1f}")
        first = [tune(folder / f"first{seed}", chunking, arguments.model, seed, arguments) for seed in seeds]
        second = [tune(folder / f"second{seed}", task, first[seed] / "model", seed, arguments) for seed in seeds]
        print_scores("after chunking", [score([run], task, arguments.dtype) for run in second])


def print_scores(name: str, scores: list[float]) -> None:
    """Print the scores of all seeds and their mean."""
    print(f"{name}: {', '.join(f'{score:.1f}' for score in scores)}; mean {statistics.fmean(scores):.1f}")


if __name__ == "__main__":
    main()
