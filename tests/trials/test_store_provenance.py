"""Reports name text, vocabulary and store by digests, and the two commands that made them."""

from __future__ import annotations

import shlex
from pathlib import Path

from bertwright.base.reporter import SILENT
from bertwright.base.settings import to_table
from bertwright.cli.options import read_settings
from bertwright.corpus.documents import CorpusSettings
from bertwright.pretraining.prepare import PrepareSettings, prepare
from bertwright.tokenstore.build import BuildSettings
from bertwright.tokenstore.store import read_header
from bertwright.trials.experiment import describe_store
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from small_runs import grammar


def test_the_commands_of_a_store_make_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(grammar(60), encoding="utf-8")
    corpus = CorpusSettings((str(tmp_path / "text.txt"),))
    quiet = SILENT
    learning = LearnSettings(corpus, tmp_path / "vocabulary", VocabularySettings(size=250, lowercase=False))
    learn_vocabulary(learning, quiet)
    preparing = PrepareSettings(corpus, str(tmp_path / "vocabulary"), tmp_path / "store", BuildSettings(0.2, workers=1))
    prepare(preparing, quiet)
    described = describe_store(tmp_path / "store")
    train, held_out = (read_header(tmp_path / "store" / split) for split in ("train", "held_out"))
    assert f"digest {train.corpus_digest}; held out" in described["text"]
    assert described["text"].endswith(f"digest {held_out.corpus_digest}")
    assert f"{train.num_documents:,} documents" in described["text"]
    assert ", cased, digest " in described["vocabulary"]
    for name, cls, settings in (
        ("command of the vocabulary", LearnSettings, learning),
        ("command of the store", PrepareSettings, preparing),
    ):
        _, verb, *arguments = shlex.split(described[name])
        assert to_table(read_settings(cls, verb, arguments, "")) == to_table(settings)


def test_a_store_without_settings_has_its_digests(store: Path) -> None:
    described = describe_store(store)
    assert [*described] == ["text", "vocabulary", "store"]
    assert ", uncased, digest " in described["vocabulary"]
