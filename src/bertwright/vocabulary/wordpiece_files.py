"""Files of WordPiece tokenizers, read with the ids that `transformers` gives for the same folder.

They are tokenizer.json or vocab.txt; tokenizer_config.json; in older folders special_tokens_map.json and
added_tokens.json.
"""

from __future__ import annotations

import codecs
import json
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from bertwright.base.files import read_bytes, read_json, write_json, write_text

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # first tokens of learned vocabularies, in this order
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
CONTINUATION = "##"  # marks a token that continues a word
MAX_WORD_LENGTH = (
    100  # a longer word is [UNK], as in transformers, which ignores tokenizer.json here; Google: 200 since 2018-11
)

# Unicode's White_Space, which `tokenizers` strips from the end of a line of vocab.txt; str.rstrip strips four more.
LINE_END_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
MAX_ID = 1_000_000  # `tokenizers` takes memory per id, not per token

# Settings that transformers' BertTokenizer reads from tokenizer_config.json: name there, name in tokenizer.json, and
# default if tokenizer_config.json lacks it.
NORMALIZER_KEYS = (
    ("do_lower_case", "lowercase", True),
    ("strip_accents", "strip_accents", None),
    ("tokenize_chinese_chars", "handle_chinese_chars", True),
)
ADDED_KEYS = {  # settings that add tokens, and their types
    "added_tokens_decoder": (dict,),
    "extra_special_tokens": (list, dict),
    "additional_special_tokens": (list,),
    "model_specific_special_tokens": (dict,),
}
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # use tokenizer.json as it is
OTHER_CLASSES = ("BertJapaneseTokenizer",)  # split words with other libraries
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def bert_backend(
    ids: dict[str, int], *, lowercase: bool, strip_accents: bool | None, handle_chinese_chars: bool = True
) -> tokenizers.Tokenizer:
    """Create BERT's tokenizer for a vocabulary; for the settings, see `tokenizers.normalizers.BertNormalizer`."""
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=handle_chinese_chars
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend


def read_backend(path: Path, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Open a folder, a tokenizer.json or a vocab.txt; `lowercase` overrides the files unless it is None."""
    if path.is_dir():
        files = [file for name in ("tokenizer.json", "vocab.txt") if (file := path / name).is_file()]
        if not files and (others := [*path.glob("*.model")]):
            command = f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
            raise FileNotFoundError(
                f"{others[0]}: a SentencePiece model is not read; make tokenizer.json of it (pip install transformers "
                f"sentencepiece): python -c {shlex.quote(f'from transformers import AutoTokenizer; {command}')}"
            )
        if not files and (path / "config.json").is_file():
            raise FileNotFoundError(
                f"{path}: a model without its tokenizer (tokenizer.json, vocab.txt), as in a trainer's checkpoint; "
                "take its base model's: AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
            )
        if not files:
            raise FileNotFoundError(
                f"{path}: neither tokenizer.json nor vocab.txt is there; name the folder of a vocabulary or of a model"
            )
        path = files[0]
    elif not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    config = read_settings(path)
    _check_names(path, config)
    if lowercase is not None:
        config["do_lower_case"] = lowercase
    backend = _read_tokenizer_json(path, config) if path.suffix == ".json" else _read_vocab_txt(path, config)
    if backend.model.token_to_id(unknown := backend.model.unk_token) is None:
        raise ValueError(f"{path}: expected {unknown} among the tokens, got none; copy or download the file again")
    add_listed_tokens(backend, path, config)
    return backend


def read_settings(path: Path) -> dict[str, Any]:
    """Read tokenizer_config.json and, in older folders, the other files with settings, beside `path`."""
    config_path = path.with_name("tokenizer_config.json")
    config = read_object(config_path)
    for key, _, default in NORMALIZER_KEYS:
        if type(config.get(key, default)) not in (bool, type(default)):
            raise ValueError(f"{config_path}: {key} is {config[key]!r}; expected true or false")
    _check_added(config_path, config)
    return _with_legacy(config_path, config)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if the file is absent. Raises ValueError for other JSON values."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def add_listed_tokens(backend: tokenizers.Tokenizer, path: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens of the settings that the tokenizer's own file at `path` lacks, as `transformers` does.

    Raises ValueError for a token that has another id in the settings.
    """
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for number, token in _added_tokens(path.with_name("tokenizer_config.json"), config):
        if number is not None or token.content not in known:
            backend.add_tokens([token])  # replaces the flags of a known token
        if number is not None and number != (own := backend.token_to_id(token.content)):
            raise ValueError(
                f"{path}: {token.content} has id {own}, but {number} in added_tokens_decoder of tokenizer_config.json "
                "or in added_tokens.json next to it; are these files of one model?"
            )


def _read_vocab_txt(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    if "do_lower_case" not in config:
        raise ValueError(
            f"{path}: no file states whether this vocabulary is lowercased; "
            'write {"do_lower_case": true}, for an uncased one, or false into tokenizer_config.json next to it; in '
            "Python, lowercase=True or False also says it"
        )
    normalizer: dict[str, Any] = {name: config.get(key, default) for key, name, default in NORMALIZER_KEYS}
    return bert_backend(read_vocab(path), **normalizer)


def _check_added(path: Path, config: Mapping[str, Any]) -> None:
    for key, kinds in ADDED_KEYS.items():
        if config.get(key) is not None and not isinstance(config[key], kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{path}: {key} is {str(config[key])[:60]!r}; expected {expected}")


def _with_legacy(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Add the settings that older folders hold in separate files; an added_tokens_decoder overrides these."""
    if "added_tokens_decoder" in config:
        return config
    map_path, added_path = path.with_name("special_tokens_map.json"), path.with_name("added_tokens.json")
    named, added = read_object(map_path), read_object(added_path)
    _check_added(map_path, named)
    _special_tokens(map_path, named)  # raises ValueError, naming the file, for values that are no tokens
    for token, number in added.items():
        if type(number) is not int:
            raise ValueError(f"{added_path}: the id of {token!r} is {number!r}; expected a whole number")
    if len({*added.values()}) < len(added):
        raise ValueError(f"{added_path}: two of its tokens have the same id")
    # transformers 5 treats tokens of added_tokens.json that the map calls additional as ordinary ones.
    known = config | {name: value for name, value in named.items() if name != "additional_special_tokens"}
    specials = {*SPECIAL_TOKENS, *(token.content for token in _special_tokens(path, known))}
    config |= named
    config["added_tokens_decoder"] = {
        str(number): {"content": token, "normalized": token not in specials, "special": token in specials}
        for token, number in added.items()
    }
    return config


def _check_names(path: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError for special tokens with other names and for word rules of other libraries."""
    for name, expected in zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True):
        given = config.get(name)
        content = given.get("content") if isinstance(given, dict) else given
        if content not in (None, expected):
            raise ValueError(
                f"{path}: its {name} is {content!r} (tokenizer_config.json or special_tokens_map.json next to "
                f"it); expected {expected}, as in BERT"
            )
    if config.get("tokenizer_class") in OTHER_CLASSES:
        raise ValueError(
            f"{path}: made for {config['tokenizer_class']}, which is not supported; expected WordPiece of plain text"
        )


def _added_tokens(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[int | None, AddedToken]]:
    """Yield the added tokens in the order in which transformers adds them: first those with ids.

    Raises ValueError with `path` for values that are no tokens.
    """
    numbered = {
        number: _added_token(path, value) for number, value in (config.get("added_tokens_decoder") or {}).items()
    }
    try:
        yield from sorted(((int(number), token) for number, token in numbered.items()), key=itemgetter(0))
    except ValueError:
        raise ValueError(f"{path}: ids of added tokens are whole numbers, not {', '.join(numbered)}") from None
    known = {token.content for token in numbered.values()}
    yield from ((None, token) for token in _special_tokens(path, config) if token.content not in known)


def _special_tokens(path: Path, config: Mapping[str, Any]) -> list[AddedToken]:
    """Collect the special tokens besides BERT's own."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    named = [value for name, value in config.items() if name.endswith("_token") and isinstance(value, str | dict)]
    named += extra.values() if isinstance(extra, dict) else extra
    named += (config.get("model_specific_special_tokens") or {}).values()
    return [_added_token(path, value, special=True) for value in named if value not in SPECIAL_TOKENS]


def _added_token(path: Path, value: Any, special: bool = False) -> AddedToken:
    flags = {}
    if isinstance(value, dict):
        flags = {name: value[name] for name in TOKEN_FLAGS if name in value}
        value = value.get("content")
    if special:
        flags = {"normalized": False} | flags | {"special": True}
    if not isinstance(value, str) or not value or not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError(f"{path}: an added token is {value!r}; expected a text, or an object with its content")
    return AddedToken(value, **flags)


def read_vocab(path: Path) -> dict[str, int]:
    """Read the id of each token in a vocab.txt: its line number, as `transformers` reads released files.

    A blank line is the token "", and of equal lines the last one counts; a warning names the ids that no text has.
    Raises ValueError with the line of an error.
    """
    data = read_bytes(path)
    if data.startswith(codecs.BOM_UTF8):
        raise ValueError(f"{path}: starts with a byte order mark, which would belong to the first token; remove it")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {number}: not UTF-8 (byte {data[error.start]:#04x})") from None
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise ValueError(f"{path}: empty; a vocabulary has one token per line, {' '.join(SPECIAL_TOKENS)} among them")
    tokens = [line.rstrip(LINE_END_SPACE) for line in lines]
    ids = {token: number for number, token in enumerate(tokens)}
    unreachable = [
        f"line {number + 1} ({f'again in line {ids[token] + 1}' if token else 'blank'})"
        for number, token in enumerate(tokens)
        if not token or ids[token] != number
    ]
    unreachable += [
        f"line {number + 1} (white space)" for token, number in ids.items() if token.split() not in ([token], [])
    ]
    _warn_of_unused_ids(path, unreachable)
    return ids


def _warn_of_unused_ids(path: Path, places: Sequence[str]) -> None:
    if places:
        shown = ", ".join(places[:5]) + (f" and {len(places) - 5:,} more" if len(places) > 5 else "")
        warnings.warn(f"{path}: {shown}: no text has these ids; every id stays as it is", stacklevel=2)


def _read_tokenizer_json(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    description = read_json(path)
    check_ids(path, description)
    normalizer = description.get("normalizer") if isinstance(description, dict) else None
    parts = normalizer.get("normalizers") if isinstance(normalizer, dict) else None
    if parts and parts[0] == {"type": "Lowercase"} and [part.get("type") for part in parts[1:]] == ["BertNormalizer"]:
        # sentence-transformers adds it for its own do_lower_case, and transformers ignores it.
        normalizer = description["normalizer"] = parts[1]
    # If so, transformers takes only the vocabulary from the file and builds BERT's own tokenizer around it.
    rebuilt = config.get("tokenizer_class") not in GENERIC_CLASSES and (
        "tokenizer_class" in config or path.with_name("config.json").is_file()
    )
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        normalizer.setdefault("strip_accents", None)
        if absent := [name for _, name, _ in NORMALIZER_KEYS if name not in normalizer]:
            raise ValueError(f"{path}: its BertNormalizer lacks {', '.join(absent)}")
        _update_normalizer(path, normalizer, config, rebuilt)
    backend = load_backend(path, description)
    if not isinstance(backend.model, models.WordPiece):
        raise ValueError(f"{path}: a {type(backend.model).__name__} tokenizer; expected WordPiece, as in BERT")
    if backend.model.continuing_subword_prefix != CONTINUATION:
        prefix = backend.model.continuing_subword_prefix
        raise ValueError(f"{path}: tokens inside a word start with {prefix!r}; expected {CONTINUATION!r}, as in BERT")
    if rebuilt and (component := _non_bert_component(backend)):
        raise ValueError(
            f"{path}: its {component} differs from BERT's, which transformers uses instead; if it is right, write "
            f'"tokenizer_class": "{GENERIC_CLASSES[0]}" into tokenizer_config.json'
        )
    return backend


def load_backend(path: Path, description: Any) -> tokenizers.Tokenizer:
    """Build a tokenizer from the content of the tokenizer.json at `path`. Raises ValueError if it cannot be used."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(description))
    except Exception as error:  # `tokenizers` raises nothing more specific
        raise ValueError(f"{path}: `tokenizers` cannot read it ({error})") from None


def check_ids(path: Path, description: Any) -> None:
    """Raise ValueError for ids that two tokens share, and for one so large that its list of tokens exhausts memory."""
    model = description.get("model") if isinstance(description, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # of a unigram model: pieces with their scores
        vocab = {str(row[0]): number for number, row in enumerate(vocab) if isinstance(row, list) and row}
    if not isinstance(vocab, dict):
        return  # reported by `tokenizers`
    added = description.get("added_tokens")
    added = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    tokens: dict[int, str] = {}
    for token, number in [*vocab.items(), *((token.get("content"), token.get("id")) for token in added)]:
        if not isinstance(number, int):
            continue  # reported by `tokenizers`
        if number > MAX_ID:
            raise ValueError(f"{path}: {token} has id {number}; expected at most {MAX_ID:,}")
        if tokens.setdefault(number, token) != token:
            raise ValueError(f"{path}: {token} and {tokens[number]} have the same id, {number}; copy the file again")
    _warn_of_unused_ids(
        path, [f"id {number} (no token)" for number in range(max(tokens, default=0)) if number not in tokens]
    )


def _non_bert_component(backend: tokenizers.Tokenizer) -> str | None:
    """Find the first component of a tokenizer that differs from BERT's with the same normalizer settings."""
    description = json.loads(backend.to_str())
    model, normalizer = description["model"], description["normalizer"] or {}
    settings: dict[str, Any] = {name: normalizer.get(name, default) for _, name, default in NORMALIZER_KEYS}
    berts = json.loads(bert_backend({}, **settings).to_str())
    equal = {name: description[name] == berts[name] for name in ("normalizer", "pre_tokenizer")}
    equal |= {name: model[name] == berts["model"][name] for name in ("unk_token", "max_input_chars_per_word")}
    return next((name for name, same in equal.items() if not same), None)


def _update_normalizer(path: Path, normalizer: dict[str, Any], config: Mapping[str, Any], rebuilt: bool) -> None:
    """Apply the settings of tokenizer_config.json, as transformers does. Raises ValueError for a contradiction.

    transformers fills in its defaults for settings that tokenizer_config.json lacks, even against tokenizer.json. To
    ignore these defaults would silently give other ids than transformers: so a difference is an error.
    """
    stated = {name: config[key] for key, name, _ in NORMALIZER_KEYS if key in config}
    assumed = {name: config.get(key, default) for key, name, default in NORMALIZER_KEYS}
    intended = normalizer | stated
    for key, name, _ in NORMALIZER_KEYS:
        if rebuilt and effective_normalizer(intended)[name] != effective_normalizer(assumed)[name]:
            raise ValueError(
                f"{path}: {name} is {normalizer[name]}, but tokenizer_config.json next to it has no {key}, which "
                f"transformers reads as {assumed[name]}; write {key} into tokenizer_config.json"
            )
    normalizer.update(stated)


def effective_normalizer(normalizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a BertNormalizer with strip_accents resolved: None follows lowercase."""
    strip = normalizer["strip_accents"]
    return dict(normalizer) | {"strip_accents": normalizer["lowercase"] if strip is None else strip}


def write_folder(folder: Path, backend: tokenizers.Tokenizer, tokens: Sequence[str], max_length: int | None) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json, from which transformers 4 and 5 give the same ids."""
    description = json.loads(backend.to_str())
    config: dict[str, Any] = dict(zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True))
    if _non_bert_component(backend):
        config["tokenizer_class"] = GENERIC_CLASSES[0]
    else:
        config["tokenizer_class"] = "BertTokenizer"
        config |= {key: description["normalizer"][name] for key, name, _ in NORMALIZER_KEYS}
    # BertTokenizer takes the vocabulary from tokenizer.json, and added tokens from here.
    config["added_tokens_decoder"] = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in description["added_tokens"]
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    write_json(folder / "tokenizer.json", description)
    write_vocab(folder / "vocab.txt", tokens)
    write_json(folder / "tokenizer_config.json", config)


def write_vocab(path: Path, tokens: Sequence[str]) -> None:
    """Write a vocab.txt, one token per line in id order; the line of an id without a token is blank."""
    write_text(path, "".join(f"{'' if token.rstrip(LINE_END_SPACE) != token else token}\n" for token in tokens))
