"""Lets Triton's interpreter run kernels on CPU tensors; import it before the kernels."""

from __future__ import annotations

import os
from typing import Any

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Device of the tensors: on a machine with a GPU, the same tests run the compiled kernels."""

if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read by Triton when a kernel is defined
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
        """Patch Triton's tensors as Triton does, but convert arrays of one element to indices, which NumPy 2.4 rejects."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch_lang_tensor
