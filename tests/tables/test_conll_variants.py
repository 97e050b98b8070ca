"""Tagged words as they are published: numbered words, brackets, words and tags in two files, folders of files."""

import json
import warnings
from pathlib import Path

import pytest

from bertwright.tables.tag_example import TagExample
from bertwright.tables.tagged_sentences import ColumnFormat, read_sentences
from bertwright.tasks.tagging import Tagging


def read(path: Path, words: str | None = None, tags: str | None = None, labeled: bool = True) -> list[TagExample]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(read_sentences(str(path), labeled, ColumnFormat(words, tags)))


def conll_2012(document: str, *sentences: list[tuple[str, str]]) -> str:
    rows = [f"#begin document ({document}); part 000"]
    for sentence in sentences:
        for number, (word, entity) in enumerate(sentence):
            rows.append(f"{document}   0   {number}   {word}   NN   (S*   -   -   -   Ann   {entity}   *   -")
        rows.append("")
    return "\n".join([*rows, "#end document", ""])


ADA = [("Ada", "(PER*"), ("King", "*)"), ("came", "*")]
BONN = [("in", "*"), ("Bonn", "(LOC)")]


def test_conll_2012_words_and_entities_are_recognized_in_a_folder_of_documents(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.v4_gold_conll").write_text(conll_2012("a", ADA, BONN))
    (tmp_path / "b" / "b.v4_gold_conll").write_text(conll_2012("b", BONN))

    first, second, third = read(tmp_path)

    assert (first.words, first.tags) == (("Ada", "King", "came"), ("B-PER", "I-PER", "O"))
    assert second.tags == third.tags == ("O", "B-LOC")
    assert first.document == second.document != third.document
    assert third.location_of(1).endswith("b.v4_gold_conll, line 3")


def test_conll_2012_other_columns_are_read_when_named(tmp_path):
    (tmp_path / "a.conll").write_text(conll_2012("a", BONN))

    assert read(tmp_path / "a.conll", "4", "5")[0].tags == ("NN", "NN")


def test_brackets_that_end_are_an_error_at_their_line(tmp_path):
    rows = [conll_2012("a", BONN)] * 21 + [conll_2012("a", [("Bonn", "B-LOC")])]
    (tmp_path / "a.conll").write_text("".join(rows))

    with pytest.raises(ValueError, match=r"a\.conll, line 107: expected a tag in brackets.*'B-LOC'.*--tags"):
        read(tmp_path / "a.conll")


@pytest.mark.parametrize("end", ["\tO", "\t-\t-"])
def test_numbered_words_are_read_from_the_second_column_and_a_warning_names_it(tmp_path, end):
    # GermEval 2014 has nested entities in the last column; Universal NER has empty columns.
    rows = f"#\thttp://de.wikipedia.org/wiki/Ada [2009-10-17]\n1\tAda\tB-PER{end}\n2\tkam\tO{end}\n\n"
    (tmp_path / "train.tsv").write_text(rows * 2)

    with pytest.warns(UserWarning, match=r"train\.tsv: read as numbered-words .*--dialect plain"):
        first, _ = read_sentences(str(tmp_path / "train.tsv"), labeled=True)

    assert (first.words, first.tags) == (("Ada", "kam"), ("B-PER", "O"))
    assert read(tmp_path / "train.tsv", labeled=False)[0].words == ("Ada", "kam")


def test_a_word_that_a_numbered_file_lacks_is_an_error_with_its_column(tmp_path):
    (tmp_path / "train.tsv").write_text("1\tAda\tB-PER\tO\n2\t\tO\tO\n\n")

    with pytest.raises(ValueError, match=r"train\.tsv, line 2: no value \(''\) in column 2"):
        read(tmp_path / "train.tsv")


def test_tags_before_their_words_are_recognized(tmp_path):
    (tmp_path / "engtrain.bio").write_text("O\tshow\nB-ACTOR\tAda\n\n" * 2)  # the MIT movie corpus

    with pytest.warns(UserWarning, match=r"engtrain\.bio: read as tags-first"):
        first, _ = read_sentences(str(tmp_path / "engtrain.bio"), labeled=True)

    assert (first.words, first.tags) == (("show", "Ada"), ("O", "B-ACTOR"))


def test_words_that_are_numbers_are_words(tmp_path):
    (tmp_path / "a.conll").write_text("1\tCD\tB-Q\n2\tCD\tO\n\n7\tCD\tO\n\n")

    assert read(tmp_path / "a.conll")[0].words == ("1", "2")


@pytest.mark.parametrize(
    ("words", "tags"), [("seq.in", "seq.out"), ("sentences.txt", "labels.txt"), ("a.words.txt", "a.tags.txt")]
)
def test_words_and_tags_in_two_files_are_joined_by_line(tmp_path, words, tags):
    (tmp_path / words).write_text("play Ada \n\nstop \n")
    (tmp_path / tags).write_text("O B-artist \n\nO \n")

    first, second = read(tmp_path / words)

    assert (first.words, first.tags, second.tags) == (("play", "Ada"), ("O", "B-artist"), ("O",))
    assert second.location_of(0).endswith(f"{words}, line 3")


@pytest.mark.parametrize(
    ("tags", "message"), [("O\nO\n", r"seq\.in, line 1: 2 words, but 1 tags"), ("O O\n", r"seq\.out: expected a line")]
)
def test_two_files_of_unequal_length_are_an_error(tmp_path, tags, message):
    (tmp_path / "seq.in").write_text("play Ada\nstop\n")
    (tmp_path / "seq.out").write_text(tags)

    with pytest.raises(ValueError, match=message):
        read(tmp_path / "seq.in")


def test_spans_by_label_and_text_have_inclusive_ends_if_the_text_is_as_long(tmp_path):
    line = '{"text": "王明在京", "label": {"name": {"王明": [[0, 1]]}, "city": {"京": [[3, 3]]}}}'
    (tmp_path / "train.json").write_text(f'{line}\n{{"text": "没有", "label": {{}}}}\n', encoding="utf-8")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = Tagging(unit="character").read(str(tmp_path / "train.json"))

    assert (first.tags, second.tags) == (("B-name", "I-name", "O", "B-city"), ("O", "O"))


def test_types_without_prefix_are_spans_with_scheme_io():
    examples = [TagExample(tuple("AKibwin"), ("person-artist", "person-artist", "O", "location-GPE", "O", "O", "O"))]

    task = Tagging(scheme="io").with_labels_of(examples)

    assert task.scheme == "io"
    assert task.metric == "f1"
    assert task.labels == ("O", "B-location-GPE", "B-person-artist", "I-person-artist")
    plain = Tagging().with_labels_of(examples)
    assert "--scheme io" in "".join(plain.warnings(examples))


SENTENCES = [(("Ada", "King", "left", "."), ("B-PER", "I-PER", "O", "O")), (("In", "Bonn"), ("O", "B-LOC"))]


def table(header: str, separator: str = ",", ids: tuple[str, str] | None = ("1", "2"), repeat: bool = True) -> str:
    """Return the sentences as a table with a word per row; without ids, blank rows separate them."""
    lines = []
    for number, (words, tags) in enumerate(SENTENCES):
        lines += [""] if number and not ids else []
        for place, row in enumerate(zip(words, tags, strict=True)):
            lines.append(separator.join([*([ids[number] if repeat or not place else ""] if ids else []), *row]))
    return "\n".join([header.replace(",", separator), *lines]) + "\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", table("sentence_id,word,tag")),
        ("a.csv", table("Sentence #,Word,Tag", ids=("Sentence: 1", "Sentence: 2"), repeat=False)),
        ("a.csv", table("sent_id;Token;Label", ";")),
        ("a.csv", table("word,ner", ids=None)),
        ("a.tsv", table("sentence_id,words,labels", "\t")),
        ("a.tsv", table("Sentence #,Word,Tag", "\t", ("Sentence: 1", "Sentence: 2"), repeat=False)),
        ("a.conll", table("word,tag", " ", ids=None)),
        ("a.txt", table("token,ner_tags", "\t", ids=None)),
    ],
)
def test_tables_of_words_are_read_by_their_header(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.warns(UserWarning, match="read as word-table"):
        assert [(found.words, found.tags) for found in read_sentences(str(path), True)] == SENTENCES
    with pytest.warns(UserWarning, match="read as word-table"):
        assert [found.words for found in read_sentences(str(path), False)] == [words for words, _ in SENTENCES]
    last, _ = content.split("\n")[-2:]
    path.write_text(content.replace(last, last.replace("Bonn", "")))
    message = rf"line {content.count(chr(10))}: (no word|expected column)"
    with pytest.warns(UserWarning, match="word-table"), pytest.raises(ValueError, match=message):
        list(read_sentences(str(path), True))


def test_rows_of_a_word_are_joined_by_their_sentence(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"sentence_id": number, "word": word, "tag": tag}
        for number, pair in enumerate(SENTENCES)
        for word, tag in zip(*pair, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(found.words, found.tags) for found in read_sentences(str(path), True)] == SENTENCES
    assert [found.words for found in read_sentences(str(path), False)] == [words for words, _ in SENTENCES]


def test_columns_of_a_table_of_words_are_chosen_by_name_or_number(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\tword\tpos\ttag\n1\tAda\tNNP\tB-PER\n")
    for tags, expected in (("pos", ("NNP",)), ("3", ("NNP",)), ("-1", ("B-PER",))):
        with pytest.warns(UserWarning, match="read as word-table"):
            (found,) = read_sentences(str(path), True, ColumnFormat(tags=tags))
        assert found.tags == expected
    path.write_text("sentence_id\tword\n1\tAda\n")
    with pytest.warns(UserWarning, match="word-table"), pytest.raises(ValueError, match="line 1: expected columns"):
        list(read_sentences(str(path), True))
