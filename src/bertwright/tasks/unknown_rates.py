"""How a vocabulary suits the texts that a model reads: unknown words and tokens per word, counted in use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bertwright.tasks.encoded import Encoded
from bertwright.vocabulary.tokenizer import TextTokenizer

MAX_UNKNOWN = 0.03  # share of the tokens
MAX_TOKENS_PER_WORD = 3.0  # English has 1.2 with BERT's vocabulary, and its multilingual one 2.2 on Korean
MIN_WORDS = 20  # fewer words say nothing of their average length


@dataclass
class InputCounts:
    """Numbers of what a model has read; chunks add up."""

    examples: int = 0
    truncated: int = 0
    """Examples that lost tokens."""
    words: int = 0
    """Words and marks of punctuation, as the tokenizer splits a text."""
    tokens: int = 0
    """Tokens without [CLS], [SEP], [PAD] and [MASK], and without the [UNK] of words that have no tokens."""
    unknown: int = 0
    """[UNK] among the tokens."""
    abstained: int = 0
    """Examples whose label was too improbable to be given."""

    @classmethod
    def count(cls, examples: int, encoded: Encoded, tokenizer: TextTokenizer) -> InputCounts:
        counts = cls.count_ids(examples, encoded.input_ids, tokenizer, encoded.truncated)
        empty = encoded.empty_words
        return replace(counts, words=counts.words - empty, tokens=counts.tokens - empty, unknown=counts.unknown - empty)

    @classmethod
    def count_ids(
        cls, examples: int, ids: npt.NDArray[np.integer[Any]], tokenizer: TextTokenizer, truncated: int = 0
    ) -> InputCounts:
        """Count the tokens of some examples; `truncated` examples have lost tokens."""
        if ids.ndim == 2:  # words: their numbers, negative for unknown words with vectors of their own
            ids = ids[:, 0].astype(np.int32)
            ids = np.where(ids < 0, tokenizer.unk_id, ids)
        unknown = int(np.count_nonzero(ids == tokenizer.unk_id))
        special = sum(int(np.count_nonzero(ids == number)) for number in {*tokenizer.special_ids})
        tokens = len(ids) - special + unknown
        unknown = 0 if tokenizer.reads_any_word else unknown
        continued = int(np.count_nonzero(tokenizer.is_continuation[ids[ids < tokenizer.vocab_size]]))
        return cls(examples, truncated, tokens - continued, tokens, unknown)

    def add(self, more: InputCounts) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))

    def vocabulary_warnings(self) -> list[str]:
        """Warn of a vocabulary that was not made for these texts."""
        measured = []
        if self.unknown > MAX_UNKNOWN * self.tokens:
            measured.append(f"{self.unknown:,} of {self.tokens:,} tokens ({self.unknown / self.tokens:.1%}) are [UNK]")
        if self.words >= MIN_WORDS and self.tokens > MAX_TOKENS_PER_WORD * self.words:
            measured.append(f"{self.tokens / self.words:.1f} tokens per word")
        return [f"{', '.join(measured)}: the model's vocabulary was not made for this text"] if measured else []
