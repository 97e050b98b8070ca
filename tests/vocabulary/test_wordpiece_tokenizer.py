"""The tokenizer against `transformers` and `tokenizers`, on arbitrary text."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizerFast

from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings, count_corpus_words, learn
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import PUBLISHED, needs_data, uncased_vocabulary

TOKENS = [
    *SPECIAL_TOKENS,
    *"abcdeàé,.!'[]語한",
    *(f"##{c}" for c in "abcdeàé한"),
    "ab",
    "##cd",
    "##bcd",
    "mask",
    "##sep",
]

# Text that touches every rule: specials, CJK, Hangul, accents in both forms, controls, odd spaces, long words.
FRAGMENTS = st.sampled_from(
    ["[MASK]", "[SEP]", "[cls]", " ", "\n", "\x0b", "\x85", "\u2028", "\u200d", "\ufffd", "\x00", "don't", "한국어",
     "漢字", "é", "e\u0301", "İ", "ß", "ΣΑΣ", "unaffable", "ab" * 60, "🙂", "##ing", "[UNK]", "...", "\u00ad", "ﬁ"]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS | st.text(max_size=8) | st.text(alphabet="abcdeàé. [MASK]", max_size=8), max_size=8).map(
    "".join
)


@pytest.fixture(
    scope="module",
    params=["uncased", "cased", "uncased-accents", "learned", pytest.param("released-cased", marks=needs_data)],
)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, BertTokenizerFast]:
    """Return the tokenizers of both packages from the same vocab.txt: a released one, or one of 30 tokens."""
    kind = request.param
    lowercase = kind not in ("cased", "released-cased")
    strip = False if kind == "uncased-accents" else None
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    if kind == "learned":
        path.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    elif kind == "released-cased":
        path.write_bytes((PUBLISHED / "vocab" / "bert-base-cased-vocab.txt").read_bytes())
    else:
        path.write_bytes(uncased_vocabulary().read_bytes())
        if kind == "cased":
            path.write_text(path.read_text() + "".join(f"{c}\n##{c}\n" for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "strip_accents": strip}
    path.with_name("tokenizer_config.json").write_text(json.dumps(config))
    theirs = BertTokenizerFast(vocab=str(path), do_lower_case=lowercase, strip_accents=strip)
    return Tokenizer.load(path.parent), theirs


@settings(max_examples=300)
@given(text=TEXTS)
def test_encodings_are_those_of_transformers(both, text):
    ours, theirs = both
    encoding, expected = ours.encode(text), theirs(text, return_offsets_mapping=True)
    assert encoding.ids.tolist() == expected["input_ids"]
    assert encoding.offsets.tolist() == [list(span) for span in expected["offset_mapping"]]
    for skip in (True, False):
        assert ours.decode(encoding.ids, skip) == theirs.decode(encoding.ids.tolist(), skip_special_tokens=skip)


@pytest.fixture(scope="module")
def through_tokenizers(both) -> Tokenizer:
    """The same tokenizer without its fast path, as where nanotoken cannot read it."""
    ours, _ = both
    slow = Tokenizer(Backend.from_str(ours._typed.to_str()), "copy")
    slow.__dict__["_flat_raw"] = Backend.from_str(ours._flat_raw.to_json())
    slow.__dict__["_flat_typed"] = Backend.from_str(ours._flat_typed.to_json())
    return slow


@settings(max_examples=300)
@given(texts=st.lists(TEXTS, max_size=5))
def test_flat_ids_are_those_of_tokenizers(both, through_tokenizers, texts):
    ours, theirs = both
    for kind in ("encode_raw", "encode_ids"):
        fast, slow = getattr(ours, kind)(texts), getattr(through_tokenizers, kind)(texts)
        assert fast.ids.dtype == slow.ids.dtype == np.uint32
        assert fast.offsets.tolist() == slow.offsets.tolist()
        assert fast.ids.tolist() == slow.ids.tolist()
    assert [row.tolist() for row in ours.encode_ids(texts)] == [theirs(text)["input_ids"] for text in texts]


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.from_tokens(TOKENS, lowercase=True)


def test_hand_worked(small):
    encoding = small.encode("  Abcd, [MASK]é")
    assert [small.token(n) for n in encoding.ids] == ["[CLS]", "ab", "##cd", ",", "[MASK]", "e", "[SEP]"]
    assert encoding.offsets.tolist() == [[0, 0], [2, 4], [4, 6], [6, 7], [8, 14], [14, 15], [0, 0]]
    assert small.decode(encoding.ids) == "abcd, e"


def test_a_corpus_cannot_write_special_tokens(small):
    raw = small.encode_raw(["a [MASK] [SEP]", ""])
    assert not set(raw.ids.tolist()) & {small.mask_id, small.sep_id, small.cls_id, small.pad_id}
    assert [small.token(n) for n in raw[0]] == ["a", "[", "mask", "]", "[", "[UNK]", "]"]
    assert len(raw) == 2
    assert len(raw[1]) == 0


def test_unusual_normalizer_goes_through_tokenizers(tmp_path):
    backend = Backend(models.WordPiece({token: n for n, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("x", "a")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert isinstance(tokenizer._flat_raw, Backend)
    assert [tokenizer.token(n) for n in tokenizer.encode_raw(["xb [SEP]"]).ids] == ["ab", "[", "[UNK]", "]"]
    assert tokenizer.encode_raw([]).offsets.tolist() == [0]
    assert not tokenizer.lowercase
    with pytest.raises(ValueError, match=r"lowercase = True: .*cannot be changed"):
        Tokenizer.load(tmp_path, lowercase=True)
    tokenizer.save(tmp_path / "again")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert theirs("xb a")["input_ids"] == tokenizer.encode("xb a").ids.tolist()


@pytest.mark.parametrize(("lowercase", "strip"), [(True, None), (True, False), (False, None), (False, True)])
def test_saved_folders_open_everywhere_with_the_same_ids(tmp_path, lowercase, strip):
    ours = Tokenizer.from_tokens(TOKENS, lowercase=lowercase, strip_accents=strip)
    ours.save(tmp_path / "whole", max_length=7)
    text = "ABCD àé é 한국 [MASK] 語"
    expected = ours.encode(text).ids.tolist()
    folders = [tmp_path / "whole"]
    for left_out in ("tokenizer.json", "vocab.txt"):
        folder = tmp_path / f"no {left_out}"
        folder.mkdir()
        for file in (tmp_path / "whole").iterdir():
            if file.name != left_out:
                (folder / file.name).write_bytes(file.read_bytes())
        folders.append(folder)
    for folder in folders:
        again = Tokenizer.load(folder)
        assert again.encode(text).ids.tolist() == expected
        assert again.digest == ours.digest
        assert again.lowercase is lowercase
        for theirs in (AutoTokenizer.from_pretrained(folder), BertTokenizerFast.from_pretrained(folder)):
            assert theirs(text)["input_ids"] == expected
            assert theirs.model_max_length == 7
            assert (theirs.mask_token_id, len(theirs)) == (ours.mask_id, ours.vocab_size)
    assert Backend.from_file(str(tmp_path / "whole" / "tokenizer.json")).encode(text).ids == expected


def test_tokens_added_by_a_user_stay(tmp_path, small):
    small.save(tmp_path / "one")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "one")
    theirs.add_tokens(["<br>"])
    theirs.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    theirs.save_pretrained(tmp_path / "two")
    ours = Tokenizer.load(tmp_path / "two")
    ours.save(tmp_path / "three")
    text = "a<br>[E1] bcd"
    assert ours.encode(text).ids.tolist() == theirs(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path / "three")(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.encode_raw([text]).ids.tolist() == theirs(text)["input_ids"][1:-1]
    assert not {ours.sep_id, ours.mask_id} & set(ours.encode_raw(["a [SEP] [MASK] b"]).ids.tolist())


def added_token(content: str, special: bool = False) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"content": content} | flags


BESIDE = len(TOKENS)  # the first id beyond the vocabulary


@pytest.mark.parametrize("with_json", [False, True])
@pytest.mark.parametrize(
    ("config", "legacy"),
    [
        ({}, {}),
        ({}, {"added_tokens.json": {"<e>": BESIDE, "a!": BESIDE + 1}}),
        ({}, {"special_tokens_map.json": {"additional_special_tokens": ["ab"], "bos_token": added_token("<e>")}}),
        ({}, {"special_tokens_map.json": {"eos_token": "<e>"}, "added_tokens.json": {"<e>": BESIDE}}),
        ({"additional_special_tokens": ["ab", added_token("<e>") | {"__type": "AddedToken"}]}, {}),
        ({"extra_special_tokens": {"e_token": "<e>"}}, {}),
        (
            {
                "added_tokens_decoder": {
                    str(BESIDE): added_token("<e>"),
                    str(TOKENS.index("ab")): added_token("ab", True),
                }
            },
            {},
        ),
        ({"added_tokens_decoder": {}}, {"added_tokens.json": {"<e>": BESIDE}}),
        ({"additional_special_tokens": ["<E>"]}, {"added_tokens.json": {"<E>": BESIDE}}),
        (
            {},
            {
                "special_tokens_map.json": {"additional_special_tokens": ["<E>"]},
                "added_tokens.json": {"<E>": BESIDE},
            },
        ),
        ({"model_specific_special_tokens": {"e_token": "<e>"}}, {}),
    ],
)
def test_tokens_that_files_beside_the_vocabulary_add(tmp_path, config, legacy, with_json):
    saved = Tokenizer.from_tokens(TOKENS, lowercase=True)
    saved.save(tmp_path)
    if not with_json:
        (tmp_path / "tokenizer.json").unlink()
    named = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    for name, content in ({"tokenizer_config.json": named | config} | legacy).items():
        (tmp_path / name).write_text(json.dumps(content))
    text = "abcd ab <e> a!<E>.[MASK] c"
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode(text).ids.tolist() == theirs(text)["input_ids"]
    assert ours.vocab_size == len(theirs)
    ours.save(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again")(text)["input_ids"] == theirs(text)["input_ids"]


UNUSUAL = [
    ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, "pre_tokenizer", "a.b a"),
    ({"normalizer": {"type": "Lowercase"}}, "normalizer", "A\u00e9\u200ba"),
    ({"normalizer": {"clean_text": False}}, "normalizer", "a\u200bb"),
    ({"model": {"max_input_chars_per_word": 3}}, "max_input_chars_per_word", "abcd a"),
]


@pytest.mark.parametrize(("changes", "component", "text"), UNUSUAL)
def test_other_word_rules_give_the_ids_of_transformers_or_an_error(tmp_path, small, changes, component, text):
    small.save(tmp_path / "one")
    description = json.loads((tmp_path / "one" / "tokenizer.json").read_text())
    for name, change in changes.items():
        description[name] = change if "type" in change else description[name] | change
    (tmp_path / "one" / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=rf"tokenizer.json: its {component} differs from BERT's"):
        Tokenizer.load(tmp_path / "one")
    config = json.loads((tmp_path / "one" / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "one" / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.load(tmp_path / "one")
    expected = AutoTokenizer.from_pretrained(tmp_path / "one")(text)["input_ids"]
    assert ours.encode(text).ids.tolist() == expected
    assert small.encode(text).ids.tolist() != expected
    ours.save(tmp_path / "two")
    assert Tokenizer.load(tmp_path / "two").encode(text).ids.tolist() == expected
    assert AutoTokenizer.from_pretrained(tmp_path / "two")(text)["input_ids"] == expected


def test_limits_baked_into_a_file_do_not_cut(tmp_path, small):
    small.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    backend = Backend.from_file(str(path))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(path))
    assert len(Tokenizer.load(tmp_path).encode("a b c d e")) == 7


def test_digest_is_of_what_decides_ids(small):
    assert Tokenizer.from_tokens(TOKENS, lowercase=True, strip_accents=True).digest == small.digest
    for other in (
        Tokenizer.from_tokens(TOKENS, lowercase=False),
        Tokenizer.from_tokens(TOKENS, lowercase=True, strip_accents=False),
        Tokenizer.from_tokens([*TOKENS[:-2], TOKENS[-1], TOKENS[-2]], lowercase=True),
    ):
        assert other.digest != small.digest


def test_travels_to_worker_processes(small):
    again = pickle.loads(pickle.dumps(small))
    assert again.digest == small.digest
    assert again.encode_raw(["abcd é"]).ids.tolist() == small.encode_raw(["abcd é"]).ids.tolist()


def test_tables(small):
    assert small.special_ids == (0, 1, 2, 3, 4)
    assert [token for token, mark in zip(small.tokens, small.is_continuation, strict=True) if mark] == [
        token for token in TOKENS if token.startswith("##")
    ]
    assert small.id("ab") == TOKENS.index("ab")
    assert small.id("nothing") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty; a vocabulary has one token per line"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"no \[MASK\]; a BERT vocabulary has"),
        (b"[PAD]\nb\n\xff\n", r"line 3: not UTF-8 \(byte 0xff\)"),
        (b"[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n", r"vocab\.txt: expected \[UNK\] among the tokens, got none"),
    ],
)
def test_bad_vocabulary_files(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(tmp_path / "vocab.txt", lowercase=True)


SPECIAL_LINES = "".join(f"{token}\n" for token in SPECIAL_TOKENS)
ODD_LINES = ["a", "b", "##a", " c", "a ", "", "\u2028", "b\u3000", "x y", "e\u0085", "e\x1c"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(ODD_LINES), max_size=12), st.sampled_from(["\n", "\r\n"]))
@pytest.mark.filterwarnings("ignore:.*no text has these ids")
def test_released_vocabularies_keep_their_line_numbers_through_every_save(tmp_path_factory, lines, end):
    folder, saved = tmp_path_factory.mktemp("released"), tmp_path_factory.mktemp("saved")
    content = SPECIAL_LINES + "".join(f"{line}\n" for line in lines)
    (folder / "vocab.txt").write_bytes(content.replace("\n", end).encode())
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    text = "a b ab ba c x y e [MASK]"
    expected = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    ours = Tokenizer.load(folder)
    ours.save(saved)
    again = Tokenizer.load(saved)
    (saved / "tokenizer.json").unlink()
    from_lines = Tokenizer.load(saved)
    for tokenizer in (ours, again, from_lines, Tokenizer.from_tokens(ours.tokens, lowercase=True)):
        assert tokenizer.encode(text).ids.tolist() == tokenizer.encode_ids([text]).ids.tolist() == expected
        assert tokenizer.digest == ours.digest
    assert AutoTokenizer.from_pretrained(saved)(text)["input_ids"] == expected


def test_ids_that_no_text_has_are_named(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(SPECIAL_LINES + "a\n\n b\na\n", encoding="utf-8")
    places = r"vocab\.txt: .*line 6 \(again in line 9\), line 7 \(blank\), line 8 \(white space\)"
    with pytest.warns(UserWarning, match=places):
        tokenizer = Tokenizer.load(path, lowercase=True)
    assert tokenizer.id("a") == 8
    Backend(models.WordPiece({t: 2 * n for n, t in enumerate(TOKENS)}, unk_token="[UNK]")).save(
        str(path.parent / "t.json")
    )
    with pytest.warns(UserWarning, match=r"t\.json: .*id 1 \(no token\), .* and \d+ more"):
        tokenizer = Tokenizer.load(path.parent / "t.json")
    assert (tokenizer.vocab_size, tokenizer.token(1), tokenizer.id("ab")) == (65, "", 2 * TOKENS.index("ab"))


def test_a_sentencepiece_vocabulary_is_refused_by_name(tmp_path):
    (tmp_path / "vocab.txt").write_text(SPECIAL_LINES + "▁강\n가\n▁\n▁두\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab\.txt: a SentencePiece vocabulary"):
        Tokenizer.load(tmp_path / "vocab.txt", lowercase=False)
    (tmp_path / "vocab.txt").rename(tmp_path / "spiece.model")
    with pytest.raises(FileNotFoundError, match=r"spiece\.model: a SentencePiece model"):
        Tokenizer.load(tmp_path)


def test_case_is_never_guessed(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(TOKENS), encoding="utf-8")
    with pytest.raises(ValueError, match=r"no file states whether .* lowercased; write .*do_lower_case"):
        Tokenizer.load(path)
    assert Tokenizer.load(path, lowercase=True).lowercase
    assert not Tokenizer.load(tmp_path, lowercase=False).lowercase
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty: neither tokenizer\.json nor vocab\.txt"):
        Tokenizer.load(tmp_path / "empty")


@pytest.mark.parametrize("is_nested", [False, True])
def test_template_with_an_unknown_token_is_rejected(tmp_path, capfd, is_nested):
    """Test a template at which `tokenizers` panics: it prints Rust's stack and raises what is no Exception."""
    Tokenizer.from_tokens(TOKENS, lowercase=False).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    tokens = description["post_processor"]["special_tokens"]
    tokens["[SEQ]"] = tokens.pop("[SEP]")
    if is_nested:
        description["post_processor"] = {"type": "Sequence", "processors": [description["post_processor"]]}
    path.write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(ValueError, match=r"damaged: .*unknown token, \[SEP\]"):
        Tokenizer.load(tmp_path)
    assert capfd.readouterr().err == ""


def test_files_that_contradict_each_other(tmp_path):
    Tokenizer.from_tokens(TOKENS, lowercase=False).save(tmp_path)
    config_path = tmp_path / "tokenizer_config.json"
    config = json.loads(config_path.read_text())
    del config["do_lower_case"]
    config_path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"lowercase is False, .*tokenizer_config\.json .*do_lower_case"):
        Tokenizer.load(tmp_path)
    assert not Tokenizer.load(tmp_path, lowercase=False).lowercase
    config_path.write_text(json.dumps(config | {"do_lower_case": True}))
    assert Tokenizer.load(tmp_path).lowercase  # what is written there counts, as in transformers
    assert (
        AutoTokenizer.from_pretrained(tmp_path)("A")["input_ids"] == Tokenizer.load(tmp_path).encode("A").ids.tolist()
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (models.BPE({"a": 0}, []), "a BPE tokenizer; expected WordPiece"),
        (models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"), r"no \[PAD\] \[CLS\] \[SEP\] \[MASK\]"),
    ],
)
def test_foreign_tokenizer_files(tmp_path, model, message):
    Backend(model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(tmp_path)


def test_broken_tokenizer_files(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        Tokenizer.load(tmp_path)
    for text in ("[]", '{"normalizer": "x"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"tokenizer.json: `tokenizers` cannot read it"):
            Tokenizer.load(tmp_path)
    path.write_text('{"normalizer": {"type": "BertNormalizer"}}')
    with pytest.raises(ValueError, match="BertNormalizer lacks lowercase, handle_chinese_chars"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "expected an object, got list"),
        ('{"do_lower_case": "yes"}', "do_lower_case is 'yes'; expected true or false"),
        ('{"additional_special_tokens": [7]}', "an added token is 7; expected a text, or an object"),
        ('{"added_tokens_decoder": {"x": {"content": "a"}}}', "ids of added tokens are whole numbers, not x"),
        ('{"added_tokens_decoder": [1]}', r"added_tokens_decoder is '\[1\]'; expected dict"),
        ('{"additional_special_tokens": "<x>"}', "additional_special_tokens is '<x>'; expected list"),
        ('{"extra_special_tokens": "<x>"}', "extra_special_tokens is '<x>'; expected list or dict"),
    ],
)
def test_broken_tokenizer_settings(tmp_path, config, message):
    Tokenizer.from_tokens(TOKENS, lowercase=True).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ValueError, match=f"tokenizer_config.json: {message}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", {"cls_token": "<s>"}, r"its cls_token is '<s>' .*; expected \[CLS\]"),
        ("special_tokens_map.json", {"unk_token": {"content": "a"}}, r"its unk_token is 'a' .*; expected \[UNK\]"),
        ("special_tokens_map.json", [], "special_tokens_map.json: expected an object, got list"),
        ("added_tokens.json", {"<e>": 900}, f"<e> has id {BESIDE}, but 900 in added_tokens_decoder .* of one model"),
        ("added_tokens.json", {"<e>": "7"}, r"added_tokens.json: the id of '<e>' is '7'; expected a whole number"),
        ("added_tokens.json", {"<e>": BESIDE, "<f>": BESIDE}, "added_tokens.json: two of its tokens have the same id"),
        ("special_tokens_map.json", {"sep_token": {"content": 7}}, "special_tokens_map.json: an added token is 7"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "made for BertJapaneseTokenizer"),
        (
            "config.json",
            {"model_type": "bert"},
            r"lowercase is False, .*tokenizer_config\.json .*do_lower_case",
        ),
    ],
)
def test_files_that_mean_other_ids(tmp_path, name, content, message):
    Tokenizer.from_tokens(TOKENS, lowercase=False).save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).vocab_size == BESIDE  # of what stands alone nobody else says anything
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(tmp_path)


def test_misuse(small):
    with pytest.raises(ValueError, match=r"text 1: lone surrogate U\+D800 at character 2"):
        small.encode_raw(["a", "ab\ud800"])
    with pytest.raises(ValueError, match="text 0: lone surrogate"):
        small.encode("\udfff")
    with pytest.raises(ValueError, match="id 99 is outside the vocabulary"):
        small.decode([99])
    with pytest.raises(ValueError, match="id -1 is outside"):
        small.token(-1)
    with pytest.raises(TypeError, match="one str"):
        small.encode_raw("text")
    with pytest.raises(ValueError, match="token 5 is token 0 again"):
        Tokenizer.from_tokens([*SPECIAL_TOKENS, "[PAD]"], lowercase=True)


@pytest.mark.parametrize("number", [1_000_001, 889_002_667, 4_294_967_295])
def test_huge_id_in_tokenizer_json_is_an_error_before_memory_is_taken(
    small: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    small.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    description = json.loads(path.read_text())
    token = next(reversed(description["model"]["vocab"]))
    description["model"]["vocab"][token] = number
    path.write_text(json.dumps(description))
    monkeypatch.setattr(Backend, "from_str", None)  # is not reached
    with pytest.raises(ValueError, match=rf"tokenizer\.json: {re.escape(token)} has id {number};"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("공연", ["공연"]),
        ("개막공연", ["개막", "##공연"]),  # a compound: the longest first piece, then the rest
        ("개막공연을", ["개막", "##공연", "##을"]),
        ("공연장", ["[UNK]"]),  # no piece for its rest: the whole word is unknown
    ],
)
def test_korean_words_are_cut_into_the_longest_tokens(text: str, tokens: list[str]) -> None:
    vocabulary = [*SPECIAL_TOKENS, "공연", "##공연", "개막", "##을", "##막", "개"]
    tokenizer = Tokenizer.from_tokens(vocabulary, lowercase=False)
    assert [tokenizer.token(number) for number in tokenizer.encode_raw([text]).ids.tolist()] == tokens


def test_learned_tokens_are_the_words_inside_korean_compounds() -> None:
    """From counts alone, with the default rule: 공연 by itself and as the end of 개막공연 and 축하공연."""
    texts = ["개막공연 공연", "축하공연 공연", "개막 축하", "개막공연을 공연을"] * 20
    rules = VocabularySettings(size=179, lowercase=False, min_frequency=2)
    tokenizer = Tokenizer.from_tokens(learn(count_corpus_words(texts, rules), rules), lowercase=False)
    for text, expected in {"공연": ["공연"], "개막공연": ["개막", "##공연"], "축하공연": ["축하", "##공연"]}.items():
        assert [tokenizer.token(number) for number in tokenizer.encode_raw([text]).ids.tolist()] == expected
