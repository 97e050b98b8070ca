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

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from bertwright.models.packing import pack
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.defaults import SIZES
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
from bertwright.training.context import ExecutionContext, execution_context, supports_bfloat16
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.loop import train_steps
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.training.throughput import measure_peak_flops
from contenders import OPEN, Contender, Turn, Variables
from environment import (
    adamw,
    commit,
    describe_machine,
    format_range,
    format_ratio,
    make_parser,
    print_heading,
    print_row,
    train_step,
)
from plain_bert import plain_step

LENGTH, VOCABULARY = 128, 30_522
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
MEMORY = HUGE_PAGES | {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
REFERENCE = {"BERTWRIGHT_NATIVE": "0"}
CEILING = "matrix product (ceiling)"

# From the seconds of our last step, which is also the ceiling's duration, to a function that waits for the result.
Step = Callable[[float], Callable[[], float]]


class Options(NamedTuple):
    """What all contenders have in common."""

    size: str
    device: Literal["cpu", "cuda"]
    sequences: int
    threads: int
    steps: int


class Way(NamedTuple):
    """A contender: what makes its step, and its environment variables."""

    make: Callable[[Options, bool, bool], Step]
    bfloat16: bool = False
    compiled: bool = False
    environment: Variables = None


def contenders(bfloat16: bool, gpu: bool) -> dict[str, Way]:
    """Return the contenders by name."""
    if gpu:
        return {
            "transformers, bf16 autocast": Way(theirs, True),
            "transformers, bf16 autocast, compiled": Way(theirs, True, True),
            "plain PyTorch, bf16 autocast, compiled": Way(plain, True, True),
            "bertwright, bf16": Way(ours, True),
            "bertwright, bf16, without Triton": Way(ours, True, environment=REFERENCE),
            CEILING: Way(ceiling, True),
        }
    listed = {
        "transformers, default settings (fp32)": Way(theirs),
        "transformers, memory settings": Way(theirs, environment=MEMORY),
        "transformers, memory settings, compiled": Way(theirs, False, True, MEMORY),
        "plain PyTorch, memory settings": Way(plain, environment=MEMORY),
        "plain PyTorch, memory settings, compiled": Way(plain, False, True, MEMORY),
        "bertwright": Way(ours),
        "bertwright, no compiler (reference implementations)": Way(ours, environment=REFERENCE),
    }
    if bfloat16:
        listed |= {
            "transformers, bf16 autocast, memory settings": Way(theirs, True, False, MEMORY),
            "transformers, bf16, memory settings, compiled": Way(theirs, True, True, MEMORY),
            "plain PyTorch, bf16 autocast, memory settings": Way(plain, True, False, MEMORY),
            "plain PyTorch, bf16 autocast, memory settings, compiled": Way(plain, True, True, MEMORY),
            "bertwright, bf16": Way(ours, True),
            "bertwright, bf16, huge pages": Way(ours, True, environment=HUGE_PAGES),
        }
    return listed | {CEILING: Way(ceiling, bfloat16)}


def example(sequences: int) -> dict[str, torch.Tensor]:
    """Make token ids, masked positions and labels, the same for all contenders."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCABULARY, (sequences, LENGTH))
    masks = np.sort(np.argsort(rng.random((sequences, LENGTH - 3)), axis=1)[:, :19] + 1)
    labels = np.take_along_axis(ids, masks, 1)
    np.put_along_axis(ids, masks, 103, 1)
    made = {"ids": ids, "masks": masks, "labels": labels, "next": rng.integers(0, 2, sequences)}
    return {name: torch.from_numpy(value) for name, value in made.items()}


def theirs(options: Options, bfloat16: bool, compiled: bool) -> Step:
    from transformers import AutoConfig, AutoModelForPreTraining

    size = SIZES[options.size]
    config = AutoConfig.for_model(
        "bert", vocab_size=VOCABULARY, num_hidden_layers=size["num_layers"], hidden_size=size["hidden_size"],
        num_attention_heads=size["num_heads"], intermediate_size=size["intermediate_size"], attn_implementation="sdpa",
    )  # fmt: skip
    model = AutoModelForPreTraining.from_config(config).train().to(options.device)
    optimizer = adamw(model, OptimizerSettings())
    given = example(options.sequences)
    labels = torch.full((options.sequences, LENGTH), -100).scatter(1, given["masks"], given["labels"])
    inputs = {"input_ids": given["ids"], "token_type_ids": torch.zeros_like(given["ids"]), "labels": labels}
    inputs |= {"attention_mask": torch.ones_like(given["ids"]), "next_sentence_label": given["next"]}
    inputs = {name: value.to(options.device) for name, value in inputs.items()}
    forward = torch.compile(model) if compiled else model
    return lambda _: partial(
        float, train_step(model, lambda: forward(**inputs).loss, optimizer, bfloat16, options.device)
    )


def plain(options: Options, bfloat16: bool, compiled: bool) -> Step:
    step = plain_step(options.size, options.device, example(options.sequences), compiled, bfloat16)
    return lambda _: partial(float, step())


def ours(options: Options, bfloat16: bool, _: bool) -> Step:
    settings = DeviceSettings(options.device, "bfloat16" if bfloat16 else "float32", options.threads)
    context = OPEN.enter_context(execution_context(settings))
    given = example(options.sequences)
    positions = (given["masks"] + LENGTH * torch.arange(options.sequences)[:, None]).flatten()
    labels = given["labels"].flatten()
    packed = pack([*given["ids"].numpy()])
    whole = LanguageModelBatch(packed, positions, labels, given["next"], len(labels), options.sequences)
    whole = whole.to(context.device)
    model = BertForPretraining(BertConfig.from_size(options.size, VOCABULARY)).train().to(context.device)
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


def ceiling(options: Options, bfloat16: bool, _: bool) -> Step:
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    context = ExecutionContext(torch.device(options.device), dtype, options.threads)
    size = SIZES[options.size]["hidden_size"]
    return lambda seconds: partial(measure_peak_flops, context, size, max(seconds, 0.3))


def prepare(way: Way, options: Options) -> Callable[[float], float]:
    """Return a function that makes the steps of a turn and returns the last one's result."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    step = way.make(options, way.bfloat16, way.compiled)

    def take_turn(seconds: float) -> float:
        for _ in range(options.steps):
            read = step(seconds)
        return read()

    return take_turn


def run_together(ways: Mapping[str, Way], options: Options, warmup: int, rounds: int) -> dict[str, list[Turn]]:
    """Start contenders, let them take turns, and end them; return their turns."""
    children = {name: Contender(partial(prepare, way, options), way.environment) for name, way in ways.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for first in [child.start(0.0) for child in children.values()]:  # all compile at the same time
        first.result()
    for child in children.values():
        for _ in range(1, warmup):
            child.start(0.0).result()
    for _ in range(rounds):
        last = 0.0
        for name, child in children.items():
            turn = child.start(last).result()
            turns[name].append(turn._replace(seconds=turn.seconds / options.steps))
            last = turns[name][-1].seconds if name.startswith("bertwright") else last
    for name, child in children.items():
        if options.device == "cuda" and name != CEILING:  # a time limit may end this process
            tokens = LENGTH * options.sequences / statistics.median(turn.seconds for turn in turns[name])
            print(f"{name}: {tokens:,.0f} tokens/s", flush=True)
        child.pool.shutdown()
    return turns


def compare(ways: Mapping[str, Way], options: Options, together: int, warmup: int, rounds: int) -> dict[str, Any]:
    """Print one table; return its numbers, with the seconds of every step."""
    turns: dict[str, list[Turn]] = {}
    for first in range(0, len(ways), together):
        turns |= run_together(dict([*ways.items()][first : first + together]), options, warmup, rounds)
    top = statistics.median(turn.result for turn in turns.pop(CEILING))
    size, sequences = options.size, options.sequences
    useful = BertConfig.from_size(size, VOCABULARY).count_training_flops(
        [LENGTH] * sequences, 19 * sequences, pooled=True
    )
    print(f"\n### {size}: useful work {useful / 1e9:,.0f} GFLOP per step, ceiling {top / 1e9:,.0f} GFLOP/s\n")
    ratio = "bertwright, times as fast"
    print_heading(["", "tokens/s", "step, s (min to max)", ratio, "utilization", "peak memory, GB"])
    seconds = {name: [turn.seconds for turn in own] for name, own in turns.items()}
    fastest = min((own for name, own in seconds.items() if name.startswith("bertwright")), key=statistics.median)
    for name, own in seconds.items():
        median = statistics.median(own)
        speed, share = LENGTH * sequences / median, useful / median / top
        times = "" if name.startswith("bertwright") else format_ratio(own, fastest)
        peak = f"{turns[name][-1].peak / 1e9:.1f}"
        print_row([name, f"{speed:,.0f}", format_range(own), times, f"{share:.0%}", peak])
    measured = {name: {"seconds": own, "peak_bytes": turns[name][-1].peak} for name, own in seconds.items()}
    return {"size": size, "flop_per_step": useful, "ceiling_flops": top, "contenders": measured}


def main() -> None:
    parser = make_parser(__doc__)
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
    chosen = parser.parse_args()
    listed = contenders(supports_bfloat16(torch.device(chosen.device)), chosen.device == "cuda")
    ways = {name: way for name, way in listed.items() if not any(word in name for word in chosen.without)}
    about = f"{describe_machine(chosen.threads, chosen.device)}; {chosen.rounds} rounds"
    about += f" of {chosen.steps} steps, {chosen.sequences} × {LENGTH} tokens"
    print(about)
    tables = []
    for size in chosen.sizes:
        options = Options(size, chosen.device, chosen.sequences, chosen.threads, chosen.steps)
        tables.append(compare(ways, options, chosen.together, chosen.warmup, chosen.rounds))
        if chosen.json:  # after each size: a time limit may end this process
            report = {"about": about, "commit": commit(), "tables": tables}
            chosen.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
