"""Prediction of [MASK]s: the windows that the model reads, the candidates for each [MASK], and the filled text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from bertwright.base.ragged import offsets_from_lengths
from bertwright.inference.text_vectors import BATCH_TOKENS
from bertwright.models.encoder import TokenPredictor
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.prediction import prediction_batches
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import Encoding, TextTokenizer, TokenText


class TokenCandidate(NamedTuple):
    """A token that may replace a [MASK]."""

    token: str
    """Its text; with ## before it if it continues the word before the [MASK]."""
    probability: float


class MaskPrediction(NamedTuple):
    """The prediction for a text with [MASK]s."""

    text: str
    """The text with the most probable token in place of each [MASK]."""
    masks: tuple[tuple[TokenCandidate, ...], ...]
    """Candidates for each [MASK] in the order of the text; the most probable candidate comes first."""


class Window(NamedTuple):
    """Tokens of a text that the model reads between [CLS] and [SEP], and the [MASK]s to predict among them."""

    start: int
    size: int
    masks: list[int]
    """Positions of the [MASK]s in the text, [CLS] included."""


def predict_masks(
    model: TokenPredictor, tokenizer: TextTokenizer, texts: Sequence[str], top_k: int
) -> list[MaskPrediction]:
    """Predict the `top_k` most probable tokens of each [MASK]. Raises ValueError for a text without [MASK]."""
    encodings, mask = tokenizer.encode_batch(texts), tokenizer.token(tokenizer.mask_id)
    masks = [np.flatnonzero(encoding.ids == tokenizer.mask_id).tolist() for encoding in encodings]
    for text, positions in zip(texts, masks, strict=True):
        if not positions:
            raise ValueError(f"no {mask} in {text[:60]!r}; write {mask} in place of the word to predict")
    encoded = encode_windows(encodings, masks, tokenizer, model.config.max_positions)
    candidates = iter(predict_candidates(model, tokenizer, encoded, top_k))
    predictions = []
    for text, encoding, positions in zip(texts, encodings, masks, strict=True):
        spans = [trim_span(text, *offsets) for offsets in encoding.offsets[positions].tolist()]
        found: list[list[tuple[TokenText, float]]] = []
        for (start, _), of_mask in zip(spans, islice(candidates, len(positions)), strict=True):
            is_first = not text[:start].strip()  # nothing is there to join
            found.append([(token._replace(joins=token.joins and not is_first), share) for token, share in of_mask])
        filled = replace_spans(text, spans, [best for (best, _), *_ in found])
        shown = (tuple(TokenCandidate(str(best), share) for best, share in of_mask) for of_mask in found)
        predictions.append(MaskPrediction(filled, tuple(shown)))
    return predictions


def predict_candidates(
    model: TokenPredictor, tokenizer: TextTokenizer, encoded: Encoded, top_k: int
) -> list[list[tuple[TokenText, float]]]:
    """Predict the `top_k` most probable tokens of each of the R positions, with their probabilities."""
    ids = np.empty((len(encoded.positions), top_k), dtype=np.int64)
    probabilities = np.empty(ids.shape)
    for windows, batch in prediction_batches(model, model.config, encoded, BATCH_TOKENS):
        logits = model.token_logits(batch.input, batch.positions)
        check_finite_outputs(bool(logits.isfinite().all()))
        # A model may have more outputs than the vocabulary has tokens (rounded up, for speed); the rest is ignored.
        best = logits[:, : tokenizer.vocab_size].softmax(-1).topk(top_k)
        rows = encoded.rows(windows)
        ids[rows], probabilities[rows] = best.indices.cpu().numpy(), best.values.cpu().numpy()
    return [
        list(zip(map(tokenizer.token_text, best_ids), best_probabilities, strict=True))
        for best_ids, best_probabilities in zip(ids.tolist(), probabilities.tolist(), strict=True)
    ]


def encode_windows(
    encodings: Sequence[Encoding], masks: Sequence[list[int]], tokenizer: TextTokenizer, max_positions: int
) -> Encoded:
    """Encode the windows of texts that have [MASK]s at the positions `masks`; the model reads the states there."""
    texts = [list(windows_around_masks(*pair, max_positions)) for pair in zip(map(len, encodings), masks, strict=True)]
    windows = [window for of_text in texts for window in of_text]
    ids = np.concatenate([encoding.ids for encoding in encodings] or [NO_LABELS])
    bounds = offsets_from_lengths(np.array([len(encoding) for encoding in encodings], dtype=np.int64))
    starts = np.array([window.start for window in windows], dtype=np.int64)
    first = np.repeat(bounds[:-1], [len(of_text) for of_text in texts]) + starts
    content = SegmentTokens(ids.astype(np.uint32), first, np.array([window.size for window in windows], dtype=np.int64))
    return replace(
        encode_segments([content], NO_LABELS, tokenizer, max_positions),
        positions=np.array([mask - window.start + 1 for window in windows for mask in window.masks], dtype=np.int32),
        position_counts=np.array([len(window.masks) for window in windows], dtype=np.int64),
    )


def windows_around_masks(length: int, masks: list[int], max_positions: int) -> Iterator[Window]:
    """Yield the whole text if it fits in the model's positions, else one window per [MASK], with it in the middle.

    `length`: tokens of the text, [CLS] and [SEP] included. Other [MASK]s in a window stay masked, as in training.
    """
    if length <= max_positions:
        yield Window(1, length - 2, masks)
        return
    size = max_positions - 2  # without [CLS] and [SEP]
    for position in masks:
        yield Window(min(max(position - size // 2, 1), length - 1 - size), size, [position])


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Trim spaces from the span of a [MASK]; a [MASK] token with lstrip or rstrip includes them.

    >>> trim_span("a [MASK] b", 1, 9)
    (2, 8)
    """
    span = text[start:end]
    return end - len(span.lstrip()), start + len(span.rstrip())


def replace_spans(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[TokenText]) -> str:
    """Replace character spans by tokens; a continuation joins the word before it.

    >>> tokens = [TokenText("saw", False), TokenText("ers", True)]
    >>> replace_spans("He [MASK] the play [MASK].", [(3, 9), (19, 25)], tokens)
    'He saw the players.'
    """
    position, filled = 0, []
    for (start, end), token in zip(spans, tokens, strict=True):
        before = text[position:start]
        filled += [before.rstrip() if token.joins else before, token.text]
        position = end
    return "".join([*filled, text[position:]])
