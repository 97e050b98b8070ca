"""Names of the shapes of Transformers."""

from __future__ import annotations


def format_shape(layers: int, hidden_size: int, heads: int) -> str:
    """Format a shape in the style of Turc et al.

    >>> format_shape(2, 128, 2)
    'L2 H128 A2'
    """
    return f"L{layers} H{hidden_size} A{heads}"
