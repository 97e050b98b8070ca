"""Unknown words of word-level models: which vector a word gets that the training text lacks, or has too rarely.

One option, five strategies, carried out by `WordTokenizer` and the model's table of word vectors:

- `unk`: all of these words share one trained vector.
- `char`: the same, beside a vector of the word's characters.
- `pretrained`: the word's vector in a file of word vectors, if the file has it, else as `unk`.
- `random`: the word's vector in a file, if there is one with the word, else random numbers that the word itself
  determines (Dhingra et al. 2017, "A comparative study of word embeddings for reading comprehension").
- `class`: one trained vector for each class of words: numbers, capitals, hyphens, and frequent suffixes.

With every strategy a word has the same vector wherever it occurs: in question and passage, in training and test.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

UnknownWords = Literal["unk", "char", "pretrained", "random", "class"]

UNK = "<UNK>"
SUFFIXES = ("ing", "ed", "ion", "ly", "er", "est", "ity", "ness", "ment", "al", "ous", "ive", "able", "ic", "s")
SHAPES = ("number", "all-caps", "capitalized", "hyphen")
CLASSES = tuple(f"<UNK-{name}>" for name in (*SHAPES, *SUFFIXES))
NUMBER = re.compile(r"[+-]?\d[\d.,:/%-]*")


def word_class(word: str) -> str:
    """Return the class of a word by its shape, else by its longest known suffix, else `<UNK>`.

    >>> [word_class(word) for word in ("1,234.5", "NATO", "Kolkata", "pre-war", "unfollowing", "xkcd")]
    ['<UNK-number>', '<UNK-all-caps>', '<UNK-capitalized>', '<UNK-hyphen>', '<UNK-ing>', '<UNK>']
    """
    if NUMBER.fullmatch(word):
        return "<UNK-number>"
    if word.isupper():
        return "<UNK-all-caps>"
    if word[:1].isupper():
        return "<UNK-capitalized>"
    if "-" in word[1:-1]:
        return "<UNK-hyphen>"
    suffixes = [suffix for suffix in SUFFIXES if word.endswith(suffix) and len(word) > len(suffix) + 1]
    return f"<UNK-{max(suffixes, key=len)}>" if suffixes else UNK


def keyed_vectors(keys: npt.NDArray[np.integer[Any]], width: int) -> npt.NDArray[np.float32]:
    """Return the random vectors of N keys, N × `width`: uniform in ±√(3/width), so that their length is about 1.

    Element i of a vector is a hash (splitmix64) of its key and of i, so that it depends on nothing else.
    """
    state = keys.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width).astype(np.uint64)
    state = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = ((state ^ (state >> np.uint64(31))) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    vectors: npt.NDArray[np.float32] = (uniform * 2 - 1) * np.float32(np.sqrt(3 / width))
    return vectors
