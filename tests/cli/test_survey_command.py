"""`bertwright survey`: what it returns, prints and writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import bertwright
from bertwright import CorpusSettings, SurveySettings
from bertwright.base import files
from bertwright.cli.render.survey import MAX_FILES, render, render_unreadable
from bertwright.surveying import survey as command
from bertwright.surveying.corpus_statistics import Survey, Unreadable, measure_corpus
from bertwright.surveying.diagnosis import diagnose
from bertwright.surveying.survey import UnreadableFiles
from harness import print_lines, run_and_capture, run_with_output


def test_survey_returns_what_it_prints(tmp_path: Path, small_corpus: CorpusSettings) -> None:
    settings = SurveySettings(small_corpus, json=tmp_path / "deep/figures.json")
    found, printed = run_with_output(bertwright.survey, settings, columns=80)
    assert found.documents == 50
    assert json.loads((tmp_path / "deep/figures.json").read_text())["words"] == found.words
    flowing = " ".join(printed.split())
    for warning in diagnose(found):
        assert flowing.count(f"! {warning}") == 1


def test_standard_input_is_surveyed_like_a_file_and_may_be_read_again(
    tmp_path: Path, pipe_in: Callable[[str], None]
) -> None:
    text = "The mill is old. It stands.\n\nThe river flows.\n"
    (tmp_path / "corpus.txt").write_text(text)
    expected, _ = run_with_output(bertwright.survey, SurveySettings(CorpusSettings(inputs=(f"{tmp_path}/corpus.txt",))))
    pipe_in(text)

    found, printed = run_with_output(bertwright.survey, SurveySettings(CorpusSettings(inputs=("-",))))
    again, _ = run_with_output(bertwright.survey, SurveySettings(CorpusSettings(inputs=("line=-",))))

    assert dataclasses.replace(found, files=1) == expected
    assert "Survey of -" in printed
    assert again.documents == 2
    pipe_in('{"text": "A mill."}\n')
    rows = SurveySettings(CorpusSettings(inputs=("-",), format="jsonl"))
    assert run_with_output(bertwright.survey, rows)[0].words == 2
    pipe_in("")
    with pytest.raises(ValueError, match="standard input: expected text, got none"):
        bertwright.survey(SurveySettings(CorpusSettings(inputs=("-",))))


def test_figures_have_one_temporary_which_the_next_survey_would_sweep(
    tmp_path: Path, small_corpus: CorpusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_temporary, paths = files._temporary, []

    def record(path: Path) -> Path:
        paths.append(path)
        return make_temporary(path)

    monkeypatch.setattr(files, "_temporary", record)
    bertwright.survey(SurveySettings(small_corpus, json=tmp_path / "figures.json"))
    assert paths == [tmp_path / "figures.json"]


def test_a_corpus_without_warnings_is_called_good(
    small_corpus: CorpusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "diagnose", lambda _: [])
    assert "Nothing here will hurt pre-training." in run_and_capture(bertwright.survey, SurveySettings(small_corpus))


def test_unreadable_files_are_listed_and_the_others_surveyed(tmp_path: Path, small_corpus: CorpusSettings) -> None:
    (tmp_path / "a.docx").write_bytes(b"x")
    (tmp_path / "b.txt").write_bytes(b"")
    settings = SurveySettings(CorpusSettings((str(tmp_path),)), json=tmp_path / "f.json")
    found, printed = run_with_output(bertwright.survey, settings)
    assert found.documents == 50
    unreadable = json.loads((tmp_path / "f.json").read_text())["unreadable"]
    assert [(Path(file["path"]).name, file["documents"]) for file in unreadable] == [("a.docx", 0), ("b.txt", 0)]
    flowing = " ".join(printed.split())
    assert "Files that cannot be read" in flowing
    assert flowing.count("empty file (0 bytes)") == flowing.count(".docx is not read; save its text as .txt") == 1
    assert "! 1 file cannot be read, and every later stage stops at it." in flowing
    assert "! 1 file is empty; every later stage leaves it out." in flowing


def test_only_unreadable_files_are_listed_above_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.docx").write_bytes(b"x")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="2 files cannot be read"):
        settings = SurveySettings(CorpusSettings((str(tmp_path),)), json=tmp_path / "f.json")
        bertwright.survey(settings, bertwright.terminal_reporter())
    assert "empty file (0 bytes)" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "f.json").exists()


def test_one_text_is_not_taken_for_many_inputs() -> None:
    with pytest.raises(ValueError, match=r"inputs: .*\('books/',\)"):
        CorpusSettings("books/")  # type: ignore[arg-type]


# Tables


def survey_text(folder: Path, text: str) -> Survey:
    (folder / "a.txt").write_text(text)
    return measure_corpus(CorpusSettings((str(folder),)))


def test_the_list_of_unreadable_files_is_short_for_any_number_of_them() -> None:
    same = [Unreadable(f"{n}.pdf", f"{n}.pdf: unknown suffix", 0) for n in range(7)]
    others = [Unreadable(f"{n}.csv", f"{n}.csv, line {n}: broken", n) for n in range(1000)]
    lines = print_lines(render_unreadable(UnreadableFiles([*same, *others]), 80))
    assert lines[1:9] == [*(f"  {n}.pdf" for n in range(5)), "  and 2 more", "      unknown suffix", "  0.csv"]
    assert lines[10].startswith("  1.csv (")
    assert lines[11] == "      line 1: broken"
    assert "  and 985 more files, for other reasons" in lines
    assert len(lines) < 2 * MAX_FILES + 5


def test_markup_in_the_corpus_is_printed_as_it_is(tmp_path: Path) -> None:
    lines = print_lines(render(survey_text(tmp_path, "[red]Seen twice[/red]\n\n[red]Seen twice[/red]"), 80))
    assert any("[red]Seen twice[/red]" in line for line in lines)


def test_nothing_is_cut_off_on_80_columns(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "The rain fell on the town all day. Nobody went out. It was cold.\n\n")
    lengths = dataclasses.replace(found.document_lengths, largest=123_456_789_012)
    text = "\n".join(print_lines(render(dataclasses.replace(found, document_lengths=lengths), 80)))
    assert "123,456,789,012" in text
    assert "…" not in text
    assert max(map(len, text.split("\n"))) <= 80


def test_names_of_figures_are_not_broken_on_80_columns(tmp_path: Path) -> None:
    found = survey_text(tmp_path, "The rain fell on the town all day. Nobody went out. It was cold.\n\n")
    found = dataclasses.replace(found, scripts={"Hangul": 0.921, "Latin": 0.053, "Han": 0.026})
    lines = print_lines(render(found, 80))
    for name in ("one-sentence documents", "duplicate documents", "control characters", "HTML tags, entities"):
        assert any(name in line for line in lines)
