"""One word in several texts: its nearest words in each of them, and a picture. Needs bertwright[plot].

    python examples/word_in_contexts.py MODEL bank bank.png "She sat on the bank of the river." "The bank lends money."

A row of the embedding matrix mixes all meanings of a word; a state of the last layer belongs to one sentence (Peters et
al. 2018, section 5.3, table 4: the neighbours of "play").
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import bertwright

NEIGHBOURS = 5


class WordContexts(NamedTuple):
    """A word in some texts that have W words in all."""

    words: list[tuple[str, int]]
    """The W words, each with the index of its text."""
    places: list[int]
    """The indices of the word, O of them."""
    cosines: np.ndarray
    """O × W between the states of the last layer at the places and at all words."""

    def nearest(self, row: int) -> list[str]:
        """Return the words nearest to one place, with their cosines; other places of the same word are left out."""
        order = [index for index in np.argsort(-self.cosines[row], kind="stable") if index not in self.places]
        return [f"{self.words[index][0]} {self.cosines[row, index]:.2f}" for index in order[:NEIGHBOURS]]


def compare_contexts(bert: bertwright.Bert, word: str, texts: Sequence[str]) -> WordContexts:
    """Compare the states of a word with the states of all words. Raises ValueError if no text contains the word."""
    split = [tuple(re.findall(r"\w+|[^\w\s]", text)) for text in texts]
    words = [(token, number) for number, tokens in enumerate(split) for token in tokens]
    places = [index for index, (token, _) in enumerate(words) if token.casefold() == word.casefold()]
    if not places:
        raise ValueError(f"{word!r}: expected a word of the texts, got none that is equal; write it as there")
    states = np.concatenate([vectors[:, 0] for vectors in bert.features(split)])
    states = states / np.linalg.norm(states, axis=1, keepdims=True)
    return WordContexts(words, places, states[places] @ states.T)


def draw(contexts: WordContexts, word: str, texts: Sequence[str]) -> Figure:
    """Draw each word by its cosines to the first two places, in the color of its text; stars are the word itself."""
    figure = Figure(figsize=(7, 7 + 0.25 * len(texts)), layout="constrained")
    panel = figure.subplots()
    across, up = contexts.cosines[:2]
    for index, (token, text) in enumerate(contexts.words):
        if not token[0].isalnum():
            continue
        is_star, color = index in contexts.places, f"C{text % 10}"
        panel.scatter(across[index], up[index], color=color, s=90 if is_star else 16, marker="*" if is_star else "o")
        panel.annotate(token, (across[index], up[index]), (4, 3), textcoords="offset points", color=color)
    for number, text in enumerate(texts):
        panel.scatter([], [], color=f"C{number % 10}", label=text)
    first, second = (contexts.words[place][1] + 1 for place in contexts.places[:2])
    panel.set_xlabel(f"cosine to {word} in text {first}")
    panel.set_ylabel(f"cosine to {word} in text {second}")
    figure.legend(loc="outside lower left", frameon=False)
    return figure


def main(model: str, word: str, picture: str, *texts: str) -> None:
    """Print the nearest words of each place, and draw the picture if there are two places."""
    contexts = compare_contexts(bertwright.load(model), word, texts)
    for row, place in enumerate(contexts.places):
        print(f"{texts[contexts.words[place][1]]}\n    {', '.join(contexts.nearest(row))}")
    if len(contexts.places) > 1:
        draw(contexts, word, texts).savefig(Path(picture), dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
