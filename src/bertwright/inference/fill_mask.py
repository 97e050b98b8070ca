"""Filling [MASK]s: which windows the model reads, and what a text looks like with the answers in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertwright.batching.batch import Batch, offsets_from_lengths, pack
from bertwright.vocabulary.tokenizer import Encoding, Ids
from bertwright.vocabulary.tokenizer_io import CONTINUATION

MAX_BATCH_TOKENS = 8_192  # tokens: bounds memory, and changes no answer


class TokenCandidate(NamedTuple):
    """One answer to one [MASK]."""

    token: str
    probability: float


class MaskPrediction(NamedTuple):
    """A text's [MASK]s, answered."""

    text: str
    """The text with the likeliest token in each place."""
    masks: tuple[tuple[TokenCandidate, ...], ...]
    """For each [MASK], in the text's order, its candidates, likeliest first."""


class Window(NamedTuple):
    """What the model reads at once, and which of it is asked for."""

    ids: Ids
    masks: list[int]  # places of the [MASK]s to answer


class MaskBatch(NamedTuple):
    """What the model is asked: a batch, and where its [MASK]s are."""

    batch: Batch
    positions: list[int]  # one for each [MASK] to answer, in order, into the batch's tokens


def windows(encoding: Encoding, masks: Sequence[int], max_positions: int) -> Iterator[Window]:
    """The whole text where it fits; else, for each [MASK] of its own, the window with that [MASK] in the middle.

    `masks` are the [MASK]s' places in the encoding. Other [MASK]s in a window stay masked, as in training.
    """
    if len(encoding) <= max_positions:
        yield Window(encoding.ids, list(masks))
        return
    room = max_positions - 2
    for place in masks:
        first = min(max(place - room // 2, 1), len(encoding) - 1 - room)
        ids = np.concatenate([encoding.ids[:1], encoding.ids[first : first + room], encoding.ids[-1:]])
        yield Window(ids, [place - first + 1])


def batch_windows(read: Iterable[Window]) -> Iterator[MaskBatch]:
    """Windows in batches, in order, of at most AT_ONCE tokens or of one window."""
    held: list[Window] = []
    size = 0
    for window in read:
        if held and size + len(window.ids) > MAX_BATCH_TOKENS:
            yield _asked(held)
            held, size = [], 0
        held.append(window)
        size += len(window.ids)
    if held:
        yield _asked(held)


def _asked(held: Sequence[Window]) -> MaskBatch:
    begins = offsets_from_lengths(np.array([len(window.ids) for window in held]))
    positions = [int(begin) + place for begin, window in zip(begins, held, strict=False) for place in window.masks]
    return MaskBatch(pack([window.ids for window in held]), positions)


def trim_span(text: str, first: int, last: int) -> tuple[int, int]:
    """A [MASK]'s span without the spaces around, which belong to it where a folder's tokenizer says lstrip or rstrip.

    >>> trim_span("a [MASK] b", 1, 9)
    (2, 8)
    """
    span = text[first:last]
    return last - len(span.lstrip()), first + len(span.rstrip())


def replace_spans(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[str]) -> str:
    """Put tokens in place of character spans; a continuation joins the word before it.

    >>> replace_spans("He [MASK] the play [MASK].", [(3, 9), (19, 25)], ["saw", "##ers"])
    'He saw the players.'
    """
    done, parts = 0, []
    for (first, last), token in zip(spans, tokens, strict=True):
        before = text[done:first]
        goes_on = token.startswith(CONTINUATION)
        parts += [before.rstrip() if goes_on else before, token.removeprefix(CONTINUATION)]
        done = last
    return "".join([*parts, text[done:]])
