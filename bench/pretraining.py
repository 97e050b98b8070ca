"""Speed of a pre-training step (MLM + NSP, 32 × 128 tokens, vocabulary 30,522), side by side with `transformers`.

    python bench/pretraining.py [--sizes mini small base] [--rounds 7] [--threads 2] [--json FILE]
    bench/gpu.sh steps   (the same on a GPU, with base)

Every contender is a process of its own. After a warm-up they take turns, one step (or `--steps`) per round, because the
speed of shared machines drifts. `plain_bert.py` is the peer that computes no more than we do: logits at the masked
positions alone, in plain PyTorch. The recipe is the same for all: hidden and
attention dropout 0.1, AdamW with weight decay 0.01, clipping at 1.0, 15 % masked. The table shows the median step and
the median of the ratios within a round.

Useful work is what the model needs: no padding, and the vocabulary projection at the masked positions only. Utilization
is useful work per second, divided by the speed of a matrix product of the model's feed-forward shape (torch's or ours,
whichever is faster) in the fastest dtype that a contender may use. The product is repeated for as long as our
step takes, in the same rounds, because some processors slow down under load. "Memory settings" are large malloc
thresholds and huge pages.
"""

from __future__ import annotations

import argparse
import atexit
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bertwright.kernels.cpu import peak_resident_memory
from contenders import Child

LENGTH, VOCABULARY = 128, 30_522
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
MEMORY = HUGE_PAGES | {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 28),
}

# From the seconds of our last step, which is also the ceiling's duration, to a function that waits for the result.
Step = Callable[[float], Callable[[], float]]


def contenders(bfloat16: bool, gpu: bool) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Map each contender's name to (arguments of the child, environment)."""
    if gpu:
        listed: dict[str, tuple[list[str], dict[str, str]]] = {
            "transformers, bf16 autocast": (["theirs", "--bfloat16"], {}),
            "transformers, bf16 autocast, compiled": (["theirs", "--bfloat16", "--compile"], {}),
            "plain PyTorch, bf16 autocast, compiled": (["plain", "--bfloat16", "--compile"], {}),
            "bertwright, bf16": (["ours", "--bfloat16"], {}),
            "bertwright, bf16, without Triton": (["ours", "--bfloat16"], {"BERTWRIGHT_NATIVE": "0"}),
        }
        return listed | {"matrix product (ceiling)": (["ceiling", "--bfloat16"], {})}
    listed = {
        "transformers, default settings (fp32)": (["theirs"], {}),
        "transformers, memory settings": (["theirs"], MEMORY),
        "transformers, memory settings, compiled": (["theirs", "--compile"], MEMORY),
        "plain PyTorch, memory settings": (["plain"], MEMORY),
        "plain PyTorch, memory settings, compiled": (["plain", "--compile"], MEMORY),
        "bertwright": (["ours"], {}),
        "bertwright, no compiler (reference implementations)": (["ours"], {"BERTWRIGHT_NATIVE": "0"}),
    }
    if bfloat16:
        listed |= {
            "transformers, bf16 autocast, memory settings": (["theirs", "--bfloat16"], MEMORY),
            "transformers, bf16, memory settings, compiled": (["theirs", "--bfloat16", "--compile"], MEMORY),
            "plain PyTorch, bf16 autocast, memory settings": (["plain", "--bfloat16"], MEMORY),
            "plain PyTorch, bf16 autocast, memory settings, compiled": (["plain", "--bfloat16", "--compile"], MEMORY),
            "bertwright, bf16": (["ours", "--bfloat16"], {}),
            "bertwright, bf16, huge pages": (["ours", "--bfloat16"], HUGE_PAGES),
        }
    return listed | {"matrix product (ceiling)": (["ceiling", *["--bfloat16"] * bfloat16], {})}


def example(sequences: int) -> dict[str, object]:
    """Make token ids, masked positions and labels, the same for all contenders."""
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCABULARY, (sequences, LENGTH))
    masks = np.sort(np.argsort(rng.random((sequences, LENGTH - 3)), axis=1)[:, :19] + 1)
    labels = np.take_along_axis(ids, masks, 1)
    np.put_along_axis(ids, masks, 103, 1)
    return {"ids": ids, "masks": masks, "labels": labels, "next": rng.integers(0, 2, sequences)}


def theirs(chosen: argparse.Namespace) -> Step:
    import torch
    from transformers import AutoConfig, AutoModelForPreTraining

    from bertwright.systems.bert.defaults import SIZES

    size = SIZES[chosen.size]
    config = AutoConfig.for_model(
        "bert", vocab_size=VOCABULARY, num_hidden_layers=size["num_layers"], hidden_size=size["hidden_size"],
        num_attention_heads=size["num_heads"], intermediate_size=size["intermediate_size"], attn_implementation="sdpa",
    )  # fmt: skip
    model = AutoModelForPreTraining.from_config(config).train().to(chosen.device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, eps=1e-6, fused=True)
    given = {name: torch.as_tensor(value) for name, value in example(chosen.sequences).items()}
    labels = torch.full((chosen.sequences, LENGTH), -100).scatter(1, given["masks"], given["labels"])
    inputs = {"input_ids": given["ids"], "token_type_ids": torch.zeros_like(given["ids"]), "labels": labels}
    inputs |= {"attention_mask": torch.ones_like(given["ids"]), "next_sentence_label": given["next"]}
    inputs = {name: value.to(chosen.device) for name, value in inputs.items()}
    forward = torch.compile(model) if chosen.compile else model

    def step(_: float) -> Callable[[], float]:
        with torch.autocast(chosen.device, torch.bfloat16, enabled=chosen.bfloat16):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return lambda: float(loss.detach())

    return step


def plain(chosen: argparse.Namespace) -> Step:
    import torch

    from plain_bert import plain_step

    example_tensors = {name: torch.as_tensor(value) for name, value in example(chosen.sequences).items()}
    step = plain_step(chosen.size, chosen.device, example_tensors, chosen.compile, chosen.bfloat16)

    def run(_: float) -> Callable[[], float]:
        loss = step()
        return lambda: float(loss)

    return run


def ours(chosen: argparse.Namespace) -> Step:
    import numpy as np
    import torch

    from bertwright.models.packing import pack
    from bertwright.objectives.language_model_objective import LanguageModelBatch
    from bertwright.systems.bert.bert_config import BertConfig
    from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
    from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
    from bertwright.training.context import execution_context
    from bertwright.training.device_settings import DeviceSettings
    from bertwright.training.loop import train_steps
    from bertwright.training.optimizer import Optimizer, OptimizerSettings

    dtype: Literal["bfloat16", "float32"] = "bfloat16" if chosen.bfloat16 else "float32"
    settings = DeviceSettings(chosen.device, dtype, chosen.threads)
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    context = until_the_end.enter_context(execution_context(settings))
    given = {name: np.asarray(value) for name, value in example(chosen.sequences).items()}
    batch = pack(list(given["ids"]))
    positions = (given["masks"] + LENGTH * np.arange(chosen.sequences)[:, None]).ravel()
    answers, labels = torch.from_numpy(given["next"]), torch.from_numpy(given["labels"].ravel())
    whole = LanguageModelBatch(batch, torch.from_numpy(positions), labels, answers, len(labels), chosen.sequences)
    whole = whole.to(context.device)
    model = BertForPretraining(BertConfig.from_size(chosen.size, VOCABULARY)).train().to(context.device)
    model.encoder.compute_dtype = context.dtype
    model.encoder.sparse_gradients = True
    optimizer = Optimizer(dict(model.named_parameters()), OptimizerSettings())

    def forever() -> Iterator[list[LanguageModelBatch]]:
        while True:
            yield [whole]

    objective = MaskedLMWithNextSentence()
    results = train_steps(lambda batch: objective.loss(model, batch), forever(), optimizer, lambda _: 1e-4)

    def step(_: float) -> Callable[[], float]:
        result = next(results)
        return lambda: result.sums["lm_sum"] / len(labels)

    return step


def ceiling(chosen: argparse.Namespace) -> Step:
    import torch

    from bertwright.systems.bert.defaults import SIZES
    from bertwright.training.context import ExecutionContext
    from bertwright.training.throughput import measure_peak_flops

    dtype = torch.bfloat16 if chosen.bfloat16 else torch.float32
    context = ExecutionContext(torch.device(chosen.device), dtype, torch.get_num_threads())
    size = SIZES[chosen.size]["hidden_size"]
    return lambda seconds: partial(measure_peak_flops, context, size, max(seconds, 0.3))


def serve(arguments: argparse.Namespace) -> None:
    """Run one turn per number read; print the seconds of a step, the last result, and peak memory."""
    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    step = {"theirs": theirs, "plain": plain, "ours": ours, "ceiling": ceiling}[arguments.serve](arguments)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(arguments.steps):
            read = step(float(line))
        result = read()
        seconds = (time.perf_counter() - started) / arguments.steps
        on_gpu = arguments.device == "cuda"
        peak = torch.cuda.max_memory_allocated() if on_gpu else peak_resident_memory()
        print(json.dumps({"seconds": seconds, "result": result, "peak": peak}), flush=True)


class Contender(Child):
    """The process of one contender."""

    def __init__(
        self, size: str, chosen: argparse.Namespace, arguments: list[str], environment: dict[str, str]
    ) -> None:
        command = [sys.executable, __file__, "--serve", *arguments, "--size", size, "--threads", str(chosen.threads)]
        command += ["--device", chosen.device, "--sequences", str(chosen.sequences), "--steps", str(chosen.steps)]
        super().__init__(command, environment)


def compare(size: str, chosen: argparse.Namespace, bfloat16: bool) -> dict[str, Any]:
    """Print one table; return its numbers, with the seconds of every step."""
    from bertwright.systems.bert.bert_config import BertConfig
    from environment import format_range, format_ratio

    sequences = chosen.sequences
    listed = contenders(bfloat16, chosen.device == "cuda").items()
    selected = {name: how for name, how in listed if not any(worker in name for worker in chosen.without)}
    children: dict[str, Contender] = {}
    groups = [list(selected)[first : first + chosen.together] for first in range(0, len(selected), chosen.together)]
    for group in groups:
        children |= (together := {name: Contender(size, chosen, *selected[name]) for name in group})
        for child in together.values():  # all compile at the same time
            child.ask()
        for child in together.values():
            child.answer(counted=False)
        for child in together.values():
            for _ in range(1, chosen.warmup):
                child.step(counted=False)
        for _ in range(chosen.rounds):
            last = 0.0
            for name, child in together.items():
                seconds = child.step(counted=True, seconds=last)
                last = seconds if name.startswith("bertwright") else last
        for name, child in together.items():
            if chosen.device == "cuda" and "ceiling" not in name:  # a time limit may end this process
                tokens = LENGTH * sequences / statistics.median(child.seconds)
                print(f"{name}: {tokens:,.0f} tokens/s, first step after {child.first_step:.1f} s", flush=True)
        for child in together.values():  # a compiler's processes need seconds to end
            child.close()
    top = statistics.median(children.pop("matrix product (ceiling)").results)
    useful = BertConfig.from_size(size, VOCABULARY).count_training_flops(
        [LENGTH] * sequences, 19 * sequences, pooled=True
    )
    print(f"\n### {size}: useful work {useful / 1e9:,.0f} GFLOP per step, ceiling {top / 1e9:,.0f} GFLOP/s\n")
    print("| | tokens/s | step, s (min to max) | bertwright, times as fast | utilization | peak memory, GB |")
    print("|---|---:|---:|---:|---:|---:|")
    own = [child.seconds for name, child in children.items() if name.startswith("bertwright")]
    fastest = min(own, key=statistics.median)
    for name, child in children.items():
        median = statistics.median(child.seconds)
        speed, share = LENGTH * sequences / median, useful / median / top
        times = "" if name.startswith("bertwright") else format_ratio(child.seconds, fastest)
        cells = f"{format_range(child.seconds)} | {times} | {share:.0%} | {child.peak / 1e9:.1f}"
        print(f"| {name} | {speed:,.0f} | {cells} |", flush=True)
    measured = {name: {"seconds": child.seconds, "peak_bytes": child.peak} for name, child in children.items()}
    return {"size": size, "flop_per_step": useful, "ceiling_flops": top, "contenders": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["mini", "small", "base"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2, help="steps of each contender that are not counted")
    parser.add_argument("--together", type=int, default=99, help="contenders that run at once: as memory permits")
    parser.add_argument("--without", nargs="+", default=[], help="leave out contenders whose name contains this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="steps per turn; the last one's loss is read")
    parser.add_argument("--sequences", type=int, default=32, help="sequences per step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--serve", choices=("ours", "theirs", "plain", "ceiling"), help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bfloat16", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    import torch

    from bertwright.training.context import supports_bfloat16
    from environment import commit, describe_machine

    bfloat16 = supports_bfloat16(torch.device(arguments.device))
    about = f"{describe_machine(arguments.threads, arguments.device)}; {arguments.rounds} rounds"
    about += f" of {arguments.steps} steps, {arguments.sequences} × {LENGTH} tokens"
    print(about)
    tables = []
    for size in arguments.sizes:
        tables.append(compare(size, arguments, bfloat16))
        if arguments.json:  # after each size: a time limit may end this process
            report = {"about": about, "commit": commit(), "tables": tables}
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
