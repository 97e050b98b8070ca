"""Fine-tune a small model with a random head and with a fitted one, and with `transformers`: equal data, equal steps.

    python bench/head_init.py DATA --results FILE [--tasks trec] [--seeds 5] [--contenders random:1.2e-4 fit:1.2e-4]
    python bench/head_init.py DATA --results FILE --table

The model is the packaged all-MiniLM-L6-v2 (H 384, never fine-tuned on these tasks). Every seed draws its own training
examples, which all contenders share, so that differences are paired; the test examples are the same for all seeds.
Three epochs, batch 32, linear warm-up over a tenth of the steps and decay, AdamW, dropout 0.1, one thread, bfloat16
if the processor has units for it, else float32; the weights after the last step are scored. All contenders have one
peak rate, `finetune`'s default for this width.

`random` and `fit` are this package with --head-init random and fit, and mean pooling for whole texts, as the folder
says. `transformers` is a plain loop around the task's class there (`transformers_baseline.py`), with [CLS] and the
pooler for whole texts. `logistic`, the floor of single texts, is scikit-learn's logistic regression (C = 10) on the
vectors of `embed`. `linear` is the floor that `finetune` prints: a linear model on words and bigrams.

Rule, fixed before the runs: `fit` becomes the default if its mean gain over `random` on the six tasks, per seed, has a
95 % interval (Student's t over seeds) above 0, and no task's own interval lies below 0. Else the default is `random`.
The outcome and the default are in docs/decisions/26-start-of-the-head.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import t as student_t
from sklearn.linear_model import LogisticRegression

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.base.seeding import make_rng
from bertwright.finetuning.finetune_state import make_spec, open_run
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.kernels.cpu import configure_malloc
from bertwright.systems.registry import default_learning_rate
from bertwright.tasks.classification import Classification
from bertwright.tasks.linear_floor import score_floors
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.text_task import TextExample
from bertwright.training.context import execution_context, supports_bfloat16
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.loop import train_steps
from environment import make_parser, minilm, use_threads
from study import Record, by_seed, print_heading, print_row, read_records, read_trec, run_missing

DTYPE: Literal["bfloat16", "float32"] = "bfloat16" if supports_bfloat16(torch.device("cpu")) else "float32"
RATE = f"{default_learning_rate(3e-5, 384):g}"
CONTENDERS = ("linear", "logistic", f"random:{RATE}", f"fit:{RATE}", f"transformers:{RATE}")
MAX_CONTEXT = 600  # characters, of SQuAD's questions that are drawn


@dataclass(frozen=True)
class Work:
    """A task, its files, and how much of them is used."""

    task: TaskSettings
    train: str
    test: str
    examples: int
    test_examples: int
    metric: str


_CONLL = TaskSettings("conll2003", overrides=TaskOptions(context=False, max_length=128))
_SQUAD = TaskSettings("squad", overrides=TaskOptions(max_length=256))
WORKS = {
    "trec": Work(TaskSettings("classification"), "trec/TREC.train", "trec/TREC.test", 400, 200, "accuracy"),
    "sst2": Work(TaskSettings("sst2"), "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 400, 200, "accuracy"),
    "mrpc": Work(TaskSettings("mrpc"), "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", 240, 200, "accuracy"),
    "stsb": Work(TaskSettings("stsb"), "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", 320, 200, "spearman"),
    "conll2003": Work(_CONLL, "conll2003/train.txt", "conll2003/valid.txt", 320, 200, "f1"),
    "squad": Work(_SQUAD, "squad/train-v1.1.json", "squad/dev-v1.1.json", 160, 80, "f1"),
}


@cache
def read_split(path: Path, name: str) -> list[Any]:
    """Read the labeled examples of a task's file; in a file of TREC a line has the label first."""
    if name != "trec":
        return list(WORKS[name].task.build_task().read(str(path)))
    return [TextExample(text, None, label, f"{path}, line {n}") for n, (text, label) in enumerate(read_trec(path), 1)]


def choose(examples: Sequence[Any], number: int, seed: int) -> list[Any]:
    """Choose examples at random."""
    chosen = make_rng(seed, 33).permutation(len(examples))[:number]
    return [examples[index] for index in sorted(chosen)]


def splits_of(name: str, data: Path, seed: int) -> dict[str, list[Any]]:
    """Return a seed's training examples, and test examples, the same for all seeds, with labels known in training."""
    about, task = WORKS[name], WORKS[name].task.build_task()
    train, test = read_split(data / about.train, name), read_split(data / about.test, name)
    if isinstance(task, QuestionAnswering):
        train, test = ([one for one in split if len(one.context) <= MAX_CONTEXT] for split in (train, test))
        train = [example for example in train if example.learnable]  # the peer trains on the same windows
    train, test = choose(train, about.examples, seed), choose(test, about.test_examples, 0)
    if isinstance(task, Classification):
        known = {example.label for example in train}
        test = [example for example in test if example.label in known]
    return {"train": train, "test": test}


def execute(run: Record, about: Work, examples: dict[str, list[Any]]) -> Record:
    """Execute a run and return its score on test. A contender: its name, and the peak rate after a colon."""
    system, _, rate = run["contender"].partition(":")
    if system == "logistic":
        return {"score": score_vectors(examples)}
    if system == "linear":
        task = about.task.build_task().with_labels_of(examples["train"])
        (floor,) = score_floors(task, examples, {"test": examples["test"]})
        return {"score": floor.scores["test"][about.metric]}
    settings = FinetuneSettings(
        run=Path("not-written"), task=about.task, model=str(minilm()), seed=run["seed"],
        tuning=TuningSettings(head_init="fit" if system == "fit" else "random", dropout=0.1),
        optimizer=replace(paper_optimizer(), learning_rate=float(rate)),
        device=DeviceSettings("cpu", DTYPE, 1),
    )  # fmt: skip
    if system == "transformers":
        return {"score": score_transformers(settings, examples)[about.metric]}
    with execution_context(settings.device) as context:
        state = open_run(settings, context, SILENT, examples)
        spec = make_spec(state, settings, context)
        for _ in train_steps(spec.loss, spec.batches(0), state.optimizer, spec.schedule):
            pass
        assert state.test is not None
        scores = evaluate_examples(state.model, state.task, state.test.examples, state.test.encoded).scores
        return {"score": scores[about.metric]}


def score_vectors(examples: dict[str, list[Any]]) -> float:
    """Return the accuracy of logistic regression on the vectors of `embed`."""
    return classify_vectors(examples, bertwright.load(minilm(), "cpu").embed)


def classify_vectors(examples: dict[str, list[Any]], embed: Callable[[list[str]], Any]) -> float:
    """Fit a logistic regression on the vectors of the training texts; return its accuracy on test."""
    vectors = {name: embed([example.text for example in split]) for name, split in examples.items()}
    labels = {name: [example.label for example in split] for name, split in examples.items()}
    fitted = LogisticRegression(C=10.0, max_iter=1000).fit(vectors["train"], labels["train"])
    return float(fitted.score(vectors["test"], labels["test"]))


def score_transformers(settings: FinetuneSettings, examples: dict[str, list[Any]]) -> dict[str, float]:
    """Fine-tune the task's class of `transformers` and return the scores on test of the last step's weights."""
    from transformers_baseline import PEERS, shuffle_items, steps

    task = settings.task.build_task()
    peer = PEERS[type(task)](str(settings.model), task, examples["train"])
    items = {name: peer.items(split) for name, split in examples.items()}
    torch.manual_seed(settings.seed)
    model = peer.model(0.1).train()
    order = shuffle_items(len(items["train"]), settings.batch_size, settings.seed)
    for _ in steps(peer, model, items["train"], settings, order):
        pass
    return peer.scores(examples["test"], items["test"], peer.outputs(model, items["test"], DTYPE))


def print_tables(options: argparse.Namespace) -> None:
    """Print the mean score of each contender per task, and paired differences with 95 % intervals (Student's t)."""
    records = read_records(options.results)
    print("\n".join(sorted({record["machine"] for record in records})))
    shown = list(dict.fromkeys(record["contender"] for record in records))
    scores = {
        (name, task): by_seed(records, "score", contender=name, task=task) for name in shown for task in options.tasks
    }
    print_heading(["start : peak rate", *options.tasks])
    for name in shown:
        found = [[*scores[name, task].values()] for task in options.tasks]
        print_row([name, *(f"{100 * np.mean(values):.1f} ({len(values)})" if values else "" for values in found)])
    print()
    print_heading(["difference", *options.tasks, "mean of the tasks"])
    trained = [name for name in shown if name != "logistic"]
    pairs = [(first, second) for n, second in enumerate(trained) for first in trained[n + 1 :]]
    for first, second in [*pairs, *((name, "logistic") for name in trained)]:
        gaps = [paired_gaps(scores[first, task], scores[second, task]) for task in options.tasks]
        seeds = set.intersection(*map(set, gaps))
        means = [float(np.mean([gap[seed] for gap in gaps])) for seed in sorted(seeds)]
        print_row([f"{first} − {second}", *(format_interval([*gap.values()]) for gap in gaps), format_interval(means)])


def paired_gaps(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """Map each seed that both contenders have to the difference of their scores, in points."""
    return {seed: 100 * (score - second[seed]) for seed, score in first.items() if seed in second}


def format_interval(values: Sequence[float]) -> str:
    """Format the mean over seeds, its 95 % interval by Student's t, and the number of seeds."""
    if len(values) < 2:
        return f"{values[0]:+.1f} (1)" if values else ""
    half = student_t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):+.1f} ± {half:.1f} ({len(values)})"


def make_study_parser(about: str | None, tasks: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of a study of these contenders; `about`: the script's docstring."""
    parser = make_parser(about)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--table", action="store_true", help="print the tables of the results so far; run nothing")
    parser.add_argument("--tasks", nargs="+", default=list(tasks), choices=tuple(tasks))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=5)
    return parser


def main() -> None:
    parser = make_study_parser(__doc__, WORKS)
    parser.add_argument("--examples", type=int, help="training and test examples of every task, to try things out")
    options = parser.parse_args()
    if options.examples:
        cut = {"examples": options.examples, "test_examples": options.examples}
        WORKS.update({name: replace(about, **cut) for name, about in WORKS.items()})
    if not options.table:
        use_threads(1)
        configure_malloc()
        runs = [
            {"task": task, "contender": contender, "seed": seed}
            for seed in range(options.seeds)
            for task in options.tasks
            for contender in options.contenders
            if contender != "logistic" or task in ("trec", "sst2")
        ]
        run_missing(
            options.results,
            runs,
            lambda run: execute(run, WORKS[run["task"]], splits_of(run["task"], options.data, run["seed"])),
        )
    print_tables(options)


if __name__ == "__main__":
    main()
