"""Held-out loss of `transformers` and bertwright after equal time of pre-training.

    python bench/equal_time_pretraining.py prepare WORK      vocabulary, token store (ours), blocks of ids (theirs)
    python bench/equal_time_pretraining.py theirs WORK       train with transformers for --minutes
    python bench/equal_time_pretraining.py ours WORK         train with bertwright for about as long
    python bench/equal_time_pretraining.py score WORK        both models on the same held-out text and masks

`theirs` is BertForMaskedLM with DataCollatorForLanguageModeling on blocks of tokens, as run_mlm.py makes them: fused
AdamW, SDPA, torch.compile and glibc's malloc thresholds raised where asked for. Its rate decays over the minutes, so it
ends exactly at its schedule's end. Both use the same vocabulary, text, size, batch, rate, warm-up and decay, those of
`one_hour.sh`, and no dropout. `ours` begins with the default initial weights, `ours --start normal` with those of
transformers. Start `theirs` and `ours` together, one core each (taskset -c 0 / -c 1, --threads 1), and neither gets a
better machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bertwright.corpus.documents import CorpusSettings, read
from bertwright.interop.huggingface import load_model
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.evaluation import evaluate
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.objective_registry import find_objective
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

DATA = Path(os.environ.get("BERTWRIGHT_DATA", Path(__file__).parent.parent.parent / "shared" / "data")) / "corpora"
TRAIN = (f"file={DATA / 'english_books'}", str(DATA / "english_wikipedia" / "train.txt"))
EVALUATION = str(DATA / "english_wikipedia" / "heldout.txt")
VOCABULARY, LENGTH, BATCH, RATE, WARMUP = 8_000, 64, 16, 8e-4, 0.05
RUNS = {"default": "ours", "normal": "ours-normal"}  # initialization: folder in WORK


def prepare(work: Path) -> None:
    """Build vocabulary and store with the command line; for `transformers`, split the same text into blocks of ids."""
    cli = [sys.executable, "-m", "bertwright"]
    subprocess.run(
        [*cli, "vocabulary", *TRAIN, "--size", str(VOCABULARY), "--output", str(work / "vocabulary")], check=True
    )
    stored = ["--vocabulary", str(work / "vocabulary"), "--store", str(work / "store")]
    subprocess.run([*cli, "prepare", *TRAIN, "--held-out-inputs", EVALUATION, *stored], check=True)
    tokenizer = Tokenizer.load(work / "vocabulary")
    rows = tokenizer.encode_raw([document.text for document in read(CorpusSettings(TRAIN))])
    max_num_tokens = LENGTH - 2
    blocks = rows.ids[: len(rows.ids) // max_num_tokens * max_num_tokens].reshape(-1, max_num_tokens).astype(np.int32)
    whole = np.pad(blocks, ((0, 0), (1, 1)))
    whole[:, 0], whole[:, -1] = tokenizer.cls_id, tokenizer.sep_id
    np.save(work / "blocks.npy", whole)


def theirs(work: Path, minutes: float, threads: int, compiled: bool) -> None:
    """Train in a plain loop with the model and the collator of `transformers`."""
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(work / "vocabulary")
    config = AutoConfig.for_model(
        "bert", vocab_size=len(tokenizer), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=1024, max_position_embeddings=LENGTH, attn_implementation="sdpa", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = AutoModelForMaskedLM.from_config(config)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6, fused=True)
    forward = torch.compile(model) if compiled else model
    blocks = np.load(work / "blocks.npy", mmap_mode="r")
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    rng = np.random.default_rng(0)
    order: list[int] = []
    started, step = time.perf_counter(), 0
    while (share := (time.perf_counter() - started) / (60 * minutes)) < 1:
        if len(order) < BATCH:
            order = rng.permutation(len(blocks)).tolist()
        chosen, order = order[:BATCH], order[BATCH:]
        batch = collate([{"input_ids": row} for row in torch.from_numpy(blocks[chosen].astype(np.int64))])
        for group in optimizer.param_groups:
            group["lr"] = RATE * (share / WARMUP if share < WARMUP else (1 - share) / (1 - WARMUP))
        loss = forward(input_ids=batch["input_ids"], labels=batch["labels"]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0:
            speed = step * BATCH * LENGTH / (time.perf_counter() - started)
            print(f"step {step}, {share:.1%} of the time, loss {loss.item():.3f}, {speed:,.0f} tokens/s", flush=True)
    seconds = time.perf_counter() - started
    model.save_pretrained(work / "theirs")
    tokenizer.save_pretrained(work / "theirs")
    tokens = step * BATCH * LENGTH
    (work / "theirs.json").write_text(json.dumps({"seconds": seconds, "steps": step, "tokens": tokens}))


def ours(work: Path, threads: int, steps: int, start: str) -> None:
    """Train with the command line and the same recipe."""
    run = work / RUNS[start]
    command = [
        *[sys.executable, "-m", "bertwright", "pretrain", "--store", str(work / "store"), "--run", str(run)],
        *["--steps", str(steps), "--size", "mini", "--max-positions", str(LENGTH), "--batch-size", str(BATCH)],
        *["--max-length", str(LENGTH), "--hidden-dropout", "0", "--attention-dropout", "0"],
        *["--long-ratio", "0", "--learning-rate", str(RATE), "--warmup-ratio", str(WARMUP), "--threads", str(threads)],
        *["--dtype", "float32"],  # like transformers
        *["--eval-every", str(steps), "--save-every", "500", "--bias-correction"],
    ]
    if start == "normal":
        command += ["--initializer-range", "0.02", "--init-scheme", "normal"]
    subprocess.run(command, check=True)


def score(work: Path) -> None:
    """Score both models on the same held-out examples and masks: one segment, as theirs was trained, and pairs."""
    tokenizer = Tokenizer.load(work / "store" / "tokenizer")
    folders = {"transformers": work / "theirs"}
    folders |= {f"bertwright, {start} start": work / run / "model" for start, run in RUNS.items()}
    for name, folder in folders.items():
        if not folder.exists():
            print(f"{name:<26}has not been run")
            continue
        model = load_model(folder, heads="optional").model
        assert isinstance(model, BertForPretraining)
        for objective in map(find_objective, ("mlm", "mlm+nsp")):
            settings = DataSettings(LENGTH, 32, objective=objective.name)
            (data,) = objective.open_examples(work / "store" / "held_out", tokenizer, [settings])
            scores = evaluate(objective, model, data.validation_batches(2048))
            figures = f"masked-LM loss {scores['loss']:.3f}, accuracy {scores['mlm_accuracy']:.1%}"
            if objective.name == "mlm+nsp" and name != "transformers":
                figures += f", next sentence {scores['nsp_accuracy']:.1%}"
            print(f"{name:<26}{'pairs' if objective.name == 'mlm+nsp' else 'one segment':<14}{figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "theirs", "ours", "score"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="use torch.compile for transformers")
    parser.add_argument(
        "--steps", type=int, default=1_000, help="steps of `ours`; choose them so that the time is equal"
    )
    parser.add_argument("--start", choices=tuple(RUNS), default="default", help="initial weights of `ours`")
    chosen = parser.parse_args()
    if chosen.what == "prepare":
        chosen.work.mkdir(parents=True, exist_ok=True)
        prepare(chosen.work)
    elif chosen.what == "theirs":
        theirs(chosen.work, chosen.minutes, chosen.threads, chosen.compile)
    elif chosen.what == "ours":
        ours(chosen.work, chosen.threads, chosen.steps, chosen.start)
    else:
        score(chosen.work)


if __name__ == "__main__":
    main()
