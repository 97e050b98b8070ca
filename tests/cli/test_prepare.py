"""`bertwright prepare`: what it returns and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import bertwright
from bertwright import BuildSettings, CorpusSettings, PrepareSettings
from bertwright.base.reporter import SilentReporter
from harness import run_with_output


def test_skipped_and_unknown_text_is_reported(
    tmp_path: Path, vocabulary_folder: Path, small_corpus: CorpusSettings
) -> None:
    path = Path(small_corpus.inputs[0])
    path.write_text(path.read_text() + "\n\nThe bear sees the unicorn .\n\n\u0007\n")
    held_out = BuildSettings(workers=1, held_out_inputs=small_corpus.inputs)
    settings = PrepareSettings(small_corpus, str(vocabulary_folder), tmp_path / "store", held_out)
    built, printed = run_with_output(bertwright.prepare, settings, columns=80)
    flowing = " ".join(printed.split())
    assert (built.unknown_tokens, built.empty_documents) == (2, 2)
    assert "! skipped: 2 documents without a token" in flowing
    assert "! 2 tokens are [UNK]" in flowing
    assert "! 51 held-out documents" in flowing
    assert built.held_out is not None
    tokens = built.held_out.num_tokens
    error = f"{3.6 / (0.15 * tokens) ** 0.5:.2f}"
    assert f"! held out: {tokens} tokens are too few for exact scores" in flowing
    assert f"the loss will have a standard error of about {error}" in flowing


def test_progress_covers_the_held_out_files(
    tmp_path: Path, vocabulary_folder: Path, small_corpus: CorpusSettings
) -> None:
    totals, done = list[int](), list[int]()

    class Recorder(SilentReporter):
        @contextmanager
        def progress(self, what: str, size: int, *_: object) -> Iterator[Callable[[int], None]]:
            totals.append(size)
            yield done.append

    held_out = BuildSettings(workers=1, held_out_inputs=small_corpus.inputs)
    settings = PrepareSettings(small_corpus, str(vocabulary_folder), tmp_path / "s", held_out)
    bertwright.prepare(settings, Recorder())
    size = Path(small_corpus.inputs[0]).stat().st_size
    assert totals == [2 * size] == [sum(done)]


def test_a_share_far_from_the_one_that_was_asked_for_is_reported(
    tmp_path: Path, vocabulary_folder: Path, small_corpus: CorpusSettings
) -> None:
    path = tmp_path / "four.txt"
    path.write_text("\n\n".join(f"The {word} sees the deer ." for word in ("bear", "wolf", "crow", "hare")))
    corpus = replace(small_corpus, inputs=(str(path),))
    for share, expected in ((0.01, True), (0.5, False)):
        build = BuildSettings(workers=1, held_out=share)
        settings = PrepareSettings(corpus, str(vocabulary_folder), tmp_path / f"store-{share}", build)
        _, printed = run_with_output(bertwright.prepare, settings, columns=80)
        flowing = " ".join(printed.split())
        assert ("! held out: 50.0% of the tokens, where 1.0% was asked for" in flowing) == expected
