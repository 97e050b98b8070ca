"""The interface between tokenizers and the code that uses them: tasks, pre-training, inference, model folders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.ragged import Ragged
from bertwright.text.decoding import SURROGATE
from bertwright.vocabulary.sequence_layout import SequenceLayout

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoding:
    """The tokens of a text: N of them."""

    ids: Ids  # N
    offsets: Ids  # N 2  first character and one past the last; (0, 0) for an added special token

    def __len__(self) -> int:
        return len(self.ids)


class TokenText(NamedTuple):
    """A token as text."""

    text: str
    joins: bool
    """True if no space stands between the text before it and this one."""

    def __str__(self) -> str:
        return f"##{self.text}" if self.joins else self.text


class TextTokenizer(ABC):
    """A tokenizer of any kind: word pieces, byte pairs, whole words.

    `encode_ids` is for texts that a user types for a model: special tokens in a text are special. `encode_raw` and
    `encode_raw_batch` are for corpora and the examples of tasks, where every text is plain.
    """

    unk_id: int
    """Id of the token for text that the vocabulary lacks."""
    tokens: tuple[str, ...]
    """All tokens in id order; "" for an id without a token."""
    space: str = ""
    """What stands before a word or a sentence that follows another one, if the tokenizer sees that."""

    @property
    def reads_any_word(self) -> bool:
        """True if models read words that the vocabulary lacks by their characters or bytes."""
        return False

    @property
    @abstractmethod
    def special_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text."""

    @property
    @abstractmethod
    def layout(self) -> SequenceLayout:
        """Layout of the sequences that models with this vocabulary read."""

    @property
    @abstractmethod
    def lowercase(self) -> bool:
        """True if text is lowercased."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Digest of everything that decides ids."""

    @abstractmethod
    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        """Encode raw texts without special tokens. Raises ValueError for a lone surrogate."""

    def encode_numbers(self, texts: Sequence[str]) -> Ragged:
        """Encode raw texts as one number per token, as token stores hold them, even if `encode_raw` gives rows."""
        return self.encode_raw(texts)

    def encode_words(self, words: Sequence[str]) -> Ragged:
        """Encode raw words, each as it is encoded after another one."""
        return self.encode_raw([self.space + word for word in words] if self.space else words)

    @abstractmethod
    def encode_raw_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode raw texts without special tokens, with offsets. Raises ValueError for a lone surrogate."""

    @abstractmethod
    def encode_ids(self, texts: Sequence[str]) -> Ragged:
        """Encode typed texts, not truncated, with special tokens. Raises ValueError for a lone surrogate."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode typed texts like `encode_ids`, with offsets."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]], skip_special: bool = True) -> str:
        """Decode ids to text. Raises ValueError for an unknown id."""

    @abstractmethod
    def save(self, folder: Path | str, max_length: int | None = None) -> None:
        """Write the tokenizer's files, which `open_tokenizer` reads; `max_length`: the model's number of positions."""

    @property
    def mask_id(self) -> int:
        """Id of [MASK]. Raises ValueError for a vocabulary without it."""
        raise ValueError("vocabulary: expected one with [MASK], which masked language models need, got one without")

    @property
    def vocab_size(self) -> int:
        """Largest id + 1: the number of tokens if each id has one."""
        return len(self.tokens)

    @property
    def num_ids(self) -> int:
        """Number of ids in a token store: more than `vocab_size` if a model reads words that it does not predict."""
        return self.vocab_size

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens) if token}

    def token(self, number: int) -> str:
        """Look up the token of an id. Raises ValueError outside the vocabulary."""
        if not 0 <= number < self.vocab_size:
            raise ValueError(f"id {number} is outside the vocabulary of {self.vocab_size} tokens")
        return self.tokens[number]

    def token_text(self, number: int) -> TokenText:
        """Return the token of an id as text. Raises ValueError outside the vocabulary."""
        return TokenText(self.token(number), joins=False)

    def id(self, token: str) -> int | None:
        """Look up the id of a token; None if the vocabulary lacks it."""
        return self._ids.get(token)

    def encode(self, text: str) -> Encoding:
        """Encode one text; see `encode_batch`."""
        return self.encode_batch([text])[0]

    def add_ends(self, encoding: Encoding) -> Encoding:
        """Add the special tokens before and after a text."""
        ids = np.array([self.layout.first, *encoding.ids, self.layout.last], dtype=np.int64)
        return Encoding(ids, np.pad(encoding.offsets, ((1, 1), (0, 0))))

    @cached_property
    def is_continuation(self) -> npt.NDArray[np.bool_]:
        """For every id, whether its token continues a word; by default, none does."""
        return np.zeros(self.vocab_size, dtype=np.bool_)


def check_raw_text(text: Any, number: int) -> None:
    """Raise ValueError for a value that is no text, and for a lone surrogate; `number`: of the text, in messages."""
    if not isinstance(text, str):
        raise ValueError(f"text {number}: expected a text, got {str(text)[:60]!r}")
    if surrogate := SURROGATE.search(text):
        code = f"U+{ord(surrogate[0]):04X}"
        raise ValueError(f"text {number}: lone surrogate {code} at character {surrogate.start()}")
