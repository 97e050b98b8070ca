"""Joint vocabularies of two languages: pieces of the words between spaces, from which the text can be restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from bertwright.vocabulary.learn.merges import Criterion, make_trainer
from bertwright.vocabulary.learn.word_counts import WordCounts
from bertwright.vocabulary.wordpiece_files import CONTINUATION, MAX_WORD_LENGTH, SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

MIN_FREQUENCY = 2  # of a pair of pieces that is merged


def learn_joint_vocabulary(texts: Iterable[str], size: int) -> Tokenizer:
    """Learn `size` pieces by merging the most frequent pairs (Sennrich et al. 2016, whose BPE is joint as well).

    Words are what stands between spaces: unlike BERT's, they keep case, accents and punctuation, so that decoding
    restores the text up to its spaces. A text is split into the longest pieces that match. Every character of the texts
    has pieces, the most frequent ones first, up to half of the vocabulary. Raises ValueError for a smaller `size` than
    the special tokens and one character need, and for texts without words.
    """
    counts = WordCounts(Counter(word for text in texts for word in text.split() if len(word) <= MAX_WORD_LENGTH))
    if not counts.words:
        raise ValueError("vocabulary: expected text to learn from, got no words")
    ordered = sorted(counts.characters().items(), key=lambda item: (-item[1], item[0]))
    characters = [character for character, _ in ordered][: (size - len(SPECIAL_TOKENS)) // 4]
    if not characters:
        raise ValueError(f"vocab_size = {size}: expected at least {len(SPECIAL_TOKENS) + 4}")
    start = [*SPECIAL_TOKENS, *characters, *(CONTINUATION + character for character in characters)]
    trainer = make_trainer(counts.words, frozenset(characters), Criterion("bpe", MIN_FREQUENCY))
    return whole_word_tokenizer([*start, *trainer.advance(size - len(start))])


def whole_word_tokenizer(tokens: Sequence[str]) -> Tokenizer:
    """Return the WordPiece tokenizer that splits texts at spaces alone, with these tokens in id order."""
    ids = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
    return Tokenizer(backend, "joint vocabulary")
