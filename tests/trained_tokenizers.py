"""Small tokenizers of every kind, trained on sentences in ten scripts, as folders that `transformers` opens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and then it doesn't jump any more.",
    "Быстрая лиса прыгает через ленивую собаку и больше не прыгает.",
    "Η γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول",
    "השועל החום המהיר קופץ מעל הכלב העצלן",
    "तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "敏捷的棕色狐狸跳过了懒狗。",
    "素早い茶色の狐はのろまな犬を飛び越える。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "Le renard brun élevé à Noël saute, œuvre naïve: 3,14 € ½ ﬁn…",
]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROLES = {
    "bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "sep_token": "</s>",
    "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
BERT_ROLES = {name: f"[{name[:-6].upper()}]" for name in ("cls_token", "pad_token", "sep_token", "mask_token")}
MASK = AddedToken("<mask>", lstrip=True, special=True)


def roberta_template(backend: Tokenizer) -> Any:
    numbers = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    return processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=numbers)


def bytes_backend(add_prefix_space: bool = False) -> Tokenizer:
    """Train byte pairs on bytes, as RoBERTa has."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*SPECIALS[:4], MASK], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(SENTENCES * 2, trainer)
    ends = [(token, backend.token_to_id(token)) for token in ("</s>", "<s>")]
    backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=add_prefix_space)
    return backend


def unigram_backend() -> Tokenizer:
    """Train unigram pieces, as XLM-R has; some characters are unknown."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=320, special_tokens=[*SPECIALS[:4], MASK], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([*SENTENCES[:4], *SENTENCES[8:]], trainer)
    backend.post_processor = roberta_template(backend)
    return backend


def albert_backend() -> Tokenizer:
    """Train unigram pieces with BERT's special tokens and segment types, in lower case, as ALBERT has."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    specials: Any = ["<pad>", "<unk>", "[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True, special=True)]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=specials, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return backend


def wordpiece_backend() -> Tokenizer:
    """Train word pieces with RoBERTa's special tokens, as MPNet has."""
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=[*SPECIALS[:4], MASK], show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    backend.post_processor = roberta_template(backend)
    return backend


def words_backend() -> Tokenizer:
    """Make a vocabulary of whole words."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=80, special_tokens=SPECIALS, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    backend.post_processor = roberta_template(backend)
    return backend


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": bytes_backend,
    "bytes with a space": lambda: bytes_backend(add_prefix_space=True),
    "unigram": unigram_backend,
    "unigram of BERT's layout": albert_backend,
    "word pieces": wordpiece_backend,
    "words": words_backend,
}


def write_tokenizer(folder: Path, kind: str, **settings: Any) -> Path:
    """Write a trained tokenizer with the settings of `transformers`; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    roles = BERT_ROLES | {"pad_token": "<pad>", "unk_token": "<unk>"} if "BERT" in kind else ROLES
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
