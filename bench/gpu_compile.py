"""Compile the Triton kernels of a training step of BASE for GPUs that need not be there; print registers and spills.

python bench/gpu_compile.py [--targets 80 90]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.reference import AdamStep
from environment import keep_printed

T, H, F, A, V, M, B = 32_768, 768, 3_072, 12, 30_528, 4_864, 256  # a step of BASE: 256 sequences of 128 tokens


def run_operations() -> None:
    """Run every operation forward and backward, on tensors without content."""
    from bertwright.kernels.triton import adamw_kernels, embed_norm, flash, gelu, layer_norm, softmax_loss

    def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)

    def differentiate(function: type[torch.autograd.Function], *operands: Any) -> None:
        y = function.apply(*operands)  # type: ignore[no-untyped-call]
        y.backward(torch.empty_like(y))

    def vector(size: int) -> Tensor:
        return new(size, dtype=torch.float32)

    key, integers = Dropout(0.1, 1).mask_key(1), torch.int64
    norm = (vector(H), vector(H), 1e-12)
    differentiate(gelu.BiasGelu, new(T, F), vector(F), False)
    gelu.column_sum(new(T, 3 * H))
    differentiate(layer_norm.AddDropoutNorm, new(T, H), vector(H), new(T, H), *norm, key, True)
    tables = [new(rows, H, dtype=torch.float32) for rows in (V, 512, 2)]
    differentiate(embed_norm.EmbedNorm, *tables, *norm, key, *(new(T, dtype=integers) for _ in tables))
    differentiate(embed_norm.DropoutFunction, new(T, H), key)
    for longest in (128, 512):
        sequences = (new(B + 1, dtype=torch.int32), new(B + 1, dtype=torch.int32), longest, longest)
        for bias in (None, new(A, 2 * longest - 1, dtype=torch.float32)):
            differentiate(flash.Attention, sequences, False, key, bias, new(T, 3, A, H // A))
    softmax_loss.cross_entropy_(new(M, V).detach(), vector(V - 6), new(M, dtype=integers), 1.0, vector(V - 6).detach())
    matrix = [new(V, H, dtype=torch.float32)]
    adamw_kernels.gradient_norm(matrix)
    adamw_kernels.adamw_(matrix, matrix, matrix, matrix, [new(V, H)], AdamStep(1e-4, 0.9, 0.999, 1e-6, 0.01))


def compile_kernel(kernel: Any, target: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, float]:
    """Compile a kernel for its arguments; return ptxas's report and the seconds."""
    import triton
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = binder(*arguments, **options)
    options, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialization, options)
    started = time.perf_counter()
    compiled = triton.compile(ASTSource(kernel, signature, constants, attributes), target, options.__dict__)
    seconds = time.perf_counter() - started
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        report = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return f"{report} SHARED_MEMORY:{compiled.metadata.shared}", seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", default=[80, 90], help="compute capabilities, times ten")
    targets = parser.parse_args().targets

    from triton.backends.compiler import GPUTarget

    from bertwright.kernels.triton import adamw_kernels, embed_norm, flash, gelu, layer_norm, softmax_loss

    launches: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, on: Tensor, **options: Any) -> None:
        bias = ", bias" * (kernel.__name__.startswith("attention") and arguments[5] is not None)
        launches.setdefault(f"{kernel.__name__}{bias} {options.get('num_warps', 4)}", (kernel, arguments, options))

    modules: list[Any] = [embed_norm, flash, gelu, layer_norm, adamw_kernels, softmax_loss]
    for module in modules:
        module.launch = record
    run_operations()
    keep_printed(__file__)
    print("| kernel, warps | target | registers | stack, bytes | shared memory, bytes | compilation, s |")
    print("|---|---|---:|---:|---:|---:|")
    for name, (kernel, arguments, options) in launches.items():
        for capability in targets:
            target = GPUTarget("cuda", capability, 32)
            report, seconds = compile_kernel(kernel, target, arguments, options)
            registers, stack, shared = (
                re.search(rf"{word}:(\d+)", report).group(1)  # type: ignore[union-attr]
                for word in ("REG", "STACK", "SHARED_MEMORY")
            )
            print(f"| {name} | sm_{capability} | {registers} | {stack} | {shared} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
