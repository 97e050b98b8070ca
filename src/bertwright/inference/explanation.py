"""Which words make two texts similar: with mean pooling, a cosine is exactly a sum over all pairs of their words.

The vector of a text is the mean of its tokens' vectors, so that cos = Σ_ab (t_a · u_b) / (n · m · |v| · |w|), where t_a
are the n token vectors of the first text with the mean v, and u_b the m of the second with the mean w.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertwright.inference.text_vectors import check_has_vectors, encode_sentences, role_prompt
from bertwright.interop.sentence_modules import MEAN, Dense, SentenceModules
from bertwright.tasks.embedding_scores import DOCUMENT, QUERY
from bertwright.tasks.prediction import prediction_batches

if TYPE_CHECKING:
    from bertwright.inference.bert import Bert

Floats = npt.NDArray[np.float64]


class Explanation(NamedTuple):
    """The share of each pair of words in a cosine."""

    query_words: tuple[str, ...]
    text_words: tuple[str, ...]
    matrix: Floats
    """Words of the query × words of the text; its sum is the cosine."""
    cosine: float


@torch.inference_mode()
def compute_explanation(model: Bert, query: str, text: str) -> Explanation:
    """Compute the shares of all pairs of words, [CLS] and [SEP] among them.

    Raises ValueError for another pooling than the mean, for layers that are not linear, and for a text that is longer
    than the model reads.
    """
    check_has_vectors(model)
    modules = model.choose_modules(None) or MEAN
    if modules.modes != ("mean",):
        raise ValueError(f"explain: expected mean pooling, whose vectors are sums, got {' and '.join(modules.modes)}")
    for layer in modules.layers:
        is_linear = isinstance(layer, Dense) and isinstance(layer.activation, nn.Identity)
        if not is_linear and layer is not nn.functional.normalize:
            name = f"Dense with {type(layer.activation).__name__}" if isinstance(layer, Dense) else type(layer).__name__
            raise ValueError(f"explain: expected linear layers after the pooling, got {name}, which mixes the words")
    (one, first), (two, second) = (
        _word_sums(model, modules, given, role) for given, role in ((query, QUERY), (text, DOCUMENT))
    )
    norms = np.linalg.norm(first.sum(0)) * np.linalg.norm(second.sum(0))
    matrix: Floats = first @ second.T / norms
    return Explanation(one, two, matrix, float(matrix.sum()))


def _word_sums(model: Bert, modules: SentenceModules, text: str, role: str) -> tuple[tuple[str, ...], Floats]:
    """Return the words that the model pools, and the sum of the vectors of each word's tokens."""
    tokenizer, longest = model.tokenizer, modules.limit(model.config.max_positions)
    prompt = modules.prompt(role_prompt(model, role))
    encoded, skip = encode_sentences(tokenizer, [text], modules, prompt, sys.maxsize)
    if encoded.lengths[0] > longest:
        got = f"got {encoded.lengths[0]}; shorten the text"
        raise ValueError(f"explain: expected at most the {longest} tokens that the model reads, {got}")
    ((_, batch),) = prediction_batches(model.model.encoder, model.config, encoded, longest)
    states = modules.transform(model.model.encoder(batch.input)[skip:].float())
    ids = encoded.input_ids[skip:].tolist()
    texts, starts = [tokenizer.token_text(number).text for number in ids], ~tokenizer.is_continuation[ids]
    is_special = np.isin(ids, [*tokenizer.special_ids])
    starts |= is_special | np.r_[True, is_special[:-1]]  # nothing continues the first word of the text, or a [SEP]
    first = np.flatnonzero(starts)
    words = tuple("".join(part) for part in np.split(np.array(texts, dtype=object), first[1:]))
    return words, np.add.reduceat(states.double().cpu().numpy(), first, axis=0)
