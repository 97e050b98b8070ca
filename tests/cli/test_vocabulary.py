"""`bertwright vocabulary`: what it returns, writes, and leaves behind when it fails."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import bertwright
from bertwright import CorpusSettings, LearnSettings, VocabularySettings
from harness import run_and_capture


def test_compressed_text_gives_the_same_vocabulary(tmp_path: Path, small_corpus: CorpusSettings) -> None:
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(Path(small_corpus.inputs[0]).read_bytes()))
    corpora = {"plain": small_corpus, "packed": CorpusSettings((str(packed),))}
    digests = {
        bertwright.learn_vocabulary(LearnSettings(corpus, tmp_path / name, VocabularySettings(size=150))).digest
        for name, corpus in corpora.items()
    }
    assert len(digests) == 1


def test_a_vocabulary_that_fails_leaves_nothing(tmp_path: Path, small_corpus: CorpusSettings) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(ValueError, match="size is 10"):
        bertwright.learn_vocabulary(LearnSettings(small_corpus, tmp_path / "new", VocabularySettings(size=10)))
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("Schön und schon, Bär und bar.", "33.3% of the words lose marks, 33.3% become equal to a more frequent word"),
        ("kızlar okula gidiyor", "have ı, as in Turkish"),
        ("The mill is old.", ""),
    ],
)
def test_what_accents_and_capitals_lose_is_reported(tmp_path: Path, text: str, notice: str) -> None:
    (tmp_path / "text.txt").write_text(f"{text}\n\n" * 10, encoding="utf-8")
    corpus = CorpusSettings((str(tmp_path / "text.txt"),))
    settings = LearnSettings(corpus, tmp_path / "new", VocabularySettings(size=150))
    printed = " ".join(run_and_capture(bertwright.learn_vocabulary, settings).split())
    assert notice in printed
    assert ("--strip-accents" in printed, "--no-lowercase" in printed) == ("Schön" in text, "kız" in text)
