"""The stages before pre-training: look at the text, learn its vocabulary, turn it into token ids."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from bertwright.commands.output_paths import check_absent, new_file, vocabulary_folder
from bertwright.console import byte_progress, heading, item_progress, key_value_table, make_table, notice, say
from bertwright.corpus.documents import read
from bertwright.corpus.survey import Survey, UnreadableCorpusError, diagnose, render, render_unreadable
from bertwright.corpus.survey import survey as take_survey
from bertwright.files import atomic_folder, write_json
from bertwright.io.sources import CorpusSettings, check_inputs, open_inputs
from bertwright.settings import write_settings
from bertwright.tokenstore.build import BuildResult, PrepareSettings, Progress, build
from bertwright.vocabulary.tokenizer import Tokenizer
from bertwright.vocabulary.trainer import (
    VocabularyReport,
    VocabularySettings,
    count_words,
    learn,
    vocabulary_stats,
    write_vocabulary,
)


@dataclass(frozen=True)
class SurveySettings:
    """Say what a corpus is like before time is spent on it, and what in it will hurt pre-training."""

    corpus: CorpusSettings
    json: Path | None = None
    """Also write all figures to this file."""


@dataclass(frozen=True)
class LearnSettings:
    """Learn a WordPiece vocabulary from text; writes vocab.txt and tokenizer.json, as `transformers` reads them."""

    corpus: CorpusSettings
    output: Path
    """Folder for the vocabulary, to be made."""
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)


@dataclass(frozen=True)
class StoreSettings:
    """Turn text into a token store, the memory-mapped ids that pre-training reads. Started again, it goes on."""

    corpus: CorpusSettings
    vocabulary: str
    """Folder with a vocabulary or a model, or a hub name."""
    store: Path
    """Folder for the token store."""
    prepare: PrepareSettings = field(default_factory=PrepareSettings)


def survey(settings: SurveySettings, console: Console | None = None) -> Survey:
    """Survey a corpus, show the figures and what they warn of.

    Files that cannot be read are listed, beside the figures of the others, and that is no failure: what a corpus is
    like was asked, and is answered, with them as with all else that later stages would stop at. A script finds them
    in the file for the figures. Raises ValueError where nothing can be read (invalid UTF-8 is counted, not refused),
    and when the file for the figures is there already.
    """
    console = console or Console()
    with nullcontext() if settings.json is None else new_file(settings.json) as file:
        return _survey(settings, file, console)


def _survey(settings: SurveySettings, file: Path | None, console: Console) -> Survey:
    try:
        with byte_progress(
            console, "surveying", sum(file.size for file in check_inputs(settings.corpus)[0])
        ) as advance:
            found = take_survey(settings.corpus, advance)
    except UnreadableCorpusError as error:
        if len(error.unreadable) > 1:  # of one, the message says it all
            console.print(render_unreadable(error.unreadable))
        raise
    first, *others = settings.corpus.inputs
    heading(console, f"Survey of {first}{f' and {len(others)} more' if others else ''}")
    console.print(render(found))
    if found.unreadable:
        console.print(render_unreadable(found.unreadable))
    told = diagnose(found)
    for warning in told:
        notice(console, warning)
    if not told:
        say(console, "Nothing here will hurt pre-training.", "green")
    if file is not None:
        write_json(file, asdict(found))
        say(console, f"All figures  {settings.json}")
    return found


def learn_vocabulary(settings: LearnSettings, console: Console | None = None) -> Tokenizer:
    """Learn a vocabulary and write its folder, whole or not at all.

    Raises ValueError when the folder is there already, and for text that cannot be read or learned from.
    """
    console = console or Console()
    check_absent(settings.output)
    with atomic_folder(settings.output) as folder:  # made first: a place without room or right is found at once
        with byte_progress(console, "counting words", _size(settings.corpus, unpacked=True)) as advance:
            counts = count_words((document.text for document in read(settings.corpus)), settings.vocabulary, advance)
        with item_progress(console, "learning tokens", settings.vocabulary.size) as advance:
            tokens = learn(counts, settings.vocabulary, advance)
        tokenizer = write_vocabulary(folder, tokens, settings.vocabulary)
        write_settings(folder / "settings.toml", settings, "bertwright vocabulary: the settings in force")
    heading(console, f"Vocabulary {settings.output}")
    console.print(key_value_table(_figures(vocabulary_stats(tokens, counts))))
    if len(tokens) < settings.vocabulary.size:
        notice(
            console,
            f"{len(tokens):,} tokens in place of {settings.vocabulary.size:,}: no other pair of pieces meets "
            f"{settings.vocabulary.min_frequency} times. More text gives more tokens.",
        )
    return tokenizer


def prepare(settings: StoreSettings, console: Console | None = None) -> BuildResult:
    """Build the token store, or go on building it; see `tokenstore.build.build`.

    Ctrl-C (KeyboardInterrupt) loses the parts in hand only: the same call goes on from the finished ones.
    """
    console = console or Console()
    tokenizer = Tokenizer.load(vocabulary_folder(settings.vocabulary))
    started = time.perf_counter()
    noted: set[str] = set()
    with byte_progress(console, "preparing", _size(settings.corpus)) as advance:
        last = 0

        def told(progress: Progress) -> None:
            nonlocal last
            if progress.note and progress.note not in noted:
                noted.add(progress.note)
                notice(console, progress.note)
            advance(progress.bytes_done - last)
            last = progress.bytes_done

        try:
            built = build(settings.store, settings.corpus, tokenizer, settings.prepare, told)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what is finished is kept; the same command goes on from there") from None
    write_settings(settings.store / "settings.toml", settings, "bertwright prepare: the settings in force")
    heading(console, f"Token store {settings.store}, {time.perf_counter() - started:,.1f} s")
    _show_store(console, built)
    return built


def _size(corpus: CorpusSettings, unpacked: bool = False) -> int | None:
    """Bytes of the inputs as they lie on disk; None for their text where it cannot be known without unpacking."""
    inputs = open_inputs(corpus)
    if unpacked and any(file.compression or file.format == ".parquet" for file in inputs):
        return None
    return sum(file.size for file in inputs)


def _figures(found: VocabularyReport) -> dict[str, str]:
    rows = {
        "tokens": f"{found.tokens:,}",
        "characters with a token": f"{found.characters:,}, {found.character_coverage:.3%} of the text",
        "tokens per word (fertility)": f"{found.fertility:.3f}",
        "words that are one token": f"{found.whole_word_mask:.1%}",
        "words that are [UNK]": f"{found.unknown:.3%}",
        "tokens the text never uses": f"{found.unused:,}",
    }
    if found.pruned:
        rows["words left out, to bound memory"] = f"{found.pruned:.2%}"
    return rows | {"longest": " ".join(found.longest), "learned last": " ".join(found.last)}


def _show_store(console: Console, built: BuildResult) -> None:
    table = make_table("", "documents", "sentences", "tokens")
    for side, header in (("train", built.train), ("held out", built.held_out)):
        if header is not None:
            counts = (header.num_documents, header.num_sentences, header.num_tokens)
            table.add_row(side, *(f"{count:,}" for count in counts))
    console.print(table)
    if built.empty_documents:
        notice(console, f"{built.empty_documents:,} documents without a token left out")
    if built.empty_sentences:
        notice(console, f"{built.empty_sentences:,} sentences without a token left out")
    if built.unknown_tokens:
        notice(console, f"{built.unknown_tokens:,} tokens are [UNK]: characters that the vocabulary lacks")
    if built.held_out_in_train:
        notice(console, f"{built.held_out_in_train:,} held-out documents stand in train too")
