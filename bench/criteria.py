"""Both ways of learning a vocabulary, compared by masked-LM loss per character after the same training.

    python bench/criteria.py WORK [--steps 300] [--threads 1]

Two vocabularies of 30,000 tokens from the same text, two stores, two BERT-minis trained with the same settings for the
same number of steps. A loss per token would favour short tokens; so it is multiplied by the tokens per character of
the held-out text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from bertwright.corpus.documents import read
from bertwright.corpus.inputs import CorpusSettings
from bertwright.tokenstore.store import TokenStore
from bertwright.training.journal import read_metrics
from bertwright.vocabulary.tokenizer import Tokenizer
from same_minutes import HELD_OUT, TRAIN


def trained(work: Path, criterion: str, steps: int, threads: int) -> Path:
    """Vocabulary, store and run of one criterion, by the command line; what is there already is left."""
    cli = [sys.executable, "-m", "bertwright"]
    folder = work / criterion
    if not (folder / "vocabulary").exists():
        learned = ["--criterion", criterion, "--output", str(folder / "vocabulary")]
        subprocess.run([*cli, "vocabulary", *TRAIN, *learned], check=True)
    stored = ["--vocabulary", str(folder / "vocabulary"), "--store", str(folder / "store")]
    subprocess.run([*cli, "prepare", *TRAIN, "--held-out-inputs", HELD_OUT, *stored], check=True)
    run = folder / f"run-{steps}"
    if not (run / "model").exists():
        command = [
            *[*cli, "pretrain", "--store", str(folder / "store"), "--run", str(run), "--size", "mini"],
            *["--max-positions", "128", "--batch-size", "16", "--long-share", "0", "--steps", str(steps)],
            # as the table of docs/benchmarks.md was made
            *["--initializer-range", "0.02", "--first-weights", "random"],
            *["--learning-rate", "1e-3", "--warmup-share", "0.05", "--bias-correction", "--threads", str(threads)],
            *["--evaluate-every", str(steps), "--evaluate-sequences", "1024"],
        ]
        subprocess.run(command, check=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    characters = sum(len("".join(document.text.split())) for document in read(CorpusSettings((HELD_OUT,))))
    rows = []
    for criterion in ("likelihood", "bpe"):
        run = trained(chosen.work, criterion, chosen.steps, chosen.threads)
        tokenizer = Tokenizer.load(chosen.work / criterion / "vocabulary")
        store = TokenStore.open(chosen.work / criterion / "store" / "held_out", tokenizer.digest)
        loss = read_metrics(run)[-1]["mlm_loss"]
        rows.append((criterion, store.num_tokens / characters, loss, loss * store.num_tokens / characters))
    print("| criterion | held-out tokens per character | nats per masked token | nats per character |")
    print("|---|---:|---:|---:|")
    for criterion, rate, loss, per_character in rows:
        print(f"| {criterion} | {rate:.4f} | {loss:.4f} | {per_character:.4f} |")


if __name__ == "__main__":
    main()
