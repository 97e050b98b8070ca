"""Filling [MASK]s: which windows the model reads, and what a text looks like with the answers in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertwright.batching.batch import Batch, pack
from bertwright.vocabulary.tokenizer import Encoding, Ids
from bertwright.vocabulary.tokenizer_files import CONTINUATION


class TokenCandidate(NamedTuple):
    """One answer to one [MASK]."""

    token: str
    probability: float


class Filled(NamedTuple):
    """A text's [MASK]s, answered."""

    text: str
    """The text with the likeliest token in each place."""
    masks: tuple[tuple[TokenCandidate, ...], ...]
    """For each [MASK], in the text's order, its candidates, likeliest first."""


class Questions(NamedTuple):
    """What the model is asked: a batch, and where its [MASK]s are."""

    batch: Batch
    positions: list[int]  # one for each [MASK] of the text, into the batch's tokens


def questions(encoding: Encoding, places: Sequence[int], max_positions: int) -> Questions:
    """The whole text where it fits; else, for each [MASK] of its own, the window with that [MASK] in the middle.

    `places` are the [MASK]s' places in the encoding. Other [MASK]s in a window stay masked, as in training.
    """
    if len(encoding) <= max_positions:
        return Questions(pack([encoding.ids]), list(places))
    room = max_positions - 2
    pieces: list[Ids] = []
    positions: list[int] = []
    for place in places:
        first = min(max(place - room // 2, 1), len(encoding) - 1 - room)
        positions.append(len(pieces) * max_positions + place - first + 1)
        pieces.append(np.concatenate([encoding.ids[:1], encoding.ids[first : first + room], encoding.ids[-1:]]))
    return Questions(pack(pieces), positions)


def fill(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[str]) -> str:
    """Put tokens in place of character spans; a continuation joins the word before it.

    >>> fill("He [MASK] the play [MASK].", [(3, 9), (19, 25)], ["saw", "##ers"])
    'He saw the players.'
    """
    done, parts = 0, []
    for (first, last), token in zip(spans, tokens, strict=True):
        before = text[done:first]
        goes_on = token.startswith(CONTINUATION)
        parts += [before.rstrip() if goes_on else before, token.removeprefix(CONTINUATION)]
        done = last
    return "".join([*parts, text[done:]])
