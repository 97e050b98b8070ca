"""Systems before BERT, from scratch on all of a published task's data, beside the floors.

    python bench/whole_data.py DATA --results FILE [--systems "TREC-6, BiLSTM"] [--seeds 5]
    python bench/whole_data.py DATA --results FILE --table

The plan is bench/plans/whole_data.md. DATA has the folders trec, conll2003 and multi30k. Systems have their own
defaults and no pre-trained vectors, the translation model has the recipe of docs/translation.md. Runs that FILE has
are not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.metrics.bleu import corpus_bleu
from bertwright.tasks.linear_floor import score_floors
from bertwright.tasks.presets import TaskSettings
from bertwright.translation.run import train_translation
from bertwright.translation.settings import TrainTranslationSettings
from bertwright.translation.translator import load_translator
from environment import make_parser, print_heading, print_row, use_threads
from study import (
    Record,
    by_seed,
    finetune_table,
    format_mean,
    read_records,
    read_splits,
    read_trec,
    run_missing,
)


@dataclass(frozen=True)
class Work:
    """A system on a task, its published test score, and how the score is named in a report."""

    architecture: str
    """Empty: the linear model that `finetune` prints, which has no seed."""
    metric: str
    published: str
    tuning: dict[str, Any] = field(default_factory=dict)


WORKS = {
    "TREC-6, linear model": Work("", "accuracy", ""),
    "CoNLL-2003, linear model": Work("", "f1", ""),
    "TREC-6, BiLSTM": Work("bilstm", "accuracy", "", {"validation_fraction": 0.1}),
    "CoNLL-2003, window network": Work("window", "f1", "81.47, with features for capitals"),
    "CoNLL-2003, BiLSTM-CNN-CRF": Work("bilstm-crf", "f1", "80.76"),
    "Multi30k, Transformer tiny": Work("transformer", "bleu", "41.02"),
}
SEEDS = {"Multi30k, Transformer tiny": 3}  # an hour each


def execute_translation(seed: int, data: Path) -> Record:
    """Train the model of Wu et al. 2021 on English and German captions; return BLEU on dev and test, beam 4.

    The floor is the BLEU of the English sentences as they are. The dtype is the machine's own.
    """

    def file(split: str, language: str) -> Path:
        return data / f"multi30k/{split}.lc.norm.tok.{language}"

    with TemporaryDirectory() as folder:
        table = {
            f"{name}_{side}": [str(file(split, language))]
            for name, split in (("train", "train"), ("dev", "val"))
            for side, language in (("source", "en"), ("target", "de"))
        } | {
            "run": f"{folder}/run", "size": "tiny", "vocab_size": 8000, "steps": 8000, "batch_tokens": 8192,
            "save_every": 200, "average": 10, "bleu_tokenize": "none", "seed": seed, "device": {"threads": 1},
            "optimizer": {"learning_rate": 0.005, "warmup_steps": 2000},
        }  # fmt: skip
        settings = from_table(TrainTranslationSettings, table, "table")
        train_translation(settings, SILENT)
        dev = [*read_json(settings.run / "report.json")["scores"].values()][-1]["bleu"]
        test_files = (file("test_2016_flickr", language) for language in ("en", "de"))
        source, target = (path.read_text(encoding="utf-8").splitlines() for path in test_files)
        translations = load_translator(settings.run, beam_size=4).translate(source)
    test, copied = (corpus_bleu(lines, target, tokenize="none").score for lines in (translations, source))
    return {"metric": "bleu", "floors": {"source": round(copied, 2)}, "dev": round(dev, 2), "test": round(test, 2)}


def execute(run: Record, data: Path) -> Record:
    """Train one system with one seed; return its scores, in percent, those of the floors, and the steps."""
    about = WORKS[run["system"]]
    if about.metric == "bleu":
        return execute_translation(run["seed"], data)
    if run["system"].startswith("TREC"):
        task: dict[str, Any] = {"task": "classification"}
        examples: dict[str, Any] = {split: read_trec(data / f"trec/TREC.{split}") for split in ("train", "test")}
    else:
        task = {"task": "conll2003", "data": str(data / "conll2003"), "overrides": {"context": False}}
        examples = read_splits(task, ("train", "dev", "test"))
    if not about.architecture:
        labelled = from_table(TaskSettings, task, "task").build_task().with_labels_of(examples["train"])
        floors = score_floors(labelled, examples, {"test": examples["test"]})
        found = {floor.name: round(100 * floor.scores["test"][about.metric], 2) for floor in floors}
        return {"metric": about.metric, "floors": found, "test": [*found.values()][-1]}
    table = {"task": task, "architecture": about.architecture, "seed": run["seed"]}
    report = finetune_table(table | ({"tuning": about.tuning} if about.tuning else {}), examples)
    scores = {split: round(100 * found[about.metric], 2) for split, found in report["scores"].items()}
    return {"metric": about.metric, **scores, "examples": len(examples["train"])}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--systems", nargs="+", default=list(WORKS), choices=WORKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="print the means, without any run")
    chosen = parser.parse_args()
    if not chosen.table:
        use_threads(1)
        runs = [
            {"system": system, "seed": seed}
            for system in chosen.systems
            for seed in range(SEEDS.get(system, chosen.seeds) if WORKS[system].architecture else 1)
        ]
        run_missing(chosen.results, runs, lambda run: execute(run, chosen.data))
    records = read_records(chosen.results)
    print_heading(("system", "seeds", "dev", "test", "published"))
    for system in chosen.systems:
        of_split = {split: [record for record in records if split in record] for split in ("dev", "test")}
        dev, test = (by_seed(given, split, system=system) for split, given in of_split.items())
        cells = format_mean([*dev.values()]), format_mean([*test.values()])
        print_row((system, len(test), *cells, WORKS[system].published))


if __name__ == "__main__":
    main()
