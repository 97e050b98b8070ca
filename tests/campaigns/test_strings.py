"""Campaign: random strings through everything that reads text, against the libraries that BERT's users have.

Ids and offsets are compared with transformers' BertTokenizer and with its first tokenizer, written in Python; word
counts with `tokenizers`' own components; sentences must hold every character of their text.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign import SEED, scale, summarize
from tokenizers import normalizers, pre_tokenizers

import bertwright
from bertwright.corpus.documents import Document
from bertwright.corpus.sentences import make_document_splitter
from bertwright.kernels import native_library
from bertwright.vocabulary.learn import chunk_counter, word_counts
from bertwright.vocabulary.learn.word_counts import count_words
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

pytestmark = pytest.mark.slow

NUM_STRINGS = 100_000
BATCH = 500
# Characters with rules of their own: spaces, controls, marks, case mappings that change the length, joiners, Hangul,
# ideographs outside the ranges that BERT knows, private use, noncharacters.
PECULIAR = (
    "\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\xad\u1680\u180e\u2000\u2009\u200b\u200c\u200d\u200e\u2028\u2029\u202e\u202f"
    "\u205f\u2060\u3000\ufeff\ufffc\ufffd\ufffe\uffff\x00\x01\x07\x1b\x7f\x80\x9b\u0300\u0301\u0307\u0327\u0345\u0903"
    "\u093f\u0e31\u0e4d\u1160\u11a8\u20dd\u20e3\ufe0f\ufe20İıßẞŒœǅǆΣσςſKÅﬁﬀＡａ①½²ªᾳᾼ한국각가힣漢字々〇㐀䶿一鿿豈﨟𠀀𪛟𫜴が"
    "ガパﾊﾟ、。！？「」『』…—–-_'’‘“”\"`´^~|\\/@#$%&*+=<>[](){}¿¡«»§¶†‡•🙂👍🏽👨\u200d👩\u200d👧🇰🇷𐐀𐐨𝒜𝟘\ue000\U000f0000\U0010ffff"
)
WORDS = """
the a bear sees I'm don't U.S.A. Dr. e.g. 3.14 1,000 http://x.y/z?q=1 user@host C++ naïve café Straße ÅNGSTRÖM
안녕하세요 세계 你好 こんにちは カタカナ สวัสดี नमस्ते मानक שלום مرحبا Привет Ёлка Ελληνικά tiếng Việt ไทย
""".split()
SPECIAL_SPELLINGS = [
    *SPECIAL_TOKENS, "[mask]", "[MASK", "MASK]", "[ MASK ]", "[[MASK]]", "##the", "##", "#", "[unused1]", "[CLS][SEP]"
]  # fmt: skip
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x1FFF), (0x2000, 0x2BFF),
          (0x3000, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x10FFFF)]  # fmt: skip


def random_string(chance: random.Random) -> str:
    """Return a string of words, characters of all of Unicode, special tokens and long words; no lone surrogates."""
    strings = []
    for _ in range(chance.randint(0, 12)):
        kind = chance.random()
        if kind < 0.3:
            strings.append(chance.choice(WORDS))
        elif kind < 0.55:
            strings.append("".join(chance.choices(PECULIAR, k=chance.randint(1, 5))))
        elif kind < 0.8:
            first, last = chance.choice(RANGES)
            strings.append("".join(chr(chance.randint(first, last)) for _ in range(chance.randint(1, 6))))
        elif kind < 0.9:
            strings.append(chance.choice(SPECIAL_SPELLINGS))
        elif kind < 0.95:
            strings.append(
                chance.choice("a e\u0301 漢 ##a \u0301 한 . ab".split(" ")) * chance.choice([49, 99, 100, 101, 300])
            )
        else:
            strings.append(chance.choice(WORDS).swapcase())
        strings.append(chance.choice(["", " ", " ", "  ", "\n", "\t"]))
    return "".join(strings)


def random_strings(count: int, seed: int) -> Iterator[list[str]]:
    """Yield batches of random strings, `count` in all."""
    chance = random.Random(f"{SEED} {seed}")
    for start in range(0, count, BATCH):
        yield [random_string(chance) for _ in range(min(BATCH, count - start))]


def make_vocabulary() -> list[str]:
    """Return a vocabulary in which many of the strings' words and characters are tokens."""
    chance = random.Random(SEED)
    texts = [text for batch in random_strings(2_000, seed=-1) for text in batch]
    counts: Counter[str] = Counter()
    for lowercase in (True, False):
        counts += count_words(texts, lowercase=lowercase).words
    characters = sorted({character for word in counts for character in word})
    singles = [character for character in characters if chance.random() < 0.8]
    words = [word for word, _ in counts.most_common(800) if len(word) > 1]
    tokens = [*SPECIAL_TOKENS, *singles, *(f"##{character}" for character in singles), *words]
    tokens += [f"##{word[: chance.randint(2, 4)]}" for word in words]
    # A line of vocab.txt: no white space, nothing that str.rstrip() would take for it.
    return [token for token in dict.fromkeys(tokens) if token == "".join(token.split())]


KINDS = {"uncased": (True, None), "cased": (False, None), "uncased with accents": (True, False)}


@pytest.fixture(scope="module", params=KINDS)
def tokenizers_to_compare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """A kind of tokenizer with its share of all strings, ours, and the two of transformers, of the same files."""
    from transformers import AutoTokenizer
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    lowercase, strip = KINDS[request.param]
    folder = tmp_path_factory.mktemp("tokenizer")
    ours = Tokenizer.from_tokens(make_vocabulary(), lowercase=lowercase, strip_accents=strip)
    ours.save(folder)
    fast = AutoTokenizer.from_pretrained(folder)
    python = BertTokenizerLegacy(str(folder / "vocab.txt"), do_lower_case=lowercase, strip_accents=strip)
    return request.param, Tokenizer.load(folder), fast, python


def test_ids_and_offsets_are_those_of_transformers(tokenizers_to_compare: tuple[Any, ...]) -> None:
    name, ours, fast, python = tokenizers_to_compare
    number = differ = 0
    share = 0.5 if name == "uncased" else 0.25
    for batch in random_strings(scale(round(share * NUM_STRINGS)), seed=list(KINDS).index(name)):
        expected = fast(batch, return_offsets_mapping=True)
        encodings, flat = ours.encode_batch(batch), ours.encode_ids(batch)
        for text, ids, offsets, found, flat_ids in zip(
            batch, expected["input_ids"], expected["offset_mapping"], encodings, flat, strict=True
        ):
            assert found.ids.tolist() == ids, repr(text)
            assert flat_ids.tolist() == ids, repr(text)
            assert [tuple(pair) for pair in found.offsets.tolist()] == offsets, repr(text)
            number += 1
        for text, ids in list(zip(batch, expected["input_ids"], strict=True))[:25]:
            differ += python(text)["input_ids"] != ids
        plain = [text for text in batch if "[" not in text]
        for text, ids in zip(plain, ours.encode_raw(plain), strict=True):
            assert ids.tolist() == ours.encode(text).ids[1:-1].tolist(), repr(text)
    summarize(
        f"strings: {name} tokenizer: {number:,} strings, ids in 3 ways and offsets equal to transformers' "
        f"(its tokenizer in Python gives other ids for {differ:,} of {number // 20:,})"
    )


def test_word_counts_are_those_of_the_tokenizers_components() -> None:
    number = 0
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for index, batch in enumerate(random_strings(scale(NUM_STRINGS), seed=10)):
        lowercase, strip = ((True, None), (False, None), (True, False))[index % 3]
        normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip)
        words = (word for text in batch for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text)))
        expected = Counter(words)
        counts = count_words(batch, lowercase=lowercase, strip_accents=strip)
        assert counts.words == {word: count for word, count in expected.items() if len(word) <= 100}
        assert counts.total == expected.total()
        number += len(batch)
        if index % 10 == 0 and native_library.load_library("wordpiece") is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(word_counts, "make_chunk_counter", chunk_counter.PythonChunkCounter)
                assert count_words(batch, lowercase=lowercase, strip_accents=strip) == counts
    summarize(f"strings: word counts: {number:,} strings, equal to those of `tokenizers`' components")


def test_sentences_hold_all_of_their_text() -> None:
    number = sentences = 0
    for batch in random_strings(scale(NUM_STRINGS), seed=20):
        for kind in ("rules", "line"):
            split = make_document_splitter(kind)
            for text in batch:
                found = split(Document(text))
                assert "".join("".join(found).split()) == "".join(text.split()), repr(text)
                assert all(sentence and sentence == sentence.strip() for sentence in found), repr(text)
                sentences += len(found)
        number += len(batch)
    summarize(f"strings: sentence splitter: {number:,} strings, {sentences:,} sentences, no character lost")


def test_lone_surrogates_are_reported() -> None:
    chance = random.Random(SEED)
    ours = Tokenizer.from_tokens(make_vocabulary(), lowercase=True)
    number = scale(1_000)
    for _ in range(number):
        text = random_string(chance)
        position = chance.randint(0, len(text))
        broken = f"{text[:position]}{chr(chance.randint(0xD800, 0xDFFF))}{text[position:]}"
        for call in (ours.encode, lambda one: ours.encode_ids([one]), lambda one: ours.encode_raw(["a", one])):
            with pytest.raises(ValueError, match="lone surrogate U"):
                call(broken)  # type: ignore[operator]
        with pytest.raises(ValueError, match="lone surrogate"):
            count_words([broken], lowercase=True)
    summarize(f"strings: {number:,} lone surrogates, all reported")


Check = Callable[[Any, Any], bool]  # gets what a method was called with, and its prediction
CALLS: dict[str, tuple[str, Callable[[str, str], tuple[Any, ...]], Check]] = {
    "fill_mask": (
        "run",
        lambda text, other: (f"{text[:40]} [MASK] {other[:20]}",),
        lambda given, found: (
            bool(found.masks) and all(0 <= one.probability <= 1 for mask in found.masks for one in mask)
        ),
    ),
    "embed": ("run", lambda text, other: (text,), lambda given, found: bool(np.isfinite(found).all())),
    "classify": (
        "classification",
        lambda text, other: (text,),
        lambda given, found: math.isclose(sum(found.probabilities.values()), 1, rel_tol=1e-4),
    ),
    "choose": (
        "multiple-choice",
        lambda text, other: (text, [other, "the bear"]),
        lambda given, found: math.isclose(sum(found.probabilities), 1, rel_tol=1e-4),
    ),
    "tag": (
        "tagging",
        lambda text, other: (tuple(text.split()),),
        lambda given, found: found.words == given[0] and len(found.tags) == len(found.words),
    ),
    "answer": (
        "question-answering",
        lambda text, other: (text, other),
        lambda given, found: found.text == given[1][found.start : found.end] and math.isfinite(found.score),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.* lose tokens:UserWarning", "ignore:.*truncated:UserWarning")
def test_models_take_any_string(name: str, project: Path) -> None:
    folder, arguments_of, check = CALLS[name]
    call = getattr(bertwright.load(project / folder / "model"), name)
    count = rejected = 0
    for batch in random_strings(scale(2_000), seed=30):
        for text, other in zip(batch, reversed(batch), strict=True):
            given = arguments_of(text, other)
            count += 1
            try:
                found = call(*given)
            except ValueError:  # such as a question without words
                rejected += 1
                continue
            assert check(given, found), given
    assert rejected < count / 2
    summarize(f"strings: {name}: {count:,} strings, {rejected:,} rejected, the others as promised")
