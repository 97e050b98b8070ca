"""A file of texts in, a file of labels out, tokenization included: bertwright beside `transformers`' pipeline.

    python bench/prediction.py DATA [--model FOLDER] [--texts 4000] [--rounds 3] [--threads 2]

The texts are training sentences of SST-2, in the order of the file. Both open the same fine-tuned folder: the one given
with --model, or MiniLM-L6 fine-tuned here for one epoch on 3,200 sentences. In one process, contenders in turn; models
are loaded beforehand, reading and writing the files counts. The pipeline gets every batch size of --batch-sizes on the
first texts, in the order of the file and sorted by length, and takes part with the best of each. Beside them the
command `bertwright predict` as a process of its own, its start included.

Labels of all contenders are compared with those of bertwright, and the greatest difference of a probability is shown.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.tasks.presets import TaskSettings
from bertwright.training.device_settings import DeviceSettings
from environment import (
    choose_fastest,
    describe_machine,
    format_ratio,
    keep_printed,
    make_parser,
    minilm,
    sample,
    take_turns,
    use_threads,
)

TRIED = 512  # texts on which batch sizes are tried


class Labeled(NamedTuple):
    """A contender's prediction for a text."""

    label: str
    probability: float


Contender = Callable[[Path, Path], None]  # texts, one a line → labels, one a line


def write(path: Path, labeled: Sequence[Labeled]) -> None:
    path.write_text("".join(f"{one.label}\t{one.probability:.6f}\n" for one in labeled), encoding="utf-8")


def read(path: Path) -> list[Labeled]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [Labeled(label, float(probability)) for label, probability in rows]


def ours(model: Any, source: Path, target: Path) -> None:
    found = model.classify(source.read_text(encoding="utf-8").split("\n")[:-1])
    write(target, [Labeled(one.label, one.probabilities[one.label]) for one in found])


def theirs(pipeline: Any, batch_size: int, by_length: bool, source: Path, target: Path) -> None:
    texts = source.read_text(encoding="utf-8").split("\n")[:-1]
    order = list(range(len(texts)))
    if by_length:
        order.sort(key=lambda number: -len(texts[number]))
    found = pipeline([texts[number] for number in order], batch_size=batch_size, truncation=True)
    index = {number: row for row, number in enumerate(order)}
    rows = [found[index[number]] for number in range(len(texts))]
    write(target, [Labeled(row["label"], row["score"]) for row in rows])


def command(folder: Path, threads: int, source: Path, target: Path) -> None:
    """Run `bertwright predict`, whose table has the label and its probability in the first two columns."""
    table, found = source.with_suffix(".tsv"), target.with_suffix(".predicted.tsv")
    table.write_text("sentence\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    found.unlink(missing_ok=True)
    given = [str(folder), "--inputs", str(table), "--output", str(found), "--threads", str(threads)]
    subprocess.run([sys.executable, "-m", "bertwright", "predict", *given], check=True, capture_output=True)
    rows = [line.split("\t") for line in found.read_text(encoding="utf-8").splitlines()[1:]]
    write(target, [Labeled(row[0], float(row[1])) for row in rows])


def fine_tuned(data: Path, work: Path, threads: int) -> Path:
    """Fine-tune MiniLM for 100 steps on SST-2, so that its labels are meaningful."""
    train = sample(data / "glue" / "SST-2" / "train.tsv", 3_200, work)
    task = TaskSettings("sst2", train=(str(train),))
    device = DeviceSettings("cpu", threads=threads)
    tuning = TuningSettings(pooling="cls")  # with mean pooling, the folder would have code of its own
    settings = FinetuneSettings(work / "run", task, str(minilm()), tuning=tuning, epochs=1, device=device)
    return finetune(settings, SILENT)


def best_size(pipeline: Any, sizes: Sequence[int], by_length: bool, source: Path, target: Path) -> int:
    """Return the batch size with which the pipeline is fastest on these texts; print the speed of each."""
    pipeline(["warm up"] * 8, batch_size=8)
    order = "sorted by length" if by_length else "arrival order"
    runs = {size: partial(theirs, pipeline, size, by_length, source, target) for size in sizes}
    return choose_fastest(f"pipeline, {order}", runs, TRIED)


def contenders(chosen: argparse.Namespace, folder: Path, few: Path, target: Path) -> dict[str, Contender]:
    import transformers

    transformers.logging.set_verbosity_error()
    pipeline = transformers.pipeline("text-classification", str(folder), device="cpu")
    arrival, by_length = (best_size(pipeline, chosen.batch_sizes, way, few, target) for way in (False, True))
    model = bertwright.load(folder)
    ours(model, few, target)
    return {
        "bertwright.load(…).classify": partial(ours, model),
        "bertwright predict, start included": partial(command, folder, chosen.threads),
        f"pipeline, batches of {arrival}, arrival order": partial(theirs, pipeline, arrival, False),
        f"pipeline, batches of {by_length}, sorted by length": partial(theirs, pipeline, by_length, True),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, help="fine-tuned folder for single texts")
    parser.add_argument("--texts", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 16, 32, 64, 128])
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    keep_printed(__file__, chosen.threads)
    print(describe_machine(chosen.threads))
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        table = sample(chosen.data / "glue" / "SST-2" / "train.tsv", chosen.texts, work)
        texts = [line.split("\t")[0] for line in table.read_text(encoding="utf-8").split("\n")[1:-1]]
        source, few, target = (work / name for name in ("texts.txt", "few.txt", "labels.tsv"))
        for path, lines in ((source, texts), (few, texts[:TRIED])):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        selected = contenders(chosen, chosen.model or fine_tuned(chosen.data, work, chosen.threads), few, target)
        outputs = {name: work / f"labels-{number}.tsv" for number, name in enumerate(selected)}
        runs = {name: partial(contender, source, outputs[name]) for name, contender in selected.items()}
        seconds = take_turns(runs, chosen.rounds)
        said = {name: read(path) for name, path in outputs.items()}
    show(seconds, said, texts)


def show(seconds: dict[str, list[float]], said: dict[str, list[Labeled]], texts: Sequence[str]) -> None:
    """Print the table; the others are compared with the first contender."""
    size = sum(len(text.encode()) + 1 for text in texts) / 1e3
    first = next(iter(seconds))
    print(f"\n{len(texts):,} texts, {size:,.0f} kB, median of {len(seconds[first])} rounds in turn\n")
    print("| | texts/s | bertwright is, × as fast (least to most) | labels that agree | greatest difference, p |")
    print("|---|---:|---:|---:|---:|")
    for name, taken in seconds.items():
        ratio = "" if name.startswith("bertwright") else format_ratio(taken, seconds[first])
        pairs = list(zip(said[name], said[first], strict=True))
        agree = sum(one.label == own.label for one, own in pairs) / len(pairs)
        distances = [abs(one.probability - own.probability) for one, own in pairs if one.label == own.label]
        apart = np.max(distances, initial=0)  # NaN if one is
        speed = len(texts) / statistics.median(taken)
        print(f"| {name} | {speed:,.0f} | {ratio} | {agree:.2%} | {apart:.1e} |")


if __name__ == "__main__":
    main()
