"""Score the floors without a network on published tasks, on random samples of the training examples.

    python bench/linear_floor.py DATA --results FILE.json [--samples 5]

DATA has the folders trec, glue/SST-2 and conll2003. Each sample is drawn by its own seed; the whole dev or test set is
scored. The expected figures are of other implementations, on other samples of the same sizes: logistic regression on
words and bigrams, and on features of tokens; a lookup of the names in training.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.seeding import make_rng
from bertwright.tasks.classification import Classification
from bertwright.tasks.linear_floor import LINEAR, LOOKUP, floor_names, train_floor
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from environment import make_parser, use_threads, write_result
from study import read_trec


class Job(NamedTuple):
    """A task, the files of its training and scored examples, and the figures that are expected, in percent."""

    task: AnyTask
    train: str
    scored: str
    size: int
    expected: dict[str, tuple[float, float]]
    """Lowest and highest figure by floor."""


SST2 = Classification(text="sentence")
JOBS = {
    "TREC-6, 2,000, test": Job(Classification(), "trec/TREC.train", "trec/TREC.test", 2_000, {LINEAR: (83.8, 85.2)}),
    "SST-2, 1,000, dev": Job(SST2, "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 1_000, {LINEAR: (67, 70)}),
    "SST-2, 4,000, dev": Job(SST2, "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 4_000, {LINEAR: (74, 77)}),
    "CoNLL-2003, 1,000, test": Job(
        Tagging(), "conll2003/train.txt", "conll2003/test.txt", 1_000, {LOOKUP: (41.2, 41.2), LINEAR: (64.1, 64.1)}
    ),
    "CoNLL-2003, 6,000, dev": Job(
        Tagging(), "conll2003/train.txt", "conll2003/valid.txt", 6_000, {LOOKUP: (64.2, 64.2), LINEAR: (80.4, 80.4)}
    ),
}


def read(task: AnyTask, path: Path) -> list[Any]:
    return list(read_trec(path) if "trec" in path.parts else task.read(str(path)))


def measure(job: Job, train: Sequence[Any], scored: Sequence[Any], samples: int) -> dict[str, Any]:
    """Return the scores of each floor, in percent, the seconds, and what was expected."""
    task = job.task.with_labels_of(train)
    found: dict[str, Any] = {}
    for name in floor_names(task):
        scores, started = [], time.process_time()
        for seed in range(samples):
            chosen = make_rng(seed).permutation(len(train))[: job.size]
            floor = train_floor(name, task, {"train": [train[number] for number in chosen]})
            scores.append(100 * floor.task.score(scored, floor.predict(scored))[task.metric])
        found[name] = {
            "metric": task.metric,
            "mean": round(statistics.fmean(scores), 2),
            "scores": [round(score, 2) for score in scores],
            "expected": job.expected[name],
            "cpu_seconds_each": round((time.process_time() - started) / samples, 1),
        }
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=5)
    arguments = parser.parse_args()
    use_threads(1)
    report: dict[str, Any] = {}
    for title, job in JOBS.items():
        train, scored = (read(job.task, arguments.data / path) for path in (job.train, job.scored))
        report[title] = measure(job, train, scored, arguments.samples)
        print(title, json.dumps(report[title]))
    write_result(arguments.results, report, 1)


if __name__ == "__main__":
    main()
