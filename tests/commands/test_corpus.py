"""The stages before pre-training as Python functions: what they return, print, leave, and leave alone."""

from __future__ import annotations

import gzip
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import bertwright
from bertwright import CorpusSettings, LearnSettings, PrepareSettings, StoreSettings, SurveySettings, VocabularySettings
from bertwright.commands import corpus as stages
from bertwright.corpus.survey import diagnose
from bertwright.settings import from_table, read_toml
from bertwright.vocabulary.tokenizer import Tokenizer


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=80)


def shown(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def text(tmp_path: Path) -> CorpusSettings:
    path = tmp_path / "text.txt"
    nouns = "bear deer fish wolf crow hare duck seal lynx mole".split()
    told = (
        f"The {nouns[n % 10]} sees the {nouns[n % 7]} .\nThe {nouns[n % 3]} hears the {nouns[n % 9]} ."
        for n in range(50)
    )
    path.write_text("\n\n".join(told), encoding="utf-8")
    return CorpusSettings((str(path),))


def test_every_public_name_is_there() -> None:
    assert dir(bertwright) == bertwright.__all__ == sorted(bertwright.__all__)
    assert sorted(name for names in bertwright.HOMES.values() for name in names) == bertwright.__all__
    for name in bertwright.__all__:
        assert getattr(bertwright, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'prepair'"):
        bertwright.prepair  # noqa: B018


def test_survey_returns_what_it_shows(tmp_path: Path, text: CorpusSettings, console: Console) -> None:
    found = bertwright.survey(SurveySettings(text, json=tmp_path / "deep/figures.json"), console)
    assert found.documents == 50
    assert json.loads((tmp_path / "deep/figures.json").read_text())["words"] == found.words
    flowing = " ".join(shown(console).split())
    for warning in diagnose(found):
        assert flowing.count(f"! {warning}") == 1


def test_a_corpus_that_will_not_hurt_is_told_so(
    text: CorpusSettings, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "diagnose", lambda _: [])
    bertwright.survey(SurveySettings(text), console)
    assert "Nothing here will hurt pre-training." in shown(console)


def test_a_messy_folder_is_surveyed_and_its_bad_files_told(
    tmp_path: Path, text: CorpusSettings, console: Console
) -> None:
    (tmp_path / "a.docx").write_bytes(b"x")
    (tmp_path / "b.txt").write_bytes(b"")
    found = bertwright.survey(SurveySettings(CorpusSettings((str(tmp_path),)), json=tmp_path / "f.json"), console)
    assert found.documents == 50
    kept = json.loads((tmp_path / "f.json").read_text())["unreadable"]
    assert [(Path(file["path"]).name, file["documents"]) for file in kept] == [("a.docx", 0), ("b.txt", 0)]
    flowing = " ".join(shown(console).split())
    assert "Files that cannot be read" in flowing
    assert flowing.count("empty file (0 bytes)") == flowing.count("unknown suffix .docx") == 1
    assert "! 2 files cannot be read" in flowing


def test_a_folder_of_bad_files_only_is_an_error_below_their_list(tmp_path: Path, console: Console) -> None:
    (tmp_path / "a.docx").write_bytes(b"x")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="not one document: 2 files cannot be read"):
        bertwright.survey(SurveySettings(CorpusSettings((str(tmp_path),)), json=tmp_path / "f.json"), console)
    assert "empty file (0 bytes)" in " ".join(shown(console).split())
    assert not (tmp_path / "f.json").exists()


def test_a_vocabulary_and_the_settings_that_repeat_it(tmp_path: Path, text: CorpusSettings, console: Console) -> None:
    settings = LearnSettings(text, tmp_path / "vocabulary", VocabularySettings(size=150))
    learned = bertwright.learn_vocabulary(settings, console)
    assert Tokenizer.load(tmp_path / "vocabulary").digest == learned.digest
    path = tmp_path / "vocabulary/settings.toml"
    assert from_table(LearnSettings, read_toml(path), str(path)) == settings


def test_compressed_text_gives_the_same_vocabulary(tmp_path: Path, text: CorpusSettings, console: Console) -> None:
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(Path(text.inputs[0]).read_bytes()))
    corpora = {"plain": text, "packed": CorpusSettings((str(packed),))}
    digests = {
        bertwright.learn_vocabulary(
            LearnSettings(corpus, tmp_path / name, VocabularySettings(size=150)), console
        ).digest
        for name, corpus in corpora.items()
    }
    assert len(digests) == 1


def test_a_vocabulary_that_fails_leaves_nothing(tmp_path: Path, text: CorpusSettings, console: Console) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(ValueError, match="size is 10, but"):
        bertwright.learn_vocabulary(LearnSettings(text, tmp_path / "new", VocabularySettings(size=10)), console)
    assert set(tmp_path.iterdir()) == before


def test_a_store_says_what_it_lost(
    tmp_path: Path, vocabulary_folder: Path, text: CorpusSettings, console: Console
) -> None:
    path = Path(text.inputs[0])
    path.write_text(path.read_text() + "\n\nThe bear sees the unicorn .\n\n\u0007\n")
    held_out = PrepareSettings(workers=1, held_out_inputs=text.inputs)
    built = bertwright.prepare(StoreSettings(text, str(vocabulary_folder), tmp_path / "store", held_out), console)
    flowing = " ".join(shown(console).split())
    assert (built.unknown_tokens, built.empty_documents) == (2, 2)
    assert "! 2 documents without a token left out" in flowing
    assert "! 2 tokens are [UNK]: characters that the vocabulary lacks" in flowing
    assert "! 51 held-out documents stand in train too" in flowing


def test_one_text_is_not_taken_for_many_inputs() -> None:
    with pytest.raises(ValueError, match=r"a tuple of texts is needed: \('books/',\)"):
        CorpusSettings("books/")  # type: ignore[arg-type]
