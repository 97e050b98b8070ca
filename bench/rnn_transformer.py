"""An LSTM and a Transformer as language models on the same text: training tokens per second, and what they learn.

    python bench/rnn_transformer.py STORE --work WORK --results bench/results/rnn_transformer.jsonl [--steps 300]

STORE: a token store of byte pairs (`prepare`). Both read it from left to right, 2,048 tokens per step, and have nearly
the same number of parameters; the softmax shares the word vectors. They take turns in each round: the speed of a shared
machine drifts. A Transformer computes all tokens of a step together, an LSTM one after the other, and its states come
from the step before, so that its context is longer than the tokens of a step.
"""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import Any

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.interop.huggingface import load_config
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.metrics_log import read_metrics
from environment import format_range, make_parser, print_heading, print_row, use_threads
from study import run_missing

MODELS: dict[str, dict[str, Any]] = {
    "AWD-LSTM": {
        "model": {"architecture": "ulmfit", "size": "small", "hidden_dropout": 0.0},
        "data": {"max_length": 64, "batch_size": 32},
        "optimizer": {"learning_rate": 4e-3, "schedule": "linear", "warmup_ratio": 0.05},
    },
    "Transformer (GPT)": {
        "model": {
            "architecture": "gpt", "hidden_size": 192, "num_layers": 6, "num_heads": 3, "max_positions": 128,
            "hidden_dropout": 0.0, "attention_dropout": 0.0,
        },
        "data": {"max_length": 128, "batch_size": 16},
        "optimizer": {"learning_rate": 2e-3, "schedule": "linear", "warmup_ratio": 0.05},
    },
}  # fmt: skip


def train(run: dict[str, Any], store: Path, work: Path, threads: int) -> dict[str, Any]:
    """Train one model; return its size, its speed without evaluations, and its held-out perplexity."""
    folder, steps = work / f"{run['model']}-{run['round']}", run["steps"]
    if folder.exists():
        rmtree(folder)  # of an interrupted round
    device = {"device": "cpu", "dtype": "float32", "threads": threads}
    table = {"run": str(folder), "store": str(store), "steps": steps, "eval_every": steps, "device": device}
    pretrain(from_table(PretrainSettings, table | MODELS[run["model"]], "bench"), MUTE)
    speeds = [record["tokens_per_second"] for record in read_metrics(folder) if record["kind"] == "train"]
    return {
        "parameters": load_config(folder / "model").num_parameters,
        "tokens_per_second": round(sorted(speeds)[len(speeds) // 2]),
        "perplexity": round(read_json(folder / "report.json")["held_out_after"]["perplexity"], 2),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    rounds = range(chosen.rounds)
    runs = [
        {"model": name, "round": number, "steps": chosen.steps, "threads": chosen.threads}
        for number in rounds
        for name in MODELS
    ]
    records = run_missing(
        chosen.results, runs, lambda run: train(run, chosen.store, chosen.work, chosen.threads), chosen.threads
    )
    print_heading(("model", "parameters", "tokens/s, training", "perplexity, held out"))
    for name in MODELS:
        own = [record for record in records if record["model"] == name]
        speed = format_range([record["tokens_per_second"] for record in own], ",.0f")
        print_row((name, f"{own[0]['parameters']:,}", speed, f"{own[0]['perplexity']:.1f}"))


if __name__ == "__main__":
    main()
