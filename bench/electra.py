"""Compare ELECTRA's objective with the masked LM at equal time, as bench/plans/electra.md says.

    python bench/electra.py --store STORE --tasks TASK:TRAIN:DEV:TEST ... --work FOLDER --steps 1000

Each run is a command of bertwright in the folder of its work; a run that is finished is not repeated, and one that was
interrupted resumes, so that the same command continues after any interruption. Equal time is equal CPU time: other jobs
may stop or slow this one. The result is one line per fine-tuning, below a line with the comparison.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import ttest_ind

from bertwright.base.files import read_json, write_json, write_text
from environment import commit, describe_machine, make_parser

OBJECTIVES = {"mlm": "bert", "replaced-tokens": "electra"}
RATES = ("5e-4", "1e-3", "2e-3")
PRETRAININGS, FINETUNINGS = 3, 3
SHAPE = (
    "--size mini --max-positions 64 --max-length 64 --batch-size 16 --long-ratio 0 --hidden-dropout 0 "
    "--attention-dropout 0 --warmup-ratio 0.05 --bias-correction --eval-every 1000000 --save-every 250"
)
DEVICE = "--device cpu --threads 1 --dtype float32"
SHORT, LONG = 20, 120  # steps of the runs that are timed
RESULTS = Path(__file__).parent / "results" / "electra.jsonl"


def bertwright(command: str, run: Path) -> None:
    """Run a command whose run folder is `run`, unless it has finished."""
    if not (run / "report.json").is_file():
        resume = " --resume" if (run / "settings.toml").is_file() else ""
        subprocess.run([sys.executable, "-m", "bertwright", *f"{command} --run {run}{resume}".split()], check=True)


def pretrain(objective: str, seed: int, rate: str, steps: int, store: str, work: Path) -> Path:
    """Pre-train a model; return its run."""
    run = work / f"{objective}-{rate}-{seed}-{steps}"
    architecture = f"--architecture {OBJECTIVES[objective]} --objective {objective} --learning-rate {rate}"
    bertwright(f"pretrain {architecture} --store {store} --steps {steps} --seed {seed} {SHAPE} {DEVICE}", run)
    return run


def seconds_per_step(store: str, work: Path) -> dict[str, float]:
    """Return the CPU seconds of a step of each objective: the median of three runs in turns, without their start."""
    path = work / "seconds_per_step.json"
    if not path.is_file():
        seconds: dict[str, list[float]] = {objective: [] for objective in OBJECTIVES}
        for seed in range(3):
            for objective, found in seconds.items():
                spent = []
                for steps in (SHORT, LONG):
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    pretrain(objective, seed, RATES[0], steps, store, work / "timed")
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                found.append((spent[1] - spent[0]) / (LONG - SHORT))
        write_json(path, {objective: statistics.median(found) for objective, found in seconds.items()})
    return dict(read_json(path))


def finetune(run: Path, task: str, seed: int) -> dict[str, dict[str, float]]:
    """Fine-tune a pre-trained model on a task; return the scores on its dev and test files."""
    kind, train, dev, test = task.split(":")
    tuned = run.parent / f"{run.name}-{Path(train).parent.name}-{seed}"
    files = f"--task {kind} --train {train} --dev {dev} --test {test}"
    settings = f"--epochs 3 --max-length 64 --learning-rate 2e-4 --seed {seed} --no-linear-floor"
    bertwright(f"finetune {files} --model {run} {settings} {DEVICE}", tuned)
    scores: dict[str, dict[str, float]] = read_json(tuned / "report.json")["scores"]
    return scores


def compare(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one figure per pre-training, its mean test score, and the difference of the objectives with its interval.

    The interval has 95 % by Student's t for two samples with the same variance.
    """
    figures = {
        objective: [
            statistics.mean(
                first(line["scores"]["test"])
                for line in lines
                if line["objective"] == objective and line["seed"] == seed
            )
            for seed in range(PRETRAININGS)
        ]
        for objective in OBJECTIVES
    }
    test = ttest_ind(figures["replaced-tokens"], figures["mlm"])
    interval = test.confidence_interval(0.95)
    difference = statistics.mean(figures["replaced-tokens"]) - statistics.mean(figures["mlm"])
    return {"figures": figures, "difference": difference, "from": interval.low, "to": interval.high}


def first(scores: Mapping[str, float]) -> float:
    """Return the first of the scores of a file, which is the task's main one."""
    return next(iter(scores.values()))


def main() -> None:
    """Run what the results lack, print the comparison, and write all scores."""
    parser = make_parser(__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--tasks", nargs="+", required=True, help="kind of task, and its files")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of the masked LM")
    options = parser.parse_args()
    seconds = seconds_per_step(options.store, options.work)
    ratio = seconds["mlm"] / seconds["replaced-tokens"]
    steps = {"mlm": options.steps, "replaced-tokens": round(options.steps * ratio)}
    lines = []
    for objective, number in steps.items():
        by_rate = {rate: pretrain(objective, 0, rate, number, options.store, options.work) for rate in RATES}
        dev = {rate: first(finetune(run, options.tasks[0], 0)["dev"]) for rate, run in by_rate.items()}
        best = max(RATES, key=dev.__getitem__)
        for seed in range(PRETRAININGS):
            run = pretrain(objective, seed, best, number, options.store, options.work)
            for task in options.tasks:
                for trial in range(FINETUNINGS):
                    scores = finetune(run, task, trial)
                    lines.append({"objective": objective, "rate": best, "steps": number, "seed": seed, "trial": trial,
                                  "task": task, "scores": scores})  # fmt: skip
    head = {"machine": describe_machine(1), "commit": commit(), "CPU seconds per step": seconds, **compare(lines)}
    print(json.dumps(head, indent=2))
    write_text(RESULTS, "".join(json.dumps(line) + "\n" for line in [head, *lines]))


if __name__ == "__main__":
    main()
