"""CoNLL columns, CoNLL-U, JSON lines, Parquet and raw text: hand-worked files, published files, misuse."""

from __future__ import annotations

import bz2
import gzip
import json
import re
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.tables import conll_lines
from bertwright.tables.conll_columns import to_conll
from bertwright.tables.tag_example import TagExample
from bertwright.tables.tag_schemes import detect_scheme, find_spans
from bertwright.tables.tagged_sentences import ColumnFormat, read_sentences, with_document_context
from bertwright.tasks.tagging import Tagging
from helpers import PUBLISHED, SAMPLES, needs_data, write_file, write_hub_file

NEWS = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# # B-NP O

-DOCSTART- -X- -X- O
Peter NNP B-NP B-PER
\t
"""

TREEBANK = """# newdoc id = a
# text = Don't (he) go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\the\the\tPRON\tPRP\t_\t_\t_\t3:nsubj\t_
3\tgo in\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# newdoc
1\t_\t_\tSYM\tSYM\t_\t0\troot\t_\t_
"""


def write(folder: Path, text: str | bytes, name: str = "a.conll") -> str:
    return write_file(folder, text, name)


def read(path: str, words: str | None = None, tags: str | None = None, labeled: bool = True) -> list[TagExample]:
    return list(read_sentences(path, labeled, ColumnFormat(words, tags)))


def show(sentences: list[TagExample]) -> list[tuple[int, str, str]]:
    return [(one.document, " ".join(one.words), " ".join(one.tags or ())) for one in sentences]


def test_columns_hand_worked(tmp_path):
    path = write(tmp_path, NEWS)
    found = read(path)
    assert show(found) == [(1, "EU rejects", "B-ORG O"), (1, "#", "O"), (2, "Peter", "B-PER")]
    assert [one.location_of(len(one.words) - 1) for one in found] == [f"{path}, line {line}" for line in (4, 6, 9)]
    assert found[0].location == f"{path}, line 3"
    assert show(read(path, "1", "2"))[0] == (1, "EU rejects", "NNP VBZ")
    assert show(read(path, "-3", "3"))[0] == (1, "NNP VBZ", "B-NP B-VP")
    assert [one.tags for one in read(path, labeled=False)] == [None] * 3


def test_treebank_hand_worked(tmp_path):
    path = write(tmp_path, TREEBANK, "a.conllu")
    found = read(path)
    assert [(one.document, one.words, one.tags) for one in found] == [
        (1, ("Do", "n't", "go in"), ("AUX", "PART", "VERB")),
        (2, ("_",), ("SYM",)),
    ]
    assert [found[0].location_of(word) for word in range(3)] == [f"{path}, line {line}" for line in (4, 5, 7)]
    assert read(path, "lemma", "XPOS")[0].tags == ("VBP", "RB", "VB")
    assert read(path, "3", "5")[0].words == ("do", "not", "go")


def test_json_lines_hand_worked(tmp_path):
    path = write(tmp_path, '{"words": ["a b", ""], "tags": ["O", "X"]}\n\n{"tags": [], "words": []}\n', "a.jsonl")
    found = read(path)
    assert [(one.words, one.tags, one.location) for one in found] == [
        (("a b", ""), ("O", "X"), f"{path}, line 1"),
        ((), (), f"{path}, line 3"),
    ]
    assert len({one.document for one in found}) == 2  # every line is a document
    for tag in ("", " ", " O"):
        bad = write(tmp_path, json.dumps({"words": ["a", "b"], "tags": ["O", tag]}) + "\n", "c.jsonl")
        with pytest.raises(ValueError, match=re.escape("line 1: number 2 in 'tags': expected a tag") + f".*{tag!r}"):
            read(bad)
    renamed = write(tmp_path, '{"tokens": ["a"], "ner": ["X"]}\n', "b.jsonl")
    assert show(read(renamed, "tokens", "ner")) == [(0, "a", "X")]
    assert read(renamed, "tokens", labeled=False)[0].tags is None


NER = {"feature": {"names": ["O", "B-PER", "I-PER", "B-LOC"], "_type": "ClassLabel"}, "_type": "List"}
NAMED = {"tokens": [["Angela", "Merkel"], ["in", "Paris", "."]], "ner_tags": [[1, 2], [0, 3, 0]]}


def test_parquet_of_the_hub_hand_worked(tmp_path):
    path = write_hub_file(tmp_path / "train.parquet", NAMED, {"ner_tags": NER})
    found = read(path, "tokens", "ner_tags")
    assert show(found) == [(0, "Angela Merkel", "B-PER I-PER"), (1, "in Paris .", "O B-LOC O")]
    assert [one.location_of(1) for one in found] == [f"{path}, row 1", f"{path}, row 2"]
    assert [one.tags for one in read(path, "tokens", labeled=False)] == [None, None]


def test_parquet_with_tags_as_text_and_running_text(tmp_path):
    path = write_hub_file(
        tmp_path / "a.parquet", {"words": [["a", "b c"]], "tags": [["O", "B-X"]], "text": ["Is a, b?"]}, {}
    )
    assert [(one.words, one.tags) for one in read(path)] == [(("a", "b c"), ("O", "B-X"))]
    (cut,) = read(path, "text", labeled=False)
    assert (cut.words, cut.text) == (("Is", "a", ",", "b", "?"), "Is a, b?")


def test_glob_names_several_files_of_a_data_set(tmp_path, monkeypatch):
    for number in (0, 1):
        write_hub_file(tmp_path / f"train-{number}.parquet", NAMED, {"ner_tags": NER})
    found = read(f"{tmp_path}/train-*.parquet", "tokens", "ner_tags")
    assert [one.location for one in found] == [
        f"{tmp_path}/train-{number}.parquet, row {row}" for number in (0, 1) for row in (1, 2)
    ]
    assert len({one.document for one in found}) == 4

    asked = []
    monkeypatch.setattr("bertwright.text.sources._remote_files", lambda path, formats: asked.append(path) or [path])
    monkeypatch.setattr("bertwright.text.sources.hub_size", lambda path: 9)
    monkeypatch.setattr("bertwright.text.sources.download_from_hub", lambda path: tmp_path / "train-0.parquet")
    found = read("hf://datasets/org/name/data/*.parquet", "tokens", "ner_tags")
    assert asked == ["hf://datasets/org/name/data/*.parquet"]
    assert show(found)[0] == (0, "Angela Merkel", "B-PER I-PER")


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        (NAMED, ("token", "ner_tags"), ": no column 'token'; did you mean \"tokens\"? (choose them with --words"),
        (
            {"word": NAMED["tokens"], "ner_tag": NAMED["ner_tags"]},
            (None, None),
            ": no column 'words'; did you mean \"word\"? (choose them with --words and --tags)",
        ),
        (NAMED | {"ner_tags": [[1, 2], [0, 3]]}, (), ", row 2: 3 words, but 2 tags"),
        (NAMED | {"ner_tags": [[1, 2], [0, 4, 0]]}, (), ", row 2: 4 in 'ner_tags', but the file has names for 0 to 3"),
        (NAMED | {"ner_tags": [[-1, -1], [0, 3, 0]]}, (), ", row 1: no label (-1) in 'ner_tags'; use files that have"),
        (
            NAMED | {"ner_tags": [[1, 2], [0, None, 0]]},
            (),
            ", row 2: expected a list of strings in 'ner_tags', got \"['O', None, 'O']\"; number 2 is",
        ),
        (NAMED | {"ner_tags": [[1, 2], None]}, (), ", row 2: no value (null) in 'ner_tags'"),
        (
            NAMED | {"tokens": [["a", None], ["b", "c", "d"]]},
            (),
            ", row 1: expected a list of strings in 'tokens', got \"['a', None]\"; number 2 is missing",
        ),
        (
            NAMED | {"tokens": [[1.5, 2.5], [3.5] * 3]},
            (),
            ", row 1: expected a list of strings in 'tokens', got '[1.5,",
        ),
        (
            NAMED | {"tokens": ["Angela Merkel", "in Paris."]},
            (),
            ", row 1: 'ner_tags': expected spans as",
        ),
        (NAMED | {"pos_tags": [[0, 0], [1, 1, 1]]}, ("tokens", "pos_tags"), "the file has no names for these numbers"),
    ],
)
def test_invalid_parquet_is_rejected_with_its_row(tmp_path, table, columns, message):
    path = write_hub_file(tmp_path / "a.parquet", table, {"ner_tags": NER})
    with pytest.raises(ValueError, match=re.escape(path) + ".*" + re.escape(message)):
        read(path, *(columns or ("tokens", "ner_tags")))


def test_same_content_in_every_format_gives_the_same_sentences(tmp_path):
    plain = NEWS.encode()
    disguises = {
        "bom.conll": b"\xef\xbb\xbf" + plain,
        "windows.txt": plain.replace(b"\n", b"\r\n"),
        "tabs.iob2": plain.replace(b" ", b"\t"),
        "no-end": plain.rstrip(),
        "a.conll.gz": gzip.compress(plain),
        "a.train.zst": zstandard.compress(plain),
        "a.bz2": bz2.compress(plain),
        "spaces.txt": plain.replace(b" ", b"   "),
    }
    expected = show(read(write(tmp_path, NEWS)))
    for name, content in disguises.items():
        assert show(read(write(tmp_path, content, name))) == expected, name


def test_comments_are_distinguished_from_words(tmp_path):
    text = (
        "#begin document (a); part 000\n# sent_id = 1\n# 1 www.a.de [2009]\n1 Da O\n2 # O\n\n#end document\n\n"
        "# newdoc\n#newdoc # O\n\n# # O\n"
    )
    assert show(read(write(tmp_path, text), "2")) == [(1, "Da #", "O O"), (2, "#", "O"), (2, "#", "O")]


def test_white_space_that_separates_no_columns_stays_in_the_word(tmp_path):
    assert read(write(tmp_path, "10\u00a0000 O\n\u3000 O\n"))[0].words == ("10\u00a0000", "\u3000")
    assert read(write(tmp_path, "New York\tB-LOC\n"))[0].words == ("New York",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no sentence in it; a broken download or export?"),
        ("\n \n-DOCSTART- O\n", "no sentence in it"),
        ("a O\n\nb\n", "line 3: expected column 1 and column -1, got 1 column: 'b'; choose them with --words and"),
        ("a\t\n", "line 1: no value ('') in column -1"),
        ("\tO\n", "line 1: no value ('') in column 1"),
        ("a O\n\xff".encode("latin-1"), "byte 4: ff is not UTF-8 text"),
        ("a O\n\0 O", "byte 4: a NUL byte"),
        (gzip.compress(b"a O\n", mtime=0), "not text but gzip data"),
    ],
)
def test_invalid_columns_are_rejected_with_their_location(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(path) + ".*" + re.escape(message)):
        read(path)


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("a.txt", "a b\n", ("1", "3"), "line 1: expected column 1 and column 3, got 2 columns"),
        ("a.txt", "a b\n", ("1", "-2"), "line 1: expected column 1 and column -2, got 2 columns"),
        ("a.txt", "a b\n", ("0", "2"), "no column '0'; name a number from 1, or from the last, -1"),
        ("a.txt", "a b\n", ("form", "upos"), "no column 'form'; name a number"),
        ("a.conllu", TREEBANK, ("from", None), "no column 'from'; name one of id, form, lemma"),
        ("a.conllu", TREEBANK, (None, "misc"), "line 4: no value ('_') in column misc"),
        ("a.conllu", "1 a b\n", (None, None), "line 1: expected column form and column upos, got 1 column"),
        ("a.jsonl", '{"words": ["a"], "tags": []}\n', (None, None), "line 1: 1 words, but 0 tags"),
        ("a.jsonl", '{"words": "ab", "tags": ["O"]}\n', (None, None), "'tags': expected spans as"),
        (
            "a.jsonl",
            '{"words": ["a"], "tags": [3]}\n',
            (None, None),
            "expected a list of strings in 'tags', got '[3]",
        ),
        (
            "a.jsonl",
            '{"words": ["a"]}\n',
            (None, None),
            "no column 'tags'; the columns are words (choose them with --words",
        ),
        ("a.jsonl", '{"words": ["\\ud800"], "tags": ["O"]}\n', (None, None), "half a surrogate pair"),
    ],
)
def test_missing_columns_are_rejected(tmp_path, name, text, columns, message):
    path = write(tmp_path, text, name)
    with pytest.raises(ValueError, match=re.escape(path) + ".*" + re.escape(message)):
        read(path, *columns)


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"b\.conll: no such file"):
        read(str(tmp_path / "b.conll"))
    with pytest.raises(ValueError, match="no files there"):
        read(str(tmp_path))


LENGTHS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12)


@given(lengths=LENGTHS, words_wanted=st.integers(1, 12))
def test_context_is_enough_whole_sentences_of_the_document(lengths, words_wanted):
    sentences, document = [], 0
    for number, (length, new) in enumerate(lengths):
        document += new
        words = tuple(f"{number}.{word}" for word in range(length))
        sentences.append(TagExample(words, source=str(number), document=document))
    found = list(with_document_context(sentences, words_wanted))
    assert [one.source for one in found] == [one.source for one in sentences]
    for index, one in enumerate(found):
        before = [other.words for other in sentences[:index] if other.document == one.document]
        ahead = [other.words for other in sentences[index + 1 :] if other.document == one.document]
        for near, there in ((one.before[::-1], before[::-1]), (one.after, ahead)):
            assert list(near) == there[: len(near)]
            words = sum(map(len, near))
            assert words >= min(words_wanted, sum(map(len, there)))
            assert not near or words - len(near[-1]) < words_wanted


def test_context_is_found_in_an_endless_stream():
    def endless():
        number = 0
        while True:
            yield TagExample((str(number), "."))
            number += 1

    found = with_document_context(endless(), 4)
    first, second = next(found), next(found)
    assert first.before == ()
    assert first.after[:2] == (("1", "."), ("2", "."))
    assert second.before == (("0", "."),)


WORDS = st.lists(
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Zs"]), min_size=1) | st.just(" "), min_size=1
)


@settings(max_examples=60)
@given(words=WORDS, data=st.data())
def test_written_columns_are_read_back_equal(tmp_path_factory, words, data):
    tags = data.draw(st.lists(st.sampled_from(["O", "B-X"]), min_size=len(words), max_size=len(words)))
    if any(word.startswith(("-DOCSTART-", "\ufeff")) for word in words):  # rejected, see the next test
        return
    path = write(tmp_path_factory.mktemp("round"), to_conll(words, tags) * 2)
    assert show(read(path)) == [(0, " ".join(words), " ".join(tags))] * 2


@pytest.mark.parametrize(
    "word",
    ["", "\r", " \r", " a", "a ", "a\tb", "a\nb", "-DOCSTART-", "#begin document", "# newdoc", "\ufeff", "\ufeffa"],
)
def test_word_that_columns_cannot_represent_is_rejected(word):
    with pytest.raises(ValueError, match="written to a column file"):
        to_conll([word], ["O"])


def test_formats_that_are_not_columns_are_not_read_as_such(tmp_path):
    (tmp_path / "a.csv").write_text("Ada,B-PER\nKing,I-PER\n")
    with pytest.raises(ValueError, match=r"a\.csv: .*\.jsonl"):
        list(read_sentences(str(tmp_path / "a.csv"), labeled=True))


TEXTS = st.text() | st.lists(
    st.sampled_from(
        ["U.N.", "isn't", "22-year-old", "Germany's", "$2,000.50", "...", "हिन्दी", "한국어", "👨\u200d👩", " "]
    )
).map("".join)


@given(text=TEXTS)
def test_words_of_a_text_cover_it_and_have_their_offsets(text):
    example = TagExample.from_text(text)
    assert [text[start:end] for start, end in example.offsets] == list(example.words)
    ends = [0, *(end for _, end in example.offsets)]
    starts = [*(start for start, _ in example.offsets), len(text)]
    between = [text[end:start] for end, start in zip(ends, starts, strict=True)]
    assert all(not gap or gap.isspace() for gap in between)
    assert all(end <= start for end, start in zip(ends, starts, strict=True))
    assert not any(character in " \n\t" for word in example.words for character in word)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Angela Merkel visited Paris.", "Angela Merkel visited Paris ."),
        ("The U.N. isn't Germany's.", "The U.N. is n't Germany 's ."),
        ("a 22-year-old, $2,000.50 (12:30) on 1996-08-30...", "a 22-year-old , $ 2,000.50 ( 12:30 ) on 1996-08-30 ..."),
        ("Paris,France a_b J.K. Rowling -- I’m", "Paris , France a_b J.K. Rowling -- I ’m"),
        ("हिन्दी 한국어 e\u0301te\u0301 👨\u200d👩", "हिन्दी 한국어 e\u0301te\u0301 👨\u200d👩"),
        (" \n", ""),
    ],
)
def test_text_is_split_as_in_conll_data(text, words):
    assert " ".join(TagExample.from_text(text).words) == words


def test_lone_surrogate_is_rejected():
    with pytest.raises(ValueError, match=r"text: lone surrogate U\+D800 at 2"):
        TagExample.from_text("a \ud800")


@pytest.mark.parametrize(
    ("path", "sentences", "words", "documents", "scheme", "entities"),
    [
        (SAMPLES / "conll2003/valid.txt", 20, 122, 4, "iob2", 21),
        (SAMPLES / "conll2000/test.txt", 20, 122, 0, "iob2", 68),
        (SAMPLES / "ud_ewt/en_ewt-ud-test.conllu", 20, 122, 4, "none", None),
        pytest.param(PUBLISHED / "conll2003/valid.txt", 3250, 51362, 216, "iob2", 5942, marks=needs_data),
        pytest.param(PUBLISHED / "conll2003/test.txt", 3453, 46435, 231, "iob2", 5648, marks=needs_data),
        pytest.param(PUBLISHED / "conll2000/test.txt", 2012, 47377, 0, "iob2", 23852, marks=needs_data),
        pytest.param(PUBLISHED / "ud_ewt/en_ewt-ud-test.conllu", 2077, 25094, 316, "none", None, marks=needs_data),
    ],
)
def test_real_files_have_their_published_numbers(path, sentences, words, documents, scheme, entities):
    found = read(str(path))
    assert (len(found), sum(len(one.words) for one in found), found[-1].document) == (sentences, words, documents)
    tags = [one.tags or () for one in found]
    assert detect_scheme(tags) == scheme
    if entities is not None:
        assert sum(len(find_spans(sequence)) for sequence in tags) == entities


def test_json_line_without_tags_may_be_running_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "Merkel visited Paris."}\n{"text": ["two", "words"]}\n', encoding="utf-8")
    first, second = read_sentences(str(path), False, ColumnFormat("text"))
    assert first.words == ("Merkel", "visited", "Paris", ".")
    assert [first.text[begin:end] for begin, end in first.offsets] == [*first.words]  # type: ignore[index]
    assert first.location == f"{path}, line 1"
    assert second.words == ("two", "words")
    with pytest.raises(ValueError, match="line 1"):
        list(read_sentences(str(path), True, ColumnFormat("text")))


def test_space_between_tabs_is_a_word(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tB-X\n \tO\nb\tO\n\t\nc\tO\n")
    first, second = read_sentences(str(path), labeled=True)
    assert (first.words, first.tags, second.words) == (("a", " ", "b"), ("B-X", "O", "O"), ("c",))
    (note,) = Tagging(labels=("O", "B-X"), scheme="iob2").warnings([first, second])
    assert note.startswith("1 words are blanks")
    with pytest.raises(ValueError, match=r"line 1: no value \(''\) in column 2"):
        list(read_sentences(str(write(tmp_path, "a\t \tO\n")), True, ColumnFormat("1", "2")))


def test_comment_prefix_marks_comments(tmp_path: Path) -> None:
    content = "## tokens, delimiter : \\t\n\n## id-1\t<a:OG> b\na\tB-OG\nb\tO\n\n## id-2\tc\nc\tO\n"
    path = write(tmp_path, content)
    found = list(read_sentences(str(path), labeled=True, columns=ColumnFormat(comment_prefix="##")))
    assert [(one.words, one.tags, one.location) for one in found] == [
        (("a", "b"), ("B-OG", "O"), f"{path}, line 4"),
        (("c",), ("O",), f"{path}, line 8"),
    ]
    with pytest.raises(ValueError, match=r"comment_prefix is empty"):
        Tagging(comment_prefix="")


def test_errors_at_a_line_that_looks_like_a_comment_name_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 1: expected 2 columns.*--comment-prefix '##'"):
        list(read_sentences(str(write(tmp_path, "## a b c d\te\tf\na\tO\nb\tO\n")), labeled=True))
    sentences = read_sentences(str(write(tmp_path, "## id-1\t<a:OG> b\na\tB-OG\nb\tO\n")), labeled=True)
    with pytest.raises(ValueError, match=r"line 1: tag '<a:OG> b' of '## id-1': .*--comment-prefix '##'") as caught:
        Tagging().with_labels_of(list(sentences))
    assert "scheme none" not in str(caught.value)


def test_words_with_spaces_are_reported(tmp_path: Path) -> None:
    """A table of texts and labels reads as words and tags."""
    path = tmp_path / "table.tsv"
    path.write_text("the bear sees\tB-X\nthe wolf sees\tO\n\n")
    (example,) = Tagging().read(str(path))
    (note,) = Tagging(labels=("O", "B-X"), scheme="iob2").warnings([example])
    assert "words contain spaces, such as 'the bear sees'" in note


def test_endless_sentence_is_an_error_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conll_lines, "MAX_LINES", 5)
    path = tmp_path / "a.conll"
    path.write_text("a\tO\n\n" + "b\tO\n" * 10)
    with pytest.raises(ValueError, match=r"a\.conll, line 8: a sentence of more than 5 lines"):
        list(read_sentences(str(path), labeled=True))


def test_language_code_before_each_word_is_removed(tmp_path: Path) -> None:
    text = "en:Paris\tB-LOC\nen:is\tO\nen::\tO\n\nen:Rome\tB-LOC\n\nen:a\tO\nb\tO\n"
    (tmp_path / "train").write_text(text, encoding="utf-8")
    with pytest.warns(UserWarning, match=r"train: read as language-prefix"):
        sentences = list(read_sentences(str(tmp_path / "train"), True, ColumnFormat(suffix="conll")))
    assert [sentence.words for sentence in sentences] == [("Paris", "is", ":"), ("Rome",), ("en:a", "b")]
    (tmp_path / "times").write_text("at:noon\tO\nnow\tO\n", encoding="utf-8")
    (sentence,) = read_sentences(str(tmp_path / "times"), True, ColumnFormat(suffix="conll"))
    assert sentence.words == ("at:noon", "now")


def test_tags_are_read_from_a_key_of_a_conllu_column(tmp_path):
    rows = ["1\tParis\t_\tPROPN\t_\t_\t_\t_\t_\tSpaceAfter=No|NER=B-LOC", "2\t.\t_\tPUNCT\t_\t_\t_\t_\t_\t_"]
    path = write(tmp_path, "\n".join(rows) + "\n\n", "a.conllu")
    assert read(path, None, "misc.NER")[0].tags == ("B-LOC", "O")
    with pytest.raises(ValueError, match=r"a\.conllu: column misc\.NRE: no word has NRE="):
        read(path, None, "misc.NRE")


@pytest.mark.parametrize("dialect", ["pubtator", "brat", "parallel-lines"])
def test_names_of_columns_are_checked_whatever_the_layout(tmp_path, dialect):
    path = write(tmp_path, "227508|t|Naloxone reverses\n227508|a|It does.\n", "a.txt")
    with pytest.raises(ValueError, match="no column 'foo'; name a number"):
        list(read_sentences(path, True, ColumnFormat(words="foo", dialect=dialect)))
