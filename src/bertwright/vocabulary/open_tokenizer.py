"""Open the tokenizer of a folder, whichever kind it is: add yours to the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from bertwright.base.description import Description
from bertwright.base.files import local_folder, read_json
from bertwright.base.foreign import check_links
from bertwright.systems.registry import system_of_folder
from bertwright.vocabulary.byte_pair_tokenizer import (
    CASED,
    DESCRIPTION,
    KIND,
    TOKENIZER_CLASS,
    VOCAB,
    BytePairTokenizer,
)
from bertwright.vocabulary.general_tokenizer import GeneralTokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.word_tokenizer import WordTokenizer
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

# By `tokenizer_class` in tokenizer_config.json: the function that opens a folder. Without it, the record of the system
# that `model_type` in config.json names has the function; for all other folders, the content of the files decides.
KINDS: dict[str, Callable[[Path], TextTokenizer]] = {
    TOKENIZER_CLASS: BytePairTokenizer.load,
    CASED: BytePairTokenizer.load,
    f"{TOKENIZER_CLASS}Fast": BytePairTokenizer.load,  # of earlier versions of `transformers`
    WordTokenizer.__name__: WordTokenizer.load,
}


def open_tokenizer(folder_or_file: Path | str, lowercase: bool | None = None) -> TextTokenizer:
    """Open the tokenizer of a folder, or a file of a WordPiece tokenizer.

    `lowercase` overrides the files of a WordPiece tokenizer. Errors: see `Tokenizer.load`.
    """
    path = local_folder(Path(folder_or_file))
    check_links(path)
    kind = None
    config = "tokenizer_config.json"
    for name, field in ((config, KIND), (config, "tokenizer_class"), ("config.json", "model_type")):
        values = read_json(path / name) if (path / name).is_file() else {}
        kind = kind or (values.get(field) if isinstance(values, dict) else None)
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind](path)
    system = system_of_folder(kind) if isinstance(kind, str) else None
    if system is not None and system.tokenizer:
        tokenizer: TextTokenizer = resolve_name(system.tokenizer)(path)
        return tokenizer
    if path.is_dir() and not is_berts(path):
        return GeneralTokenizer.load(path)
    return Tokenizer.load(path, lowercase)


def is_berts(folder: Path) -> bool:
    """Return whether the tokenizer of a folder is WordPiece with BERT's special tokens; so are damaged files."""
    if not (folder / DESCRIPTION).is_file():
        return (folder / "vocab.txt").is_file() or not (folder / VOCAB).is_file()
    description: Any = read_json(folder / DESCRIPTION)
    model: Any = description.get("model") if isinstance(description, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict | list):
        return True
    ends = json.dumps(description.get("post_processor"))  # MPNet has BERT's tokens, too, but none of them at the ends
    names_others = ('"cls"' in ends or '"special_tokens"' in ends) and '"[CLS]"' not in ends
    is_other = names_others or isinstance(vocab, list) or model.get("type") in ("BPE", "WordLevel")
    return not is_other and not {"[CLS]", "[SEP]"}.isdisjoint(vocab)


def describe_tokenizer(folder: Path) -> dict[str, str]:
    """Return the size and the digest of the tokenizer of a folder, for people."""
    tokenizer = open_tokenizer(folder)
    return {
        "vocabulary": f"{tokenizer.vocab_size:,} tokens, {'uncased' if tokenizer.lowercase else 'cased'}",
        "digest of its ids": tokenizer.digest,
    }


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe a vocabulary; None for a folder without one."""
    if not any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return None
    return Description("vocabulary", describe_tokenizer(folder))
