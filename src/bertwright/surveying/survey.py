"""`bertwright survey`: describe a corpus before time is spent on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table

from bertwright.base.console import TextTable, byte_progress, heading, make_console, make_table, notice, plain_text, say
from bertwright.base.files import new_file
from bertwright.corpus.documents import CorpusSettings, list_readable_corpus_files
from bertwright.executors.executor import ExecutorSettings, SerialExecutor
from bertwright.executors.open_executor import open_executor
from bertwright.surveying.corpus_statistics import Survey, Unreadable, UnreadableCorpusError, measure_corpus
from bertwright.surveying.diagnosis import diagnose

MAX_FILES = 20  # unreadable ones that are listed
MAX_FILES_PER_REASON = 5
MAX_LINES = 5  # repeated ones that are listed
MAX_LINE_LENGTH = 80


@dataclass(frozen=True)
class SurveySettings:
    """Describe a corpus, and warn of what would harm pre-training."""

    corpus: CorpusSettings
    json: Path | None = None
    """Also write all figures to this new file."""
    execution: ExecutorSettings = field(default_factory=ExecutorSettings)


def survey(settings: SurveySettings, console: Console | None = None) -> Survey:
    """Survey a corpus, print the figures and the warnings that follow from them.

    Unreadable files are listed and the others surveyed; the file with the figures also names them. Raises ValueError if
    no document can be read (invalid UTF-8 is counted, not rejected), or if the file for the figures exists.
    """
    console = console or make_console()
    with nullcontext() if settings.json is None else new_file(settings.json) as file:
        return _survey(settings, file, console)


def _survey(settings: SurveySettings, file: Path | None, console: Console) -> Survey:
    files, _ = list_readable_corpus_files(settings.corpus)
    try:
        with (
            open_executor(settings.execution, SerialExecutor()) as executor,
            byte_progress(console, "surveying", sum(file.size for file in files)) as advance,
        ):
            figures = measure_corpus(settings.corpus, advance, executor)
    except UnreadableCorpusError as error:
        if len(error.unreadable) > 1:  # the message names a single one
            console.print(render_unreadable(error.unreadable))
        raise
    first, *more_inputs = settings.corpus.inputs
    heading(console, f"Survey of {first}{f' and {len(more_inputs)} more' if more_inputs else ''}")
    console.print(render(figures))
    if figures.unreadable:
        console.print(render_unreadable(figures.unreadable))
    warnings = diagnose(figures)
    for warning in warnings:
        notice(console, warning)
    if not warnings:
        say(console, "Nothing here will hurt pre-training.", "green")
    if file is not None:
        file.write_text(json.dumps(asdict(figures), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        say(console, f"All figures  {settings.json}")
    return figures


def render(survey: Survey) -> RenderableType:
    """Return the figures as tables that fit 80 columns."""
    figures = TextTable(box=None, show_header=False, padding=(0, 2))
    for _ in range(2):
        figures.add_column(style="dim", no_wrap=True)
        figures.add_column(justify="right")
    cells = list(_figures(survey))
    half = (len(cells) + 1) // 2
    for left, right in zip_longest(cells[:half], cells[half:], fillvalue=("", "")):
        figures.add_row(*left, *right)
    tables: list[RenderableType] = [figures, _length_table(survey)]
    if survey.frequent_lines:
        frequent = make_table("times", "most frequent repeated lines")
        frequent.columns[0].justify, frequent.columns[1].justify = "right", "left"
        for line, count in survey.frequent_lines[:MAX_LINES]:
            shown = line if len(line) <= MAX_LINE_LENGTH else line[: MAX_LINE_LENGTH - 1] + "…"
            frequent.add_row(f"{count:,}", shown)
        tables.append(frequent)
    return Group(*tables)


def _figures(survey: Survey) -> Iterator[tuple[str, str]]:
    yield "files", f"{survey.files:,}"
    yield "on disk", f"{survey.bytes_on_disk / 1e6:,.1f} MB"
    yield "text", f"{survey.bytes_of_text / 1e6:,.1f} MB"
    yield "documents", f"{survey.documents:,}"
    yield "sentences", f"{survey.sentences:,}"
    yield "words", f"{survey.words:,}"
    yield "characters", f"{survey.characters:,}"
    yield "scripts", ", ".join(f"{name} {share:.1%}" for name, share in list(survey.scripts.items())[:3]) or "none"
    yield "upper case", f"{survey.upper_case:.1%} of letters"
    yield "one-sentence documents", f"{survey.one_sentence_documents:.1%}"
    yield "duplicate documents", f"{survey.duplicate_documents:.2%}"
    yield "duplicate lines", f"{survey.duplicate_lines:.2%} of {survey.lines:,}"
    yield "not UTF-8", f"{survey.bad_bytes:,}"
    yield "control characters", f"{survey.control_characters:,}"
    yield "null, empty rows", f"{survey.null_values:,}, {survey.empty_documents:,}"
    yield "URLs, blobs, long words", f"{survey.urls:,}, {survey.blobs:,}, {survey.long_words:,}"
    yield "HTML tags, entities", f"{survey.tags:,}"
    if survey.decomposed:
        yield "decomposed characters", f"{survey.decomposed:,}"


def _length_table(survey: Survey) -> Table:
    """Return a table with a column per kind of length, so that each reads as a distribution."""
    lengths = {
        "sentences\nper document": survey.sentences_per_document,
        "characters\nper document": survey.document_lengths,
        "characters\nper sentence": survey.sentence_lengths,
    }
    table = make_table("", *lengths)
    table.columns[0].style = "dim"
    table.add_row("mean", *(f"{summary.mean:,.1f}" for summary in lengths.values()))
    for name, figure in (
        ("min", "smallest"),
        ("10 %", "p10"),
        ("median", "median"),
        ("90 %", "p90"),
        ("99 %", "p99"),
        ("max", "largest"),
    ):
        table.add_row(name, *(f"{getattr(summary, figure):,}" for summary in lengths.values()))
    return table


def render_unreadable(unreadable: Sequence[Unreadable]) -> RenderableType:
    """Return unreadable files grouped by reason; beyond `MAX_FILES` only the number of the rest."""
    by_reason: dict[str, list[Unreadable]] = {}
    for file in unreadable:
        by_reason.setdefault(file.reason, []).append(file)
    lines: list[RenderableType] = [plain_text("Files that cannot be read", "bold")]
    remaining, listed = len(unreadable), 0
    for reason, files in by_reason.items():
        if listed >= MAX_FILES:
            lines.append(plain_text(f"  and {remaining:,} more files, for other reasons"))
            break
        names = [_name(file) for file in files[:MAX_FILES_PER_REASON]]
        more = [f"and {len(files) - len(names):,} more"] if len(files) > len(names) else []
        lines += [plain_text(f"  {line}") for line in [*names, *more]]
        indented = TextTable.grid()
        indented.add_row(" " * 6, plain_text(reason, "yellow"))
        lines.append(indented)
        remaining, listed = remaining - len(files), listed + len(names)
    return Group(*lines, "")


def _name(file: Unreadable) -> str:
    return f"{file.path} (documents read before the error: {file.documents:,})" if file.documents else file.path
