"""Building of a model whose configuration comes from somebody else's file, without memory for its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from bertwright.base.messages import first_line
from bertwright.interop.model_files import CONFIG

M = TypeVar("M")
NEW_PARAMETERS = 1_000  # more than a new head has, beside the parameters that a file has


def build_on_meta(build: Callable[[], M], num_tensors: int, path: Path) -> M:
    """Build a model on the meta device: its parameters have shapes, but no numbers and no memory.

    `num_tensors`: of the file at `path` that holds the weights. Raises ValueError for a configuration with far more
    parameters than that, which may name any number of layers, and for sizes beyond what torch can count.
    """
    try:
        with torch.device("meta"), _NoInit(), _limited_parameters(num_tensors + NEW_PARAMETERS):
            return build()
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"{path}: the sizes in {CONFIG} do not fit the weights ({first_line(error)}); copy both again"
        ) from None


def give_memory(model: nn.Module, name: str) -> None:
    """Replace a parameter or buffer on the meta device by zeros in memory.

    torch's own `Module.to_empty` imports sympy, which takes a second.
    """
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    tensor = getattr(module, leaf)
    zeros = torch.zeros(tensor.shape)
    setattr(module, leaf, nn.Parameter(zeros, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else zeros)


@contextmanager
def _limited_parameters(limit: int) -> Iterator[None]:
    """Raise OverflowError when modules have registered more parameters than `limit`."""
    count = 0

    def hook(module: Any, name: str, parameter: Any) -> None:
        nonlocal count
        count += 1
        if count > limit:
            raise OverflowError(f"more than {limit:,} parameters")

    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class _NoInit(TorchFunctionMode):
    """Skip torch.nn's initialization of weights: on the meta device it imports torch._refs and sympy, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
