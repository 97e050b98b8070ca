"""Static vectors from a model of text vectors: a vector per token, whose mean is the vector of a text (model2vec).

V tokens of the vocabulary, N of them with a vector, H numbers per state, D numbers per vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bertwright.base.reporter import Reporter
from bertwright.inference.bert import Bert
from bertwright.inference.text_vectors import pool_sequences
from bertwright.models.encoder import EncoderModel
from bertwright.systems.static.static_encoder import StaticConfig, StaticEncoder, static_modules
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.vocabulary.wordpiece_files import CONTINUATION

WITHOUT_VECTOR = re.compile(r"\[(unused\d+|PAD|UNK|CLS|SEP|MASK)\]|<(s|/s|pad|unk|mask)>")
SMOOTHING = 5e-4  # a in the weight a / (a + p) of a token with probability p (Arora et al. 2017: SIF)
NUMBERS_PER_REMOVED = 100  # numbers of a vector for each direction that all tokens share (Mu and Viswanath 2018)
CHUNK = 2_048  # tokens at a time; bounds memory alone


def save_static_model(teacher: Bert, size: int, folder: Path, reporter: Reporter) -> None:
    """Write a new folder with a vector of `size` numbers for each token of the teacher's vocabulary.

    Each token passes through the model by itself. The mean of its states keeps its main directions, without the first
    ones, which nearly all tokens share, and is weighted by a / (a + p), so that frequent tokens count less. p follows
    from the rank of a token by Zipf's law. Raises ValueError for more numbers than a state of the teacher has.
    """
    if size > teacher.config.hidden_size:
        raise ValueError(
            f"static = {size}: expected at most {teacher.config.hidden_size}, as the teacher's states have"
        )
    tokens = [*map(teacher.tokenizer.token, range(teacher.tokenizer.vocab_size))]
    chosen = np.flatnonzero([not WITHOUT_VECTOR.fullmatch(token) for token in tokens])
    if len(chosen) <= size:
        raise ValueError(f"static = {size}: expected fewer than the {len(chosen)} tokens of the vocabulary; lower it")
    states = _token_states(teacher, chosen, reporter)
    centered = states.astype(np.float64) - states.mean(0, dtype=np.float64)
    removed = min(round(size / NUMBERS_PER_REMOVED), teacher.config.hidden_size - size)
    directions = np.linalg.eigh(centered.T @ centered)[1][:, ::-1][:, removed : removed + size]
    shares = 1 / np.arange(2, len(chosen) + 2)  # by rank
    weights = np.empty(len(chosen))
    ranked = rank_tokens(tokens, teacher.tokenizer.is_continuation, chosen)
    weights[ranked] = SMOOTHING / (SMOOTHING + shares / shares.sum())
    encoder = StaticEncoder(StaticConfig(teacher.tokenizer.vocab_size, size))
    table = np.zeros((teacher.tokenizer.vocab_size, size), dtype=np.float32)
    table[chosen] = centered @ directions * weights[:, None]
    encoder.embeddings.weight = torch.nn.Parameter(torch.from_numpy(table))
    Bert(EncoderModel(encoder), teacher.tokenizer, modules=static_modules()).save(folder)


def rank_tokens(
    tokens: Sequence[str], is_continuation: npt.NDArray[np.bool_], chosen: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the positions of the chosen tokens, most frequent first: the order of the vocabulary, characters last.

    A vocabulary begins with all characters, of which few are frequent by themselves: words such as "a" and marks such
    as ",", which are ASCII and begin a word.
    """
    alone = [len(tokens[token].removeprefix(CONTINUATION)) == 1 for token in chosen]
    is_rare = alone & (is_continuation[chosen] | ~np.array([tokens[token].isascii() for token in chosen]))
    return np.argsort(is_rare, kind="stable")


def _token_states(teacher: Bert, chosen: npt.NDArray[np.int64], reporter: Reporter) -> npt.NDArray[np.float32]:
    """Compute the mean state of each token between the special tokens, N × H."""
    states = np.empty((len(chosen), teacher.config.hidden_size), dtype=np.float32)
    with reporter.progress("tokens", len(chosen)) as advance, torch.inference_mode():
        for start in range(0, len(chosen), CHUNK):
            ids = chosen[start : start + CHUNK].astype(np.uint32)
            one_each = SegmentTokens(ids, np.arange(len(ids)), np.ones(len(ids), dtype=np.int64))
            encoded = encode_segments([one_each], NO_LABELS, teacher.tokenizer, teacher.config.max_positions)
            states[start : start + CHUNK] = pool_sequences(teacher.model.encoder, encoded, ("mean",))
            advance(len(ids))
    return states
