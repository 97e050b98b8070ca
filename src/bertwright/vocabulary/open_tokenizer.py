"""Open the tokenizer of a folder, whichever kind it is: add yours to the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bertwright.files import read_json
from bertwright.vocabulary.byte_pair_tokenizer import TOKENIZER_CLASS, BytePairTokenizer
from bertwright.vocabulary.text_tokenizer import TextTokenizer
from bertwright.vocabulary.tokenizer import Tokenizer
from bertwright.vocabulary.word_tokenizer import WordTokenizer

# `tokenizer_class` in tokenizer_config.json, and the function that opens such a folder; other folders are BERT's.
KINDS: dict[str, Callable[[Path], TextTokenizer]] = {
    TOKENIZER_CLASS: BytePairTokenizer.load,
    WordTokenizer.__name__: WordTokenizer.load,
}


def open_tokenizer(folder_or_file: Path | str, lowercase: bool | None = None) -> TextTokenizer:
    """Open the tokenizer of a folder, or a file of a WordPiece tokenizer.

    `lowercase` overrides the files of a WordPiece tokenizer. Errors: see `Tokenizer.load`.
    """
    path = Path(folder_or_file)
    config = path / "tokenizer_config.json"
    values = read_json(config) if config.is_file() else {}
    kind = values.get("tokenizer_class") if isinstance(values, dict) else None
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind](path)
    return Tokenizer.load(path, lowercase)
