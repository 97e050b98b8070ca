"""Times of the Triton kernels on a GPU: beside PyTorch, eager and compiled; tiles of attention; a profile of a step.

    python bench/gpu_kernels.py [--parts operations tiles profile] [--out FOLDER]

Sizes are those of BASE with 256 sequences of 128 tokens, in bfloat16. GB/s counts the fewest bytes that a kernel must
read and write. Without a GPU, small sizes run in Triton's interpreter, to try the script.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if not ON_GPU:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    importlib.import_module("interpreted_triton")

from bertwright.kernels import attention as attention_module
from bertwright.kernels import reference
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.reference import AdamStep
from bertwright.kernels.triton import adamw_kernels, flash, gelu, layer_norm, ops
from environment import append_result, describe_machine, make_parser

B, S, H, A, V, M = (256, 128, 768, 12, 30_522, 4_864) if ON_GPU else (2, 16, 32, 2, 100, 5)
T, F_SIZE, HALF = B * S, 4 * H, torch.bfloat16
KEY = Dropout(0.1, 1).mask_key(1)


def milliseconds(run: Callable[[], object], rounds: int = 20) -> float:
    """Measure the GPU's median time of a run, without the CPU's for starting it; the GPU's caches are overwritten."""
    if not ON_GPU:
        run()
        return float("nan")
    for _ in range(3):
        run()
    cache, times = torch.empty(2**27, dtype=torch.uint8, device=DEVICE), []
    for _ in range(rounds):
        cache.zero_()
        torch.cuda._sleep(2_000_000)  # a millisecond, in which the CPU queues the run
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(statistics.median(times))


def normal(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


def passes(function: Callable[..., Tensor], *operands: Any) -> tuple[float, float]:
    """Measure a forward pass, and a forward and backward pass."""
    trained = [x for x in operands if isinstance(x, Tensor) and x.requires_grad]
    y = function(*operands)
    upstream = torch.randn_like(y)
    forward = milliseconds(lambda: function(*operands))
    return forward, milliseconds(lambda: torch.autograd.grad(function(*operands), trained, upstream))


def try_passes(function: Callable[..., Tensor], *operands: Any) -> tuple[float, float] | str:
    try:
        return passes(function, *operands)
    except Exception as error:  # a contender may lack a kernel, or memory
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


def report(file: TextIO, *cells: object) -> None:
    row = " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)
    for target in (file, sys.stdout):
        print(f"| {row} |", file=target, flush=True)


def header(file: TextIO, *names: str) -> None:
    report(file, *names)
    report(file, *("---" for _ in names))


def measure_operations(file: TextIO) -> None:
    vector = partial(normal, dtype=torch.float32)
    norm = (vector(H), vector(H))
    bound = T * H * 2  # bytes of the states
    header(file, "operation", "forward, ms", "GB/s", "both, ms", "GB/s", "PyTorch eager, both", "torch.compile, both")

    def row(name: str, sizes: tuple[float, float], ours: Any, theirs: Any, *operands: Any) -> None:
        forward, both = passes(ours, *operands)
        compiled = torch.compile(theirs) if ON_GPU else theirs
        others = [try_passes(function, *operands) for function in (theirs, compiled)]
        shown = [other if isinstance(other, str) else other[1] for other in others]
        report(file, name, forward, sizes[0] / forward / 1e6, both, sum(sizes) / both / 1e6, *shown)

    def add_norm(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(residual + F.dropout(x + bias.to(x.dtype), 0.1), (H,), weight.to(HALF), shift.to(HALF))

    row(
        "bias + GELU",
        (8 * bound, 12 * bound),
        lambda x, b: ops.BiasGelu.apply(x, b, False),
        lambda x, b: F.gelu(x + b.to(x.dtype)),
        normal(T, F_SIZE),
        vector(F_SIZE),
    )
    row(
        "dropout + residual + LayerNorm",
        (4 * bound, 4 * bound),
        lambda *x: ops.AddDropoutNorm.apply(*x, 1e-12, KEY, True),
        add_norm,
        normal(T, H),
        vector(H),
        normal(T, H),
        *norm,
    )
    ids = tuple(torch.randint(size, (T,), device=DEVICE) for size in (V, S, 2))

    def embed(*given: Tensor) -> Tensor:
        states = sum(F.embedding(i, table) for i, table in zip(ids, given[:3], strict=True))
        return F.dropout(F.layer_norm(states, (H,), *given[3:]), 0.1)  # type: ignore[arg-type]

    row(
        "embeddings + LayerNorm + dropout",
        (4 * bound, 6 * bound),
        lambda *x: ops.EmbedNorm.apply(*x, 1e-12, KEY, *ids),
        embed,
        *(vector(size, H) for size in (V, 512, 2)),
        *norm,
    )
    for length in (S, 4 * S):
        cu_seqlens = torch.arange(0, T + 1, length, device=DEVICE, dtype=torch.int32)
        sequences, qkv = (cu_seqlens, cu_seqlens, length, length), normal(T, 3, A, H // A)

        def flash_packed(x: Tensor, offsets: Any = sequences) -> Tensor:
            return attention_module.cuda_attention(attention_module.split((x,)), offsets, Dropout(0.1, 1), 1, False)

        def by_backend(backend: Any, size: int, x: Tensor) -> Tensor:
            q, k, v = x.view(-1, size, 3, A, H // A).permute(2, 0, 3, 1, 4)
            with torch.nn.attention.sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

        def ours(x: Tensor, offsets: Any = sequences) -> Tensor:
            return ops.Attention.apply(offsets, False, KEY, None, x)

        forward, both = passes(ours, qkv)
        named = (f"attention, {length} tokens", forward, 4 * bound / forward / 1e6, both, 12 * bound / both / 1e6)
        backends = torch.nn.attention.SDPBackend
        contenders = [flash_packed] + [
            partial(by_backend, backend, length) for backend in (backends.FLASH_ATTENTION, backends.CUDNN_ATTENTION)
        ]
        others = [try_passes(function, qkv) for function in contenders] if ON_GPU else []
        texts = [other if isinstance(other, str) else f"{other[0]:.3f} / {other[1]:.3f}" for other in others]
        report(file, *named, "forward / both of flash packed, flash, cuDNN:", *texts)

    logits, labels = normal(M, -(-V // 64) * 64).detach(), torch.randint(V, (M,), device=DEVICE)
    bias = torch.zeros(V, device=DEVICE)
    spent = milliseconds(lambda: ops.cross_entropy_(logits, bias, labels, 1.0, torch.zeros_like(bias)))
    report(file, "cross entropy and its gradient", "", "", spent, 3 * logits.numel() * 2 / spent / 1e6, "", "")
    dense = normal(T, 3 * H)
    spent = milliseconds(lambda: ops.column_sum(dense))
    theirs = milliseconds(lambda: dense.sum(0, dtype=torch.float32))
    report(file, "column sums", "", "", spent, dense.numel() * 2 / spent / 1e6, theirs, "")

    shapes = [(V, H), (512, H), *[(3 * H, H), (H, H), (4 * H, H), (H, 4 * H), (H,), (4 * H,)] * 12]
    kinds = [[torch.rand(shape, device=DEVICE) for shape in shapes] for _ in range(4)]
    copies = [parameter.to(HALF) for parameter in kinds[0]]
    size = sum(parameter.numel() for parameter in kinds[0])
    step = AdamStep(1e-4, 0.9, 0.999, 1e-6, 0.01)
    spent = milliseconds(lambda: adamw_kernels.adamw_(*kinds, copies, step))  # type: ignore[call-arg,arg-type]
    states = [torch.ones((), device=DEVICE) for _ in shapes]
    fused = partial(torch._fused_adamw_, *kinds, [], states, lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.01)
    theirs = milliseconds(lambda: fused(eps=1e-6, amsgrad=False, maximize=False)) if ON_GPU else 0.0
    report(
        file, "AdamW with bfloat16 copies", "", "", spent, 30 * size / spent / 1e6, theirs, "(fused, without copies)"
    )
    norms = ops.gradient_norm, reference.gradient_norm
    spent, theirs = (milliseconds(partial(function, kinds[1])) for function in norms)
    report(file, "norm of all gradients", "", "", spent, 4 * size / spent / 1e6, theirs, "")


def measure_tiles(file: TextIO) -> None:
    """Time kernels with other tiles, warps and programs."""
    header(file, "kernel", "tile", "ms")

    def row(name: str, choice: object, run: Callable[[], object]) -> None:
        try:
            report(file, name, choice, milliseconds(run, rounds=10))
        except Exception as error:  # a choice may need too much shared memory
            report(file, name, choice, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}")

    x, residual = normal(T, H).detach(), normal(T, H).detach()
    vectors = [normal(H, dtype=torch.float32).detach() for _ in range(3)]
    norm = (vectors[0], vectors[1], 1e-12)
    tiles = layer_norm.FORWARD, layer_norm.BACKWARD, layer_norm.PROGRAMS
    shapes = [(1024, 1), (1024, 2), (1024, 4), (2048, 4), (4096, 4), (4096, 8)]
    _, summed, moments = layer_norm.add_dropout_norm(x, vectors[2], residual, norm, KEY, True)
    assert summed is not None
    assert moments is not None
    for shape in shapes:
        layer_norm.FORWARD = layer_norm.BACKWARD = layer_norm.Tile(*shape)
        forward = partial(layer_norm.add_dropout_norm, x, vectors[2], residual, norm, KEY, True)
        row("LayerNorm, forward", shape, forward)
        for programs in (528, 1056, 2112):
            layer_norm.PROGRAMS = programs
            backward = partial(layer_norm.add_dropout_norm_backward, summed, moments, vectors[0], x, KEY)
            row("LayerNorm, backward", (*shape, programs), backward)
    layer_norm.FORWARD, layer_norm.BACKWARD, layer_norm.PROGRAMS = tiles

    wide, dwide = normal(T, F_SIZE).detach(), normal(T, F_SIZE).detach()
    bias = normal(F_SIZE, dtype=torch.float32).detach()
    sizes = gelu.ROWS, gelu.COLUMNS, gelu.TILES
    for sizes_of_tile in [(4, 512, 16), (2, 1024, 16), (8, 256, 16), (2, 512, 32), (8, 512, 8), (1, 1024, 64)]:
        gelu.ROWS, gelu.COLUMNS, gelu.TILES = sizes_of_tile
        row("GELU, forward", sizes_of_tile, partial(gelu.bias_gelu, wide, bias, False))
        row("GELU, backward", sizes_of_tile, partial(gelu.bias_gelu_backward, wide, bias, dwide, False))
        row("column sums", sizes_of_tile, partial(gelu.column_sum, wide))
    gelu.ROWS, gelu.COLUMNS, gelu.TILES = sizes

    forward_choices = [(128, 128, 8, 2), (128, 128, 4, 2), (64, 128, 4, 2), (128, 64, 4, 2), (64, 64, 4, 2)]
    backward_choices = [
        (64, 128, 8, 2),
        (64, 128, 4, 2),
        (32, 128, 4, 2),
        (32, 128, 8, 2),
        (64, 128, 8, 1),
        (64, 64, 4, 2),
    ]
    chosen = flash.forward_blocks, flash.backward_blocks
    for length in (S, 4 * S):
        cu_seqlens = torch.arange(0, T + 1, length, device=DEVICE, dtype=torch.int32)
        qkv, dout = normal(T, 3, A, H // A).detach(), normal(T, A, H // A).detach()
        operands = ((cu_seqlens, cu_seqlens, length, length), False, KEY, [qkv])
        out, lse = flash.attention(*operands)
        for choice in forward_choices:
            blocks = flash.Blocks(*choice) if ON_GPU else flash.Blocks(16, 16, 4, 1)
            flash.forward_blocks = lambda *of, b=blocks: b
            row(f"attention {length}, forward", choice, partial(flash.attention, *operands))
        for choice in backward_choices:
            blocks = flash.Blocks(*choice) if ON_GPU else flash.Blocks(16, 16, 4, 1)
            flash.backward_blocks = lambda *of, b=blocks: b
            row(f"attention {length}, backward", choice, partial(flash.attention_backward, *operands, out, lse, dout))
        flash.forward_blocks, flash.backward_blocks = chosen


def profile_step(file: TextIO) -> None:
    """Print the time of a step, how much of it the GPU works, and where that time goes, by kernel."""
    from torch.profiler import DeviceType, ProfilerActivity, profile

    import pretraining

    def train(sequences: int) -> Callable[[int], float]:
        """Prepare a model; return a function that makes steps, and returns the milliseconds of one."""
        size = "base" if ON_GPU else "tiny"
        namespace = argparse.Namespace(device=DEVICE, size=size, sequences=sequences, threads=8, bfloat16=True)
        step = pretraining.ours(namespace)

        def run(steps: int) -> float:
            started = time.perf_counter()
            for _ in range(steps):
                read = step(0.0)
            read()
            return 1000 * (time.perf_counter() - started) / steps

        return run

    run = train(B)
    first, steps = run(1), 20 if ON_GPU else 1
    run(max(steps // 4, 1))
    milliseconds_per_step = run(steps)
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * ON_GPU]
    with profile(activities=activities) as profiler:
        run(3)
    device = DeviceType.CUDA if ON_GPU else DeviceType.CPU
    events = [event for event in profiler.key_averages() if event.device_type == device]
    attribute = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    times = {event.key: (getattr(event, attribute) / 3000, event.count / 3) for event in events}
    busy, launches = (sum(column) for column in zip(*times.values(), strict=True))
    small = train(2)
    small(3)
    print(f"with 2 sequences, {small(steps):.2f} ms per step: mostly the CPU's, to start the kernels", file=file)
    print(f"first step {first / 1000:.1f} s; then {milliseconds_per_step:.2f} ms per step", file=file)
    print(f"the GPU works for {busy:.2f} ms of it, on {launches:.0f} kernels\n", file=file)
    header(file, "kernel", "ms per step", "launches per step")
    for name in sorted(times, key=lambda name: -times[name][0])[:60]:
        report(file, name.replace("|", "/")[:100], *times[name])


def main() -> None:
    parser = make_parser(__doc__)
    parts = {"operations": measure_operations, "tiles": measure_tiles, "profile": profile_step}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for part in chosen.parts:
        with (chosen.out / f"gpu-{part}.md").open("w", encoding="utf-8") as file:
            print(describe_machine(device=DEVICE), "\n", file=file)
            parts[part](file)
        printed = (chosen.out / f"gpu-{part}.md").read_text(encoding="utf-8").splitlines()
        append_result(chosen.out / "gpu_kernels.jsonl", {"part": part, "printed": printed}, device=DEVICE)


if __name__ == "__main__":
    main()
