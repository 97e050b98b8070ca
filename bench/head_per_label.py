"""Fine-tune MiniLM with a random head and with a fitted one on 10, 30, 100 and all examples per label.

    python bench/head_per_label.py DATA --results FILE [--levels 10 30 100 all] [--tasks banking77] [--seeds 5]
    python bench/head_per_label.py DATA --results FILE --table

Tasks: Banking77 (77 labels), TREC (6), TREC's fine labels (50, of which the rare ones have fewer examples than a level
asks for; all of them are used), SST-2 (2). Every seed draws its own training examples, which all contenders share; the
test set is whole (3,080, 500, 500 and 872 examples). `all` is one seed; for SST-2, 20,000 examples, so that a run takes
minutes.

The model is the packaged all-MiniLM-L6-v2 (H 384, never fine-tuned on these tasks). Three epochs, batch 32, linear
warm-up over a tenth of the steps and decay, AdamW, dropout 0.1, one thread, bfloat16 if the processor has units for it,
else float32; the weights after the last step are scored. All have one peak rate, `finetune`'s default for this width.
`random` and `fit` are this package with --head-init random and fit, and mean pooling, as the folder says.
`transformers` is a plain loop around its class (`transformers_baseline.py`), with [CLS] and the pooler, at 10 and 30
per label, and at 100 where there are at most 600 examples: its training of thousands of examples says little about the
start of a head. `logistic` is scikit-learn's logistic regression (C = 10) on the vectors of `embed`, `linear` the floor
that `finetune` prints: a linear model on words and bigrams.

Rule, fixed before the runs: a level is won by `fit` if on no task the 95 % interval (Student's t over seeds) of
`fit` − `random` lies below 0, and the mean over tasks is above 0. By default a head is fitted up to the highest level
below which every level is won, in examples per label, whatever their number in all, as far as a fit reads (8,192
examples). At `all` one seed has no interval: the level is won if no task loses more than 0.5 points.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.linear_model import LogisticRegression

import bertwright
from bertwright.base.seeding import make_rng
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.kernels.cpu import configure_malloc
from bertwright.systems.registry import default_learning_rate
from bertwright.tasks.linear_floor import LINEAR, train_floor
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.text_task import TextExample
from bertwright.training.context import supports_bfloat16
from bertwright.training.device_settings import DeviceSettings
from environment import make_parser, minilm, print_heading, print_row, use_threads
from study import (
    Record,
    by_seed,
    compare,
    finetune_and_report,
    format_mean,
    read_records,
    read_trec,
    run_missing,
)

DTYPE: Literal["bfloat16", "float32"] = "bfloat16" if supports_bfloat16(torch.device("cpu")) else "float32"
RATE = f"{default_learning_rate(3e-5, 384):g}"
FIT = f"fit:{RATE}"
CONTENDERS = ("linear", "logistic", f"random:{RATE}", FIT, f"transformers:{RATE}")
_TREC = (TaskSettings("classification"), "trec/TREC.train", "trec/TREC.test")
_BANKING = TaskSettings("classification", overrides=TaskOptions(label="category"))
TASKS: dict[str, tuple[TaskSettings, str, str]] = {  # task, training file and test file
    "banking77": (_BANKING, "banking77/train.csv", "banking77/test.csv"),
    "trec": _TREC,
    "trec-fine": _TREC,
    "sst2": (TaskSettings("sst2"), "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"),
}
LEVELS = ("10", "30", "100", "all")
MOST_EXAMPLES = 20_000  # of SST-2 at the level `all`
PEER_EXAMPLES = 600  # up to which `transformers` runs at 100 per label


def draw(examples: list[TextExample[str]], level: str, seed: int) -> list[TextExample[str]]:
    """Draw examples per label, or for `all` at most MOST_EXAMPLES."""
    order = make_rng(seed, 34).permutation(len(examples))
    counts, drawn = Counter[str](), []
    for index in order:
        label = str(examples[index].label)
        counts[label] += 1
        if counts.total() <= MOST_EXAMPLES if level == "all" else counts[label] <= int(level):
            drawn.append(index)
    return [examples[index] for index in sorted(drawn)]


def splits_of(name: str, data: Path, seed: int) -> dict[str, list[Any]]:
    """Return training and test examples of a name "TASK LEVEL"; test has only labels that the training file has."""
    task, _, level = name.partition(" ")
    settings, *files = TASKS[task]
    every, test = (
        read_trec(data / file, task == "trec-fine")
        if "trec" in task
        else [*settings.build_task().read(str(data / file))]
        for file in files
    )
    known = {example.label for example in every}
    return {"train": draw(every, level, seed), "test": [example for example in test if example.label in known]}


def is_planned(name: str, contender: str, seed: int, data: Path) -> bool:
    """Return whether the plan above has this run."""
    level = name.partition(" ")[2]
    if level == "all":
        return seed == 0 and not contender.startswith("transformers")
    few = level != "100" or len(splits_of(name, data, 0)["train"]) <= PEER_EXAMPLES
    return few or not contender.startswith("transformers")


def execute(run: Record, data: Path) -> Record:
    """Execute a run and return its score on test. A contender: its name, and the peak rate after a colon."""
    examples = splits_of(run["task"], data, run["seed"])
    task = TASKS[run["task"].partition(" ")[0]][0]
    system, _, rate = run["contender"].partition(":")
    if system == "logistic":
        return {"score": classify_vectors(examples, bertwright.load(minilm(), "cpu").embed)}
    if system == "linear":
        floor = train_floor(LINEAR, task.build_task().with_labels_of(examples["train"]), examples)
        return {"score": floor.task.score(examples["test"], floor.predict(examples["test"]))["accuracy"]}
    settings = FinetuneSettings(
        run=Path("elsewhere"), task=task, model=str(minilm()), seed=run["seed"],
        tuning=TuningSettings(head_init="fit" if system == "fit" else "random", dropout=0.1),
        optimizer=replace(paper_optimizer(), learning_rate=float(rate)),
        device=DeviceSettings("cpu", DTYPE, 1),
    )  # fmt: skip
    if system == "transformers":
        return {"score": score_transformers(settings, examples)}
    return {"score": finetune_and_report(settings, examples)["scores"]["test"]["accuracy"]}


def classify_vectors(examples: dict[str, list[Any]], embed: Callable[[list[str]], Any]) -> float:
    """Fit a logistic regression on the vectors of the training texts; return its accuracy on test."""
    vectors = {name: embed([example.text for example in split]) for name, split in examples.items()}
    labels = {name: [example.label for example in split] for name, split in examples.items()}
    fitted = LogisticRegression(C=10.0, max_iter=1000).fit(vectors["train"], labels["train"])
    return float(fitted.score(vectors["test"], labels["test"]))


def score_transformers(settings: FinetuneSettings, examples: dict[str, list[Any]]) -> float:
    """Fine-tune the classifier of `transformers`; return the accuracy on test of the last step's weights."""
    from transformers_baseline import SequencePeer, shuffle_items, steps

    peer = SequencePeer(str(settings.model), settings.task.build_task(), examples["train"])
    items = {name: peer.items(split) for name, split in examples.items()}
    torch.manual_seed(settings.seed)
    model = peer.model(0.1).train()
    order = shuffle_items(len(items["train"]), settings.batch_size, settings.seed)
    for _ in steps(peer, model, items["train"], settings, order):
        pass
    return peer.scores(examples["test"], items["test"], peer.outputs(model, items["test"], DTYPE))["accuracy"]


def print_tables(options: argparse.Namespace) -> None:
    """Print the mean score of each contender per task, and the difference of the fitted head with its interval."""
    tasks = [f"{task} {level}" for level in options.levels for task in options.tasks]
    records = [record | {"score": 100 * record["score"]} for record in read_records(options.results)]
    names = list(dict.fromkeys(record["contender"] for record in records))
    scores = {(name, task): by_seed(records, "score", contender=name, task=task) for name in names for task in tasks}
    print_heading(["start : peak rate", *tasks])
    for name in names:
        print_row([name, *(format_mean([*scores[name, task].values()]) for task in tasks)])
    for name in names:
        if name != FIT:
            gaps = (compare(scores[name, task], scores.get((FIT, task), {})) for task in tasks)
            print_row([f"{FIT} − {name}", *(" ".join(gap) for gap in gaps)])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--table", action="store_true", help="print the tables of the results so far; run nothing")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--levels", nargs="+", default=list(LEVELS), choices=LEVELS)
    options = parser.parse_args()
    if not options.table:
        use_threads(1)
        configure_malloc()
        runs = [
            {"task": f"{task} {level}", "contender": contender, "seed": seed}
            for level in options.levels
            for seed in range(options.seeds)
            for task in options.tasks
            for contender in options.contenders
            if is_planned(f"{task} {level}", contender, seed, options.data)
        ]
        run_missing(options.results, runs, lambda run: execute(run, options.data))
    print_tables(options)


if __name__ == "__main__":
    main()
