"""Distil all-MiniLM-L6-v2: three of its six layers, and static vectors; score and speed on the test pairs of STS-B.

    python bench/distillation.py --results bench/results/distillation.jsonl [--students static layers] [--epochs 2]

`layers` keeps the layers 0, 2 and 5 and learns the teacher's vectors of the sentences of STS-B's train set (without
their scores) and of captions of photographs. `static` has a vector of 256 numbers per token and reads no texts. Scores
are Spearman's correlation with the cosines, in percent. Speed is texts per second of `embed` on the 2,758 sentences of
the test set, teacher and student in turns, on one thread. `static` is also scored on STS12 to 16, STS-B and SICK, as
MTEB does.
"""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np

import bertwright
from bertwright.inference.distill import DistillSettings, distill
from bertwright.tables.text_roles import read_text_table
from bertwright.training.device_settings import DeviceSettings
from environment import DATA, make_parser, minilm, take_turns, use_threads
from published_figures import score_model
from study import Record, run_missing, score_sts

CPU = DeviceSettings(device="cpu", dtype="float32", threads=1)
LAYERS = (0, 2, 5)


def write_texts(path: Path, captions: int) -> Path:
    """Write the sentences of STS-B's train set and the first captions, one per line."""
    rows = read_text_table(str(DATA / "glue" / "STS-B" / "train.tsv")).rows
    with gzip.open(DATA / "captions" / "train.1.en.gz", "rt", encoding="utf-8") as file:
        texts = [text for row in rows for text in row.texts] + [line.strip() for line in islice(file, captions)]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def distil_and_score(student: str, epochs: float, captions: int, rounds: int) -> Record:
    with TemporaryDirectory() as name:
        folder = Path(name)
        settings = DistillSettings(str(minilm()), folder / "run", static=256, device=CPU)
        if student == "layers":
            train = write_texts(folder / "texts.txt", captions)
            settings = DistillSettings(
                str(minilm()), folder / "run", LAYERS, texts=(str(train),), epochs=epochs, device=CPU
            )
        small, teacher = bertwright.load(distill(settings), "cpu"), bertwright.load(minilm(), "cpu")
    rows = read_text_table(str(DATA / "glue" / "STS-B" / "test.tsv")).rows
    texts = [text for row in rows for text in row.texts]
    seconds = take_turns({"teacher": lambda: teacher.embed(texts), "student": lambda: small.embed(texts)}, rounds)
    ratios = np.array(seconds["teacher"]) / np.array(seconds["student"])
    scores: Record = {"teacher": score_sts(teacher, DATA), "student": score_sts(small, DATA)}
    if student == "static":
        sets = {name: [*score_model(DATA, "sts", model)] for name, model in (("teacher", teacher), ("student", small))}
        scores |= {f"{name}_sts": {what: ours for what, _, ours in found} for name, found in sets.items()}
        means = {name: mean(scores[f"{name}_sts"].values()) for name in sets}
        scores |= {"share_sts": round(100 * means["student"] / means["teacher"], 2)}
    speeds = {f"{name}_texts_per_second": round(len(texts) / median(taken)) for name, taken in seconds.items()}
    share = round(100 * scores["student"] / scores["teacher"], 2)
    return {**scores, "share": share, **speeds, "times_as_fast": round(float(np.median(ratios)), 2)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--students", nargs="+", choices=("static", "layers"), default=["static", "layers"])
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--captions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    use_threads(1)
    training = {"epochs": options.epochs, "captions": options.captions}
    runs = [{"model": name} | (training if name == "layers" else {}) for name in options.students]

    def execute(run: Record) -> Record:
        return distil_and_score(run["model"], run.get("epochs", 0), run.get("captions", 0), options.rounds)

    run_missing(options.results, runs, execute)


if __name__ == "__main__":
    main()
