"""Truncation and encoding of sequences with one or two segments, in the layout of the tokenizer.

S sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.ragged import flat_ranges, offsets_from_lengths
from bertwright.tasks.encoded import Encoded, Ints
from bertwright.vocabulary.tokenizer import TextTokenizer

NO_LABELS: Ints = np.empty(0, dtype=np.int64)  # for sequences whose targets are not known


class SegmentTokens(NamedTuple):
    """Segment A, or segment B, of all sequences: ranges of one flat array of ids."""

    ids: npt.NDArray[np.uint32]
    first: Ints
    """S, start of each range."""
    lengths: Ints
    """S, tokens per range."""

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: TextTokenizer) -> SegmentTokens:
        """Tokenize texts; "[SEP]" in a text is three ordinary words."""
        encoded = tokenizer.encode_raw(texts)
        return cls(encoded.ids, encoded.offsets[:-1], np.diff(encoded.offsets))

    @classmethod
    def of_typed(cls, texts: Sequence[str], tokenizer: TextTokenizer, lowercase: bool) -> SegmentTokens:
        """Tokenize texts in which "[SEP]" is the special token; `lowercase`: as `tokenizers`, letter by letter."""
        encoded = tokenizer.encode_ids(["".join(map(str.lower, text)) for text in texts] if lowercase else texts)
        return cls(encoded.ids, encoded.offsets[:-1] + 1, np.diff(encoded.offsets) - tokenizer.layout.num_specials(1))

    def take(self, texts: Ints) -> SegmentTokens:
        """Return the segments of these texts, in this order; a text may occur several times."""
        return self._replace(first=self.first[texts], lengths=self.lengths[texts])

    def repeat(self, times: int) -> SegmentTokens:
        return self._replace(first=np.repeat(self.first, times), lengths=np.repeat(self.lengths, times))


def truncate_longest_first(lengths: Sequence[Ints], max_num_tokens: int) -> list[Ints]:
    """Return the lengths of each sequence's one or two segments after truncation to `max_num_tokens` in all.

    The longer segment loses tokens until both are equally long, then both do (`transformers`: longest_first). An
    odd token stays with the segment that was longer, or with the second one.

    >>> [segment.tolist() for segment in truncate_longest_first([np.array([10, 10, 3]), np.array([3, 9, 9])], 7)]
    [[4, 4, 3], [3, 3, 4]]
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], max_num_tokens)]
    a, b = lengths
    short = np.minimum(np.minimum(a, b), max_num_tokens // 2)
    first = np.where(a <= b, short, max_num_tokens - short)
    over = a + b > max_num_tokens
    return [np.where(over, first, a), np.where(over, max_num_tokens - first, b)]


def encode_segments(
    segments: Sequence[SegmentTokens],
    labels: npt.NDArray[Any],
    tokenizer: TextTokenizer,
    max_length: int,
    sequences_per_item: int | Ints = 1,
    example_ids: Ints | None = None,
) -> Encoded:
    """Encode sequences of one or two segments whose first states are read, with one label per item or none at all.

    `example_ids`: the example of each sequence, ascending; None: each item is an example.
    """
    layout = tokenizer.layout
    max_num_tokens = max_length - layout.num_specials(len(segments))
    given = [segment.lengths for segment in segments]
    truncated = truncate_longest_first(given, max_num_tokens)
    placed = layout.place(truncated)
    ids, bounds = placed.rows_like(segments[0].ids), offsets_from_lengths(placed.lengths)[:-1]
    for segment, length, start in zip(segments, truncated, placed.starts, strict=True):
        ids[flat_ranges(bounds + start, length)] = segment.ids[flat_ranges(segment.first, length)]
    num_sequences = len(placed.lengths)
    per_item = sequences_per_item
    sizes = np.full(num_sequences // per_item, per_item) if isinstance(per_item, int) else per_item
    example_ids = np.repeat(np.arange(len(sizes)), sizes) if example_ids is None else example_ids
    too_long = np.add.reduce(given) > max_num_tokens
    return Encoded(
        input_ids=ids,
        token_type_ids=placed.token_type_ids,
        lengths=placed.lengths,
        example_ids=example_ids,
        positions=np.zeros(num_sequences, dtype=np.int32),
        position_counts=np.ones(num_sequences, dtype=np.int64),
        labels=labels,
        label_counts=np.full(len(sizes), int(len(labels) > 0)),
        sequences_per_item=per_item,
        truncated=len(np.unique(example_ids[too_long])) if too_long.any() else 0,
    )


def encode_both_orders(
    a: SegmentTokens, b: SegmentTokens, labels: npt.NDArray[Any], tokenizer: TextTokenizer, max_length: int
) -> Encoded:
    """Encode each pair as the two sequences of one item, A B and B A; a `BothOrdersHead` gives it one output."""
    ids = np.concatenate([a.ids, b.ids])
    b = b._replace(first=b.first + len(a.ids))
    segments = [
        SegmentTokens(
            ids,
            np.stack([one.first, two.first], axis=1).reshape(-1),
            np.stack([one.lengths, two.lengths], axis=1).reshape(-1),
        )
        for one, two in ((a, b), (b, a))
    ]
    encoded = encode_segments(segments, labels, tokenizer, max_length, sequences_per_item=2)
    pairs = len(a.lengths)
    counts = np.tile(np.array([1, 0], dtype=np.int64), pairs)
    return replace(encoded, positions=np.zeros(pairs, dtype=np.int32), position_counts=counts)
