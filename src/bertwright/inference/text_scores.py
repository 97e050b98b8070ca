"""How probable texts are to a left-to-right language model.

N texts, W windows, P positions of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertwright.base.ragged import flat_ranges, offsets_from_lengths
from bertwright.models.encoder import EncoderModel
from bertwright.models.packing import make_input
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import TextTokenizer

BATCH_TOKENS = 8192  # bounds memory and changes no result


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


class _Windows(NamedTuple):
    """Parts of texts that the model reads, which together predict every token once."""

    texts: np.ndarray
    """W, number of the text."""
    starts: np.ndarray
    """W, offset of the window among the tokens of all texts."""
    lengths: np.ndarray
    context: np.ndarray
    """W, first tokens of the window that are only read, because an earlier window predicts them."""


def score_texts(model: EncoderModel, tokenizer: TextTokenizer, texts: Sequence[str]) -> list[TextScore]:
    """Score each text; one with more tokens than positions is read in windows, each half of the positions further on.

    Raises ValueError for a text without a token to predict, and for a model that is no left-to-right language model.
    """
    encoded = tokenizer.encode_ids(texts) if model.reads_marks else tokenizer.encode_raw(texts)
    sizes = np.diff(encoded.offsets)
    for number, size in enumerate(sizes):
        if size < 2:
            raise ValueError(f"text {number}: expected at least 2 tokens, the second of which is predicted, got {size}")
    windows = _split(encoded.offsets, model.config.max_positions)
    totals, ends = np.zeros(len(texts)), np.cumsum(windows.lengths)
    device, first = next(model.parameters()).device, 0
    while first < len(ends):
        before = int(ends[first] - windows.lengths[first])
        last = max(int(np.searchsorted(ends, before + BATCH_TOKENS, side="right")), first + 1)
        chosen = slice(first, last)
        tokens = flat_ranges(windows.starts[chosen], windows.lengths[chosen])
        batch = make_input(np.asarray(encoded.ids)[tokens], None, windows.lengths[chosen]).to(device)
        scores = model.score_tokens(batch).double().cpu().numpy()
        check_finite_outputs(bool(np.isfinite(scores).all()))
        bounds = offsets_from_lengths(windows.lengths[chosen])
        sums = np.add.reduceat(scores, np.stack([bounds[:-1], bounds[:-1] + windows.context[chosen]], 1).reshape(-1))
        np.add.at(totals, windows.texts[chosen], sums[1::2])
        first = last
    return [TextScore(float(total), int(size) - 1) for total, size in zip(totals, sizes, strict=True)]


def _split(offsets: np.ndarray, positions: int) -> _Windows:
    """Split texts into windows of at most `positions` tokens."""
    rows = []
    for number, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        predicted = start + 1  # the tokens before it are predicted, or the first one
        while predicted < end:
            begin = max(start, min(predicted - positions // 2, end - positions)) if predicted > start + 1 else start
            stop = min(begin + positions, end)
            rows.append((number, begin, stop - begin, predicted - begin))
            predicted = stop
    return _Windows(*np.array(rows, dtype=np.int64).T)
