"""Survey and diagnosis: counts compared with naive counting, warnings with corpora that trigger them."""

import dataclasses
import errno
import json
import os
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer

from bertwright.corpus.documents import CorpusSettings, read
from bertwright.surveying.corpus_statistics import Survey, UnreadableCorpusError, measure_corpus
from bertwright.surveying.diagnosis import diagnose
from bertwright.surveying.sketches import CharacterCounter, DistinctCounter, LengthHistogram, LossyCounter


def survey_text(folder: Path, text: str | bytes, name: str = "a.txt", **options: str) -> Survey:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return measure_corpus(CorpusSettings((str(folder),), **options))  # type: ignore[arg-type]


def test_counts_equal_those_worked_by_hand(tmp_path: Path) -> None:
    found = survey_text(
        tmp_path, "It rained. We stayed.\nA line\n\n안녕 그래.\x07 A line <b>x</b>\n\nIt rained.\n\nIt rained."
    )
    assert (found.files, found.bytes_on_disk, found.bytes_of_text) == (1, 85, 85)
    assert (found.documents, found.sentences, found.words) == (4, 6, 15)
    assert found.one_sentence_documents == 0.75
    assert found.duplicate_documents == 0.25
    assert (found.lines, found.duplicate_lines) == (5, pytest.approx(0.2))
    assert found.frequent_lines == (("It rained.", 2),)
    assert (found.control_characters, found.tags, found.bad_bytes) == (1, 2, 0)
    assert found.scripts == {"Latin": pytest.approx(45 / 49), "Hangul": pytest.approx(4 / 49)}


def test_marks_and_decomposed_characters_are_counted_and_reported(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "Bär ma má.\n\n" + unicodedata.normalize("NFD", "má 한. ❤\ufe0f"))
    assert found.decomposed == 3  # an accent and two jamo
    assert found.marked_letters == pytest.approx(3 / 12)  # ä, á and the accent; jamo are letters without marks
    assert set(found.frequent_marked) == {"ä", "á", "\u0301"}
    marks, decomposed = (
        next((line for line in diagnose(found) if key in line), "") for key in ("--strip-accents", "NFC")
    )
    assert marks.startswith("25.0% of the letters have marks")
    assert decomposed.startswith("3 characters are decomposed")
    assert "unicodedata.normalize" in decomposed


def test_turkish_letters_are_reported(tmp_path: Path) -> None:
    assert any("ı or İ" in warning for warning in diagnose(survey_text(tmp_path, "ISI ve ışık. İyi kızlar.")))


def test_bytes_of_text_are_those_of_utf8_in_all_formats(tmp_path: Path) -> None:
    polars.DataFrame({"text": ["안녕 그래.", "Ab."]}).write_parquet(tmp_path / "a.parquet")
    assert measure_corpus(CorpusSettings((str(tmp_path),))).bytes_of_text == 14 + 3


def test_survey_can_be_written_as_json(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "A b. C d.\n\nE f.")
    assert json.loads(json.dumps(dataclasses.asdict(found)))["documents"] == 2


def test_invalid_bytes_are_counted(tmp_path: Path) -> None:
    found = survey_text(tmp_path, b"caf\xe9 one.\n\nTwo \xff\xfe.")
    assert found.bad_bytes == 3
    assert "byte 3: e9" in found.first_bad_bytes
    assert any("--encoding-errors replace" in warning for warning in diagnose(found))


def test_progress_reaches_the_size_on_disk(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("A b. C d.\n\n" * 10)
    reports: list[int] = []
    found = measure_corpus(CorpusSettings((str(tmp_path),)), reports.append)
    assert sum(reports) == found.bytes_on_disk


def test_survey_of_an_empty_corpus_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents in"):
        survey_text(tmp_path, " \n ")


def test_characters_that_the_tokenizer_deletes_are_counted(tmp_path: Path) -> None:
    normalizer = BertNormalizer(lowercase=False, strip_accents=False, handle_chinese_chars=False)
    every = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    text = "a" + "".join(every) + "a"
    found = survey_text(tmp_path, text, document_unit="file")
    left = len(normalizer.normalize_str(text))
    assert found.control_characters + found.replacement_characters == len(text) - left
    assert found.replacement_characters == 1


def test_invisible_characters_are_counted(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "zero\u200bwidth soft\u00adhyphen mark\ufeffed page\fbreak\ttab\u3000space\n\nB")
    assert found.control_characters == 4


# --- files that cannot be read

MESS = {
    "1.docx": b"x",
    "2.docx": b"x",
    "empty.txt": b"",
    "good.txt": b"One a. Two b.\n\nThree c.",
    "row.csv": b"id,text\n1,Four d.\n2\n3,Five e.\n",
    "sixteen.txt": "Text".encode("utf-16"),
}


def mess(folder: Path, names: Iterable[str] = tuple(MESS)) -> CorpusSettings:
    for name in names:
        (folder / name).write_bytes(MESS[name])
    return CorpusSettings((str(folder),))


def test_unreadable_files_are_listed_and_the_others_surveyed(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    reports: list[int] = []
    found = measure_corpus(mess(tmp_path), reports.append)
    assert {Path(file.path).name: (file.reason[:17], file.documents) for file in found.unreadable} == {
        "1.docx": (".docx is not read", 0),
        "2.docx": (".docx is not read", 0),
        "empty.txt": ("empty file (0 byt", 0),
        "gone.txt": ("No such file or d", 0),
        "row.csv": ("line 3: expected ", 1),
        "sixteen.txt": ("not text but UTF-", 0),
    }
    assert all(file.message.startswith(file.path) for file in found.unreadable)
    assert (found.files, found.documents, found.sentences) == (2, 3, 4)
    assert found.bytes_on_disk == len(MESS["good.txt"] + MESS["row.csv"])
    assert sum(reports) == sum(len(MESS[name]) for name in ("good.txt", "row.csv", "sixteen.txt"))
    assert diagnose(found)[0].startswith("5 files cannot be read, and every later stage stops at the first")
    assert diagnose(found)[1] == "1 file is empty; every later stage leaves it out."
    with pytest.raises(ValueError, match=r"1\.docx: .docx is not read"):
        list(read(mess(tmp_path)))


def test_file_without_permission_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked.txt").write_text("A")
    opened = os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).name == "locked.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)  # tests may run as root, who may open any file
    (file,) = measure_corpus(mess(tmp_path, ["good.txt"])).unreadable
    assert file.message == f"{tmp_path}/locked.txt: Permission denied"


def test_survey_of_unreadable_files_alone_raises_an_error_with_all_of_them(tmp_path: Path) -> None:
    with pytest.raises(
        UnreadableCorpusError, match=r"^no documents: 2 files cannot be read, the first is .*1\.docx: .docx is not"
    ):
        measure_corpus(mess(tmp_path, ["1.docx", "2.docx"]))
    with pytest.raises(UnreadableCorpusError, match=r"^.*1\.docx: .docx is not read") as raised:
        measure_corpus(replace(mess(tmp_path), inputs=(str(tmp_path / "1.docx"),)))
    assert len(raised.value.unreadable) == 1


@pytest.mark.parametrize("missing", ["nowhere.txt", "good.txt"])
def test_missing_or_duplicate_input_raises_an_error(tmp_path: Path, missing: str) -> None:
    good = str(tmp_path / "good.txt")
    mess(tmp_path)
    with pytest.raises(ValueError, match=r"no such file or folder|named twice"):
        measure_corpus(CorpusSettings((good, str(tmp_path / missing))))


def test_survey_reads_a_column_of_a_file_with_semicolons(tmp_path: Path) -> None:
    assert survey_text(tmp_path, "id;inhalt\n1;Hallo, Welt.\n2;Nein.\n", "a.csv", column="inhalt").words == 3


PROSE = "The rain fell on the town all day. Nobody went out. The river rose in the night. It was cold.\n\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", PROSE.strip(), "only one document.*next-sentence negative"),
        ("a.txt", "One sentence.\n\nAnother one.\n\nA third.", "100% of the documents are a single sentence"),
        ("a.txt", "A b. C d.\n\nE f. G h.", "2.0 sentences on average"),
        ("a.txt", PROSE, "words are little text"),
        ("a.txt", PROSE * 3, "66.7% of the documents are copies"),
        ("a.txt", "Same line here.\nOther.\n\nSame line here.\nNew.", "25.0% of the lines repeat"),
        (
            "a.txt",
            "".join(f"Text {n}.\nAll rights reserved worldwide.\n\n" for n in range(30)),
            "Boilerplate: 'All rights",
        ),
        ("a.txt", "A\x01b. C\n\nD", "1 control characters"),
        ("a.txt", "A\u200bb. C\u00add\n\nD\ufeff", "3 control characters, or invisible ones such as U\\+200B"),
        ("a.txt", "A \ufffd b. C\n\nD", "1 U\\+FFFD are in the text itself"),
        ("a.txt", "<p>Hello <b>you</b></p>\n\nD", "4 HTML tags and entities"),
        ("a.txt", "English words and русские слова\n\nD", "Mixed scripts \\(Latin 5"),
        ("a.txt", "\n\n".join(["A b. " + "QUJD" * 40] * 12), "12 strings of 120 or more letters"),
        ("a.txt", "x" * 100_001 + "\n\nB", "1 lines are longer than 100,000"),
        ("a.txt", "x " * 3_000 + "\n\nB", "longer than 5,990 characters"),
        ("a.jsonl", '{"text": "A"}\n{"text": null}\n{"text": ""}', "1 row has no text"),
        ("a.jsonl", '{"text": "A"}\n{"text": null}\n{"text": ""}', "1 row is empty or white space"),
    ],
)
def test_corpus_triggers_its_warning(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(diagnose(survey_text(tmp_path, text, name))))


def test_good_corpus_gives_no_warning(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "".join(f"Day {n} came. {PROSE}" for n in range(20)))
    good = dataclasses.replace(found, words=5_000_000)
    assert diagnose(good) == []


@pytest.mark.parametrize(
    ("scripts", "words", "characters", "is_small"),
    [
        ({"Hangul": 0.998, "Han": 0.002}, 47_724, 200_000, True),
        ({"Han": 0.9, "Kana": 0.1}, 20_000, 400_000, True),
        ({"Han": 0.9, "Kana": 0.1}, 20_000, 4_000_000, False),
        ({"Thai": 1.0}, 20_000, 4_000_000, False),
        ({"Latin": 1.0}, 2_000_000, 10_000_000, False),
    ],
)
def test_small_corpus_is_recognized_in_every_script(
    tmp_path: Path, scripts: dict[str, float], words: int, characters: int, is_small: bool
) -> None:
    found = survey_text(tmp_path, "".join(f"Day {n} came. {PROSE}" for n in range(20)))
    found = replace(found, scripts=scripts, words=words, characters=characters)
    assert any("words are little text" in warning for warning in diagnose(found)) == is_small


@pytest.mark.parametrize(
    ("words", "advice"), [(430_000, "--held-out 0.03"), (60_000, "--held-out 0.18"), (20_000, "--held-out-inputs")]
)
def test_small_corpus_gets_advice_on_the_share_to_hold_out(tmp_path: Path, words: int, advice: str) -> None:
    found = replace(survey_text(tmp_path, "".join(f"Day {n} came. {PROSE}" for n in range(20))), words=words)
    (warning,) = [warning for warning in diagnose(found) if "words are little text" in warning]
    assert "20 times" in warning
    assert advice in warning


def test_text_of_one_character_has_advice(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "한")
    assert any("1 words are little text" in warning for warning in diagnose(found))


# --- counting in bounded memory


@given(st.lists(st.integers(0, 3_000_000), min_size=1))
def test_length_summary_equals_numpy(sizes: list[int]) -> None:
    counter = LengthHistogram()
    counter.add(sizes)
    lengths = counter.summarize()
    for share, found in ((0.1, lengths.p10), (0.5, lengths.median), (0.9, lengths.p90), (0.99, lengths.p99)):
        exact = int(np.quantile(sizes, share, method="inverted_cdf"))
        assert found <= exact <= found * 1.01 + 1
    assert (lengths.mean, lengths.largest) == (pytest.approx(np.mean(sizes)), max(sizes))


def test_number_of_distinct_texts_beyond_the_limit_is_estimated() -> None:
    distinct = DistinctCounter(limit=1000)
    distinct.add(str(number % 20_000) for number in range(50_000))
    assert len(distinct.seen) <= 1000
    assert distinct.duplicate_share() == pytest.approx(0.6, abs=0.03)


def test_frequent_line_is_found_among_many_rare_ones() -> None:
    frequent = LossyCounter()
    for start in range(0, 250_000, 1000):
        frequent.add([*map(str, range(start, start + 1000)), "footer"])
    assert frequent.top() == (("footer", 250),)
    assert len(frequent.counts) <= 101_000


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_character_counts_equal_naive_counts(texts: list[str]) -> None:
    characters = CharacterCounter()
    for text in texts:
        characters.add(text)
    joined = "".join(texts)
    assert characters.to_dict() == {char: joined.count(char) for char in joined}
