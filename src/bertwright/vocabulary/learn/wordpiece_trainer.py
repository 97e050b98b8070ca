"""Training of WordPiece and byte-pair vocabularies: from word counts to tokens, and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.reporter import ProgressCallback
from bertwright.base.settings import check_choice, check_limit, check_minimum
from bertwright.vocabulary import byte_pair_tokenizer
from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer
from bertwright.vocabulary.learn import word_counts
from bertwright.vocabulary.learn.joint_vocabulary import whole_word_tokenizer
from bertwright.vocabulary.learn.merges import (
    WORD_END,
    Criterion,
    NativeMergeTrainer,
    PythonMergeTrainer,
    Rule,
    make_trainer,
)
from bertwright.vocabulary.learn.word_counts import WordCounts, WordRules
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.wordpiece_files import CONTINUATION, MAX_WORD_LENGTH, SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

ASCII = [chr(code) for code in range(0x21, 0x7F)]
PROGRESS_EVERY = 1000  # tokens between two calls of `progress`
NUM_EXAMPLES = 10  # tokens that a summary names
MAX_DIACRITIC_SHARE = 0.01  # of a text's chunks with such letters; above it, stripping accents by default is an error
# Limits for other letters: shares of words that lose marks, and that become equal to a more frequent word. Vietnamese
# and Pinyin are above both; Greek loses marks in most words, but merges few.
MAX_CHANGED, MAX_MERGED = 0.5, 0.05


@dataclass(frozen=True)
class VocabularySettings:
    """Settings by which a vocabulary is learned."""

    size: int = 30_000
    """Tokens in all, special tokens and single characters included (paper, section 3: a 30,000 token vocabulary).
    A small corpus may give fewer."""

    lowercase: bool = True
    """Lowercase all text (an uncased model), as the paper does for all tasks but named entities (section 5.3)."""

    strip_accents: bool | None = None
    """Remove accents (é becomes e). Unset, it follows `lowercase` as in BERT. Korean, Japanese, Indic and Thai letters
    would be taken apart, and Vietnamese words would lose their tones: for such text the setting is required."""

    algorithm: Literal["wordpiece", "byte-pair", "bpe-bytes", "unigram", "words", "lowercase-words"] = "wordpiece"
    """wordpiece: BERT's; byte-pair: GPT's, with </w> at the end of a word (Sennrich et al. 2016), which merges by
    --criterion bpe and, unless --no-lowercase is given, lowercases and strips accents; bpe-bytes: RoBERTa's, on bytes,
    so that no text is unknown; unigram: XLM-R's, pieces of a unigram model (Kudo 2018); the last two keep capitals
    unless --lowercase is given, and of the options below, only bpe-bytes has --min-frequency; words: ELMo's, the most
    frequent words, at least --min-frequency times, which its language model predicts; it reads all words by their
    bytes, with capitals and accents; lowercase-words: ULMFiT's, the same in lower case, whose model reads words by
    their ids alone."""

    criterion: Rule = "gain"
    """Rule by which the next pair of tokens is merged. gain: f(ab) log[f(ab) N / (f(a) f(b))], the pair that raises the
    likelihood of the text most (Schuster and Nakajima 2012, who give no formula). bpe: the most frequent pair
    (Sennrich et al. 2016)."""

    min_frequency: int = 5
    """Minimum frequency of a pair to be merged: a model cannot learn what a token means from fewer occurrences."""

    character_coverage: float = 0.9999
    """Share of the text's characters that get a token of their own, starting with the most frequent; printable ASCII
    always does. A word with any other character is [UNK]: at 0.9999 about one word in 3,000."""

    max_characters: int = 6_000
    """Maximum of characters besides ASCII, whatever --character-coverage requires. English needs about 100, Korean
    2,700, Chinese 6,000; most take two tokens, one at the start of a word and one inside."""

    drop_unused: bool = True
    """Replace learned tokens that never occur in the tokenized corpus by others: the tokenizer takes the longest match,
    so intermediate tokens may never occur."""

    max_words: int = 2_000_000
    """Maximum of distinct words in memory; the default takes 1.6 GB. The rarest beyond it are dropped, and reported."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "size", "min_frequency", "max_characters", "max_words")
        check_limit(self, "above 0 and up to 1", "character_coverage")
        check_choice(self, "algorithm")
        if self.algorithm == "byte-pair":
            for name, expected in (("criterion", "bpe"), ("strip_accents", None)):
                if (got := getattr(self, name)) != expected:
                    raise ValueError(f"{name} = {got!r}: expected {expected!r} with --algorithm byte-pair; set it so")


def count_corpus_words(
    texts: Iterable[str], settings: VocabularySettings, progress: ProgressCallback = lambda _: None
) -> WordCounts:
    return word_counts.count_words(
        texts,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        max_words=settings.max_words,
        progress=progress,
    )


def learn(counts: WordCounts, settings: VocabularySettings, progress: ProgressCallback = lambda _: None) -> list[str]:
    """Learn a vocabulary: special tokens, single characters, then longer tokens in the order of learning.

    `progress` receives the number of tokens learned since its last call. The result has fewer than `size` tokens if no
    pair is left with `min_frequency` occurrences.

    Raises ValueError for no words, for a size smaller than the alphabet, and for text that stripping accents would
    mutilate.
    """
    characters = _choose_alphabet(counts, settings)
    start = [*SPECIAL_TOKENS, *_character_tokens(characters, settings)]
    wanted = _check_alphabet_size(start, characters, settings)
    criterion = Criterion(settings.criterion, settings.min_frequency)
    trainer = make_trainer(counts.words, frozenset(characters), criterion)

    def list_used(learned: list[str]) -> list[str]:
        """Return the learned tokens that occur; a token that was dropped before may replace one that is dropped now."""
        frequencies = token_counts([*start, *learned], counts)[len(start) :]
        return [token for token, count in zip(learned, frequencies, strict=True) if count]

    return [*start, *_learn_tokens(trainer, wanted, list_used if settings.drop_unused else list, progress)]


def learn_wordpiece(
    counts: WordCounts, settings: VocabularySettings, progress: ProgressCallback = lambda _: None
) -> Tokenizer:
    """Learn a vocabulary by `learn` and return its tokenizer."""
    tokens = learn(counts, settings, progress)
    return Tokenizer.from_tokens(tokens, lowercase=settings.lowercase, strip_accents=settings.strip_accents)


def learn_byte_pairs(
    counts: WordCounts, settings: VocabularySettings, progress: ProgressCallback = lambda _: None
) -> BytePairTokenizer:
    """Learn a byte-pair tokenizer (Sennrich, Haddow and Birch 2016).

    Its tokens are special tokens, single characters, then a token for each merge, in order. Errors: see `learn`.
    """
    characters = _choose_alphabet(counts, settings)
    special = byte_pair_tokenizer.SPECIAL_TOKENS.values()
    start = [*special, *characters, *(character + WORD_END for character in characters)]
    wanted = _check_alphabet_size(start, characters, settings)
    criterion = Criterion(settings.criterion, settings.min_frequency, WORD_END)
    trainer = make_trainer(counts.words, frozenset(characters), criterion)
    tokens = [*start, *_learn_tokens(trainer, wanted, list, progress)]
    ids = {token: number for number, token in enumerate(tokens)}
    return BytePairTokenizer(ids, trainer.merges(), "vocabulary", lowercase=settings.lowercase)


def _learn_tokens(
    trainer: PythonMergeTrainer | NativeMergeTrainer,
    wanted: int,
    list_used: Callable[[list[str]], list[str]],
    progress: ProgressCallback,
) -> list[str]:
    """Learn until `wanted` tokens are used, or no pair is left; `list_used` tells which of the learned ones are."""
    learned: list[str] = []
    used: list[str] = []
    more = [""]
    while more and len(used) < wanted:
        more = trainer.advance(min(PROGRESS_EVERY, wanted - len(used)))
        learned += more
        used += more
        progress(len(more))
        if not more or len(used) == wanted:
            used = list_used(learned)
    return used[:wanted]


def _choose_alphabet(counts: WordCounts, settings: VocabularySettings) -> list[str]:
    """Return the characters that get tokens. Raises ValueError for text that cannot be learned from."""
    if not counts.words:
        raise ValueError(
            f"no words to learn from: {counts.too_long:,} longer than {MAX_WORD_LENGTH} characters, {counts.pruned:,} "
            "dropped because of max_words; the rest of the corpus is white space"
        )
    _check_diacritics(counts, settings)
    return alphabet(counts, settings)


def _check_alphabet_size(start: Sequence[str], characters: Sequence[str], settings: VocabularySettings) -> int:
    """Return how many tokens are left to learn after the first ones. Raises ValueError if these are too many."""
    left = settings.size - len(start)
    if left < 0:
        raise ValueError(
            f"size is {settings.size}, but {len(SPECIAL_TOKENS)} special tokens and an alphabet of {len(characters)} "
            f"characters, most of them both at the start of a word and inside, take {len(start)}; raise --size, "
            "or lower --character-coverage or --max-characters"
        )
    return left


def _check_diacritics(counts: WordCounts, settings: VocabularySettings) -> None:
    share = counts.letters_with_diacritics / max(counts.chunks, 1)
    if settings.strip_accents is not None or not settings.lowercase:
        return
    merge = counts.stripped
    loss = f"{merge.changed:.0%} of the words lose marks, {merge.merged:.0%} become equal to a more frequent word"
    if share > MAX_DIACRITIC_SHARE:
        reason = (
            f"{share:.0%} of the text is Korean, Japanese, Indic, Thai, Vietnamese or alike; an uncased vocabulary "
            f"strips accents as well, which takes such letters apart (한 becomes three jamo, が becomes か); {loss}"
        )
    elif merge.changed > MAX_CHANGED and merge.merged > MAX_MERGED:
        reason = f"an uncased vocabulary strips accents as well: {loss}"
    else:
        return
    raise ValueError(
        f"{reason} ({merge.examples}); --strip-accents False preserves them, --no-lowercase preserves capitals, too, "
        "and --strip-accents True strips them anyway"
    )


def alphabet(counts: WordCounts, settings: VocabularySettings) -> list[str]:
    """Choose the characters that get tokens: printable ASCII, then others by frequency up to the limits set.

    Characters that normalization changes are excluded.
    """
    rules = WordRules(settings.lowercase, settings.strip_accents)
    frequency = counts.characters()
    ascii_left = [c for c in ASCII if list(rules.words([c])) == [[c]]]
    rare = sorted((c for c in frequency if c not in ascii_left), key=lambda c: (-frequency[c], c))
    wanted = frequency.total() * settings.character_coverage
    covered = sum(frequency[c] for c in ascii_left)
    taken = 0
    while covered < wanted and taken < min(len(rare), settings.max_characters):
        covered += frequency[rare[taken]]
        taken += 1
    return sorted([*ascii_left, *rare[:taken]], key=lambda c: (-frequency[c], c))


def _character_tokens(characters: Sequence[str], settings: VocabularySettings) -> list[str]:
    """Return the tokens of characters: each at the start of a word and, unless it is always a word, inside one."""
    rules = WordRules(settings.lowercase, settings.strip_accents)
    return [*characters, *(CONTINUATION + c for c in characters if not rules.stands_alone(c))]


def token_counts(tokens: Sequence[str], counts: WordCounts) -> npt.NDArray[np.int64]:
    """Count the occurrences of each token in the counted words, by longest match."""
    encoded = whole_word_tokenizer(tokens).encode_raw(list(counts.words))  # words are normalized and split already
    occurrences = np.fromiter(counts.words.values(), np.int64, len(counts.words))
    used = np.zeros(len(tokens), dtype=np.int64)
    np.add.at(used, encoded.ids, np.repeat(occurrences, np.diff(encoded.offsets)))
    return used


class VocabularySummary(NamedTuple):
    """Statistics of a vocabulary on the words that it was learned from."""

    tokens: int
    characters: int  # characters with a token of their own
    character_coverage: float  # share of the text that these characters make up
    fertility: float  # tokens per word
    unknown: float  # share of words that are [UNK]
    whole_words: float  # share of words that are one token, not [UNK]
    unused: int  # tokens besides the special ones that never occur in the text
    pruned: float  # share of words dropped while counting to bound memory
    longest: tuple[str, ...]
    last: tuple[str, ...]  # learned last: the rarest


def vocabulary_stats(tokenizer: TextTokenizer, counts: WordCounts) -> VocabularySummary:
    tokens, special = tokenizer.tokens, {*tokenizer.special_ids}
    encoded = tokenizer.encode_raw(list(counts.words))
    ids, lengths = encoded.ids, np.diff(encoded.offsets)  # tokens of each word
    occurrences = np.fromiter(counts.words.values(), np.int64, len(counts.words))
    unknown = np.zeros(len(occurrences), dtype=bool)
    unknown[np.repeat(np.arange(len(encoded)), lengths)[ids == tokenizer.unk_id]] = True
    words = occurrences.sum()
    used = np.bincount(ids, minlength=len(tokens)).tolist()  # distinct words that contain each token
    texts = {token: token.removeprefix(CONTINUATION).removesuffix(WORD_END) for token in tokens}
    known = {*texts.values()}
    regular = [token for number, token in enumerate(tokens) if number not in special]
    frequency = counts.characters()
    covered = sum(count for character, count in frequency.items() if character in known)
    return VocabularySummary(
        tokens=len(tokens),
        characters=sum(len(text) == 1 for text in known),
        character_coverage=covered / frequency.total(),
        fertility=float((lengths * occurrences).sum() / words),
        unknown=float((occurrences[unknown].sum() + counts.too_long) / (words + counts.too_long)),
        whole_words=float(occurrences[(lengths == 1) & ~unknown].sum() / words),
        unused=sum(not count for number, count in enumerate(used) if number not in special),
        pruned=counts.pruned / counts.total,
        longest=tuple(sorted(regular, key=lambda token: (-len(texts[token]), token))[:NUM_EXAMPLES]),
        last=tokens[-NUM_EXAMPLES:],
    )
