"""Masked-LM loss per character after the same training, with vocabularies learned by each criterion.

    python bench/vocab_criterion_ablation.py WORK [--size 8000] [--steps 1500] [--seeds 1] [--criteria gain ratio]

For each criterion: a vocabulary from the same text, a store, and BERT-minis trained with the settings of `one_hour.sh`
for the same number of steps. The loss per token would favor short tokens, so it is multiplied by the tokens per
character of the held-out text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import product
from pathlib import Path

from bertwright.corpus.documents import CorpusSettings, read
from bertwright.tokenstore.store import TokenStore
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.merges import RULES
from bertwright.vocabulary.tokenizer import Tokenizer
from equal_time_pretraining import EVALUATION, TRAIN


def train(work: Path, criterion: str, seed: int, chosen: argparse.Namespace) -> Path:
    """Make vocabulary, store and run of one criterion and seed with the command line; skip what already exists."""
    cli = [sys.executable, "-m", "bertwright"]
    folder = work / criterion
    if not (folder / "vocabulary").exists():
        learned = ["--size", str(chosen.size), "--criterion", criterion, "--output", str(folder / "vocabulary")]
        subprocess.run([*cli, "vocabulary", *TRAIN, *learned], check=True)
    stored = ["--vocabulary", str(folder / "vocabulary"), "--store", str(folder / "store")]
    subprocess.run([*cli, "prepare", *TRAIN, "--held-out-inputs", EVALUATION, *stored], check=True)
    run = folder / f"run-{chosen.steps}-seed{seed}"
    if not (run / "model").exists():
        command = [
            *[*cli, "pretrain", "--store", str(folder / "store"), "--run", str(run), "--size", "mini"],
            *["--max-positions", "128", "--max-length", "64", "--batch-size", "16", "--long-ratio", "0"],
            *["--hidden-dropout", "0", "--attention-dropout", "0", "--steps", str(chosen.steps)],
            *["--learning-rate", "8e-4", "--warmup-ratio", "0.05", "--bias-correction"],
            *["--eval-every", str(chosen.steps), "--eval-sequences", "1024"],
            *["--seed", str(seed), "--threads", str(chosen.threads)],
        ]
        subprocess.run(command, check=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--size", type=int, default=8_000, help="tokens of each vocabulary")
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--criteria", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    characters = sum(len("".join(document.text.split())) for document in read(CorpusSettings((EVALUATION,))))
    rows = []
    for seed, criterion in product(range(chosen.seeds), chosen.criteria):
        run = train(chosen.work, criterion, seed, chosen)
        tokenizer = Tokenizer.load(chosen.work / criterion / "vocabulary")
        store = TokenStore.open(chosen.work / criterion / "store" / "held_out", tokenizer.digest)
        loss = read_metrics(run)[-1]["mlm_loss"]
        rate = store.num_tokens / characters
        rows.append((f"{criterion}, seed {seed}", rate, loss, loss * rate))
    print("| criterion | held-out tokens per character | nats per masked token | nats per character |")
    print("|---|---:|---:|---:|")
    for criterion, rate, loss, per_character in rows:
        print(f"| {criterion} | {rate:.4f} | {loss:.4f} | {per_character:.4f} |")


if __name__ == "__main__":
    main()
