"""Picture of one word in several contexts: each word of the texts by its nearness to the first two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertwright.base.optional import needs
from bertwright.inference.picture_fonts import text_style
from bertwright.inference.word_neighbours import WordContexts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE_INCHES, LINE_INCHES = 7.0, 0.25
STATIC = 3  # neighbours of the static vector that are written


def draw_contexts(contexts: WordContexts, word: str, texts: Sequence[str]) -> Figure:
    """Draw a point for each word of the texts, in the color of its text, and a star for each place of the word.

    The axes are the cosines to the word's first two places, so a word below the diagonal is nearer to the first one.
    Raises ValueError if the texts contain the word once.
    """
    with needs("plot", "a picture"):
        from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    if len(contexts.occurrences) < 2:
        raise ValueError(f"--word {word!r}: expected it in two texts for a picture, got one place; add a text with it")
    first, second = (occurrence.text + 1 for occurrence in contexts.occurrences[:2])
    across, up = contexts.cosines[:2]
    smallest = min(across.min(), up.min())
    figure = Figure(figsize=(SIDE_INCHES, SIDE_INCHES + LINE_INCHES * (len(texts) + 2)), layout="constrained")
    panel = figure.subplots()
    panel.plot([smallest, 1], [smallest, 1], color="0.8", linewidth=1, zorder=0)
    stars = {occurrence.place for occurrence in contexts.occurrences}
    for index, (text, number) in enumerate(contexts.words):
        if not any(map(str.isalnum, text)):  # punctuation
            continue
        is_star, color = index in stars, f"C{number % 10}"
        panel.scatter(across[index], up[index], color=color, s=90 if is_star else 16, marker="*" if is_star else "o")
        panel.annotate(
            text, (across[index], up[index]), xytext=(4, 3), textcoords="offset points", color=color,
            **text_style("medium" if is_star else "small"),
        )  # fmt: skip
    panel.margins(0.12, 0.06)  # room for the words beside the points
    panel.set_xlabel(f"cosine to {word} in text {first}", **text_style("medium"))
    panel.set_ylabel(f"cosine to {word} in text {second}", **text_style("medium"))
    for number, text in enumerate(texts):
        panel.scatter([], [], color=f"C{number % 10}", s=16, label=f"{number + 1}  {text}")
    near = ", ".join(neighbour.word for neighbour in contexts.static[:STATIC])
    legend = figure.legend(
        loc="outside lower left", frameon=False, title=f"static vector: near {near}" if near else None
    )
    for entry in legend.get_texts():
        entry.update(text_style("small"))
    return figure
