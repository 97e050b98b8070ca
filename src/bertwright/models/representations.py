"""The combinations of layers that represent a word in feature-based use (section 5.3, table 7), without torch."""

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
    paper: float
    """F1 of BERT BASE on the dev set of CoNLL-2003 (table 7)."""


REPRESENTATIONS: dict[RepresentationName, Representation] = {
    "embeddings": Representation(slice(0, 1), weighted=False, paper=0.910),
    "second-to-last": Representation(slice(-2, -1), weighted=False, paper=0.956),
    "last": Representation(slice(-1, None), weighted=False, paper=0.949),
    "sum-last-four": Representation(slice(-4, None), weighted=True, paper=0.959),
    "concat-last-four": Representation(slice(-4, None), weighted=False, paper=0.961),
    "sum-all": Representation(slice(1, None), weighted=True, paper=0.955),
}


def layers_of(name: RepresentationName, num_layers: int) -> tuple[int, ...]:
    """Return the layers that a representation reads, ascending; 0 is the embeddings.

    >>> layers_of("sum-last-four", num_layers=12), layers_of("embeddings", num_layers=12)
    ((9, 10, 11, 12), (0,))

    Raises ValueError if the model has too few layers; the embeddings do not count as one.
    """
    layers = REPRESENTATIONS[name].layers
    if num_layers < -layers.start:
        raise ValueError(
            f'"{name}" needs {-layers.start} layers, this model has {num_layers}; leave it out of --representations'
        )
    return tuple(range(num_layers + 1)[layers])
