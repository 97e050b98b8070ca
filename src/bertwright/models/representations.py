"""The combinations of layers that represent a word in feature-based use (section 5.3, table 7).

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

RepresentationName = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all", "each-layer"
]  # fmt: skip


class Representation(NamedTuple):
    """A way to make one vector per word from an encoder's layers."""

    layers: slice
    """Selection from the embeddings, which are layer 0, and the L layers above them."""
    weighted: bool = False
    """True if the layers are summed with learned weights; otherwise they are concatenated."""


REPRESENTATIONS: dict[RepresentationName, Representation] = {
    "embeddings": Representation(slice(0, 1)),
    "second-to-last": Representation(slice(-2, -1)),
    "last": Representation(slice(-1, None)),
    "sum-last-four": Representation(slice(-4, None), weighted=True),
    "concat-last-four": Representation(slice(-4, None)),
    "sum-all": Representation(slice(1, None), weighted=True),
}


def single_layers(num_layers: int) -> dict[str, Representation]:
    """Return the representations by one layer, from the embeddings to the last layer.

    >>> list(single_layers(2))
    ['embeddings', 'layer-1', 'layer-2']
    """
    above = {f"layer-{number}": Representation(slice(number, number + 1)) for number in range(1, num_layers + 1)}
    return {"embeddings": REPRESENTATIONS["embeddings"]} | above


def expand_representations(names: Iterable[RepresentationName], num_layers: int) -> dict[str, Representation]:
    """Return representations by name, each once, in order; "each-layer" stands for all of `single_layers`.

    Raises ValueError if the model has too few layers; the embeddings do not count as one.
    """
    expanded: dict[str, Representation] = {}
    for given in names:
        expanded |= single_layers(num_layers) if given == "each-layer" else {given: REPRESENTATIONS[given]}
    for name, (layers, _) in expanded.items():
        if num_layers < -layers.start:
            raise ValueError(
                f"--representations: {name} needs {-layers.start} layers, got a model with {num_layers}; omit it"
            )
    return expanded


def select_layers(representation: Representation, num_layers: int) -> tuple[int, ...]:
    """Return the layers that a representation reads, ascending; 0 is the embeddings.

    >>> select_layers(REPRESENTATIONS["sum-last-four"], num_layers=12), select_layers(single_layers(2)["layer-1"], 2)
    ((9, 10, 11, 12), (1,))
    """
    return tuple(range(num_layers + 1)[representation.layers])
