"""WordPiece vocabularies: from texts to counted words, from these to tokens, and how good the tokens are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models, pre_tokenizers

from bertwright.vocabulary import word_counts
from bertwright.vocabulary.merges import Criterion, make_trainer
from bertwright.vocabulary.tokenizer import Tokenizer, flat_backend, flat_ids
from bertwright.vocabulary.tokenizer_io import CONTINUATION, MAX_WORD_LENGTH, SPECIAL_TOKENS
from bertwright.vocabulary.word_counts import WordCounts, WordRules

ASCII = [chr(code) for code in range(0x21, 0x7F)]
PROGRESS_EVERY = 1000  # tokens between two reports of progress
MAX_DIACRITIC_SHARE = 0.01  # of a text's chunks, above which stripping accents is refused where it was not asked for


@dataclass(frozen=True)
class VocabularySettings:
    """What a vocabulary is learned with."""

    size: int = 30_000
    """Tokens in all, special tokens and single characters included (paper, section 3: a 30,000 token vocabulary).
    A corpus too small for that many gives fewer."""

    lowercase: bool = True
    """Lowercase all text (an uncased model), as the paper does for all tasks but named entities (section 5.3)."""

    strip_accents: bool | None = None
    """Remove accents (é becomes e). Unset, it follows `lowercase` as in BERT. Never for Korean, Japanese, Indic or Thai
    text, where it takes letters apart: such text is refused until this is set."""

    criterion: Literal["likelihood", "bpe"] = "likelihood"
    """Which pair of pieces is joined next. "likelihood": f(ab) / (f(a) f(b)), as WordPiece does (Schuster and Nakajima
    2012), among pairs above a falling frequency floor. "bpe": the most frequent pair."""

    min_frequency: int = 5
    """A pair of pieces that meets more rarely is never joined: a model cannot learn what a token means from fewer."""

    character_coverage: float = 0.9999
    """Share of the text's characters that get a token of their own, beginning with the most frequent; printable ASCII
    always does. A word with any other character is [UNK]: at 0.9999 about one word in 3,000."""

    max_characters: int = 6_000
    """At most so many characters besides ASCII, whatever `character_coverage` asks. English needs about 100, Korean
    2,700, Chinese 6,000; most take two tokens, one at the start of a word and one inside."""

    drop_unused: bool = True
    """Drop learned pieces that cutting up the corpus never uses (the tokenizer takes the longest match, so many steps
    on the way to a long piece are never seen), and learn others in their place."""

    max_words: int = 2_000_000
    """Distinct words held at most; learning from so many takes 1.6 GB. Above, the rarest are dropped, and reported."""

    def __post_init__(self) -> None:
        for name in ("size", "min_frequency", "max_characters", "max_words"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"character_coverage is {self.character_coverage}; it is a share, above 0 and at most 1")

    @property
    def strips_accents(self) -> bool:
        return self.lowercase if self.strip_accents is None else self.strip_accents


def count_words(
    texts: Iterable[str], settings: VocabularySettings, progress: Callable[[int], None] | None = None
) -> WordCounts:
    """Count the words of texts; `progress` is told the UTF-8 bytes done since it was last told."""
    return word_counts.count_words(
        texts,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        max_words=settings.max_words,
        progress=progress,
    )


def learn(counts: WordCounts, settings: VocabularySettings, progress: Callable[[int], None] | None = None) -> list[str]:
    """Learn a vocabulary: special tokens, then single characters, then pieces in the order in which they were learned.

    `progress` is told the pieces learned since it was last told. There are fewer than `size` tokens where no pair of
    pieces is left that meets `min_frequency` times.

    Raises ValueError for no words, for a size without room for the alphabet, and for text that stripping accents
    would mutilate.
    """
    if not counts.words:
        raise ValueError(
            f"no words to learn from: {counts.too_long:,} longer than {MAX_WORD_LENGTH} characters, {counts.pruned:,} "
            "dropped to hold to max_words; whatever else the corpus has is white space"
        )
    _refuse_mutilation(counts, settings)
    characters = alphabet(counts, settings)
    start = [*SPECIAL_TOKENS, *_character_tokens(characters, settings)]
    room = settings.size - len(start)
    if room < 0:
        raise ValueError(
            f"size is {settings.size}, but {len(SPECIAL_TOKENS)} special tokens and an alphabet of {len(characters)} "
            f"characters, most of them both at the start of a word and inside, take {len(start)}; raise size, or "
            "lower character_coverage or max_characters"
        )
    criterion = Criterion(settings.criterion == "likelihood", settings.min_frequency)
    pieces = make_trainer(counts.words, frozenset(characters), criterion)
    learned: list[str] = []
    kept: list[str] = []
    more = [""]
    while more and len(kept) < room:
        more = pieces.advance(min(PROGRESS_EVERY, room - len(kept)))
        learned += more
        kept += more
        if progress is not None:
            progress(len(more))
        if settings.drop_unused and (not more or len(kept) == room):
            # All that was ever learned is looked at: a piece unused so far may serve where another one went.
            used = token_counts([*start, *learned], counts)[len(start) :]
            kept = [piece for piece, count in zip(learned, used, strict=True) if count]
    return [*start, *kept[:room]]


def _refuse_mutilation(counts: WordCounts, settings: VocabularySettings) -> None:
    share = counts.accents_are_letters / max(counts.chunks, 1)
    if settings.strip_accents is None and settings.strips_accents and share > MAX_DIACRITIC_SHARE:
        raise ValueError(
            f"{share:.0%} of the text is Korean, Japanese, Indic or Thai; lowercase=True strips accents as well, which "
            "takes such letters apart (한 becomes three jamo, が becomes か); set strip_accents=False to keep them, or "
            "lowercase=False, or strip_accents=True to do it all the same"
        )


def alphabet(counts: WordCounts, settings: VocabularySettings) -> list[str]:
    """The characters that get tokens: printable ASCII, then others by frequency, both as far as normalization leaves
    them, up to the coverage or number set."""
    rules = WordRules(settings.lowercase, settings.strip_accents)
    frequency = counts.characters()
    ascii_left = [c for c in ASCII if list(rules.words([c])) == [[c]]]
    others = sorted((c for c in frequency if c not in ascii_left), key=lambda c: (-frequency[c], c))
    wanted = frequency.total() * settings.character_coverage
    covered = sum(frequency[c] for c in ascii_left)
    taken = 0
    while covered < wanted and taken < min(len(others), settings.max_characters):
        covered += frequency[others[taken]]
        taken += 1
    return sorted([*ascii_left, *others[:taken]], key=lambda c: (-frequency[c], c))


def _character_tokens(characters: Sequence[str], settings: VocabularySettings) -> list[str]:
    """Every character at the start of a word, and inside one unless it is always a word of its own."""
    rules = WordRules(settings.lowercase, settings.strip_accents)
    return [*characters, *(CONTINUATION + c for c in characters if not rules.stands_alone(c))]


def token_counts(tokens: Sequence[str], counts: WordCounts) -> npt.NDArray[np.int64]:
    """How often each token occurs when the counted words are cut up, longest match first."""
    ids, word_of = _cut(tokens, counts)
    occurrences = np.fromiter(counts.words.values(), np.int64, len(counts.words))
    used = np.zeros(len(tokens), dtype=np.int64)
    np.add.at(used, ids, occurrences[word_of])
    return used


def _cut(tokens: Sequence[str], counts: WordCounts) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Ids of all counted words, end to end, and the number of the word that each id is from."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # words are normalized, and words, already
    rows = flat_ids(flat_backend(backend.to_str()), list(counts.words))
    return rows.ids, np.repeat(np.arange(len(rows)), np.diff(rows.offsets))


class VocabularyReport(NamedTuple):
    """How a vocabulary fits the words that it was learned from."""

    tokens: int
    characters: int  # that have a token of their own
    character_coverage: float  # their share of the text
    fertility: float  # tokens per word
    unknown: float  # share of words that are [UNK]
    whole_word_mask: float  # share of words that are one token, not [UNK]
    unused: int  # tokens, special ones aside, that never occur in the text
    pruned: float  # share of words left out of counting to bound memory
    longest: tuple[str, ...]
    last: tuple[str, ...]  # learned last: the rarest. Are these still words?


def vocabulary_stats(tokens: Sequence[str], counts: WordCounts, examples: int = 10) -> VocabularyReport:
    """Figures of a vocabulary on counted words."""
    ids, word_of = _cut(tokens, counts)
    occurrences = np.fromiter(counts.words.values(), np.int64, len(counts.words))
    lengths = np.bincount(word_of, minlength=len(occurrences))
    unknown = np.zeros(len(occurrences), dtype=bool)
    unknown[word_of[ids == tokens.index("[UNK]")]] = True
    words = occurrences.sum()
    used = np.bincount(ids, minlength=len(tokens)).tolist()  # by how many different words
    known = {token.removeprefix(CONTINUATION) for token in tokens}
    pieces = [token for token in tokens if token not in SPECIAL_TOKENS]
    frequency = counts.characters()
    covered = sum(count for character, count in frequency.items() if character in known)
    return VocabularyReport(
        tokens=len(tokens),
        characters=sum(len(text) == 1 for text in known),
        character_coverage=covered / frequency.total(),
        fertility=float((lengths * occurrences).sum() / words),
        unknown=float((occurrences[unknown].sum() + counts.too_long) / (words + counts.too_long)),
        whole_word_mask=float(occurrences[(lengths == 1) & ~unknown].sum() / words),
        unused=sum(not count for token, count in zip(tokens, used, strict=True) if token not in SPECIAL_TOKENS),
        pruned=counts.pruned / counts.total,
        longest=tuple(sorted(pieces, key=lambda piece: (-len(piece.removeprefix(CONTINUATION)), piece))[:examples]),
        last=tuple(tokens[-examples:]),
    )


def write_vocabulary(folder: Path | str, tokens: Sequence[str], settings: VocabularySettings) -> Tokenizer:
    """Write a vocabulary as `transformers` and `tokenizers` read it, and return its tokenizer; see `Tokenizer.save`."""
    tokenizer = Tokenizer.from_tokens(tokens, lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    tokenizer.save(folder)
    return tokenizer
