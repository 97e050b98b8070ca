"""`bertwright prepare`: turn text into a token store."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from bertwright.base.messages import count_of
from bertwright.base.object_storage import display
from bertwright.base.reporter import SILENT, Heading, Reporter, Rows
from bertwright.base.settings import write_settings
from bertwright.corpus.documents import CorpusSettings
from bertwright.interop.model_files import vocabulary_folder
from bertwright.surveying.small_corpus import MIN_PREDICTIONS, PREDICTED_SHARE, loss_error
from bertwright.tokenstore.build import BuildResult, BuildSettings, build
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.word_tokenizer import WordTokenizer


@dataclass(frozen=True)
class PrepareSettings:
    """Turn text into a token store, the memory-mapped ids that pre-training reads.

    After an interruption, run the same command again to resume.
    """

    corpus: CorpusSettings
    vocabulary: str
    """Folder with a vocabulary or a model, or a hub name."""
    store: Path
    """Folder for the token store; also on object storage, such as s3://BUCKET/store."""
    build: BuildSettings = field(default_factory=BuildSettings)


def prepare(settings: PrepareSettings, reporter: Reporter = SILENT) -> BuildResult:
    """Build the token store, or continue to build it.

    Ctrl-C (KeyboardInterrupt) loses only the shards in progress: the same call continues after the finished ones.
    """
    tokenizer = open_tokenizer(vocabulary_folder(settings.vocabulary))
    started = time.perf_counter()
    try:
        result = build(settings.store, settings.corpus, tokenizer, settings.build, reporter)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished shards are saved; run the same command again to continue") from None
    write_settings(settings.store / "settings.toml", settings, "bertwright prepare: all settings, defaults included")
    reporter.record(Heading(f"Token store {display(settings.store)}, {time.perf_counter() - started:,.1f} s"))
    _print_result(reporter, result, "words" if isinstance(tokenizer, WordTokenizer) else "characters")
    if notice := _describe_share(result, settings):
        reporter.note(notice)
    return result


def _describe_share(result: BuildResult, settings: PrepareSettings) -> str:
    """Say what share is held out, if it is far from the one that was asked for; else return the empty text."""
    asked, held_out = settings.build.held_out, result.held_out
    if held_out is None or settings.build.held_out_inputs:
        return ""
    share = held_out.num_tokens / (held_out.num_tokens + result.train.num_tokens)
    if 0.5 <= share / asked <= 2:
        return ""
    documents = held_out.num_documents + result.train.num_documents
    return (
        f"held out: {share:.1%} of the tokens, where {asked:.1%} was asked for: documents are held out whole, "
        f"and there are {documents:,}; --document-unit section or blank-line, or --document-start, makes them shorter"
    )


def _print_result(reporter: Reporter, result: BuildResult, units: str) -> None:
    rows = [
        (name, f"{header.num_documents:,}", f"{header.num_sentences:,}", f"{header.num_tokens:,}")
        for name, header in (("train", result.train), ("held out", result.held_out))
        if header is not None
    ]
    reporter.record(Rows(("", "documents", "sentences", "tokens"), rows))
    if result.held_out is not None:
        predictions = PREDICTED_SHARE * result.held_out.num_tokens
        if predictions < MIN_PREDICTIONS:
            reporter.note(
                f"held out: {result.held_out.num_tokens:,} tokens are too few for exact scores: the loss will have a "
                f"standard error of about {loss_error(predictions):.2f} nats; hold out more (--held-out)"
            )
    if result.empty_documents:
        reporter.note(f"skipped: {count_of(result.empty_documents, 'document', 'documents')} without a token")
    if result.empty_sentences:
        reporter.note(f"skipped: {count_of(result.empty_sentences, 'sentence', 'sentences')} without a token")
    if result.unknown_tokens:
        reporter.note(f"{result.unknown_tokens:,} tokens are [UNK]: {units} that the vocabulary lacks")
    if result.held_out_in_train:
        reporter.note(f"{result.held_out_in_train:,} held-out documents are also in train")
