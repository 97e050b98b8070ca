"""`bertwright survey`: describe a corpus before time is spent on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from bertwright.base.files import new_file
from bertwright.base.reporter import SILENT, Heading, Line, Reporter
from bertwright.corpus.documents import CorpusSettings, list_readable_corpus_files
from bertwright.executors.executor import ExecutorSettings, SerialExecutor
from bertwright.executors.open_executor import open_executor
from bertwright.surveying.corpus_statistics import Survey, Unreadable, UnreadableCorpusError, measure_corpus
from bertwright.surveying.diagnosis import diagnose


@dataclass(frozen=True)
class SurveySettings:
    """Describe a corpus, and warn of what would harm pre-training."""

    corpus: CorpusSettings
    json: Path | None = None
    """Also write all figures to this new file."""
    execution: ExecutorSettings = field(default_factory=ExecutorSettings)


class UnreadableFiles(NamedTuple):
    """Files that could not be read, as a record for a `Reporter`."""

    files: Sequence[Unreadable]


def survey(settings: SurveySettings, reporter: Reporter = SILENT) -> Survey:
    """Survey a corpus, print the figures and the warnings that follow from them.

    Unreadable files are listed and the others surveyed; the file with the figures also names them. Raises ValueError if
    no document can be read (invalid UTF-8 is counted, not rejected), or if the file for the figures exists.
    """
    with nullcontext() if settings.json is None else new_file(settings.json) as file:
        figures = _measure(settings, reporter)
        first, *more_inputs = settings.corpus.inputs
        reporter.record(Heading(f"Survey of {first}{f' and {len(more_inputs)} more' if more_inputs else ''}"))
        reporter.record(figures)
        if figures.unreadable:
            reporter.record(UnreadableFiles(figures.unreadable))
        warnings = diagnose(figures)
        for warning in warnings:
            reporter.note(warning)
        if not warnings:
            reporter.record(Line("Nothing here will hurt pre-training.", "good"))
        if file is not None:
            file.write_text(json.dumps(asdict(figures), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            reporter.record(Line(f"All figures  {settings.json}"))
    return figures


def _measure(settings: SurveySettings, reporter: Reporter) -> Survey:
    files, _ = list_readable_corpus_files(settings.corpus)
    try:
        with (
            open_executor(settings.execution, SerialExecutor()) as executor,
            reporter.progress("surveying", sum(file.size for file in files), "bytes") as advance,
        ):
            return measure_corpus(settings.corpus, advance, executor)
    except UnreadableCorpusError as error:
        if len(error.unreadable) > 1:  # the message names a single one
            reporter.record(UnreadableFiles(error.unreadable))
        raise
