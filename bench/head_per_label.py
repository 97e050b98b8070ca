"""Fine-tune MiniLM with a random head and with a fitted one on 10, 30, 100 and all examples per label.

    python bench/head_per_label.py DATA --results FILE [--levels 10 30 100 all] [--tasks banking77] [--seeds 5]
    python bench/head_per_label.py DATA --results FILE --table

Tasks: Banking77 (77 labels), TREC (6), TREC's fine labels (50, of which the rare ones have fewer examples than a level
asks for; all of them are used), SST-2 (2). Every seed draws its own training examples, which all contenders share; the
test set is whole (3,080, 500, 500 and 872 examples). Training, contenders and table are those of `head_init.py`, in
float32 where bfloat16 has no units. `all` is one seed; for SST-2, 20,000 examples, so that a run takes minutes.
`transformers` runs at 10 and 30 per label, and at 100 where there are at most 600 examples: its training of thousands
of examples says little about the start of a head.

Rule, fixed before the runs: a level is won by `fit` if on no task the 95 % interval (Student's t over seeds) of
`fit` − `random` lies below 0, and the mean over tasks is above 0. By default a head is fitted up to the highest level
below which every level is won, in examples per label, whatever their number in all, as far as a fit reads (8,192
examples). At `all` one seed has no interval: the level is won if no task loses more than 0.5 points.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bertwright.base.seeding import make_rng
from bertwright.kernels.cpu import configure_malloc
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.text_task import TextExample
from environment import use_threads
from head_init import Work, execute, make_study_parser, print_tables
from study import Record, read_trec, run_missing

_BANKING = TaskSettings("classification", overrides=TaskOptions(label="category"))
_TREC = Work(TaskSettings("classification"), "trec/TREC.train", "trec/TREC.test", 0, 0, "accuracy")
TASKS = {
    "banking77": Work(_BANKING, "banking77/train.csv", "banking77/test.csv", 0, 0, "accuracy"),
    "trec": _TREC,
    "trec-fine": _TREC,
    "sst2": Work(TaskSettings("sst2"), "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 0, 0, "accuracy"),
}
LEVELS = ("10", "30", "100", "all")
MOST_EXAMPLES = 20_000  # of SST-2 at the level `all`
PEER_EXAMPLES = 600  # up to which `transformers` runs at 100 per label


def read_split(name: str, path: Path) -> list[TextExample[str]]:
    """Read the examples of a task's file."""
    if not name.startswith("trec"):
        return list(TASKS[name].task.build_task().read(str(path)))
    lines = read_trec(path)
    labels = [label if name == "trec-fine" else label.partition(":")[0] for _, label in lines]
    return [
        TextExample(text, None, label, f"{path}, line {number}")
        for number, ((text, _), label) in enumerate(zip(lines, labels, strict=True), 1)
    ]


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
    every = read_split(task, data / TASKS[task].train)
    known = {example.label for example in every}
    test = [example for example in read_split(task, data / TASKS[task].test) if example.label in known]
    return {"train": draw(every, level, seed), "test": test}


def is_planned(name: str, contender: str, seed: int, data: Path) -> bool:
    """Return whether the plan above has this run."""
    level = name.partition(" ")[2]
    if level == "all":
        return seed == 0 and not contender.startswith("transformers")
    few = level != "100" or len(splits_of(name, data, 0)["train"]) <= PEER_EXAMPLES
    return few or not contender.startswith("transformers")


def execute_run(run: Record, data: Path) -> Record:
    """Execute a run and return its score on test."""
    return execute(run, TASKS[run["task"].partition(" ")[0]], splits_of(run["task"], data, run["seed"]))


def main() -> None:
    parser = make_study_parser(__doc__, TASKS)
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
        run_missing(options.results, runs, lambda run: execute_run(run, options.data))
    options.tasks = [f"{task} {level}" for level in options.levels for task in options.tasks]
    print_tables(options)


if __name__ == "__main__":
    main()
