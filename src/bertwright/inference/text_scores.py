"""How probable texts are to a left-to-right language model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bertwright.base.ragged import offsets_from_lengths
from bertwright.models.encoder import EncoderModel
from bertwright.models.packing import make_input
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import TextTokenizer

BATCH_WINDOWS = 16  # bounds memory and changes no result


class TextScore(NamedTuple):
    """The probability of a text."""

    log_probability: float
    """Sum of the logarithms of its tokens' probabilities, each given the tokens before it, in nats."""
    tokens: int
    """Number of these tokens; the first token that the model reads is given, not predicted."""

    @property
    def perplexity(self) -> float:
        """The inverse of the tokens' mean probability (geometric).

        >>> round(TextScore(3 * math.log(1 / 8), 3).perplexity, 6)
        8.0
        """
        return math.exp(min(-self.log_probability / max(self.tokens, 1), 700))


class _Window(NamedTuple):
    """A part of a text that the model reads: tokens from `begin` to `end`; it predicts the tokens from `first`."""

    text: int
    begin: int
    first: int
    end: int


def score_texts(model: EncoderModel, tokenizer: TextTokenizer, texts: Sequence[str]) -> list[TextScore]:
    """Score each text; one with more tokens than positions is read in windows, each half of the positions further on.

    Raises ValueError for a text without a token to predict, and for a model that is no left-to-right language model.
    """
    encoded = tokenizer.encode_ids(texts) if model.reads_marks else tokenizer.encode_raw(texts)
    sizes = np.diff(encoded.offsets).tolist()
    for number, size in enumerate(sizes):
        if size < 2:
            raise ValueError(f"text {number}: expected at least 2 tokens, one to read and one to predict, got {size}")
    bounds = enumerate(pairwise(encoded.offsets.tolist()))
    windows = [window for text, ends in bounds for window in _split(text, *ends, model.config.max_positions)]
    totals, device = [0.0] * len(texts), next(model.parameters()).device
    for at in range(0, len(windows), BATCH_WINDOWS):
        chosen = windows[at : at + BATCH_WINDOWS]
        lengths = np.array([window.end - window.begin for window in chosen])
        ids = np.concatenate([encoded.ids[window.begin : window.end] for window in chosen])
        scores = model.score_tokens(make_input(ids, None, lengths).to(device)).double().cpu().numpy()
        check_finite_outputs(bool(np.isfinite(scores).all()))
        for window, (start, stop) in zip(chosen, pairwise(offsets_from_lengths(lengths)), strict=True):
            totals[window.text] += float(scores[start + window.first - window.begin : stop].sum())
    return [TextScore(total, size - 1) for total, size in zip(totals, sizes, strict=True)]


def _split(text: int, start: int, end: int, positions: int) -> Iterator[_Window]:
    """Yield windows of at most `positions` tokens that together predict every token but the first once."""
    begin, first = start, start + 1
    while first < end:
        stop = min(begin + positions, end)
        yield _Window(text, begin, first, stop)
        begin, first = max(start, min(stop - positions // 2, end - positions)), stop
