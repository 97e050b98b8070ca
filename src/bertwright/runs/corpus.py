"""The stages before pre-training: look at the text, learn its vocabulary, turn it into token ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as LiveLine
from rich.table import Table

from bertwright.corpus.documents import read
from bertwright.corpus.inputs import CorpusSettings, open_inputs
from bertwright.corpus.survey import Survey, render, warnings
from bertwright.corpus.survey import survey as take_survey
from bertwright.files import write_json
from bertwright.interop.huggingface import find_folder
from bertwright.settings import write_settings
from bertwright.tokenstore.build import Built, PrepareSettings, Progress, build
from bertwright.vocabulary.tokenizer import Tokenizer
from bertwright.vocabulary.wordpiece import (
    VocabularyReport,
    VocabularySettings,
    count_words,
    learn,
    report,
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
    """Survey a corpus, show the figures and what they warn of."""
    console = console or Console()
    with _reading(console, "surveying", _size(settings.corpus)) as advance:
        found = take_survey(settings.corpus, advance)
    console.print(render(found))
    told = warnings(found)
    for warning in told:
        console.print(f"[yellow]•[/yellow] {escape(warning)}")
    if not told:
        console.print("[green]Nothing here will hurt pre-training.[/green]")
    if settings.json:
        write_json(settings.json, asdict(found))
    return found


def vocabulary(settings: LearnSettings, console: Console | None = None) -> Tokenizer:
    """Learn a vocabulary and write its folder. Raises ValueError when the folder holds one already."""
    console = console or Console()
    if (settings.output / "vocab.txt").exists():
        raise ValueError(f"{settings.output}: holds a vocabulary already; name another --output folder")
    with _reading(console, "counting words", _size(settings.corpus)) as advance:
        counts = count_words((document.text for document in read(settings.corpus)), settings.vocabulary, advance)
    with _learning(console, settings.vocabulary.size) as advance:
        tokens = learn(counts, settings.vocabulary, advance)
    tokenizer = write_vocabulary(settings.output, tokens, settings.vocabulary)
    write_settings(settings.output / "settings.toml", settings, "bertwright vocabulary: the settings in force")
    console.print(_vocabulary_table(report(tokens, counts), settings.output))
    if len(tokens) < settings.vocabulary.size:
        console.print(
            f"[yellow]•[/yellow] {len(tokens):,} tokens in place of {settings.vocabulary.size:,}: no other pair "
            f"of pieces meets {settings.vocabulary.min_frequency} times; more text gives more"
        )
    return tokenizer


def prepare(settings: StoreSettings, console: Console | None = None) -> Built:
    """Build the token store, or go on building it."""
    console = console or Console()
    tokenizer = Tokenizer.load(find_vocabulary(settings.vocabulary))
    started = time.perf_counter()
    noted: set[str] = set()
    with _reading(console, "preparing", _size(settings.corpus)) as advance:
        last = 0

        def told(progress: Progress) -> None:
            nonlocal last
            if progress.note and progress.note not in noted:
                noted.add(progress.note)
                console.print(f"[yellow]•[/yellow] {escape(progress.note)}")
            advance(progress.bytes_done - last)
            last = progress.bytes_done

        built = build(settings.store, settings.corpus, tokenizer, settings.prepare, told)
    write_settings(settings.store / "settings.toml", settings, "bertwright prepare: the settings in force")
    console.print(_store_table(built, settings.store, time.perf_counter() - started))
    return built


def find_vocabulary(name: str) -> Path:
    """A vocabulary's folder or file as it is; anything else is looked for on the hub."""
    return Path(name) if Path(name).exists() else find_folder(name)


def _size(corpus: CorpusSettings) -> int:
    """Bytes of the inputs as they lie on disk; of compressed ones this is less than what will be read."""
    return sum(file.size for file in open_inputs(corpus))


@contextmanager
def _reading(console: Console, what: str, size: int) -> Iterator[Callable[[int], None]]:
    """A live line in bytes, with rate and time left; the function takes the bytes done since it was last called."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    with LiveLine(*columns, *left, console=console, disable=not console.is_terminal, transient=True) as live:
        line = live.add_task(what, total=size)
        yield lambda done: live.advance(line, done)


@contextmanager
def _learning(console: Console, size: int) -> Iterator[Callable[[int], None]]:
    """A live line in tokens learned."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with LiveLine(*columns, console=console, disable=not console.is_terminal, transient=True) as live:
        line = live.add_task("learning", total=size)
        yield lambda done: live.advance(line, done)


def _vocabulary_table(found: VocabularyReport, folder: Path) -> Table:
    table = Table(title=f"Vocabulary {folder}", title_justify="left", show_header=False)
    table.add_row("tokens", f"{found.tokens:,}")
    table.add_row("characters with a token", f"{found.characters:,}, {found.character_coverage:.3%} of the text")
    table.add_row("tokens per word (fertility)", f"{found.fertility:.3f}")
    table.add_row("words that are one token", f"{found.whole_words:.1%}")
    table.add_row(escape("words that are [UNK]"), f"{found.unknown:.3%}")
    table.add_row("tokens the text never uses", f"{found.unused:,}")
    if found.pruned:
        table.add_row("words left out, to bound memory", f"{found.pruned:.2%}")
    table.add_row("longest", escape(" ".join(found.longest)))
    table.add_row("learned last", escape(" ".join(found.last)))
    return table


def _store_table(built: Built, folder: Path, seconds: float) -> Table:
    table = Table(title=f"Token store {folder}, {seconds:,.1f} s", title_justify="left")
    for heading in ("", "documents", "sentences", "tokens"):
        table.add_column(heading, justify="right" if heading else "left")
    for side, header in (("train", built.train), ("held out", built.held_out)):
        if header is not None:
            counts = (header.num_documents, header.num_sentences, header.num_tokens)
            table.add_row(side, *(f"{count:,}" for count in counts))
    notes = [
        f"{built.empty_documents:,} documents without a token left out" if built.empty_documents else "",
        f"{built.unknown_tokens:,} tokens are \\[UNK]: characters that the vocabulary lacks"
        if built.unknown_tokens
        else "",
        f"{built.held_out_in_train:,} held-out documents stand in train too" if built.held_out_in_train else "",
    ]
    table.caption = "\n".join(filter(None, notes)) or None
    return table
