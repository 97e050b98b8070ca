"""Checks of the Triton kernels on the user's GPU: wrong numbers must not reach a model.

Before a process uses an operation with new sizes on a GPU for the first time, the operation computes a small random
example, forward and, in training, backward. If a number is not the reference's within rounding, or Triton fails, the
process says so once and computes everything with the reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.kernels import native_library, reference
from bertwright.kernels.dropout import MaskKey
from bertwright.kernels.ffi import triton_ops
from bertwright.kernels.reference import AdamStep, EmbeddingTables, LayerNormParams
from bertwright.kernels.triton.launch import next_power_of_2

ROWS = 64
"""Rows of an example: at least one whole tile and a part of one in most kernels."""
MAX_LENGTH = 256
"""Length of an example's longest sequence: two tiles of keys, which every longer sequence has as well."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2**-5}
"""Largest difference from the reference, relative to the largest number of the tensor."""

Example = tuple[Any, ...]
"""The operation by Triton, its reference, and the operands of both; numbers of tensors are replaced by random ones."""
_checked: set[tuple[Any, ...]] = set()


def works(name: str, like: Tensor, sizes: tuple[Any, ...], example: Callable[[], Example]) -> bool:
    """Return whether an operation may run Triton's kernel; `sizes`: everything that a kernel is compiled for."""
    signature = (name, like.device, like.dtype, torch.is_grad_enabled(), *sizes)
    if signature not in _checked and not native_library.triton_problems:
        _checked.add(signature)
        trains = torch.is_grad_enabled()
        try:
            with torch.inference_mode(False), torch.set_grad_enabled(trains), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                problem = _find_difference(*example(), trains=trains, tolerance=TOLERANCES[like.dtype])
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of Triton's compiler or launcher: many types, none of them ours
            problem = f"{type(error).__name__}: {error}"
        if problem:
            native_library.disable_triton(f"{name}, {str(like.dtype).removeprefix('torch.')}, sizes {sizes}: {problem}")
    return not native_library.triton_problems


def _find_difference(
    ours: Callable[..., Any], theirs: Callable[..., Any], *operands: Any, trains: bool, tolerance: float
) -> str:
    """Return the first result or gradient that differs from the reference, "" if all agree."""
    device = next(x.device for x in operands if isinstance(x, Tensor))
    generator = torch.Generator(device).manual_seed(0)

    def draw(shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    fresh = [draw(x.shape, x.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in operands]
    upstream: Tensor | None = None
    results = []
    for function in (ours, theirs):
        own = [x.clone().requires_grad_(trains) if x is not y else x for x, y in zip(fresh, operands, strict=True)]
        outputs = function(*own)
        results.append([outputs] if isinstance(outputs, Tensor) else list(outputs))
        if trains and isinstance(outputs, Tensor):
            upstream = draw(outputs.shape, outputs.dtype) if upstream is None else upstream
            trained = [x for x in own if isinstance(x, Tensor) and x.requires_grad]
            results[-1] += torch.autograd.grad(outputs, trained, upstream)
    for number, (result, exact) in enumerate(zip(*results, strict=True)):
        error = (result.double() - exact.double()).abs().max() / exact.double().abs().max().clamp(min=1e-30)
        if not error <= tolerance:  # also true for NaN
            kind = f"gradient {number}" if trains and number else "result"
            return f"{kind} differs by {float(error):.1e} of its largest number, expected at most {tolerance:.1e}"
    return ""


def example_rows(x: Tensor) -> Tensor:
    """Return ROWS rows in the form of a tensor's, which may have none."""
    return x.new_empty(ROWS, *x.shape[1:])


def mask_sizes(key: MaskKey) -> tuple[bool, bool]:
    return key.threshold != 0, key.positions is not None


def example_mask(key: MaskKey) -> MaskKey:
    """Return the key of an example's mask."""
    positions = key.positions
    return key._replace(positions=None if positions is None else 3 * torch.arange(ROWS, device=positions.device))


def stored(key: MaskKey, like: Tensor) -> Any:
    """Return a key as a recorded step has it, with its numbers in memory: Triton compiles another kernel for it."""
    numbers = torch.tensor([key.first_token, key.key0, key.key1], device=like.device)
    return triton_ops().store(key, numbers, key.positions)


def bias_gelu_example(x: Tensor, bias: Tensor, tanh: bool) -> Example:
    return triton_ops().BiasGelu.apply, reference.bias_gelu, example_rows(x), bias, tanh


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def dropout_example(x: Tensor, key: MaskKey) -> Example:
    return triton_ops().DropoutFunction.apply, reference.dropout, example_rows(x), example_mask(key)


def add_dropout_norm_example(x: Tensor, bias: Tensor, residual: Tensor, *rest: Any, recorded: bool = False) -> Example:
    weight, norm_bias, eps, key, saves = rest
    own_key = stored(example_mask(key), x) if recorded else example_mask(key)

    def theirs(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, norm_bias: Tensor, *_: Any) -> Tensor:
        return reference.add_dropout_norm(x, bias, residual, LayerNormParams(weight, norm_bias, eps), example_mask(key))

    numbers = (example_rows(x), bias, example_rows(residual), weight, norm_bias, eps, own_key, saves)
    return triton_ops().AddDropoutNorm.apply, theirs, *numbers


def embed_norm_example(*operands: Any) -> Example:
    """Return an example with all rows of the tables, and ids that repeat."""

    def theirs(*given: Any) -> Tensor:
        return reference.embed_norm(given[7:], EmbeddingTables(*given[:3]), LayerNormParams(*given[3:6]), given[6])

    ids = (torch.arange(ROWS, device=table.device) % min(len(table), 40) for table in operands[:3])
    return triton_ops().EmbedNorm.apply, theirs, *operands[:6], example_mask(operands[6]), *ids


def attention_length(longest: int) -> int:
    """Round the length of the longest sequence up to the length that stands for it: kernels use the same tiles."""
    return min(max(next_power_of_2(longest), 16), MAX_LENGTH)


def attention_example(
    split: Callable[..., Any],
    lengths: tuple[int, int],
    causal: bool,
    key: MaskKey,
    bias: Tensor | None,
    *operands: Tensor,
    recorded: bool = False,
) -> Example:
    """Return four packed sequences of queries and of keys, of at most these lengths."""
    own_key = stored(key, operands[0]) if recorded else key
    bounds = [torch.tensor([0, n, max(n // 3, 1), 8, n // 2 + 1]).cumsum(0).int() for n in lengths]
    rows = [int(bound[-1]) for bound in bounds]
    cu_q, cu_k = (bound.to(operands[0].device) for bound in bounds)
    sequences = (cu_q, cu_k, *lengths)
    shaped = [x.new_empty(count, *x.shape[1:]) for x, count in zip(operands, rows, strict=False)]
    own_bias = None if bias is None else bias.new_empty(len(bias), 2 * lengths[0] - 1)

    def ours(bias: Tensor | None, *given: Tensor) -> Tensor:
        result: Tensor = triton_ops().Attention.apply(sequences, causal, own_key, bias, *given)
        return result

    def theirs(bias: Tensor | None, *given: Tensor) -> Tensor:
        q, k, v = split(given)
        return reference.attention(q, k, v, *sequences, key, causal, bias)

    return ours, theirs, own_bias, *shaped


def cross_entropy_example(logits: Tensor, bias: Tensor, gradient: bool) -> Example:
    """Return logits with padding; both functions also return the gradient, its sum over rows and in padding."""

    def run(function: Callable[..., Any], columns: int) -> Callable[..., list[Tensor]]:
        def compute(logits: Tensor, bias: Tensor) -> list[Tensor]:
            labels = (logits[:, : len(bias)].float() + bias).argmax(1)
            labels[::2] = torch.arange(len(labels), device=labels.device)[::2] % len(bias)
            labels[0] = reference.IGNORED_LABEL
            logits, dbias = logits[:, :columns].clone(), torch.zeros_like(bias) if gradient else None
            losses, correct = function(logits, bias, labels, 0.25, dbias)
            padding = logits[:, len(bias) :].float().sum()
            return [losses, correct, *([] if dbias is None else [logits[:, : len(bias)], dbias, padding])]

        return compute

    rows = (logits.new_empty(ROWS, logits.shape[1]), bias)
    return run(triton_ops().cross_entropy_, logits.shape[1]), run(reference.cross_entropy_, len(bias)), *rows


def optimizer_example(like: Tensor) -> Example:
    """Return four tensors of one parameter: both functions return its norm and update, after a step that NaN skips."""
    step = AdamStep(0.01, 0.9, 0.99, 1e-6, 0.1, correction1=0.3, correction2=0.2)

    def ours(parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> list[Tensor]:
        exp_avg_sq.abs_()
        kinds, copy = [[parameter], [gradient], [exp_avg], [exp_avg_sq]], parameter.bfloat16()
        norm: Tensor = triton_ops().gradient_norm([gradient])
        for scale in (float("nan"), 0.5):
            clip_scale = torch.tensor(scale, device=gradient.device)
            triton_ops().adamw_(*kinds, [copy], step._replace(clip_scale=clip_scale))
        wrong_copies = ((copy.float() - parameter).abs() > 2**-7 * parameter.abs()).sum()
        return [norm, parameter, exp_avg, exp_avg_sq, wrong_copies]

    def theirs(parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> list[Tensor]:
        norm = reference.gradient_norm([gradient])
        reference.adamw_([parameter], [gradient], [exp_avg], [exp_avg_sq.abs_()], step._replace(clip_scale=0.5))
        return [norm, parameter, exp_avg, exp_avg_sq, torch.zeros_like(norm)]

    return ours, theirs, *(like.new_empty(150, 99) for _ in range(4))
