"""Held-out loss of small models after equal steps, by scheme and σ of the initialization.

    python bench/init_ablation.py STORE WORK [--size tiny] [--schemes normal mimetic] [--ranges 0.02 0.05 0.09]
                                      [--steps 2000] [--rates 1e-3] [--dropouts 0] [--lengths 32] [--objective mlm+nsp]
                                      [--seeds 1] [--threads 1] [--dtype float32]

STORE is a token store (`make demo` leaves one in demo-run/store). All else is src/bertwright/recipes/demo.toml; a step
has 1,024 tokens, whatever the length. Each combination of what is listed is a run. Runs stay in WORK, and one that is
finished there is not run again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table, read_toml
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.bert.defaults import SIZES
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.metrics_log import read_metrics
from environment import describe_machine

RECIPE = Path(__file__).parent.parent / "src" / "bertwright" / "recipes" / "demo.toml"
STEP_TOKENS = 1_024
SHOWN = {"loss": 1, "mlm_accuracy": 100, "nsp_accuracy": 100}


class Start(NamedTuple):
    """Settings in which the runs differ."""

    scheme: Literal["mimetic", "normal"]
    sigma: float
    rate: float
    dropout: float
    length: int


def scores(chosen: argparse.Namespace, start: Start, seed: int) -> dict[str, float]:
    """Score the held-out text after the last step of one run."""
    line = (chosen.size, chosen.objective, chosen.dtype, chosen.steps, *start, seed)
    run = chosen.work / "-".join(map(str, line))
    if not (run / "model").exists():
        recipe = from_table(PretrainSettings, read_toml(RECIPE) | {"run": str(run)}, str(RECIPE))
        model = replace(
            recipe.model,
            size=chosen.size,
            init_scheme=start.scheme,
            initializer_range=start.sigma,
            hidden_dropout=start.dropout,
            attention_dropout=start.dropout,
        )
        data = replace(
            recipe.data,
            seed=seed,
            objective=chosen.objective,
            max_length=start.length,
            batch_size=STEP_TOKENS // start.length,
        )
        settings = replace(
            recipe,
            store=chosen.store,
            steps=chosen.steps,
            eval_every=max(chosen.steps // 5, 1),
            model=model,
            optimizer=replace(recipe.optimizer, learning_rate=start.rate),
            data=data,
            device=DeviceSettings("cpu", chosen.dtype, chosen.threads),
        )
        pretrain(settings, SILENT)
    last = [record for record in read_metrics(run) if record["kind"] == "held_out"][-1]
    return {name: last[name] for name in SHOWN if chosen.objective == "mlm+nsp" or name != "nsp_accuracy"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--schemes", nargs="+", choices=("normal", "mimetic"), default=["normal", "mimetic"])
    parser.add_argument("--ranges", type=float, nargs="+", default=[0.02, 0.05, 0.09])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32])
    parser.add_argument("--objective", choices=("mlm+nsp", "mlm", "ltr"), default="mlm+nsp")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    chosen = parser.parse_args()
    print(describe_machine(chosen.threads))
    print(
        f"\n{chosen.size}, {chosen.objective}, {chosen.steps:,} steps, {chosen.seeds} seeds, {chosen.dtype}, held out\n"
    )
    print("| initialization | σ | rate | dropout | length | loss | accuracy, % | next sentence, % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for given in product(chosen.schemes, chosen.ranges, chosen.rates, chosen.dropouts, chosen.lengths):
        start = Start(*given)
        found = [scores(chosen, start, seed) for seed in range(chosen.seeds)]
        cells = [value if isinstance(value, str) else f"{value:g}" for value in start]
        cells += [_cell([one[name] * scale for one in found if name in one]) for name, scale in SHOWN.items()]
        print(f"| {' | '.join(cells)} |", flush=True)


def _cell(values: list[float]) -> str:
    return summarize_seeds(values).format(3, scale=1) if values else ""


if __name__ == "__main__":
    main()
