"""The survey: its counts against counting by hand and slowly, its warnings against corpora made to deserve them."""

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bertwright.corpus.counting import Characters, Distinct, Frequent, Sizes
from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.survey import Survey, render, survey, warnings


def surveyed(folder: Path, text: str | bytes, name: str = "a.txt", **options: str) -> Survey:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return survey(CorpusSettings((str(folder),), **options))  # type: ignore[arg-type]


def test_counts_by_hand(tmp_path: Path) -> None:
    found = surveyed(
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


def test_it_can_be_written_as_json(tmp_path: Path) -> None:
    found = surveyed(tmp_path, "A b. C d.\n\nE f.")
    assert json.loads(json.dumps(dataclasses.asdict(found)))["documents"] == 2


def test_bad_bytes_are_counted_and_not_refused(tmp_path: Path) -> None:
    found = surveyed(tmp_path, b"caf\xe9 one.\n\nTwo \xff\xfe.")
    assert found.bad_bytes == 3
    assert "byte 3: e9" in found.first_bad_bytes
    assert any("--on-bad-bytes replace" in warning for warning in warnings(found))


def test_progress_reaches_the_size_on_disk(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("A b. C d.\n\n" * 10)
    told: list[int] = []
    found = survey(CorpusSettings((str(tmp_path),)), told.append)
    assert sum(told) == found.bytes_on_disk


def test_nothing_to_survey(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents in"):
        surveyed(tmp_path, " \n ")


PROSE = "The rain fell on the town all day. Nobody went out. The river rose in the night. It was cold.\n\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", PROSE.strip(), "one document only: .*next-sentence negatives"),
        ("a.txt", "One sentence.\n\nAnother one.\n\nA third.", "100% of the documents are a single sentence"),
        ("a.txt", "A b. C d.\n\nE f. G h.", "2.0 sentences on average"),
        ("a.txt", PROSE, "words are little text"),
        ("a.txt", PROSE * 3, "66.7% of the documents repeat"),
        ("a.txt", "Same line here.\nOther.\n\nSame line here.\nNew.", "25.0% of the lines repeat"),
        (
            "a.txt",
            "".join(f"Text {n}.\nAll rights reserved worldwide.\n\n" for n in range(30)),
            "Boilerplate: 'All rights",
        ),
        ("a.txt", "A\x01b. C\n\nD", "1 control characters"),
        ("a.txt", "A \ufffd b. C\n\nD", "1 U\\+FFFD stand in the text itself"),
        ("a.txt", "<p>Hello <b>you</b></p>\n\nD", "4 HTML tags and entities"),
        ("a.txt", "English words and русские слова\n\nD", "Mixed scripts \\(Latin 5"),
        ("a.txt", "\n\n".join(["A b. " + "QUJD" * 40] * 12), "12 strings of 120 or more letters"),
        ("a.txt", "x" * 100_001 + "\n\nB", "1 lines are longer than 100,000"),
        ("a.txt", "x " * 3_000 + "\n\nB", "longer than 5,990 characters"),
        ("a.jsonl", '{"text": "A"}\n{"text": null}\n{"text": ""}', "1 rows have no text"),
        ("a.jsonl", '{"text": "A"}\n{"text": null}\n{"text": ""}', "1 rows hold nothing but white space"),
    ],
)
def test_each_warning_has_its_corpus(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(warnings(surveyed(tmp_path, text, name))))


def test_a_good_corpus_deserves_no_warning(tmp_path: Path) -> None:
    found = surveyed(tmp_path, "".join(f"Day {n} came. {PROSE}" for n in range(20)))
    good = dataclasses.replace(found, words=5_000_000)
    assert warnings(good) == []


def shown(found: Survey) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(render(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.split("\n"))) <= 80
    return text


def test_the_table_shows_markup_in_the_corpus_as_it_is(tmp_path: Path) -> None:
    text = shown(surveyed(tmp_path, "[red]Seen twice[/red]\n\n[red]Seen twice[/red]"))
    assert "[red]Seen twice[/red]" in text


def test_nothing_is_cut_off_on_80_columns(tmp_path: Path) -> None:
    found = surveyed(tmp_path, PROSE)
    lengths = dataclasses.replace(found.document_lengths, largest=123_456_789_012)
    text = shown(dataclasses.replace(found, document_lengths=lengths))
    assert "123,456,789,012" in text
    assert "…" not in text


# --- counting in bounded memory


@given(st.lists(st.integers(0, 3_000_000), min_size=1))
def test_lengths_against_numpy(sizes: list[int]) -> None:
    counter = Sizes()
    counter.add(sizes)
    lengths = counter.lengths()
    for share, found in ((0.1, lengths.p10), (0.5, lengths.median), (0.9, lengths.p90), (0.99, lengths.p99)):
        exact = int(np.quantile(sizes, share, method="inverted_cdf"))
        assert found <= exact <= found * 1.01 + 1
    assert (lengths.mean, lengths.largest) == (pytest.approx(np.mean(sizes)), max(sizes))


def test_duplicates_beyond_the_limit_are_estimated() -> None:
    distinct = Distinct(limit=1000)
    distinct.add(str(number % 20_000) for number in range(50_000))
    assert len(distinct.seen) <= 1000
    assert distinct.duplicates() == pytest.approx(0.6, abs=0.03)


def test_a_frequent_line_is_found_among_many_rare_ones() -> None:
    frequent = Frequent()
    for start in range(0, 250_000, 1000):
        frequent.add([*map(str, range(start, start + 1000)), "footer"])
    assert frequent.top() == (("footer", 250),)
    assert len(frequent.counts) <= 101_000


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_characters_against_counting(texts: list[str]) -> None:
    characters = Characters()
    for text in texts:
        characters.add(text)
    joined = "".join(texts)
    assert characters.found() == {char: joined.count(char) for char in joined}
