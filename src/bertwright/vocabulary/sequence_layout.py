"""Layout of a sequence: the special tokens around the segments of an example, and their segment types.

BERT reads `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]` (section 3), GPT `<start> A <extract>` and
`<start> A <delimiter> B <extract>`, RoBERTa `<s> A </s>` and `<s> A </s></s> B </s>`. Other places that write special
tokens into a sequence: `TextTokenizer.add_ends`, for one text; `Streams`, of documents end to end; `Translator`, for
the first token that a decoder reads; `validate_backend` and `learn_general`, in the template of a tokenizer.json, from
which `read_layout` reads a layout.

S sequences with T tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.ragged import Ints, offsets_from_lengths


class PlacedSegments(NamedTuple):
    """Sequences with their special tokens, end to end; the caller writes the segments' tokens where `is_text`."""

    ids: npt.NDArray[np.int32]
    """T, special tokens; 0 where a segment's tokens go."""
    token_type_ids: npt.NDArray[np.int8] | None
    """T, number of the segment, to which the special token after it belongs; None for a layout without types."""
    is_text: npt.NDArray[np.bool_]
    """T, False for special tokens."""
    lengths: Ints
    """S, tokens per sequence."""
    starts: tuple[Ints, ...]
    """S for each segment: position of its first token in its own sequence."""

    def rows_like(self, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Return `ids` or, if a token is a row of numbers, T such rows; a special token's id is its first number."""
        if tokens.ndim == 1:
            return self.ids
        rows = np.zeros((len(self.ids), *tokens.shape[1:]), dtype=np.int32)
        rows[:, 0] = self.ids
        return rows


def place_plain(segments: Sequence[npt.NDArray[np.integer]]) -> PlacedSegments:
    """Lay out sequences of one segment each without special tokens, as language models read running text."""
    lengths = segments[0].astype(np.int64)
    total = int(lengths.sum())
    starts = (np.zeros_like(lengths),)
    return PlacedSegments(np.zeros(total, np.int32), None, np.ones(total, dtype=np.bool_), lengths, starts)


class SequenceLayout(NamedTuple):
    """Special tokens by their ids."""

    first: int
    """Before the first segment: [CLS], or GPT's start token."""
    between: int
    """After each segment but the last: [SEP], or GPT's delimiter."""
    last: int
    """After the last segment: [SEP], or GPT's extract token."""
    has_types: bool = True
    """True if segments have types: 0 for the first, 1 for the second."""
    separators: int = 1
    """How often `between` stands there: twice in RoBERTa's layout."""

    def num_specials(self, segments: int) -> int:
        """Return the number of special tokens in a sequence with this number of segments.

        >>> bert, roberta = SequenceLayout(2, 3, 3), SequenceLayout(0, 2, 2, has_types=False, separators=2)
        >>> [(layout.num_specials(1), layout.num_specials(2)) for layout in (bert, roberta)]
        [(2, 3), (2, 4)]
        """
        return 2 + self.separators * (segments - 1)

    def place(self, segments: Sequence[npt.NDArray[np.integer]]) -> PlacedSegments:
        """Lay out sequences whose segments have these numbers of tokens: one array of length S per segment.

        >>> bert = SequenceLayout(first=2, between=3, last=3)
        >>> placed = bert.place([np.array([2, 0]), np.array([1, 1])])
        >>> placed.ids.tolist(), placed.lengths.tolist()
        ([2, 0, 0, 3, 0, 3, 2, 3, 0, 3], [6, 4])
        >>> placed.token_type_ids.tolist()
        [0, 0, 0, 0, 1, 1, 0, 0, 1, 1]
        """
        sizes = np.stack(segments, axis=1).astype(np.int64) + 1  # S × segments, with the special tokens after each
        sizes[:, :-1] += self.separators - 1
        sizes[:, 0] += 1
        lengths: Ints = sizes.sum(1)
        bounds = offsets_from_lengths(lengths)
        ids, is_text = np.zeros(bounds[-1], dtype=np.int32), np.ones(bounds[-1], dtype=np.bool_)
        ends = bounds[:-1, None] + sizes.cumsum(1)  # S × segments, behind the special tokens after them
        between = ends[:, :-1, None] - 1 - np.arange(self.separators)
        for positions, special in ((bounds[:-1], self.first), (between, self.between), (ends[:, -1] - 1, self.last)):
            ids[positions], is_text[positions] = special, False
        types = np.repeat(np.tile(np.arange(len(segments), dtype=np.int8), len(lengths)), sizes.reshape(-1))
        specials = np.array([*[self.separators] * (len(segments) - 1), 1])[:, None]  # after each segment
        starts = tuple((ends - bounds[:-1, None]).T - specials - np.stack(segments))
        return PlacedSegments(ids, types if self.has_types else None, is_text, lengths, starts)
