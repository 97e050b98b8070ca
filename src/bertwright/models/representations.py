"""The combinations of layers that represent a word in feature-based use (section 5.3, table 7).

This module does not import torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

RepresentationName = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
]  # fmt: skip


class Representation(NamedTuple):
    """A way to make one vector per word from an encoder's layers."""

    layers: slice
    """Selection from the embeddings, which are layer 0, and the L layers above them."""
    weighted: bool
    """True if the layers are summed with learned weights; otherwise they are concatenated."""
    paper_f1: float
    """F1 of BERT BASE on the dev set of CoNLL-2003 (table 7)."""


REPRESENTATIONS: dict[RepresentationName, Representation] = {
    "embeddings": Representation(slice(0, 1), weighted=False, paper_f1=0.910),
    "second-to-last": Representation(slice(-2, -1), weighted=False, paper_f1=0.956),
    "last": Representation(slice(-1, None), weighted=False, paper_f1=0.949),
    "sum-last-four": Representation(slice(-4, None), weighted=True, paper_f1=0.959),
    "concat-last-four": Representation(slice(-4, None), weighted=False, paper_f1=0.961),
    "sum-all": Representation(slice(1, None), weighted=True, paper_f1=0.955),
}


def select_layers(name: RepresentationName, num_layers: int) -> tuple[int, ...]:
    """Return the layers that a representation reads, ascending; 0 is the embeddings.

    >>> select_layers("sum-last-four", num_layers=12), select_layers("embeddings", num_layers=12)
    ((9, 10, 11, 12), (0,))

    Raises ValueError if the model has too few layers; the embeddings do not count as one.
    """
    layers = REPRESENTATIONS[name].layers
    if num_layers < -layers.start:
        raise ValueError(
            f"--representations: {name} needs {-layers.start} layers, got a model with {num_layers}; omit it"
        )
    return tuple(range(num_layers + 1)[layers])
