"""Learning of byte pairs on bytes (Radford et al. 2019; RoBERTa) and of unigram pieces (Kudo 2018) by `tokenizers`.

The vocabularies have RoBERTa's special tokens and its layout of sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unicodedata import normalize

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertwright.vocabulary.general_tokenizer import ROLES, GeneralTokenizer
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings

SPECIAL_TOKENS = list(dict.fromkeys(ROLES.values()))  # first tokens, in this order; padding is token 1, as in RoBERTa
FIRST, LAST, MASK, UNKNOWN = (ROLES[name] for name in ("cls_token", "sep_token", "mask_token", "unk_token"))

UNSCORED = "<UNK>"  # added by the trainer of `tokenizers` without a score: in a text, it breaks the training


def learn_general(texts: Iterable[str], settings: VocabularySettings) -> GeneralTokenizer:
    """Learn a tokenizer from texts. Raises ValueError for texts, or a size, that give none."""
    is_bytes = settings.algorithm == "bpe-bytes"
    backend = tokenizers.Tokenizer(models.BPE() if is_bytes else models.Unigram())
    backend.normalizer = _normalizer(settings, is_bytes)
    trainer: Any
    if is_bytes:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if settings.size < (least := len(alphabet) + len(SPECIAL_TOKENS)):
            raise ValueError(f"size is {settings.size}: expected at least {least}, the bytes and the special tokens")
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=settings.size,
            min_frequency=settings.min_frequency,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=alphabet,
            show_progress=False,
        )
    else:
        split, mark = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence([split, mark]), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=settings.size, special_tokens=SPECIAL_TOKENS, unk_token=UNKNOWN, show_progress=False
        )
        texts = (normalize("NFKC", text).replace(UNSCORED, " ") for text in texts)
    try:
        backend.train_from_iterator(texts, trainer)
    except (OSError, UnicodeError, ValueError):  # of the texts
        raise
    except Exception as error:  # `tokenizers` raises nothing more specific
        raise ValueError(f"size = {settings.size}: no vocabulary can be learned ({error}); use more text") from None
    last, first = ((token, SPECIAL_TOKENS.index(token)) for token in (LAST, FIRST))
    if is_bytes:
        backend.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=False)
    else:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{FIRST} $A {LAST}", pair=f"{FIRST} $A {LAST} {LAST} $B {LAST}", special_tokens=[first, last]
        )
    backend.add_special_tokens([tokenizers.AddedToken(MASK, lstrip=True, special=True)])  # takes the space before it
    return GeneralTokenizer(backend, ROLES, "vocabulary")


def _normalizer(settings: VocabularySettings, is_bytes: bool) -> Any:
    parts: list[Any] = [] if is_bytes else [normalizers.NFKC()]
    if settings.strip_accents:
        parts += [normalizers.NFD(), normalizers.StripAccents()]
    if settings.lowercase:
        parts.append(normalizers.Lowercase())
    return normalizers.Sequence(parts) if parts else None
