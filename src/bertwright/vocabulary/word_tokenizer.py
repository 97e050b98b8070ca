"""Whole words as tokens, each with its characters: the input of models that are older than word pieces.

N words, W characters that the model reads of each. A token is a row of 1 + W numbers: the word's id, and the ids of its
characters, filled up with 0. Special tokens have no characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from bertwright.base.files import digest_bytes, read_json, read_utf8, write_json, write_text
from bertwright.base.ragged import Ragged
from bertwright.base.settings import convert
from bertwright.vocabulary.sequence_layout import SequenceLayout
from bertwright.vocabulary.tokenizer import Encoding, TextTokenizer, check_raw_text
from bertwright.vocabulary.unknown_words import CLASSES, UnknownWords, word_class
from bertwright.vocabulary.vector_file import hash_word
from bertwright.vocabulary.word_bytes import WORD_BYTES, word_byte_rows

BEGIN, END, UNKNOWN = range(3)  # ids of the tokens before and after a text, and of words that the vocabulary lacks
SPECIAL_TOKENS = ("<S>", "</S>", "<UNK>")
KEYED = 1 << 31  # first number of words with a vector of their own; as int32, they are negative
UNKNOWN_CHARACTER = 1  # 0 fills up a row
NUM_SPECIAL_CHARACTERS = 2
VOCABULARY, RARE_WORDS, CONFIG = "vocab.txt", "rare_words.txt", "tokenizer_config.json"
DIGIT = re.compile(r"\d")
# Letters and digits with marks inside, as in don't, well-known, U.N, 3,000; every other character is a word of its own.
WORD = re.compile(r"\w+(?:['’.,-]\w+)*|\S")
BLANK = re.compile(r"\S+")


@dataclass(frozen=True)
class WordRules:
    """Rules from a text to words, and from a word to its row of the vector table."""

    lowercase: bool = True
    """Look words up in lower case; their characters keep it."""
    zero_digits: bool = True
    """Look words up with 0 for every digit (Collobert et al. 2011; Lample et al. 2016)."""
    split_punctuation: bool = False
    """Split texts at punctuation as well, not only at blanks."""
    max_characters: int = 30
    """W: a longer word loses its last characters; 0: the model reads no characters."""
    bytes: bool = False
    """Rows have the word's bytes as ELMo reads them (`word_bytes`), instead of its characters."""
    unknown_words: UnknownWords = "unk"
    """Strategy for words that the vocabulary lacks: see `unknown_words`. unk, char and pretrained give them the id of
    <UNK>, class one of several, random a number from KEYED, which determines a vector."""

    def normalize(self, word: str) -> str:
        """Return the form of a word that the vocabulary has.

        >>> WordRules().normalize("B-52s")
        'b-00s'
        """
        word = word.lower() if self.lowercase else word
        return DIGIT.sub("0", word) if self.zero_digits else word

    @property
    def columns(self) -> int:
        """Numbers per row after the word's id."""
        return WORD_BYTES if self.bytes else self.max_characters

    @property
    def pattern(self) -> re.Pattern[str]:
        return WORD if self.split_punctuation else BLANK


ELMO_RULES = WordRules(lowercase=False, zero_digits=False, split_punctuation=True, bytes=True)
LOWERCASE_RULES = WordRules(zero_digits=False, split_punctuation=True, max_characters=0)  # of ULMFiT


class WordTokenizer(TextTokenizer):
    """A vocabulary of whole words and one of their characters."""

    special_ids: ClassVar[tuple[int, ...]] = (BEGIN, END, UNKNOWN)
    layout: ClassVar[SequenceLayout] = SequenceLayout(first=BEGIN, between=END, last=END, has_types=False)

    unk_id = UNKNOWN

    def __init__(self, words: Sequence[str], characters: str, rules: WordRules, rare: Sequence[str] = ()) -> None:
        """Use words in the order of their ids, without special ones, in normal form; `characters`: by their ids.

        `rare`: words that a language model reads by their bytes and does not predict; in a token store, their ids
        follow the vocabulary's.
        """
        self.rules = rules
        self.characters = characters
        special = (*SPECIAL_TOKENS, *(CLASSES if rules.unknown_words == "class" else ()))
        self.tokens = (*special, *words)
        self.num_special = len(special)
        self._numbers = {word: number for number, word in enumerate(words, self.num_special)}
        self.rare = tuple(rare)
        rare_numbers = {word: number for number, word in enumerate(rare, len(self.tokens))}
        self._store_numbers = rare_numbers | self._numbers if rare else self._numbers
        self._character_ids = {character: n for n, character in enumerate(characters, NUM_SPECIAL_CHARACTERS)}

    @classmethod
    def learn(cls, texts: Iterable[str], rules: WordRules, min_count: int = 1, known: Iterable[str] = ()) -> Self:
        """Make the vocabulary of the words that occur at least `min_count` times, most frequent first.

        `known`: words that get an id although the texts lack them, such as the words of a file of vectors.
        """
        counts = Counter(word for text in texts for word in rules.pattern.findall(text))
        characters = Counter(character for word in counts for character in word[: rules.max_characters])
        normal = Counter[str]()
        for word, count in counts.items():
            normal[rules.normalize(word)] += count
        frequent = sorted((-count, word) for word, count in normal.items() if count >= min_count)
        words = dict.fromkeys([word for _, word in frequent]) | dict.fromkeys(map(rules.normalize, known))
        special = cls([], "", rules).tokens  # plain words in a text
        return cls([word for word in words if word not in special], "".join(sorted(characters)), rules)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a folder that `save` wrote. Raises ValueError, naming the file, for other content."""
        path = folder / CONFIG
        values = read_json(path)
        rules, characters = values.get("rules"), values.get("characters")
        if not isinstance(characters, str):
            raise ValueError(f"{path}: characters: expected a text, got {characters!r}; restore the file")
        tokens = read_utf8(folder / VOCABULARY).split("\n")[:-1]
        special = len(cls([], "", rules := convert(rules, WordRules, f"{path}: rules")).tokens)
        rare = read_utf8(folder / RARE_WORDS).split("\n")[:-1] if (folder / RARE_WORDS).is_file() else []
        tokenizer = cls(tokens[special:], characters, rules, rare)
        if len({*tokens, *rare}) < len(tokens) + len(rare):
            raise ValueError(f"{folder}: {VOCABULARY}, {RARE_WORDS}: expected different words; restore both files")
        if tokenizer.tokens != tuple(tokens):
            raise ValueError(
                f"{folder / VOCABULARY}: expected {', '.join(SPECIAL_TOKENS)}, then different words; restore the file"
            )
        return tokenizer

    def save(self, folder: Path | str, max_length: int | None = None) -> None:
        """Write vocab.txt and rare_words.txt with the words, and tokenizer_config.json with rules and characters."""
        write_text(Path(folder) / VOCABULARY, "".join(f"{token}\n" for token in self.tokens))
        if self.rare:
            write_text(Path(folder) / RARE_WORDS, "".join(f"{word}\n" for word in self.rare))
        values = {"tokenizer_class": type(self).__name__, "rules": asdict(self.rules), "characters": self.characters}
        write_json(Path(folder) / CONFIG, values)

    @property
    def reads_any_word(self) -> bool:
        return self.rules.bytes

    @property
    def lowercase(self) -> bool:
        """True if the model cannot see capital letters: neither in words nor in characters."""
        return self.rules.lowercase and self.rules.max_characters == 0

    @property
    def num_characters(self) -> int:
        """Number of character ids, with padding and the unknown character."""
        return len(self.characters) + NUM_SPECIAL_CHARACTERS

    @cached_property
    def digest(self) -> str:
        return digest_bytes("\n".join([*self.tokens, *self.rare, self.characters, str(self.rules)]).encode())

    @property
    def num_ids(self) -> int:
        return self.vocab_size + len(self.rare)

    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        """Encode texts as N × (1 + W) ids, without special tokens. Raises ValueError for a lone surrogate."""
        words, offsets = self._split(texts)
        return Ragged(self._rows(words), offsets)

    def encode_ids(self, texts: Sequence[str]) -> Ragged:
        """Encode texts like `encode_raw`, between begin and end."""
        raw = self.encode_raw(texts)
        placed = self.layout.place([np.diff(raw.offsets)])
        ids = placed.rows_like(raw.ids)
        ids[placed.is_text] = raw.ids
        return Ragged(ids.astype(np.uint32), np.cumsum([0, *placed.lengths], dtype=np.int64))

    def encode_raw_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return [
            Encoding(ids.astype(np.int64), self._offsets(text))
            for ids, text in zip(self.encode_raw(texts), texts, strict=True)
        ]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return [
            Encoding(ids.astype(np.int64), np.pad(self._offsets(text), ((1, 1), (0, 0))))
            for ids, text in zip(self.encode_ids(texts), texts, strict=True)
        ]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]], skip_special: bool = True) -> str:
        """Join the words of ids, N or N × (1 + W), by blanks. Raises ValueError for an unknown id."""
        array = np.asarray(ids, dtype=np.int64)
        numbers = array[:, 0] if array.ndim == 2 else array
        words = [self.token(number) for number in numbers.tolist() if not (skip_special and number in (BEGIN, END))]
        return " ".join(words)

    def encode_numbers(self, texts: Sequence[str]) -> Ragged:
        words, offsets = self._split(texts)
        numbers = [self._store_numbers.get(self.rules.normalize(word), UNKNOWN) for word in words]
        return Ragged(np.array(numbers, dtype=np.uint32), offsets)

    def token_rows(self) -> npt.NDArray[np.uint32]:
        """Return the row of each id of a token store, with the rare words' after the vocabulary's: V' × (1 + W)."""
        rows = self._rows([*self.tokens, *self.rare])
        rows[:, 0] = np.arange(len(rows))
        return rows

    def _split(self, texts: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return the words of all texts, end to end, and the offsets of each text's. Raises ValueError for no text."""
        for number, text in enumerate(texts):
            check_raw_text(text, number)
        words = [self.rules.pattern.findall(text) for text in texts]
        return [*chain.from_iterable(words)], np.cumsum([0, *map(len, words)], dtype=np.int64)

    def _offsets(self, text: str) -> npt.NDArray[np.int64]:
        return np.array([match.span() for match in self.rules.pattern.finditer(text)], dtype=np.int64).reshape(-1, 2)

    def _number(self, word: str) -> int:
        """Return the id of a word or, if the vocabulary lacks it, its number by the strategy for unknown words."""
        normal = self.rules.normalize(word)
        if (number := self._numbers.get(normal)) is not None:
            return number
        if self.rules.unknown_words == "class":
            return self.tokens.index(word_class(word), UNKNOWN)
        return KEYED + hash_word(normal) % KEYED if self.rules.unknown_words == "random" else UNKNOWN

    def _rows(self, words: Sequence[str]) -> npt.NDArray[np.uint32]:
        """Return one row of 1 + W ids per word; each distinct word is looked up once."""
        numbers: dict[str, int] = {}
        distinct = [numbers.setdefault(word, len(numbers)) for word in words]
        rows = np.zeros((len(numbers), 1 + self.rules.columns), dtype=np.uint32)
        rows[:, 0] = [self._number(word) for word in numbers]
        if self.rules.bytes:
            rows[:, 1:] = word_byte_rows(list(numbers))
            return rows[np.array(distinct, dtype=np.int64)]
        for row, word in zip(rows, numbers, strict=True):
            letters = word[: self.rules.max_characters]
            row[1 : 1 + len(letters)] = [self._character_ids.get(letter, UNKNOWN_CHARACTER) for letter in letters]
        return rows[np.array(distinct, dtype=np.int64)]
