"""Times of the native kernels beside torch's own operations, as a Markdown table.

    python bench/fused_kernels.py [threads]

Each row is the least of several runs, forward and backward together, in float32 at T = 4,096 tokens. Where the machine
has bfloat16 units, a second table has what is done otherwise in bfloat16.
The last rows set one encoder layer against the matrix products in it: what is left between them is all the rest.
"""

from __future__ import annotations

import datetime
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright import native
from bertwright.models import kernels
from bertwright.models.attention import attention
from bertwright.models.kernels import AdamStep, Dropout, Norm, Tables
from bertwright.training.device import multiplies_bfloat16

TOKENS, LENGTH, VOCABULARY, MASKED, HEAD_SIZE = 4096, 128, 30522, 614, 64
DROPOUT = Dropout(0.1, seed=1)
EPS = 1e-12


def least(run: Callable[[], object], runs: int = 8) -> float:
    """Milliseconds of the fastest run."""
    run()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def step(function: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> float:
    """Milliseconds of a forward and backward pass over random inputs."""
    leaves = [(0.1 * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]
    upstream = torch.randn_like(function(*leaves))
    return least(lambda: torch.autograd.grad(function(*leaves), leaves, upstream))


def steps_of_all_lengths(dense: Callable[..., Tensor], hidden: int) -> float:
    """Milliseconds of one such pass through a dense layer H → 4H in bfloat16, for numbers of tokens seen once each."""
    weight = torch.randn(4 * hidden, hidden, dtype=torch.bfloat16, requires_grad=True)
    start, counts = time.perf_counter(), range(400, 500)
    for tokens in counts:
        x = torch.randn(tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
        y = dense(x, weight)
        torch.autograd.grad(y, (x, weight), y)
    return 1000 * (time.perf_counter() - start) / len(counts)


def kernel_rows(hidden: int) -> list[tuple[str, float, float]]:
    """(what, ours, torch's) for each kernel at one hidden size."""
    wide, heads = 4 * hidden, hidden // HEAD_SIZE
    tokens, vector = (TOKENS, hidden), (hidden,)
    labels = torch.randint(0, VOCABULARY, (MASKED,))
    starts = torch.arange(0, TOKENS + 1, LENGTH, dtype=torch.int32)
    ids = torch.randint(0, VOCABULARY, (TOKENS,)), torch.arange(TOKENS) % LENGTH, torch.randint(0, 2, (TOKENS,))
    batch = SimpleNamespace(input_ids=ids[0], position_ids=ids[1], token_type_ids=ids[2])
    tables = (VOCABULARY, hidden), (512, hidden), (2, hidden)
    numbers = AdamStep(1e-4, 0.9, 0.999, 1e-6, 0.01)
    flat = [torch.rand(VOCABULARY * hidden) for _ in range(4)]
    reference = torch.nn.Parameter(flat[0].clone())
    reference.grad = flat[1]
    optimizer = torch.optim.AdamW([reference], fused=True)

    def plain_embed(w: Tensor, p: Tensor, t: Tensor, g: Tensor, b: Tensor) -> Tensor:
        summed = F.embedding(ids[0], w) + F.embedding(ids[1], p) + F.embedding(ids[2], t)
        return F.dropout(F.layer_norm(summed, vector, g, b, EPS), 0.1)

    def plain_attention(qkv: Tensor) -> Tensor:
        parts = qkv.view(-1, LENGTH, 3, heads, HEAD_SIZE).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts, dropout_p=0.1)

    def add_norm(x: Tensor, b: Tensor, r: Tensor, g: Tensor, c: Tensor) -> Tensor:
        return kernels.add_dropout_norm(x, b, r, Norm(g, c, EPS), DROPOUT, 1)

    def plain_add_norm(x: Tensor, b: Tensor, r: Tensor, g: Tensor, c: Tensor) -> Tensor:
        return F.layer_norm(r + F.dropout(x + b, 0.1), vector, g, c, EPS)

    add_shapes = tokens, vector, tokens, vector, vector
    loss_shapes = (MASKED, hidden), (VOCABULARY, hidden), (VOCABULARY,)
    return [
        (
            "bias + GELU",
            step(lambda x, b: kernels.bias_gelu(x, b, False), (TOKENS, wide), (wide,)),
            step(lambda x, b: F.gelu(x + b), (TOKENS, wide), (wide,)),
        ),
        ("bias + dropout + residual + norm", step(add_norm, *add_shapes), step(plain_add_norm, *add_shapes)),
        (
            "embeddings + norm + dropout",
            step(
                lambda w, p, t, g, b: kernels.embed_norm(batch, Tables(w, p, t), Norm(g, b, EPS), DROPOUT, 0),
                *tables,
                vector,
                vector,
            ),
            step(plain_embed, *tables, vector, vector),
        ),
        (
            "attention with dropout, 32 × 128",
            step(lambda q: attention(q, starts, LENGTH, DROPOUT, 2), (TOKENS, 3, heads, HEAD_SIZE)),
            step(plain_attention, (TOKENS, 3, heads, HEAD_SIZE)),
        ),
        (
            "vocabulary projection + loss, 614 rows",
            step(lambda h, w, b: kernels.linear_cross_entropy(h, w, b, labels)[0], *loss_shapes),
            step(lambda h, w, b: F.cross_entropy(F.linear(h, w, b), labels, reduction="sum"), *loss_shapes),
        ),
        ("AdamW", least(lambda: kernels.adamw_(*([tensor] for tensor in flat), numbers)), least(optimizer.step)),
        ("norm of a gradient", least(lambda: kernels.gradient_norm(flat[:1])), least(lambda: flat[0].norm())),
    ]


def bfloat16_rows(hidden: int) -> list[tuple[str, float, float]]:
    """(what, ours, torch's) in bfloat16."""
    heads, half = hidden // HEAD_SIZE, torch.bfloat16
    labels = torch.randint(0, VOCABULARY, (MASKED,))
    starts = torch.arange(0, TOKENS + 1, LENGTH, dtype=torch.int32)

    def plain_attention(qkv: Tensor) -> Tensor:
        parts = qkv.view(-1, LENGTH, 3, heads, HEAD_SIZE).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts, dropout_p=0.1)

    dense = (TOKENS, hidden), (4 * hidden, hidden)
    qkv = TOKENS, 3, heads, HEAD_SIZE
    loss_shapes = (MASKED, hidden), (VOCABULARY, hidden), (VOCABULARY,)
    return [
        ("dense layer H → 4H", step(kernels.linear, *dense, dtype=half), step(F.linear, *dense, dtype=half)),
        (
            "the same for 400, 401, … 499 tokens",
            steps_of_all_lengths(kernels.linear, hidden),
            steps_of_all_lengths(F.linear, hidden),
        ),
        (
            "attention with dropout, 32 × 128",
            step(lambda q: attention(q, starts, LENGTH, DROPOUT, 2), qkv, dtype=half),
            step(plain_attention, qkv, dtype=half),
        ),
        (
            "vocabulary projection + loss, 614 rows",
            step(lambda h, w, b: kernels.linear_cross_entropy(h, w, b, labels)[0], *loss_shapes, dtype=half),
            step(lambda h, w, b: F.cross_entropy(F.linear(h, w, b), labels, reduction="sum"), *loss_shapes, dtype=half),
        ),
    ]


def layer_row(hidden: int) -> tuple[float, float]:
    """One encoder layer, and its matrix products alone."""
    heads, wide = hidden // HEAD_SIZE, 4 * hidden
    starts = torch.arange(0, TOKENS + 1, LENGTH, dtype=torch.int32)
    shapes = (3 * hidden, hidden), (hidden, hidden), (wide, hidden), (hidden, wide)

    def layer(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor, *vectors: Tensor) -> Tensor:
        bias_qkv, bias_out, bias_up, bias_down, w1, b1, w2, b2 = vectors
        packed = F.linear(x, qkv, bias_qkv).view(TOKENS, 3, heads, HEAD_SIZE)
        context = attention(packed, starts, LENGTH, DROPOUT, 1).view(TOKENS, hidden)
        x = kernels.add_dropout_norm(F.linear(context, out), bias_out, x, Norm(w1, b1, EPS), DROPOUT, 2)
        wide_states = kernels.bias_gelu(F.linear(x, up), bias_up, False)
        return kernels.add_dropout_norm(F.linear(wide_states, down), bias_down, x, Norm(w2, b2, EPS), DROPOUT, 3)

    vectors = [(3 * hidden,), (hidden,), (wide,), *[(hidden,)] * 5]
    whole = step(layer, (TOKENS, hidden), *shapes, *vectors)
    products = sum(step(F.linear, (TOKENS, shape[1]), shape) for shape in shapes)
    return whole, products


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    native.keep_freed_memory()
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("model name\t: ")[1].split("\n")[0]
    print(f"{cpu}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads; ", end="")
    print(f"torch {torch.__version__}, Python {platform.python_version()}; {datetime.date.today()}\n")
    print("| H | forward + backward, ms | ours | torch | ratio |\n|---|---|---|---|---|")
    for hidden in (256, 768):
        for what, ours, theirs in kernel_rows(hidden):
            print(f"| {hidden} | {what} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.1f}× |", flush=True)
    if multiplies_bfloat16(torch.device("cpu")):
        print("\n| H | bfloat16, forward + backward, ms | ours | torch | ratio |\n|---|---|---|---|---|")
        for hidden in (256, 768):
            for what, ours, theirs in bfloat16_rows(hidden):
                print(f"| {hidden} | {what} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.1f}× |", flush=True)
    print("\n| H | encoder layer, ms | its matrix products, ms | share |\n|---|---|---|---|")
    for hidden in (256, 512, 768):
        whole, products = layer_row(hidden)
        print(f"| {hidden} | {whole:.1f} | {products:.1f} | {100 * products / whole:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
