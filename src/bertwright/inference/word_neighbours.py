"""One word in several contexts: its nearest words in each of them, beside the neighbours of its static vector.

A static vector, a row of the embedding matrix, mixes all meanings of a word; the states of the last layer depend on the
sentence (Peters et al. 2018, section 5.3, table 4: the neighbours of "play").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertwright.inference.bert import Bert
from bertwright.inference.python_inputs import tag_example
from bertwright.vocabulary.vector_formats import Vectors, unit_rows

STATIC = "embeddings.word.weight"  # name of the embedding matrix in an encoder that has one


class Neighbour(NamedTuple):
    """A word near another one."""

    word: str
    text: int | None
    """Index of its text; None for a token of the vocabulary."""
    cosine: float


class Occurrence(NamedTuple):
    """A place of a word in a text, with the nearest words of all texts."""

    text: int
    place: int
    """Index among the words of all texts."""
    neighbours: list[Neighbour]


class WordContexts(NamedTuple):
    """A word in some texts."""

    words: list[tuple[str, int]]
    """All words of the texts, with the index of their text."""
    static: list[Neighbour]
    """Nearest tokens of the vocabulary to the word's first token; empty if the model has no vector of it."""
    occurrences: list[Occurrence]
    """In the order of the texts."""
    cosines: Vectors
    """O × W between the states of the occurrences and of all words."""


def find_neighbours(bert: Bert, word: str, texts: Sequence[str], top_k: int = 5) -> WordContexts:
    """Compare a word's states in some texts with the states of all other words there.

    Upper and lower case count as equal. Raises ValueError if no text contains the word as one word.
    """
    words = [tag_example(text, f"text {index}").words for index, text in enumerate(texts)]
    places = [(text, number) for number, row in enumerate(words) for text in row]
    found = [index for index, (text, _) in enumerate(places) if text.casefold() == word.casefold()]
    if not found:
        raise ValueError(f"--word {word!r}: expected a word of the texts, got none that is equal; write it as there")
    states = unit_rows(np.concatenate([vectors[:, 0] for vectors in bert.features(list(texts))]))  # words × H
    occurrences, cosines = [], states[found] @ states.T  # O × W
    for index, row in zip(found, cosines, strict=True):
        order = [n for n in np.argsort(-row, kind="stable").tolist() if n not in found][:top_k]
        near = [Neighbour(places[n][0], places[n][1], float(row[n])) for n in order]
        occurrences.append(Occurrence(places[index][1], index, near))
    return WordContexts(places, _find_static(bert, word, top_k), occurrences, cosines)


def _find_static(bert: Bert, word: str, top_k: int) -> list[Neighbour]:
    """Return the nearest tokens of the vocabulary to the first token of a word."""
    weights = dict(bert.model.encoder.named_parameters()).get(STATIC)
    ids = bert.tokenizer.encode_numbers([word]).ids
    if weights is None or not len(ids) or ids[0] == bert.tokenizer.unk_id:
        return []
    vectors = unit_rows(weights.detach().float().cpu().numpy())
    token = int(ids[0])
    cosines = vectors @ vectors[token]
    hidden = {token, *bert.tokenizer.special_ids}
    order = [n for n in np.argsort(-cosines, kind="stable").tolist() if n not in hidden][:top_k]
    return [Neighbour(bert.tokenizer.token(n), None, float(cosines[n])) for n in order]
