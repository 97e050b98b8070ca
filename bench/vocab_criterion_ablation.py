"""Masked-LM loss per character after the same training, with vocabularies learned by each criterion.

    python bench/vocab_criterion_ablation.py WORK --results FILE [--language korean] [--size tiny] [--steps 1500]
                                             [--seeds 3] [--criteria gain ratio] [--vocabulary-size 8000] [--threads 1]

For each criterion: a vocabulary from the same text, a store, and BERTs trained with the settings of `one_hour.sh` for
the same number of steps. The loss per token would favor short tokens, so it is multiplied by the tokens per character
of the held-out text. The table has one column per seed: criteria share a seed's initial weights and order of documents.
Its last column, the entropy of the token frequencies, is the loss of a model that ignores its input: by how much the
vocabulary itself makes the difference.

Each run appends one line of JSON to FILE; runs that FILE already contains are skipped, and so are vocabularies and
stores that WORK contains.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.corpus.documents import CorpusSettings, read
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.models.config import SIZES
from bertwright.pretraining.evaluation import unigram_entropy
from bertwright.tokenstore.store import TokenStore
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.merges import RULES
from bertwright.vocabulary.tokenizer import Tokenizer
from environment import describe_machine
from equal_time_pretraining import DATA, EVALUATION, TRAIN

CLI = [sys.executable, "-m", "bertwright"]


class Language(NamedTuple):
    """Text of a language: training and held-out files, and how to read them."""

    train: tuple[str, ...]
    held_out: str
    column: str = "text"
    options: tuple[str, ...] = ()
    """Of `bertwright vocabulary`."""

    @property
    def corpus(self) -> list[str]:
        """Arguments of `bertwright vocabulary` and `prepare`."""
        return [*self.train, "--column", self.column]

    @property
    def characters(self) -> int:
        """Number of held-out characters without white space."""
        corpus = CorpusSettings((self.held_out,), column=self.column)
        return sum(len("".join(document.text.split())) for document in read(corpus))


PETITIONS = str(DATA / "korean_petitions" / "petitions_")
LANGUAGES = {
    "english": Language(TRAIN, EVALUATION),
    "korean": Language(
        (f"{PETITIONS}2017-08.jsonl", f"{PETITIONS}2019-0[4-7].jsonl"),
        f"{PETITIONS}2019-08.jsonl",
        column="content",
        options=("--no-lowercase",),
    ),
}


class Run(NamedTuple):
    """The key of one run; it is unique among the lines of results."""

    language: str
    criterion: str
    vocabulary_size: int
    size: str
    steps: int
    seed: int


def score(run: Run, folder: Path, threads: int) -> dict[str, float]:
    """Make vocabulary, store and model with the command line; return the held-out scores."""
    language, vocabulary, store = LANGUAGES[run.language], folder / "vocabulary", folder / "store"
    if not vocabulary.exists():
        learned = ["--size", str(run.vocabulary_size), "--criterion", run.criterion, "--output", str(vocabulary)]
        subprocess.run([*CLI, "vocabulary", *language.corpus, *language.options, *learned], check=True)
    stored = ["--vocabulary", str(vocabulary), "--store", str(store)]
    subprocess.run([*CLI, "prepare", *language.corpus, "--held-out-inputs", language.held_out, *stored], check=True)
    trained = folder / f"run-{run.size}-{run.steps}-{run.seed}"
    command = [
        *[*CLI, "pretrain", "--store", str(store), "--run", str(trained), "--size", run.size],
        *["--max-positions", "128", "--max-length", "64", "--batch-size", "16", "--long-ratio", "0"],
        *["--hidden-dropout", "0", "--attention-dropout", "0", "--steps", str(run.steps)],
        *["--learning-rate", "8e-4", "--warmup-ratio", "0.05", "--bias-correction"],
        *["--eval-every", str(run.steps), "--eval-sequences", "1024"],
        *["--seed", str(run.seed), "--threads", str(threads)],
    ]
    subprocess.run(command + ["--resume"] * trained.exists(), check=True)
    held_out = TokenStore.open(store / "held_out", Tokenizer.load(vocabulary).digest)
    loss, rate = read_metrics(trained)[-1]["mlm_loss"], held_out.num_tokens / language.characters
    return {
        "tokens_per_character": rate,
        "loss_per_token": loss,
        "loss_per_character": loss * rate,
        "unigram_entropy_per_character": unigram_entropy(held_out) * rate,
    }


def read_results(path: Path) -> dict[Run, dict[str, Any]]:
    """Map each run to its line of results."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {Run(*(record[name] for name in Run._fields)): record for record in records}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--language", choices=tuple(LANGUAGES), default="english")
    parser.add_argument("--vocabulary-size", type=int, default=8_000, help="tokens of each vocabulary")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny", help="of the models")
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--criteria", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    done = read_results(chosen.results)
    asked = {
        criterion: [
            Run(chosen.language, criterion, chosen.vocabulary_size, chosen.size, chosen.steps, seed)
            for seed in range(chosen.seeds)
        ]
        for criterion in chosen.criteria
    }
    for seed, criterion in product(range(chosen.seeds), chosen.criteria):
        run, started = asked[criterion][seed], time.perf_counter()
        if run in done:
            continue
        folder = chosen.work / f"{run.language}-{run.criterion}-{run.vocabulary_size}"
        scores = score(run, folder, chosen.threads)
        about = {"seconds": round(time.perf_counter() - started, 1), "machine": describe_machine(chosen.threads)}
        done[run] = run._asdict() | scores | about
        with chosen.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[run]) + "\n")
    seeds = " | ".join(f"seed {seed}" for seed in range(chosen.seeds))
    print(f"| criterion | tokens per character | {seeds} | nats per character | unigram entropy |")
    print(f"|---|---:{'|---:' * chosen.seeds}|---:|---:|")
    for criterion, runs in asked.items():
        losses = [done[run]["loss_per_character"] for run in runs]
        mean = summarize_seeds(losses).format(4, scale=1)
        rate, entropy = (done[runs[0]][name] for name in ("tokens_per_character", "unigram_entropy_per_character"))
        row = [f"{rate:.4f}", *(f"{loss:.4f}" for loss in losses), f"**{mean}**", f"{entropy:.4f}"]
        print(f"| {criterion} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
