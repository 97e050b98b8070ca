"""Learning of byte-pair vocabularies (Sennrich, Haddow and Birch 2016), from the word counts of WordPiece's."""

from __future__ import annotations

from collections.abc import Callable

from bertwright.vocabulary.byte_pair_tokenizer import SPECIAL_TOKENS, BytePairTokenizer
from bertwright.vocabulary.learn.merges import WORD_END, Criterion, make_trainer
from bertwright.vocabulary.learn.word_counts import WordCounts
from bertwright.vocabulary.learn.wordpiece_trainer import (
    PROGRESS_EVERY,
    VocabularySettings,
    check_alphabet_size,
    choose_alphabet,
)


def learn_byte_pairs(
    counts: WordCounts, settings: VocabularySettings, progress: Callable[[int], None] | None = None
) -> BytePairTokenizer:
    """Learn a byte-pair tokenizer: special tokens, single characters, then a token for each merge, in order.

    `progress` receives the number of tokens learned since its last call. Errors: see `trainer.learn`.
    """
    characters = choose_alphabet(counts, settings)
    start = [*SPECIAL_TOKENS.values(), *characters, *(character + WORD_END for character in characters)]
    wanted = check_alphabet_size(start, characters, settings)
    criterion = Criterion(settings.criterion, settings.min_frequency, WORD_END)
    trainer = make_trainer(counts.words, frozenset(characters), criterion)
    learned: list[str] = []
    more = [""]
    while more and len(learned) < wanted:
        more = trainer.advance(min(PROGRESS_EVERY, wanted - len(learned)))
        learned += more
        if progress is not None:
            progress(len(more))
    ids = {token: number for number, token in enumerate([*start, *learned])}
    return BytePairTokenizer(ids, trainer.merges(), "vocabulary", lowercase=settings.lowercase)
