"""What weights small models should start from: held-out loss after equal steps, by σ and kind of the first weights.

    python bench/starts.py STORE WORK [--size tiny] [--kinds random neighbours] [--ranges 0.02 0.05 0.09]
                                      [--steps 2000] [--rate 1e-3] [--seeds 1] [--threads 1]

STORE is a token store (`make demo` leaves one in demo-run/store). All else is recipes/demo.toml. Runs stay in WORK, and
one that is finished there is not run again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

from rich.console import Console

from bertwright.metrics.spread import spread
from bertwright.models.config import SIZES
from bertwright.runs.pretrain import pretrain
from bertwright.runs.recipe import PretrainSettings
from bertwright.settings import from_table, read_toml
from bertwright.training.device import DeviceSettings
from bertwright.training.journal import read_metrics
from footing import machine

RECIPE = Path(__file__).parent.parent / "recipes" / "demo.toml"
SHOWN = {"mlm_loss": 1, "mlm_accuracy": 100, "nsp_accuracy": 100}


def scores(chosen: argparse.Namespace, kind: str, sigma: float, seed: int) -> dict[str, float]:
    """Of the held-out text after the last step of one run."""
    run = chosen.work / f"{chosen.size}-{kind}-{sigma:g}-{chosen.rate:g}-{chosen.steps}-{seed}"
    if not (run / "model").exists():
        recipe = from_table(PretrainSettings, read_toml(RECIPE) | {"run": str(run)}, str(RECIPE))
        settings = replace(
            recipe,
            store=chosen.store,
            steps=chosen.steps,
            evaluate_every=max(chosen.steps // 5, 1),
            model=replace(recipe.model, size=chosen.size, first_weights=kind, initializer_range=sigma),
            optimizer=replace(recipe.optimizer, learning_rate=chosen.rate),
            data=replace(recipe.data, seed=seed),
            device=DeviceSettings("cpu", "float32", chosen.threads),
        )
        pretrain(settings, Console(quiet=True))
    last = [record for record in read_metrics(run) if record["kind"] == "held_out"][-1]
    return {name: last[name] for name in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--kinds", nargs="+", choices=("random", "neighbours"), default=["random", "neighbours"])
    parser.add_argument("--ranges", type=float, nargs="+", default=[0.02, 0.05, 0.09])
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    print(machine(chosen.threads))
    print(f"\n{chosen.size}, {chosen.steps:,} steps, {chosen.seeds} seeds, held out\n")
    print("| first weights | σ | masked-LM loss | accuracy, % | next sentence, % |")
    print("|---|---:|---:|---:|---:|")
    for kind, sigma in product(chosen.kinds, chosen.ranges):
        found = [scores(chosen, kind, sigma, seed) for seed in range(chosen.seeds)]
        cells = [_cell([one[name] * scale for one in found]) for name, scale in SHOWN.items()]
        print(f"| {kind} | {sigma:g} | {' | '.join(cells)} |", flush=True)


def _cell(values: list[float]) -> str:
    found = spread(values)
    return f"{found.mean:.3f}" + ("" if found.deviation is None else f" ± {found.deviation:.3f}")


if __name__ == "__main__":
    main()
