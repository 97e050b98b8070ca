"""Settings of word vectors. The module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from bertwright.base.settings import MAX_SEED, check_choice, check_limit, check_range
from bertwright.corpus.documents import CorpusSettings
from bertwright.kernels.cpu import MAX_THREADS
from bertwright.vocabulary.fasttext_file import Subwords

VectorModel = Literal["skip-gram", "fasttext", "glove"]


class Recipe(NamedTuple):
    """Settings of a model's authors."""

    window: int
    epochs: int
    learning_rate: float
    sample: float  # 0: all occurrences are used


RECIPES: dict[VectorModel, Recipe] = {
    "skip-gram": Recipe(5, 5, 0.025, 1e-3),  # word2vec.c
    "fasttext": Recipe(5, 5, 0.05, 1e-4),  # fastText's args.cc; its paper also has 0.05 for skip-gram
    "glove": Recipe(10, 25, 0.05, 0.0),  # section 4.2; 50 iterations below 300 dimensions
}


@dataclass(frozen=True)
class WordRule:
    """Words of the text."""

    lowercase: bool = True
    """Learn one vector for Word and word. Look-up falls back to lower case, so keep this for cased tasks too."""
    zero_digits: bool = False
    """Read every digit as 0."""
    split_punctuation: bool = True
    """Separate punctuation from words; otherwise words are what blanks separate, as in text that is tokenized."""
    min_count: int = 5
    """Occurrences from which on a word has a vector; rarer words are left out of the text."""

    def __post_init__(self) -> None:
        check_range(self, 1, 1 << 31, "min_count")


@dataclass(frozen=True)
class WordVectorSettings:
    """Learn word vectors from text: skip-gram with negative sampling (word2vec), fastText or GloVe.

    Writes a new folder: vectors.txt and vectors.bin in word2vec's formats (skip-gram), vectors.vec and vectors.bin in
    fastText's (fasttext), or vectors.txt in GloVe's (glove), which gensim and others read; counts.txt; settings.toml.

    A run cannot be resumed: it takes minutes, and an interrupted one leaves nothing behind.
    """

    corpus: CorpusSettings
    output: Path
    """New folder for the vectors."""
    model: VectorModel = "skip-gram"
    """skip-gram: Mikolov et al. 2013. fasttext: Bojanowski et al. 2017, whose n-grams give every word a vector. glove:
    Pennington et al. 2014."""
    size: int = 100
    """Numbers per vector."""
    window: int | None = None
    """Words on each side that count as context; skip-gram and fasttext draw a number up to it for every word. Unset:
    5, or 10 for glove."""
    epochs: int | None = None
    """Passes over the text, or over the co-occurrences. Unset: 5, or 25 for glove."""
    learning_rate: float | None = None
    """Initial rate. Unset: 0.025 for skip-gram, else 0.05. It falls linearly to a ten-thousandth of it, or is AdaGrad's
    for glove."""
    sample: float | None = None
    """Threshold of sub-sampling: of words with a larger share of the text, some occurrences are skipped; 0: none.
    Unset: 0.001 for skip-gram, 0.0001 for fasttext; glove has no sub-sampling."""
    negatives: int = 5
    """Noise words per context word (skip-gram, fasttext)."""
    max_count: float = 100.0
    """Co-occurrences from which on a pair has weight 1 (glove: x_max)."""
    threads: int | None = None
    """CPU threads. Unset: `OMP_NUM_THREADS`, else all CPUs that this process may use. Several threads change the same
    vectors without locks, so only --threads 1 gives the same bits from the same seed."""
    seed: int = 0
    """Seed of the initial vectors, of the windows' sizes, and of skipped words and noise words."""
    words: WordRule = field(default_factory=WordRule)
    subwords: Subwords = field(default_factory=Subwords)

    def __post_init__(self) -> None:
        check_choice(self, "model")
        check_range(self, 1, 4096, "size")
        check_range(self, 1, 128, "window")
        check_range(self, 1, 10_000, "epochs")
        check_range(self, 1, 31, "negatives")
        check_range(self, 1, MAX_THREADS, "threads")
        check_range(self, 0, MAX_SEED, "seed")
        check_limit(self, "above 0", "learning_rate", "max_count")
        check_limit(self, "from 0", "sample")

    @property
    def recipe(self) -> Recipe:
        """Settings given, else those of the model's authors."""
        given = {name: getattr(self, name) for name in Recipe._fields}
        return RECIPES[self.model]._replace(**{name: value for name, value in given.items() if value is not None})
