"""Compare ELECTRA's objective with the masked LM at equal time, as bench/plans/electra.md says.

    python bench/electra.py --store STORE --tasks TASK:TRAIN:DEV:TEST ... --work FOLDER --steps 20000

Each run is a command of bertwright in the folder of its work; a run that is finished is not repeated. The result is
one line per fine-tuning.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from bertwright.base.files import read_json, write_text
from environment import commit, describe_machine, make_parser

OBJECTIVES = {"mlm": "bert", "replaced-tokens": "electra"}
RATES = ("2e-4", "5e-4", "1e-3")
PRETRAININGS, FINETUNINGS = 3, 5
SHAPE = "--size mini --max-positions 128 --max-length 128 --batch-size 64 --long-ratio 0 --init-scheme normal"
DEVICE = "--device cpu --threads 1 --dtype float32"
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


def seconds_per_record(run: Path) -> float:
    """Return the median seconds of the records of a short run; each is of as many steps."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return float(statistics.median(record["seconds"] for record in records if record["kind"] == "train"))


def finetune(run: Path, task: str, seed: int) -> dict[str, dict[str, float]]:
    """Fine-tune a pre-trained model on a task; return the scores on its dev and test files."""
    kind, train, dev, test = task.split(":")
    tuned = run.parent / f"{run.name}-{Path(train).parent.name}-{seed}"
    files = f"--task {kind} --train {train} --dev {dev} --test {test}"
    bertwright(f"finetune {files} --model {run} --epochs 3 --learning-rate 2e-4 --seed {seed} {DEVICE}", tuned)
    scores: dict[str, dict[str, float]] = read_json(tuned / "report.json")["scores"]
    return scores


def main() -> None:
    """Run what the results lack."""
    parser = make_parser(__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--tasks", nargs="+", required=True, help="kind of task, and its files")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of the masked LM")
    options = parser.parse_args()
    short = {name: pretrain(name, 0, RATES[0], 200, options.store, options.work) for name in OBJECTIVES}
    ratio = seconds_per_record(short["mlm"]) / seconds_per_record(short["replaced-tokens"])
    steps = {"mlm": options.steps, "replaced-tokens": round(options.steps * ratio)}
    lines = []
    for objective, number in steps.items():
        first = {rate: pretrain(objective, 0, rate, number, options.store, options.work) for rate in RATES}
        dev = {rate: finetune(run, options.tasks[0], 0) for rate, run in first.items()}
        best = max(RATES, key=lambda rate: next(iter(dev[rate]["dev"].values())))
        for seed in range(PRETRAININGS):
            run = pretrain(objective, seed, best, number, options.store, options.work)
            for task in options.tasks:
                for trial in range(FINETUNINGS):
                    scores = finetune(run, task, trial)
                    lines.append({"objective": objective, "rate": best, "steps": number, "seed": seed, "trial": trial,
                                  "task": task, "scores": scores})  # fmt: skip
    head = {"machine": describe_machine(1), "commit": commit(), "steps": steps}
    write_text(RESULTS, "".join(json.dumps(line) + "\n" for line in [head, *lines]))


if __name__ == "__main__":
    main()
