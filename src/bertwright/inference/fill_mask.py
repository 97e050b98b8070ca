"""Prediction of [MASK]s: the windows that the model reads, the candidates for each [MASK], and the filled text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from bertwright.models.heads import BertForPretraining
from bertwright.models.packing import TokenBatch, pack
from bertwright.ragged import offsets_from_lengths
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import Encoding, Ids, Tokenizer
from bertwright.vocabulary.tokenizer_io import CONTINUATION

MAX_BATCH_TOKENS = 8_192  # bounds memory and changes no result


class TokenCandidate(NamedTuple):
    """A token that may replace a [MASK]."""

    token: str
    probability: float


class MaskPrediction(NamedTuple):
    """The prediction for a text with [MASK]s."""

    text: str
    """The text with the most probable token in place of each [MASK]."""
    masks: tuple[tuple[TokenCandidate, ...], ...]
    """Candidates for each [MASK] in the order of the text; the most probable candidate comes first."""


class Window(NamedTuple):
    """A sequence for the model, with the [MASK]s to predict in it."""

    ids: Ids
    masks: list[int]
    """Positions in `ids` of the [MASK]s to predict."""


class MaskBatch(NamedTuple):
    """A batch of windows."""

    batch: TokenBatch
    positions: list[int]
    """Position of each [MASK] to predict in the tokens of the batch, in ascending order."""


def predict_masks(
    model: BertForPretraining, tokenizer: Tokenizer, texts: Sequence[str], top_k: int
) -> list[MaskPrediction]:
    """Predict the `top_k` most probable tokens of each [MASK]. Raises ValueError for a text without [MASK]."""
    encodings = tokenizer.encode_batch(texts)
    masks = [np.flatnonzero(encoding.ids == tokenizer.mask_id).tolist() for encoding in encodings]
    for text, found in zip(texts, masks, strict=True):
        if not found:
            raise ValueError(f"no [MASK] in {text[:60]!r}; write [MASK] in place of the word to predict")
    max_positions = model.config.max_positions
    windows = (
        window
        for encoding, found in zip(encodings, masks, strict=True)
        for window in windows_around_masks(encoding, found, max_positions)
    )
    candidates = predict_candidates(model, tokenizer, windows, top_k)
    predictions = []
    for text, encoding, found in zip(texts, encodings, masks, strict=True):
        of_text = tuple(islice(candidates, len(found)))
        spans = [trim_span(text, *offsets) for offsets in encoding.offsets[found].tolist()]
        filled = replace_spans(text, spans, [best.token for best, *_ in of_text])
        predictions.append(MaskPrediction(filled, of_text))
    return predictions


def predict_candidates(
    model: BertForPretraining, tokenizer: Tokenizer, windows: Iterable[Window], top_k: int
) -> Iterator[tuple[TokenCandidate, ...]]:
    """Yield the `top_k` most probable tokens of each [MASK] of the windows, in order."""
    device = next(model.parameters()).device
    for batch, positions in batch_windows(windows):
        logits = model(batch.to(device), torch.tensor(positions, device=device)).tokens
        check_finite_outputs(bool(logits.isfinite().all()))
        # A model may have more outputs than the vocabulary has tokens (rounded up, for speed); the rest is ignored.
        best = logits[:, : tokenizer.vocab_size].softmax(-1).topk(top_k)
        for ids, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            yield tuple(map(TokenCandidate, map(tokenizer.token, ids), probabilities))


def windows_around_masks(encoding: Encoding, masks: Sequence[int], max_positions: int) -> Iterator[Window]:
    """Yield the whole text if it fits in the model's positions, else one window per [MASK], with it in the middle.

    `masks`: the positions of the [MASK]s in the encoding. Other [MASK]s in a window stay masked, as in training.
    """
    if len(encoding) <= max_positions:
        yield Window(encoding.ids, list(masks))
        return
    size = max_positions - 2  # without [CLS] and [SEP]
    for position in masks:
        start = min(max(position - size // 2, 1), len(encoding) - 1 - size)
        ids = np.concatenate([encoding.ids[:1], encoding.ids[start : start + size], encoding.ids[-1:]])
        yield Window(ids, [position - start + 1])


def batch_windows(windows: Iterable[Window]) -> Iterator[MaskBatch]:
    """Group windows, in order, into batches of at most MAX_BATCH_TOKENS tokens, or of one longer window."""
    group: list[Window] = []
    size = 0
    for window in windows:
        if group and size + len(window.ids) > MAX_BATCH_TOKENS:
            yield pack_windows(group)
            group, size = [], 0
        group.append(window)
        size += len(window.ids)
    if group:
        yield pack_windows(group)


def pack_windows(windows: Sequence[Window]) -> MaskBatch:
    """Pack windows into one batch."""
    starts = offsets_from_lengths(np.array([len(window.ids) for window in windows]))
    positions = [int(start) + mask for start, window in zip(starts, windows, strict=False) for mask in window.masks]
    return MaskBatch(pack([window.ids for window in windows]), positions)


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Trim spaces from the span of a [MASK]; a [MASK] token with lstrip or rstrip includes them.

    >>> trim_span("a [MASK] b", 1, 9)
    (2, 8)
    """
    span = text[start:end]
    return end - len(span.lstrip()), start + len(span.rstrip())


def replace_spans(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[str]) -> str:
    """Replace character spans by tokens; a continuation (`##s`) joins the word before it.

    >>> replace_spans("He [MASK] the play [MASK].", [(3, 9), (19, 25)], ["saw", "##ers"])
    'He saw the players.'
    """
    position, filled = 0, []
    for (start, end), token in zip(spans, tokens, strict=True):
        before = text[position:start]
        is_continuation = token.startswith(CONTINUATION)
        filled += [before.rstrip() if is_continuation else before, token.removeprefix(CONTINUATION)]
        position = end
    return "".join([*filled, text[position:]])
