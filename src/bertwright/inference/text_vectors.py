"""Text vectors: texts of any length, in any order, in packed batches under a token budget.

A text longer than the model's positions is split into windows of equal length. All of them are read and pooled
together: no token is dropped, and the other texts and their order change a vector by rounding only. With the modules of
a sentence-transformers folder, a text is truncated where that library does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from bertwright.base.ragged import Ragged, offsets_from_lengths, positions_from_lengths
from bertwright.interop.sentence_modules import SentenceModules
from bertwright.models.encoder import TextEncoder
from bertwright.models.packing import PackedInput
from bertwright.models.pooling import Ints, Vectors, merge_windows, pool_states
from bertwright.tasks.embedding_scores import Embed
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.prediction import prediction_batches, split_into_chunks
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from bertwright.inference.bert import Bert

# N texts, P windows, B sequences of a batch, H hidden size


NUM_SPECIAL = 2  # [CLS] and [SEP] around every window
BATCH_TOKENS = 8_192  # per forward pass: bounds memory and changes no result


class Windows(NamedTuple):
    """The windows of all texts; the windows of one text are adjacent and in order."""

    starts: Ints  # P  offset of the window's content in the flat ids
    sizes: Ints  # P  tokens of its content, without [CLS] and [SEP]
    first_of_text: Ints  # N  index of each text's first window


def check_has_vectors(model: Bert) -> None:
    """Raise ValueError for a re-ranker, whose states were trained for pairs alone."""
    if isinstance(model.task, Reranking):
        raise ValueError("a re-ranker has no vectors of texts; name a model of vectors, and this one with --reranker")


def compute_vectors(
    encoder: TextEncoder,
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    pooling: str,
    max_length: int,
    batch_tokens: int,
) -> tuple[Vectors, Encoded]:
    """Compute one vector per text, N × H, and return the tokens, too; parameters as in `Bert.embed`."""
    tokens = tokenizer.encode_ids(texts)
    windows = split_into_windows(tokens, max_length)
    content = SegmentTokens(tokens.ids, windows.starts, windows.sizes)
    encoded = encode_segments([content], NO_LABELS, tokenizer, max_length)
    pooled = pool_sequences(encoder, encoded, (pooling,), batch_tokens)
    return merge_windows(pooled, windows.sizes + NUM_SPECIAL, windows.first_of_text, pooling), encoded


def encode_sentences(
    tokenizer: TextTokenizer, texts: Sequence[str], modules: SentenceModules, prompt: str, max_length: int
) -> tuple[Encoded, int]:
    """Encode texts as sentence-transformers does; also return the number of first tokens that it does not pool."""
    tokens = SegmentTokens.of_typed([*(prompt + text for text in texts), prompt], tokenizer, modules.lowercase)
    encoded = encode_segments([tokens.take(np.arange(len(texts)))], NO_LABELS, tokenizer, max_length)
    skip = 0 if modules.include_prompt or not prompt else min(int(tokens.lengths[-1]) + 1, max_length - 1)  # with [CLS]
    return encoded, skip


def role_prompt(model: Bert, role: str) -> str | None:
    """Return the name of a model's prompt for a role of texts, query or document; None if it has none."""
    return role if model.sentence_modules and role in model.sentence_modules.prompts else None


def embed_by_role(model: Bert, counts: InputCounts, advance: Callable[[int], None] = lambda _: None) -> Embed:
    """Return a function of texts and their role; a prompt with the role's name, if any, comes before each text.

    Raises ValueError for a re-ranker.
    """
    check_has_vectors(model)

    def embed(texts: Sequence[str], role: str) -> Vectors:
        prompt = role_prompt(model, role)
        parts = [np.empty((0, model.vector_size()), np.float32)]
        for chunk in split_into_chunks(texts):
            vectors, more = model.embed_and_count(chunk, prompt_name=prompt)
            parts.append(vectors)
            counts.add(more)
            advance(len(chunk))
        return np.concatenate(parts)

    return embed


def pool_sequences(
    encoder: TextEncoder, encoded: Encoded, modes: Sequence[str], batch_tokens: int = BATCH_TOKENS, skip: int = 0
) -> Vectors:
    """Compute the vector of each sequence, one mode after the other, without its first `skip` tokens."""
    pooled = np.empty((len(encoded.lengths), len(modes) * encoder.config.hidden_size), dtype=np.float32)
    for indices, batch in prediction_batches(encoder, encoder.config, encoded, batch_tokens):
        vectors = pool(encoder, batch.input, modes, skip)
        check_finite_outputs(bool(vectors.isfinite().all()))
        pooled[indices] = vectors.cpu().numpy()
    return pooled


def split_into_windows(encoded: Ragged, max_length: int) -> Windows:
    """Split sequences `[CLS] content [SEP]` into windows of at most `max_length` tokens, [CLS] and [SEP] included."""
    sizes = np.diff(encoded.offsets) - NUM_SPECIAL
    counts = np.maximum(-(-sizes // (max_length - NUM_SPECIAL)), 1)  # an empty text has one window without content
    index = positions_from_lengths(counts)  # P  number of each window in its text
    size, remainder = np.repeat(sizes // counts, counts), np.repeat(sizes % counts, counts)
    starts = np.repeat(encoded.offsets[:-1] + 1, counts) + index * size + np.minimum(index, remainder)
    return Windows(starts, size + (index < remainder), offsets_from_lengths(counts)[:-1])


def pool(encoder: TextEncoder, batch: PackedInput, modes: Sequence[str], skip: int = 0) -> Tensor:
    """Compute one vector per sequence, B × modes·H float32, as `pool_states` does.

    "cls" by itself is the state at `TextEncoder.pooled_positions`. In a left-to-right encoder this is the last token.
    """
    if tuple(modes) == ("cls",) and not skip:
        cls: Tensor = encoder(batch, encoder.pooled_positions(batch.packing))
        return cls.float()
    return pool_states(encoder(batch), batch.packing, modes, skip)


def normalize_vectors(vectors: Vectors) -> Vectors:
    """Divide each vector by its Euclidean length; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    normalized: Vectors = np.divide(vectors, np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)
    return normalized
