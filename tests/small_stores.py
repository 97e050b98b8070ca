"""Small stores made of given token ids, and a vocabulary in which ids can be read as words."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from bertwright.tokenstore.store import DocumentChunk, Provenance, TokenStore
from bertwright.tokenstore.store_writer import write_store
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

Sentences = Sequence[Sequence[int]]
StoreMaker = Callable[[Sequence[Sentences]], TokenStore]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Ids 5 … 1004 are w5 … w1004, of which every id divisible by 4 goes on with a word (##w8)."""
    words = [f"##w{number}" if number % 4 == 0 else f"w{number}" for number in range(5, 1005)]
    return Tokenizer.from_tokens([*SPECIALS, *words], lowercase=True)


@pytest.fixture
def make_store(tmp_path: Path, tokenizer: Tokenizer) -> StoreMaker:
    """Documents as lists of sentences as lists of ids → an opened store."""

    def make(documents: Sequence[Sentences]) -> TokenStore:
        folder = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        sentences = [sentence for document in documents for sentence in document]
        content = DocumentChunk(
            np.concatenate([np.asarray(sentence) for sentence in sentences]),
            np.array([len(sentence) for sentence in sentences]),
            np.array([len(document) for document in documents]),
        )
        write_store(
            folder, [content], Provenance(tokenizer.digest, tokenizer.vocab_size, True, "line/1"), corpus_digest="none"
        )
        return TokenStore.open(folder)

    return make


@pytest.fixture
def mixed_store(make_store: StoreMaker) -> TokenStore:
    """200 documents of all sizes, from one sentence to some hundred, about 50,000 tokens; ids are drawn at random."""
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(200):
        lengths = rng.integers(1, 30, size=int(np.exp(rng.uniform(0, 4))))
        documents.append([rng.integers(5, 1005, size=length).tolist() for length in lengths])
    return make_store(documents)
