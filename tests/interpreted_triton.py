"""Lets Triton's interpreter run kernels on CPU tensors; imported before Triton, which reads the variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import pytest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Device of the tensors: on a machine with a GPU, the same tests run the compiled kernels."""

if DEVICE == "cpu" and find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime import interpreter

    _patch, _create_dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
        """Patch tensors as Triton does, but convert arrays of one element to indices, which NumPy 2.4 rejects."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch_lang_tensor

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        """Multiply bfloat16 as float32: the interpreter would multiply their bits as integers."""
        wide = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return _create_dot(self, *wide, *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


DISPATCHERS = {
    "use_triton": ("fused_ops", "linear_cross_entropy", "adamw", "fused_encoder", "attention", "gpu_linear"),
    "use_native": ("fused_ops", "linear_cross_entropy", "adamw", "attention"),
    "is_native_bf16": ("fused_ops", "linear_cross_entropy"),
}


def take_for_gpu(patch: pytest.MonkeyPatch, use_triton: Callable[..., bool]) -> None:
    """Let the dispatchers of the kernels take every tensor for one on a GPU."""
    for name, modules in DISPATCHERS.items():
        for module in modules:
            replaced = use_triton if name == "use_triton" else lambda *tensors: False
            patch.setattr(import_module(f"bertwright.kernels.{module}"), name, replaced)
    patch.setattr(import_module("bertwright.training.optimizer"), "use_triton", use_triton)
