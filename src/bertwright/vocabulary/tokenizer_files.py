"""The files in which WordPiece tokenizers come: tokenizer.json, vocab.txt, tokenizer_config.json."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertwright.files import read_json, write_json, write_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in the order in which learned vocabularies begin
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
CONTINUATION = "##"  # marks a piece that goes on inside a word
MAX_WORD_LENGTH = 100  # a longer word is [UNK]: BERT's own limit, which transformers sets whatever tokenizer.json says

# What transformers' BertTokenizer takes from tokenizer_config.json, the name of the same thing in tokenizer.json,
# and what it assumes where tokenizer_config.json is silent.
NORMALIZER_KEYS = (
    ("do_lower_case", "lowercase", True),
    ("strip_accents", "strip_accents", None),
    ("tokenize_chinese_chars", "handle_chinese_chars", True),
)
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # these take tokenizer.json as it is


def bert_backend(
    ids: dict[str, int], *, lowercase: bool, strip_accents: bool | None, handle_chinese_chars: bool = True
) -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary; the settings are those of `tokenizers.normalizers.BertNormalizer`."""
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=handle_chinese_chars
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend


def read_backend(path: Path, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Open a folder, a tokenizer.json or a vocab.txt; `lowercase`, where given, overrides what the files say."""
    if path.is_dir():
        found = [file for name in ("tokenizer.json", "vocab.txt") if (file := path / name).is_file()]
        if not found:
            raise FileNotFoundError(f"{path}: neither tokenizer.json nor vocab.txt is there")
        path = found[0]
    elif not path.is_file():
        raise FileNotFoundError(f"{path}: no such file or folder")
    config_path = path.with_name("tokenizer_config.json")
    config = _checked_config(config_path, read_json(config_path)) if config_path.is_file() else {}
    if lowercase is not None:
        config["do_lower_case"] = lowercase
    if path.suffix == ".json":
        return _read_tokenizer_json(path, config)
    if "do_lower_case" not in config:
        raise ValueError(
            f"{path}: nothing says whether this vocabulary is lowercased; "
            "give lowercase=True for an uncased one, lowercase=False for a cased one, or write "
            f'{{"do_lower_case": true}} or false into {config_path.name} beside it'
        )
    normalizer: dict[str, Any] = {name: config.get(key, default) for key, name, default in NORMALIZER_KEYS}
    return bert_backend(read_vocab(path), **normalizer)


def _checked_config(path: Path, config: Any) -> dict[str, Any]:
    """What tokenizer_config.json holds, if it is an object whose normalizer settings are true, false or, where that
    means something, null."""
    if not isinstance(config, dict):
        raise ValueError(f"{path}: an object with the tokenizer's settings expected, {type(config).__name__} found")
    for key, _, default in NORMALIZER_KEYS:
        if type(config.get(key, default)) not in (bool, type(default)):
            raise ValueError(f"{path}: {key} is {config[key]!r}; true or false expected")
    return config


def read_vocab(path: Path) -> dict[str, int]:
    """Read a vocab.txt, one token a line in id order; ValueError names the line of what is wrong."""
    data = path.read_bytes()
    if data.startswith(codecs.BOM_UTF8):
        raise ValueError(f"{path}: begins with a byte order mark, which would be part of the first token; remove it")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        place = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {place}: not UTF-8 (byte {data[error.start]:#04x})") from None
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise ValueError(f"{path}: empty; a vocabulary has one token a line, {' '.join(SPECIAL_TOKENS)} among them")
    ids: dict[str, int] = {}
    for number, line in enumerate(lines):
        token = line.rstrip()
        if not token:
            raise ValueError(f"{path}, line {number + 1}: empty line; ids count lines, so every line is a token")
        if token in ids:
            raise ValueError(f"{path}, line {number + 1}: {token} stands in line {ids[token] + 1} already")
        ids[token] = number
    return ids


def _read_tokenizer_json(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    description = read_json(path)
    normalizer = description.get("normalizer") if isinstance(description, dict) else None
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        normalizer.setdefault("strip_accents", None)
        if absent := [name for _, name, _ in NORMALIZER_KEYS if name not in normalizer]:
            raise ValueError(f"{path}: its BertNormalizer does not say {', '.join(absent)}")
        _settle_normalizer(path, normalizer, config)
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # `tokenizers` raises nothing more exact
        raise ValueError(f"{path}: `tokenizers` cannot read it ({error})") from None
    if not isinstance(backend.model, models.WordPiece):
        raise ValueError(f"{path}: a {type(backend.model).__name__} tokenizer; BERT's are WordPiece")
    if backend.model.continuing_subword_prefix != CONTINUATION:
        found = backend.model.continuing_subword_prefix
        raise ValueError(f"{path}: pieces inside a word begin with {found!r}; BERT's begin with {CONTINUATION!r}")
    return backend


def _settle_normalizer(path: Path, normalizer: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Take over what tokenizer_config.json says, as transformers does; refuse files that mean different text.

    transformers fills in its defaults where tokenizer_config.json is silent, even against tokenizer.json. Nobody
    wants that, and to part from it in silence would give other ids than transformers: so it is an error.
    """
    silent = config.get("tokenizer_class", GENERIC_CLASSES[0]) in GENERIC_CLASSES
    stated = {name: config[key] for key, name, _ in NORMALIZER_KEYS if key in config}
    assumed = {name: config.get(key, default) for key, name, default in NORMALIZER_KEYS}
    intended = normalizer | stated
    for key, name, _ in NORMALIZER_KEYS:
        if not silent and _effective(intended)[name] != _effective(assumed)[name]:
            raise ValueError(
                f"{path}: {name} is {normalizer[name]}, but tokenizer_config.json beside it has no {key}, which "
                f"transformers reads as {assumed[name]}; write {key} into tokenizer_config.json"
            )
    normalizer.update(stated)


def _effective(normalizer: Mapping[str, Any]) -> dict[str, Any]:
    """A BertNormalizer's settings with strip_accents settled: None follows lowercase."""
    strip = normalizer["strip_accents"]
    return dict(normalizer) | {"strip_accents": normalizer["lowercase"] if strip is None else strip}


def what_decides_ids(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """The parts of a tokenizer that decide ids, in one canonical form however they were stored."""
    description = json.loads(backend.to_str())
    normalizer = description["normalizer"]
    if normalizer is not None and normalizer["type"] == "BertNormalizer":
        normalizer = _effective(normalizer)
    return {
        "model": description["model"],
        "normalizer": normalizer,
        "pre_tokenizer": description["pre_tokenizer"],
        "added_tokens": sorted(description["added_tokens"], key=lambda token: token["id"]),
    }


def complete(backend: tokenizers.Tokenizer, source: str) -> list[str]:
    """Check a tokenizer, add what BERT's have beyond the vocabulary, and return its tokens in id order."""
    backend.no_truncation()  # some folders carry one model's limits, which are the caller's business
    backend.no_padding()
    ids = backend.get_vocab()
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(f"{source}: no {' '.join(missing)}; a BERT vocabulary has {' '.join(SPECIAL_TOKENS)}")
    tokens = sorted(ids, key=ids.__getitem__)
    for number, token in enumerate(tokens):
        if ids[token] != number:
            raise ValueError(
                f"{source}: {token} has id {ids[token]}, id {number} is missing; ids count from 0 in steps"
            )
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([token for token in SPECIAL_TOKENS if token not in known])
    if backend.post_processor is None:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
        )
    empty = backend.encode("", "")
    if (empty.tokens, empty.type_ids) != (["[CLS]", "[SEP]", "[SEP]"], [0, 0, 1]):
        raise ValueError(f"{source}: joins a pair as {' '.join(empty.tokens)}; BERT's is [CLS] A [SEP] B [SEP]")
    return tokens


def write_folder(folder: Path, backend: tokenizers.Tokenizer, tokens: list[str], max_length: int | None) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json, from which transformers 4 and 5 give the same ids."""
    description = json.loads(backend.to_str())
    normalizer = description["normalizer"]
    config: dict[str, Any] = dict(zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True))
    if normalizer is not None and normalizer["type"] == "BertNormalizer":
        config["tokenizer_class"] = "BertTokenizer"
        config |= {key: normalizer[name] for key, name, _ in NORMALIZER_KEYS}
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # BertTokenizer takes the vocabulary from tokenizer.json, and tokens beyond it from here.
    config["added_tokens_decoder"] = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in description["added_tokens"]
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    write_json(folder / "tokenizer.json", description)
    write_text(folder / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    write_json(folder / "tokenizer_config.json", config)
