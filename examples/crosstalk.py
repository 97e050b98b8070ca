"""Which words the state at each place of a text depends on, in models of one and of two layers. Needs bertwright[plot].

    python examples/crosstalk.py crosstalk.png

To predict a word from both sides, a layer may attend to all places but its own (off-diagonal attention), and its query
may be the place alone. With a second layer the word sees itself: the other states, which it now reads, have read it
(Devlin et al. 2018, section 3.1). Left-to-right models have no such loop, one that reads the words again in every layer
has none either (Shin et al. 2020, T-TA), and BERT takes the word out of the input.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

WORDS, SIZE = 6, 16
BEFORE = torch.ones(WORDS, WORDS, dtype=torch.bool).tril(-1)  # row: place that predicts, column: place that it reads
OTHERS = ~torch.eye(WORDS, dtype=torch.bool)
MODELS = {  # places that are read, layers, whether every layer reads the words themselves
    "left to right,\ntwo layers": (BEFORE, 2, False),
    "both sides,\none layer": (OTHERS, 1, False),
    "both sides,\ntwo layers": (OTHERS, 2, False),
    "both sides, two layers\nthat read the words": (OTHERS, 2, True),
}


def read(words: Tensor, places: Tensor, visible: Tensor, layers: int, reads_words: bool) -> Tensor:
    """Compute the states after some layers of attention, T × H, of words and places, T × H; `visible`: T × T bool."""
    states, values = places, words
    for _ in range(layers):
        shares = torch.exp(states @ values.T / math.sqrt(SIZE)) * visible  # a softmax whose rows may be empty
        weights = shares / shares.sum(1, keepdim=True).clamp_min(1e-9)
        states = torch.tanh(places + weights @ values)
        values = words if reads_words else states
    return states


def measure(visible: Tensor, layers: int, reads_words: bool) -> Tensor:
    """Return the size of the gradient of each state in each word, T × T."""
    rng = torch.Generator().manual_seed(0)
    words, places = torch.randn(2, WORDS, SIZE, generator=rng)
    gradients = torch.autograd.functional.jacobian(
        lambda given: read(given, places, visible, layers, reads_words), words
    )  # T H T H
    return gradients.square().sum((1, 3)).sqrt()


def draw() -> Figure:
    """Draw a square per pair of places for each model: dark where the state depends on the word."""
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    for panel, (title, model) in zip(figure.subplots(1, len(MODELS)), MODELS.items(), strict=True):
        panel.imshow(measure(*model).sqrt(), cmap="Greys", vmin=0)
        panel.set_title(title, fontsize=9)
        panel.set_xticks(range(WORDS), range(1, WORDS + 1))
        panel.set_yticks(range(WORDS), range(1, WORDS + 1))
        panel.set_xlabel("word")
    figure.axes[0].set_ylabel("place that predicts its word")
    return figure


def main(picture: str) -> None:
    """Print whether some state depends on its own word, and draw the picture."""
    for title, model in MODELS.items():
        own = float(measure(*model).diagonal().max())
        print(f"{title.replace(chr(10), ' ')}: largest gradient of a state in its own word {own:.3f}")
    draw().savefig(Path(picture), dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
