"""Check `bertwright plan` against real runs: expected and real loss, time and memory.

    python bench/plan_accuracy.py DATA WORK [--cases books korean] [--minutes 4] [--hours 0.2] [--clock cpu]

The plan of a text is made from short runs of `--minutes` in all; then the planned run of each size is executed
and compared. `--clock cpu` counts the processor time of one thread instead of the wall-clock time, in
plans and runs, so that other work on the machine does not count. DATA is a folder with the corpora. Stores, plans and
finished runs stay in WORK and are not repeated.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import read_json, write_json
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table, to_table
from bertwright.planning.plan import plan
from bertwright.planning.plan_settings import PlanSettings
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.context import execution_context
from bertwright.training.cost import peak_memory
from environment import describe_machine, keep_printed, make_parser
from scaling_law import DEVICE, TEXTS, prepare_store


class Case(NamedTuple):
    """Sizes that are planned and run on a text of `scaling_law.TEXTS`, and their share of the hours."""

    sizes: tuple[str, ...]
    share: float = 1.0


CASES = {"books": Case(("tiny", "mini")), "korean": Case(("tiny",), share=0.6)}


def make_plan(settings: PlanSettings, path: Path) -> None:
    """Plan, and write the candidates and the tokens of the longest short run to a file."""
    found = plan(settings)
    longest = max(run.tokens for run in found.short_runs)
    candidates = [
        {
            "settings": to_table(one.settings),
            "tokens": one.tokens,
            "epochs": one.epochs,
            "loss": one.loss._asdict(),
            "seconds": one.cost.seconds,
            "memory": one.cost.memory,
        }
        for one in found.candidates
    ]
    write_json(path, {"longest": longest, "candidates": candidates})


def run_planned(settings: PretrainSettings, path: Path) -> None:
    """Pre-train, and write the loss, the seconds and the peak memory to a file."""
    started = time.perf_counter()
    pretrain(settings, SILENT)
    seconds = time.perf_counter() - started
    loss = read_json(settings.run / "report.json")["held_out_after"]["loss"]
    with execution_context(settings.device) as context:
        write_json(path, {"loss": loss, "seconds": seconds, "memory": peak_memory(context)})


def use_processor_time() -> None:
    """Let all modules of this process measure processor time."""
    time.perf_counter = time.process_time


def run_once(path: Path, command: Callable[..., None], *arguments: Any, clock: str) -> Any:
    """Execute a command in its own process, whose memory is its own, unless its result exists; return the result."""
    if not path.exists():
        initializer = use_processor_time if clock == "cpu" else None
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, initializer) as pool:
            pool.submit(command, *arguments, path).result()
    return read_json(path)


def format_row(name: str, size: str, longest: float, planned: dict[str, Any], real: dict[str, float]) -> str:
    """Format one comparison as a row of the table."""
    loss = planned["loss"]
    cells = [
        f"{name}, {size}",
        f"{planned['tokens'] / 1e6:.1f}",
        f"{planned['tokens'] / longest:.1f}",
        f"{planned['epochs']:.1f}",
        f"{loss['mean']:.2f} ({loss['low']:.2f} to {loss['high']:.2f})",
        f"{real['loss']:.2f}",
        f"{loss['mean'] - real['loss']:+.2f}",
        f"{planned['seconds']:,.0f}",
        f"{real['seconds']:,.0f}",
        f"{planned['seconds'] / real['seconds'] - 1:+.0%}",
        f"{planned['memory'] / 1e6:,.0f}",
        f"{real['memory'] / 1e6:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=["books", "korean"])
    parser.add_argument("--minutes", type=float, default=4.0, help="of the short runs of a plan")
    parser.add_argument("--hours", type=float, default=0.2, help="of each planned run")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="wall")
    chosen = parser.parse_args()
    keep_printed(__file__, 1)
    print(describe_machine(1), flush=True)
    print("\n| | M tokens | × longest short run | epochs | expected loss (90 %) | real | difference "
          "| expected s | real s | difference | expected MB | real MB |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    run_command = partial(run_once, clock=chosen.clock)
    for name in chosen.cases:
        case, folder = CASES[name], chosen.work / name
        settings = PlanSettings(
            hours=case.share * chosen.hours,
            store=prepare_store(TEXTS[name], chosen.data, folder),
            model_sizes=case.sizes,
            measure_minutes=chosen.minutes,
            device=DEVICE,
        )
        found = run_command(folder / "plan.json", make_plan, settings)
        for planned in found["candidates"]:
            run = from_table(PretrainSettings, planned["settings"], "plan")
            size = str(run.model.size)
            real = run_command(folder / f"{size}.json", run_planned, replace(run, run=folder / size))
            print(format_row(name, size, found["longest"], planned, real), flush=True)


if __name__ == "__main__":
    main()
