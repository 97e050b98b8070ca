"""A dictionary with tensors as keys, which does not keep them alive."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Generic, TypeVar

from torch import Tensor

V = TypeVar("V")


class WeakTensorMap(Generic[V]):
    """Tensor → value, by identity, until the tensor no longer exists.

    `torch.utils.weak.WeakTensorKeyDictionary` does the same, but takes microseconds, hundreds of times per step.

    >>> import torch
    >>> sizes, tensor = WeakTensorMap[int](), torch.zeros(3)
    >>> sizes[tensor] = 3
    >>> sizes.get(tensor), sizes.get(torch.zeros(3)), len(sizes)
    (3, None, 1)
    >>> del tensor
    >>> len(sizes)
    0
    """

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[Tensor], V]] = {}

    def get(self, tensor: Tensor) -> V | None:
        """Return the value of a tensor, or None."""
        item = self._items.get(id(tensor))
        return item[1] if item is not None and item[0]() is tensor else None

    def __setitem__(self, tensor: Tensor, value: V) -> None:
        self._items[id(tensor)] = (weakref.ref(tensor, partial(self._forget, id(tensor))), value)

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        """Forget all tensors."""
        self._items.clear()

    def _forget(self, key: int, tensor: weakref.ref[Tensor]) -> None:
        """Remove a tensor that no longer exists, unless another one has its place already."""
        item = self._items.get(key)
        if item is not None and item[0] is tensor:
            del self._items[key]
