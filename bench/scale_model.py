"""Model on paper of pre-training on many GPUs: traffic per step against compute. Nothing here is measured on GPUs.

    python bench/scale_model.py [--tokens-per-second 778000]

Assumptions, printed with the table: nodes of eight GPUs; a step of one micro-batch per GPU; gradients and weights
travel as float32; BASE computes `--tokens-per-second` on one GPU (measured on an H200: docs/gpu.md), and every model
reaches the same FLOP/s; two thirds of the computing time are the backward pass. A collective runs within the nodes,
then between them, where each GPU sends an eighth of the node's share through its own adapter.
"""

from __future__ import annotations

import argparse
from datetime import date
from typing import NamedTuple

from bertwright.systems.bert.bert_config import BertConfig

NODE = 8  # GPUs
NVLINK, INFINIBAND = 360e9, 40e9  # bytes per second, each way, per GPU: 80 % of 450 GB/s (NVLink 4) and 400 Gbit/s
LATENCY = {"node": 10e-6, "network": 20e-6}  # seconds per collective in a node; per doubling of the nodes
BUCKET = 25 * 2**20  # bytes of gradients that DistributedDataParallel exchanges at once
BACKWARD = 2 / 3  # share of the computing time
MEASURED = 778_000  # tokens per second of one H200, BASE, 256 sequences of 128 tokens
LENGTH, PREDICTED, VOCABULARY = 128, 19, 30_522


class Model(NamedTuple):
    """Bytes of a model's float32 parameters, and its floating-point operations per sequence in training."""

    layers: float
    """Bytes of all Transformer layers."""
    rest: float
    """Bytes of embeddings and heads; their gradients are complete only at the end of the backward pass."""
    layer: float
    flops: float

    @property
    def bytes(self) -> float:
        return self.layers + self.rest


class Exchange(NamedTuple):
    """Communication of one step on one GPU."""

    sent: float
    """Bytes."""
    seconds: float
    exposed: float
    """Seconds in which the GPU waits, because there is nothing left to compute meanwhile."""


def make_model(size: str) -> Model:
    """Return the sizes of a named BERT with both pre-training heads."""
    config = BertConfig.from_size(size, VOCABULARY)
    h, f = config.hidden_size, config.intermediate_size
    layer = 4 * (4 * h * h + 4 * h + 2 * h * f + h + f + 4 * h)
    embeddings = h * (VOCABULARY + config.max_positions + config.type_vocab_size + 2)
    heads = (h * h + h) + (h * h + 3 * h + VOCABULARY) + (2 * h + 2)
    flops = config.count_training_flops([LENGTH], PREDICTED, pooled=True)
    return Model(layer * config.num_layers, 4 * (embeddings + heads), layer, flops)


def one_way(size: float, gpus: int) -> tuple[float, float]:
    """Return bytes sent per GPU, and seconds, of a reduce-scatter or an all-gather of `size` bytes."""
    inside, nodes = min(gpus, NODE), -(-gpus // NODE)
    in_node = size * (inside - 1) / inside
    between = size / inside * (nodes - 1) / nodes
    seconds = in_node / NVLINK + between / INFINIBAND
    return in_node + between, seconds + LATENCY["node"] + LATENCY["network"] * (nodes - 1).bit_length()


def all_reduce(size: float, gpus: int) -> tuple[float, float]:
    """Return bytes sent per GPU, and seconds, of an all-reduce: a reduce-scatter, then an all-gather."""
    sent, seconds = one_way(size, gpus)
    return 2 * sent, 2 * seconds


def exchange_gradients(model: Model, gpus: int, computing: float) -> Exchange:
    """Return the communication of DistributedDataParallel: layers during the backward pass, the rest after it."""
    buckets = max(1, round(model.layers / BUCKET))
    sent, seconds = (buckets * value for value in all_reduce(model.layers / buckets, gpus))
    last_sent, last_seconds = all_reduce(model.rest, gpus)
    exposed = max(0.0, seconds - BACKWARD * computing) + last_seconds
    return Exchange(sent + last_sent, seconds + last_seconds, exposed)


def exchange_shards(model: Model, gpus: int, computing: float) -> Exchange:
    """Return the communication of `--shard`.

    Layers are gathered in the forward and in the backward pass, each while the one before it computes, and their
    gradients are scattered in the backward pass. The rest is gathered before and scattered after everything else.
    """
    layers = round(model.layers / model.layer)
    gathered_sent, gathered = (layers * value for value in one_way(model.layer, gpus))
    rest_sent, rest = one_way(model.rest, gpus)
    first = gathered / layers
    forward = max(0.0, gathered - first - (1 - BACKWARD) * computing)
    backward = max(0.0, 2 * gathered - BACKWARD * computing)
    exposed = rest + first + forward + backward + rest
    return Exchange(3 * gathered_sent + 2 * rest_sent, 3 * gathered + 2 * rest, exposed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens-per-second", type=float, default=MEASURED, help="BASE on one GPU, measured")
    speed = parser.parse_args().tokens_per_second
    achieved = speed / LENGTH * make_model("base").flops
    print(f"{date.today()}; BASE computes {speed:,.0f} tokens/s on one GPU: {achieved / 1e12:.0f} TFLOP/s;")
    print(f"NVLink {NVLINK / 1e9:.0f}, InfiniBand {INFINIBAND / 1e9:.0f} GB/s per GPU; nodes of {NODE} GPUs\n")
    print("| model | sequences per GPU | GPUs | exchange | GB sent | ms sent | ms computed | ms waited | efficiency |")
    print("|---|---:|---:|---|---:|---:|---:|---:|---:|")
    for size in ("base", "large"):
        model = make_model(size)
        for gpus, sequences in ((8, 256), (64, 256), (512, 256), (8, 32), (64, 4)):
            computing = sequences * model.flops / achieved
            for name, exchange in (("copies", exchange_gradients), ("`--shard`", exchange_shards)):
                result = exchange(model, gpus, computing)
                efficiency = computing / (computing + result.exposed)
                times = " | ".join(f"{1e3 * s:.1f}" for s in (result.seconds, computing, result.exposed))
                row = f"{size.upper()} | {sequences} | {gpus} | {name} | {result.sent / 1e9:.2f} | {times}"
                print(f"| {row} | {efficiency:.0%} |")
    print("\n| model | GPUs | GB per GPU, copies | GB per GPU, `--shard` | and on rank 0 |")
    print("|---|---:|---:|---:|---:|")
    for size in ("base", "large"):
        model = make_model(size)
        for gpus in (8, 64, 512):
            whole = 4.5 * model.bytes  # weights, gradients, two moments, bfloat16 copies
            shard = 4 * model.bytes / gpus + 2 * model.layer + model.rest  # two layers at once, and the rest
            print(f"| {size.upper()} | {gpus} | {whole / 1e9:.1f} | {shard / 1e9:.2f} | {model.bytes / 1e9:.1f} |")


if __name__ == "__main__":
    main()
