"""Held-out loss of pre-training recipes after equal time on the same store.

    python bench/pretraining_recipes.py run WORK --recipes adamw fast --minutes 20 --seeds 0 1 2
    python bench/pretraining_recipes.py finetune WORK --recipes adamw
    python bench/pretraining_recipes.py table RESULTS

Each run is one thread of `bertwright pretrain --size mini` with a complete schedule. Except for `mini` and `fast`, the
recipes of the package, sequences have 64 tokens, and there is no dropout. Time is the processor time of the process, so
that other work on the machine counts little: the seconds per step of a recipe are measured by two short runs, and its
steps chosen to fill the minutes. All models are scored by the masked-LM loss on the same held-out sequences of one
segment, with the same 15 % of the tokens masked, whatever they were trained on.

`finetune` fine-tunes the models of `run` on at most 6,000 examples of the tasks of their language, for three epochs,
with the seed of their pre-training.

English: 100 books and 442 Wikipedia articles; `--text korean`: 3,691 petitions (../shared/data/corpora).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bertwright.interop.huggingface import load_model
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.evaluation import evaluate
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.objective_registry import find_objective
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import describe_machine

TASK_DATA = Path(os.environ.get("BERTWRIGHT_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
DATA = TASK_DATA / "corpora"
TEXTS: dict[str, tuple[list[str], list[str]]] = {  # inputs; options of vocabulary and prepare
    "english": ([f"file={DATA / 'english_books'}", str(DATA / "english_wikipedia" / "train.txt")], []),
    "korean": ([str(DATA / "korean_petitions")], ["--column", "content"]),
}
TASKS = {  # preset and folder
    "english": {"sst2": TASK_DATA / "glue" / "SST-2", "conll2003": TASK_DATA / "conll2003"},
    "korean": {"nsmc": TASK_DATA / "nsmc"},
}
TUNING = ["--epochs", "3", "--batch-size", "32", "--learning-rate", "3e-4", "--limit", "6000", "--threads", "1"]
LENGTH, VOCABULARY, EVALUATED = 64, 8_000, 2_048
# Of every run: one thread, no evaluation and no checkpoint on the way.
COMMON = ["--threads", "1", "--eval-every", "1000000", "--save-every", "1000000", "--eval-sequences", "64"]
SHORT = [
    *["--size", "mini", "--max-positions", str(LENGTH), "--hidden-dropout", "0", "--attention-dropout", "0"],
    *["--bias-correction", "--warmup-ratio", "0.05"],
]
FIXED = [*SHORT, "--max-length", str(LENGTH), "--long-ratio", "0"]
ADAMW = ["--batch-size", "16", "--learning-rate", "8e-4"]
NORMAL = ["--init-scheme", "normal", "--initializer-range", "0.02"]
SECOND_HALF = ["--long-ratio", "0.5", "--long-length", str(LENGTH)]
FALLING = ["--mlm-probability", "0.3", *SECOND_HALF, "--long-mlm-probability", "0.15"]
RECIPES: dict[str, list[str]] = {
    "mini": ["--config", "mini"],  # a recipe of the package
    "fast": ["--config", "fast"],  # another
    "adamw": [*FIXED, *ADAMW],  # at the length, batch and rate that suit minutes
    "adamw-normal": [*FIXED, *ADAMW, *NORMAL],
    "adamw-no-nsp": [*FIXED, *ADAMW, "--objective", "mlm"],
    "adamw-wsd": [*FIXED, *ADAMW, "--schedule", "warmup-stable-decay"],
    "adamw-mask-30": [*FIXED, *ADAMW, "--mlm-probability", "0.3"],
    "adamw-mask-40": [*FIXED, *ADAMW, "--mlm-probability", "0.4"],
    "adamw-mask-falling": [*SHORT, *ADAMW, "--max-length", str(LENGTH), *FALLING],
    "adamw-rate-15e-4": [*FIXED, *ADAMW, "--learning-rate", "1.5e-3"],
    "adamw-batch-8": [*FIXED, *ADAMW, "--batch-size", "8"],
    # the first half of the steps with sequences of half the length, or with half of the sequences
    "adamw-length-warm-up": [*SHORT, *ADAMW, "--max-length", str(LENGTH // 2), *SECOND_HALF],
    "adamw-batch-ramp": [*SHORT, *ADAMW, "--max-length", str(LENGTH), *SECOND_HALF, "--long-batch-size", "32"],
}


def prepare(work: Path, text: str) -> Path:
    """Build vocabulary and store once; return the store."""
    store = work / text / "store"
    if not store.is_dir():
        inputs, options = TEXTS[text]
        cased = ["--no-lowercase"] if text == "korean" else []
        execute(
            ["vocabulary", *inputs, *options, *cased, "--size", str(VOCABULARY), "--output", str(work / text / "voc")]
        )
        split = (
            ["--held-out-inputs", str(DATA / "english_wikipedia" / "heldout.txt")]
            if text == "english"
            else ["--held-out", "0.03"]
        )
        execute(
            [
                *["prepare", *inputs, *options, *split],
                *["--vocabulary", str(work / text / "voc"), "--store", str(store)],
            ]
        )
    return store


def execute(arguments: list[str]) -> float:
    """Run a command of bertwright; return the seconds of processor time that it took."""
    process = subprocess.Popen([sys.executable, "-m", "bertwright", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: bertwright {' '.join(arguments)}")
    return usage.ru_utime + usage.ru_stime


def train(store: Path, run: Path, options: list[str], steps: int, seed: int) -> float:
    """Pre-train; return the seconds of processor time."""
    settings = ["--store", str(store), "--run", str(run), "--steps", str(steps), "--seed", str(seed)]
    return execute(["pretrain", *settings, *COMMON, *options])


def measure_step(store: Path, work: Path, options: list[str]) -> tuple[float, float]:
    """Return the seconds of processor time of a run's start and of each of its steps."""
    short, long = 10, 110
    times = []
    for steps in (short, long):
        run = work / f"timing-{os.getpid()}-{steps}"
        times.append(train(store, run, options, steps, 0))
        subprocess.run(["rm", "-r", str(run)], check=True)
    per_step = (times[1] - times[0]) / (long - short)
    return times[0] - short * per_step, per_step


def score(store: Path, model_folder: Path) -> dict[str, float]:
    """Score a model on the held-out sequences that all models are scored on."""
    tokenizer = Tokenizer.load(store / "tokenizer")
    objective = find_objective("mlm")
    settings = DataSettings(LENGTH, 32, objective="mlm")
    (data,) = objective.open_examples(store / "held_out", tokenizer, [settings])
    model = load_model(model_folder, heads="required").model
    assert isinstance(model, BertForPretraining)
    scores = evaluate(objective, model, data.validation_batches(EVALUATED))
    return {"loss": scores["loss"], "accuracy": scores["mlm_accuracy"]}


def run_recipes(chosen: argparse.Namespace) -> None:
    """Train each recipe with each seed that has no result yet; append one line per run."""
    store = prepare(chosen.work, chosen.text)
    done = read_results(chosen.results)
    for seed in chosen.seeds:
        for name in chosen.recipes:
            key = {"recipe": name, "text": chosen.text, "minutes": chosen.minutes, "seed": seed}
            if has_result(done, key | {"task": None}):
                continue
            start, per_step = measure_step(store, chosen.work, RECIPES[name])
            steps = max(20, int((60 * chosen.minutes - start) / per_step))
            run = run_folder(chosen.work, key)
            seconds = train(store, run, RECIPES[name], steps, seed)
            found = {"steps": steps, "cpu_seconds": round(seconds, 1)} | score(store, run / "model")
            origin = {"options": " ".join(RECIPES[name]), "machine": describe_machine(1)}
            add_result(chosen.results, key | found | origin)


def run_folder(work: Path, line: dict[str, Any]) -> Path:
    """Return the folder of the pre-training behind a result."""
    return work / str(line["text"]) / f"{line['recipe']}-{line['minutes']:g}min-{line['seed']}"


def finetune_models(chosen: argparse.Namespace) -> None:
    """Fine-tune each model on each task that has no result yet; append one line per run."""
    results = read_results(chosen.results)
    for pretrained in results:
        if "task" in pretrained or pretrained["recipe"] not in chosen.recipes:
            continue
        for task, data in TASKS[pretrained["text"]].items():
            key = {name: pretrained[name] for name in ("recipe", "text", "minutes", "seed")} | {"task": task}
            if has_result(results, key):
                continue
            folder = run_folder(chosen.work, pretrained)
            run = folder.with_name(f"{folder.name}-{task}")
            source = ["--task", task, "--data", str(data), "--model", str(folder / "model")]
            if not (run / "report.json").exists():
                execute(["finetune", *source, "--run", str(run), "--seed", str(pretrained["seed"]), *TUNING])
            report = json.loads((run / "report.json").read_text(encoding="utf-8"))
            split = "dev" if "dev" in report["scores"] else "test"  # NSMC has no dev
            score = {"split": split, "metric": report["metric"], "score": report["scores"][split][report["metric"]]}
            add_result(chosen.results, key | score | {"machine": describe_machine(1)})


def has_result(results: list[dict[str, Any]], key: dict[str, Any]) -> bool:
    """Return whether a result has the fields of a key; None: it lacks the field."""
    return any(all(line.get(field) == value for field, value in key.items()) for line in results)


def add_result(path: Path, line: dict[str, Any]) -> None:
    """Print a result and append it to a results file."""
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a results file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def print_table(results: Path) -> None:
    """Print the mean loss and the mean scores of each recipe, text and time as Markdown."""
    lines = read_results(results)
    tasks = sorted({line["task"] for line in lines if "task" in line})
    columns = ["text", "CPU minutes", "recipe", "steps", "masked-LM loss", "accuracy", "seeds", *tasks]
    print(f"| {' | '.join(columns)} |")
    print("|---|---:|---|" + "---:|" * (len(columns) - 3))
    for key in sorted({(line["text"], line["minutes"], line["recipe"]) for line in lines}):
        same = [line for line in lines if (line["text"], line["minutes"], line["recipe"]) == key]
        found = [line for line in same if "task" not in line]
        accuracy = sum(line["accuracy"] for line in found) / len(found)
        cells = [key[0], f"{key[1]:g}", key[2], f"{found[0]['steps']:,}"]
        cells += [format_mean([line["loss"] for line in found], 3), f"{accuracy:.1%}", str(len(found))]
        for task in tasks:
            scores = [100 * line["score"] for line in same if line.get("task") == task]
            cells.append(format_mean(scores, 1) if scores else "–")
        print(f"| {' | '.join(cells)} |")


def format_mean(values: list[float], digits: int) -> str:
    """Format as "5.439 ± 0.012", the mean and the standard deviation."""
    found = summarize_seeds(values)
    return f"{found.mean:.{digits}f}" + ("" if found.std is None else f" ± {found.std:.{digits}f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    finetune = commands.add_parser("finetune")
    for command in (run, finetune):
        command.add_argument("work", type=Path)
        command.add_argument(
            "--results", type=Path, default=Path(__file__).parent / "results" / "pretraining_recipes.jsonl"
        )
    finetune.add_argument("--recipes", nargs="+", choices=tuple(RECIPES), default=["fast", "mini"], metavar="RECIPE")
    run.add_argument("--recipes", nargs="+", choices=tuple(RECIPES), default=list(RECIPES), metavar="RECIPE")
    run.add_argument("--minutes", type=float, default=20.0, help="processor time of each run")
    run.add_argument("--seeds", nargs="+", type=int, default=[0])
    run.add_argument("--text", choices=tuple(TEXTS), default="english")
    table = commands.add_parser("table")
    table.add_argument("results", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "run":
        run_recipes(chosen)
    elif chosen.command == "finetune":
        finetune_models(chosen)
    else:
        print_table(chosen.results)


if __name__ == "__main__":
    main()
