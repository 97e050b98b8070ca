"""A survey of a corpus as tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from rich.console import Group, RenderableType
from rich.table import Table

from bertwright.cli.render.terminal import TextTable, plain_text, text_table
from bertwright.surveying.corpus_statistics import Survey, Unreadable
from bertwright.surveying.survey import UnreadableFiles

MAX_FILES = 20  # unreadable ones that are listed
MAX_FILES_PER_REASON = 5
MAX_LINES = 5  # repeated ones that are listed
MAX_LINE_LENGTH = 80


def render(survey: Survey, width: int) -> RenderableType:
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
        frequent = text_table(("times", "most frequent repeated lines"), ())
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
    yield "one-sentence documents", f"{survey.one_sentence_documents:.1%}"
    yield "duplicate documents", f"{survey.duplicate_documents:.2%}"
    yield "duplicate lines", f"{survey.duplicate_lines:.2%} of {survey.lines:,}"
    yield "not UTF-8", f"{survey.bad_bytes:,}"
    yield "control characters", f"{survey.control_characters:,}"
    yield "null, empty rows", f"{survey.null_values:,}, {survey.empty_documents:,}"
    yield "base64, code", f"{survey.blobs:,}"
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
    table = text_table(("", *lengths), ())
    table.columns[0].style = "dim"
    table.add_row("mean", *(f"{summary.mean:,.1f}" for summary in lengths.values()))
    names = {"smallest": "min", "p10": "10 %", "median": "median", "p90": "90 %", "p99": "99 %", "largest": "max"}
    for figure, name in names.items():
        table.add_row(name, *(f"{getattr(summary, figure):,}" for summary in lengths.values()))
    return table


def render_unreadable(unreadable: UnreadableFiles, width: int) -> RenderableType:
    """Return unreadable files grouped by reason; beyond `MAX_FILES` only the number of the rest."""
    by_reason: dict[str, list[Unreadable]] = {}
    for file in unreadable.files:
        by_reason.setdefault(file.reason, []).append(file)
    lines: list[RenderableType] = [plain_text("Files that cannot be read", "bold")]
    remaining, listed = len(unreadable.files), 0
    for reason, files in by_reason.items():
        if listed >= MAX_FILES:
            lines.append(plain_text(f"  and {remaining:,} more files, for other reasons"))
            break
        names = [
            f"{file.path} (documents read before the error: {file.documents:,})" if file.documents else file.path
            for file in files[:MAX_FILES_PER_REASON]
        ]
        more = [f"and {len(files) - len(names):,} more"] if len(files) > len(names) else []
        lines += [plain_text(f"  {line}") for line in [*names, *more]]
        indented = TextTable.grid()
        indented.add_row(" " * 6, plain_text(reason, "yellow"))
        lines.append(indented)
        remaining, listed = remaining - len(files), listed + len(names)
    return Group(*lines, "")
