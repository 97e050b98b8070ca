"""Tokenizers of any kind against `transformers`, on strings of ten scripts."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer

from bertwright.vocabulary.general_tokenizer import GeneralTokenizer
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer, TokenText
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from trained_tokenizers import KINDS, SENTENCES, bytes_backend, write_tokenizer

# Text that touches every rule: special tokens, joined emoji, accents in both forms, controls, odd spaces, long words.
FRAGMENTS = [
    "<mask>", "</s>", " <s>", "<unk>", "[SEP]", "[MASK] ", "  ", "\n", "\t", "\u200d", "\u00a0", "\u3000", "\ufffd",
    "\x00", "👩‍👩‍👧", "e\u0301", "İ", "ß", "ﬁ", "½", "don't", "▁", "Ġ", "##ing", "ab" * 60, *SENTENCES,
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=5).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TextTokenizer, Any]:
    """Return the tokenizers of both packages from the same folder."""
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"), request.param)
    return open_tokenizer(folder), AutoTokenizer.from_pretrained(folder)


def check_encodings(ours: TextTokenizer, theirs: Any, texts: list[str]) -> None:
    expected = theirs(texts, return_offsets_mapping=True)
    encodings = ours.encode_batch(texts)
    assert [one.ids.tolist() for one in encodings] == expected["input_ids"]
    assert [one.offsets.tolist() for one in encodings] == [
        [list(span) for span in spans] for spans in expected["offset_mapping"]
    ]
    assert [row.tolist() for row in ours.encode_ids(texts)] == expected["input_ids"]


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_encodings_are_those_of_transformers(both, texts):
    ours, theirs = both
    check_encodings(ours, theirs, texts)
    for ids in theirs(texts)["input_ids"]:
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.slow
def test_20_000_strings_of_ten_scripts_have_the_encodings_of_transformers(both):
    ours, theirs = both
    rng = random.Random(0)
    scripts = [
        (0x20, 0x7E), (0xC0, 0x17F), (0x391, 0x3C9), (0x400, 0x45F), (0x5D0, 0x5EA), (0x621, 0x64A), (0x905, 0x939),
        (0xE01, 0xE30), (0x3041, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3),
    ]  # fmt: skip
    for _ in range(200):
        texts = []
        for _ in range(100):
            parts = [rng.choice(FRAGMENTS) for _ in range(rng.randrange(3))]
            for _ in range(rng.randrange(1, 4)):
                low, high = rng.choice(scripts)
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 12))))
            rng.shuffle(parts)
            texts.append(rng.choice(["", " "]).join(parts))
        check_encodings(ours, theirs, texts)


@settings(max_examples=30, deadline=None)
@given(text=TEXTS, pair=TEXTS.filter(bool))  # transformers takes an empty second text for none
def test_pairs_are_laid_out_as_in_transformers(both, text, pair):
    ours, theirs = both
    plain = [encoding.ids for encoding in ours.encode_raw_batch([text, pair])]
    if any(token in text + pair for token in theirs.all_special_tokens):
        return  # plain in ours, special in theirs
    placed = ours.layout.place([np.array([len(ids)]) for ids in plain])
    placed.ids[placed.is_text] = np.concatenate(plain)
    expected = theirs(text, pair, return_token_type_ids=True)
    assert placed.ids.tolist() == expected["input_ids"]
    types = [0] * len(placed.ids) if placed.token_type_ids is None else placed.token_type_ids.tolist()
    assert types == expected["token_type_ids"]


@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_a_corpus_cannot_write_special_tokens(both, text):
    ours, _ = both
    raw = ours.encode_raw([text])
    assert not set(raw.ids.tolist()) & set(ours.special_ids) - {ours.unk_id}
    assert ours.encode_raw_batch([text])[0].ids.tolist() == raw.ids.tolist()


def test_offsets_of_plain_texts_leave_out_the_space_before_a_token(both):
    ours, _ = both
    (encoding,) = ours.encode_raw_batch(["The fox  and the dog"])
    spans = ["The fox  and the dog"[start:end] for start, end in encoding.offsets.tolist()]
    assert not any(span[:1].isspace() for span in spans)


def test_words_are_encoded_as_after_a_space(both):
    ours, theirs = both
    words = ["dog", "fox", "собаку"]
    expected = [theirs(f"a {word}", add_special_tokens=False)["input_ids"] for word in words]
    first = len(theirs("a", add_special_tokens=False)["input_ids"])
    assert [row.tolist() for row in ours.encode_words(words)] == [ids[first:] for ids in expected]


def test_saved_and_pickled_tokenizers_give_the_same_ids(both, tmp_path):
    ours, theirs = both
    ours.save(tmp_path, max_length=77)
    again, auto = open_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert again.digest == ours.digest == pickle.loads(pickle.dumps(ours)).digest
    assert (again.layout, again.special_ids, again.mask_id) == (ours.layout, ours.special_ids, ours.mask_id)
    assert auto.model_max_length == 77
    text = "The quick <mask> fox 狐狸 ½"
    assert auto(text)["input_ids"] == again.encode(text).ids.tolist() == theirs(text)["input_ids"]


def open_kind(kind: str, folder: Path) -> TextTokenizer:
    return open_tokenizer(write_tokenizer(folder, kind))


def test_tokens_as_text_by_hand(tmp_path):
    of_bytes, unigram = open_kind("bytes", tmp_path / "a"), open_kind("unigram", tmp_path / "b")
    wordpiece = open_kind("word pieces", tmp_path / "c")

    def shown(tokenizer: TextTokenizer, text: str) -> list[TokenText]:
        return [tokenizer.token_text(number) for number in tokenizer.encode_raw([text]).ids.tolist()]

    assert shown(of_bytes, "a dog,")[-2:] == [TokenText("g", True), TokenText(",", True)]
    assert TokenText("do", False) in shown(of_bytes, "a dog,")
    for tokenizer in (of_bytes, unigram, wordpiece):
        found = shown(tokenizer, "the lazy dog")
        joined = "".join(one.text if one.joins else f" {one.text}" for one in found)
        assert joined.strip() == "the lazy dog"
    assert of_bytes.token_text(of_bytes.mask_id) == TokenText("<mask>", False)


def test_whole_words_are_known_by_their_first_letter_and_mark(tmp_path):
    for kind in ("bytes", "unigram"):
        tokenizer = open_kind(kind, tmp_path / kind)
        ids = tokenizer.encode_raw(["и больше dogs, 狐狸"]).ids.tolist()
        continued = [tokenizer.token_text(number).text for number in ids if tokenizer.is_continuation[number]]
        begun = [tokenizer.token_text(number).text for number in ids if not tokenizer.is_continuation[number]]
        assert "," in begun, kind
        assert "s" in continued or "gs" in continued or "dogs" in begun, kind
        assert not any("狐" in text for text in continued), kind
    assert not open_kind("words", tmp_path / "words").is_continuation.any()


def test_vocab_json_and_merges_are_read_as_by_roberta(tmp_path):
    backend = bytes_backend()
    backend.model.save(str(tmp_path))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "<mask>", "lstrip": True}}))
    ours = open_tokenizer(tmp_path)
    assert isinstance(ours, GeneralTokenizer)
    for text in (*SENTENCES, "a <mask> b", ""):
        expected = backend.encode(text)
        assert ours.encode(text).ids.tolist() == expected.ids
        assert ours.encode(text).offsets.tolist() == [list(span) for span in expected.offsets]
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"merges\.txt: no such file; vocab"):
        open_tokenizer(tmp_path)


def test_added_tokens_of_older_folders_are_added(tmp_path):
    folder = write_tokenizer(tmp_path / "t", "bytes")
    size = open_tokenizer(folder).vocab_size
    (folder / "added_tokens.json").write_text(json.dumps({"<e1>": size}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<e1>"]}))
    ours, theirs = open_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.encode("a <e1> b").ids.tolist() == theirs("a <e1> b")["input_ids"]
    assert size in ours.encode_raw(["a <e1> b"]).ids.tolist()
    (folder / "added_tokens.json").write_text(json.dumps({"<e1>": size + 3}))
    with pytest.raises(ValueError, match=rf"tokenizer\.json: <e1> has id {size}, but {size + 3} in added_tokens"):
        open_tokenizer(folder)


@pytest.mark.parametrize("stated", [True, False])
def test_tokenizer_config_decides_about_the_space_before_a_text(tmp_path, stated):
    kind = "bytes" if stated else "bytes with a space"
    folder = write_tokenizer(tmp_path, kind, tokenizer_class="RobertaTokenizer", add_prefix_space=stated)
    ours, theirs = open_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert [ours.token(number) for number in ours.encode("dog").ids][1].startswith("Ġ") == stated
    assert ours.encode("dog fox").ids.tolist() == theirs("dog fox")["input_ids"]


def test_files_that_contradict_each_other_are_refused(tmp_path):
    folder = write_tokenizer(tmp_path / "a", "bytes with a space", tokenizer_class="RobertaTokenizer")
    with pytest.raises(ValueError, match=r"add_prefix_space is true, but tokenizer_config"):
        open_tokenizer(folder)
    folder = write_tokenizer(
        tmp_path / "b", "bytes", added_tokens_decoder={"9": {"content": "<mask>", "special": True}}
    )
    with pytest.raises(ValueError, match=r"<mask> has id 4, but 9 in added_tokens_decoder"):
        open_tokenizer(folder)


def test_a_tokenizer_of_a_decoder_is_refused(tmp_path):
    folder = write_tokenizer(tmp_path, "bytes")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"tokenizer\.json: joins a pair .*as a a; expected a special token"):
        open_tokenizer(folder)


def test_ids_without_a_token_are_named(tmp_path):
    folder = write_tokenizer(tmp_path / "a", "unigram")
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    specials = description["post_processor"]["special_tokens"]
    changed = description | {"post_processor": description["post_processor"] | {
        "special_tokens": {name: one | {"ids": [10**9]} for name, one in specials.items()}}}  # fmt: skip
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: post_processor: 1000000000 is no token's id"):
        open_tokenizer(folder)
    description["model"]["unk_id"] = None
    path.write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: model: unk_id is missing"):
        open_tokenizer(folder)


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "spiece.model"])
def test_a_sentencepiece_model_alone_is_refused_with_the_command(tmp_path, name):
    (tmp_path / name).write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(FileNotFoundError, match=rf"{name}: .*AutoTokenizer\.from_pretrained\(.*save_pretrained\("):
        open_tokenizer(tmp_path)


def test_berts_tokenizer_keeps_its_own_class(tmp_path):
    Tokenizer.from_tokens([*SPECIAL_TOKENS, "a"], lowercase=True).save(tmp_path)
    assert isinstance(open_tokenizer(tmp_path), Tokenizer)
