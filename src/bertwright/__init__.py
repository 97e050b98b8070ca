"""BERT, whole: raw text to vocabulary, to pre-training, to filled masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertwright.inference.model import Bert, load

__all__ = ["Bert", "load"]


def __getattr__(name: str) -> Any:
    # On first use: importing torch takes seconds, which `bertwright --help` and the corpus stages need not wait for.
    if name in __all__:
        from bertwright.inference import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
