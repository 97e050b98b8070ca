"""What a loaded tokenizer must be to be BERT's, and what of it decides the ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import processors

from bertwright.vocabulary.wordpiece_files import CONTINUATION, SPECIAL_TOKENS, effective_normalizer

SENTENCEPIECE = "\u2581"  # marks the start of a word in vocabularies of SentencePiece


def canonical_description(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the components that decide ids, the same however they were stored."""
    description = json.loads(backend.to_str())
    if isinstance(vocab := description["model"].get("vocab"), dict):
        vocab.pop("", None)  # a blank line of vocab.txt, which no text has
    normalizer = description["normalizer"]
    if normalizer is not None and normalizer["type"] == "BertNormalizer":
        normalizer = effective_normalizer(normalizer)
    return {
        "model": description["model"],
        "normalizer": normalizer,
        "pre_tokenizer": description["pre_tokenizer"],
        "added_tokens": sorted(description["added_tokens"], key=lambda token: token["id"]),
    }


def validate_backend(backend: tokenizers.Tokenizer, source: str) -> list[str]:
    """Check a tokenizer, add what BERT's have beyond the vocabulary, and return its tokens in id order.

    An id without a token has the token "".
    """
    backend.no_truncation()  # the limits of some model, which the caller decides
    backend.no_padding()
    ids = backend.get_vocab()
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(f"{source}: no {' '.join(missing)}; a BERT vocabulary has {' '.join(SPECIAL_TOKENS)}")
    starts = sum(token.startswith(SENTENCEPIECE) and token != SENTENCEPIECE for token in ids)
    if starts > sum(token.startswith(CONTINUATION) for token in ids):
        raise ValueError(
            f"{source}: a SentencePiece vocabulary ({starts:,} tokens start with {SENTENCEPIECE}, which marks a word), "
            f"as KoBERT has; expected WordPiece, with {CONTINUATION} inside words; take a model with such a vocabulary"
        )
    tokens = [""] * (max(ids.values()) + 1)
    for token, number in ids.items():
        tokens[number] = token
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([token for token in SPECIAL_TOKENS if token not in known])
    if backend.post_processor is None:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
        )
    _check_templates(json.loads(backend.post_processor.__getstate__()), source)
    empty = backend.encode("", "")
    if (empty.tokens, empty.type_ids) != (["[CLS]", "[SEP]", "[SEP]"], [0, 0, 1]):
        raise ValueError(
            f"{source}: joins a pair as {' '.join(empty.tokens)}; expected [CLS] A [SEP] B [SEP], as in BERT"
        )
    return tokens


def _check_templates(processor: Mapping[str, Any], source: str) -> None:
    """Reject templates with a token that they do not define, at which `tokenizers` panics and prints Rust's stack."""
    for nested in processor.get("processors", ()):
        _check_templates(nested, source)
    items = (*processor.get("single", ()), *processor.get("pair", ()))
    for token in (item["SpecialToken"]["id"] for item in items if "SpecialToken" in item):
        if token not in processor["special_tokens"]:
            raise ValueError(f"{source}: damaged: its template contains an unknown token, {token}; copy the file again")
