"""What gluebenchmark.com takes: a zip with the answers to GLUE's test files, checked before it is written.

The test files are read as GLUE publishes them: without labels, an index in front, and a header in each, also where the
training file has none.
"""

from __future__ import annotations

import statistics
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from tyro.conf import Positional

from bertwright.commands.output_paths import check_absent, new_file
from bertwright.console import heading, item_progress, make_console, make_table, notice, say
from bertwright.inference.model import load
from bertwright.interop.model_files import model_folder
from bertwright.io.tables import TableSchema, read_rows
from bertwright.models.heads import EncoderForTask
from bertwright.settings import did_you_mean
from bertwright.tasks.classification import Classification, Regression, listed
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.task import TASK_FILE
from bertwright.tasks.task_io import AnyTask, read_task
from bertwright.training.context import DeviceSettings, ExecutionContext, execution_context
from bertwright.training.loop import DivergedError


@dataclass(frozen=True)
class SubmissionFile:
    """One file of a submission: NAME.tsv."""

    name: str
    task: str
    """Whose model answers."""
    files: tuple[str, ...]
    """Where its questions may lie in GLUE's folder; the first that is there is read."""
    rows: int
    """How many questions GLUE asks."""
    texts: tuple[str, ...]
    """The columns with the text, or with the pair."""
    labels: tuple[str, ...]
    """The words GLUE knows for an answer; empty: a number from 0 to 5."""
    usual: str
    """The most frequent answer of the training set; for numbers, the middle."""
    index: str = "index"
    """The column that numbers the questions from 0."""
    names: tuple[str, ...] = ()
    """What the hub's copy of the task calls the labels, where it has words of its own; in the same order."""


YES_NO = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
PAIR = ("sentence1", "sentence2")
STRINGS, QUESTIONS = ("#1 String", "#2 String"), ("question1", "question2")
MATCHED, MISMATCHED = ("MNLI/test_matched.tsv",), ("MNLI/test_mismatched.tsv",)
DIAGNOSTIC = ("diagnostic/diagnostic.tsv", "diagnostic/AX.tsv", "AX/AX.tsv", "AX.tsv")
SHEETS = (
    SubmissionFile(
        "CoLA", "cola", ("CoLA/test.tsv",), 1_063, ("sentence",), YES_NO, "1", names=("unacceptable", "acceptable")
    ),
    SubmissionFile(
        "SST-2", "sst2", ("SST-2/test.tsv",), 1_821, ("sentence",), YES_NO, "1", names=("negative", "pos_label")
    ),
    SubmissionFile(
        "MRPC", "mrpc", ("MRPC/test.tsv",), 1_725, STRINGS, YES_NO, "1", names=("not_equivalent", "equivalent")
    ),
    SubmissionFile("STS-B", "stsb", ("STS-B/test.tsv",), 1_379, PAIR, (), "2.500"),
    SubmissionFile(
        "QQP", "qqp", ("QQP/test.tsv",), 390_965, QUESTIONS, YES_NO, "0", "id", ("not_duplicate", "duplicate")
    ),
    SubmissionFile("MNLI-m", "mnli", MATCHED, 9_796, PAIR, THREE_WAY, "contradiction"),
    SubmissionFile("MNLI-mm", "mnli", MISMATCHED, 9_847, PAIR, THREE_WAY, "contradiction"),
    SubmissionFile("QNLI", "qnli", ("QNLI/test.tsv",), 5_463, ("question", "sentence"), TWO_WAY, "entailment"),
    SubmissionFile("RTE", "rte", ("RTE/test.tsv",), 3_000, PAIR, TWO_WAY, "entailment"),
    SubmissionFile("WNLI", "wnli", ("WNLI/test.tsv",), 146, PAIR, YES_NO, "0", names=("not_entailment", "entailment")),
    SubmissionFile("AX", "mnli", DIAGNOSTIC, 1_104, PAIR, THREE_WAY, "contradiction"),
)


@dataclass(frozen=True)
class SubmissionSettings:
    """Answer GLUE's test files with fine-tuned models, and pack the answers as gluebenchmark.com takes them."""

    models: Positional[tuple[str, ...]]
    """TASK=MODEL for each task: cola=runs/cola sst2=runs/sst2 mrpc=… stsb=… qqp=… mnli=… qnli=… rte=… wnli=…; a model
    is a folder of a fine-tuned model, its run folder, or a hub name. mnli answers both MNLI files and the diagnostic
    one (AX)."""
    data: Path
    """GLUE's folder, with CoLA/test.tsv, MNLI/test_matched.tsv, diagnostic/diagnostic.tsv and so on as published."""
    output: Path
    """The .zip to be made."""
    fill_missing: bool = False
    """Give the tasks without a model the most frequent answer of their training set: GLUE takes whole submissions only
    (of WNLI, where nothing is learned, the paper submits just that: B.1)."""
    ignore_row_count: bool = False
    """Take test files that have not as many rows as GLUE's."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("no model given; for example: cola=runs/cola mnli=runs/mnli")
        if self.output.suffix != ".zip":
            raise ValueError(f"{self.output}: a submission is a .zip; name it so")
        tasks = {sheet.task for sheet in SHEETS}
        for pair in self.models:
            name, equals, model = pair.partition("=")
            if not (equals and model):
                raise ValueError(f"{pair!r}: TASK=MODEL expected, such as cola=runs/cola")
            if name not in tasks:
                raise ValueError(f'no task "{name}" in GLUE; {did_you_mean(name, tasks)}')
        if len(self.by_task) < len(self.models):
            raise ValueError("a task is named twice; give each one model")

    @property
    def by_task(self) -> dict[str, str]:
        """Each task's model."""
        return {name: model for name, _, model in (pair.partition("=") for pair in self.models)}


class SheetQuestions(NamedTuple):
    """What a sheet answers, found and checked."""

    sheet: SubmissionFile
    path: Path
    task: AnyTask
    """The model's own, made to read that file."""
    rows: int
    """How many there are."""


def submission(settings: SubmissionSettings, console: Console | None = None) -> Path:
    """Write the zip, whole or not at all, and show what was answered; returns its path.

    Models, labels, files, indices and numbers of rows are checked before the first prediction, and so is the zip's
    place. Raises ValueError for what GLUE would not take, and when the zip is there already.
    """
    console = console or make_console()
    check_absent(settings.output)
    asked = [found for name, model in settings.by_task.items() for found in _questions(settings, name, model)]
    for name, model in settings.by_task.items():
        if other := _trained_like(model_folder(model), name):
            notice(
                console, f"{name}={model}: trained on columns as {other} has them, not {name}; is it the right model?"
            )
    answers: dict[str, list[str]] = {}
    with new_file(settings.output) as part, execution_context(settings.device) as place:
        for name, model in settings.by_task.items():
            answers |= _answered(model, [one for one in asked if one.sheet.task == name], place, console)
        missing = [sheet for sheet in SHEETS if sheet.name not in answers]
        if settings.fill_missing:
            answers |= {sheet.name: [sheet.usual] * sheet.rows for sheet in missing}
        answers = {sheet.name: answers[sheet.name] for sheet in SHEETS if sheet.name in answers}
        write_zip(part, answers)
    _show(settings, answers, [sheet.name for sheet in missing], console)
    return settings.output


def write_zip(path: Path, answers: Mapping[str, Sequence[str]]) -> None:
    """Write NAME.tsv for each sheet; equal answers make equal files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, given in answers.items():
            lines = ["index\tprediction", *(f"{number}\t{answer}" for number, answer in enumerate(given))]
            entry = zipfile.ZipInfo(f"{name}.tsv")  # of 1980, whatever the day
            entry.external_attr = 0o644 << 16  # else unzip makes a file that nobody may read
            archive.writestr(entry, "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)


def _questions(settings: SubmissionSettings, name: str, model: str) -> list[SheetQuestions]:
    """What a model is asked, found and checked. Raises ValueError where model or file is not GLUE's."""
    folder = model_folder(model)
    found = []
    for sheet in (sheet for sheet in SHEETS if sheet.task == name):
        task = _fitting(sheet, folder)
        path = next((settings.data / file for file in sheet.files if (settings.data / file).is_file()), None)
        if path is None:
            raise ValueError(f"{settings.data}: no {sheet.files[0]}; name the folder with GLUE's files as published")
        rows = _checked_rows(sheet, path, settings.ignore_row_count)
        first, *second = sheet.texts
        reading = replace(task, text=first, text_pair=second[0] if second else None, header=True, quotes=False)
        found.append(SheetQuestions(sheet, path, reading, rows))
    return found


def _fitting(sheet: SubmissionFile, folder: Path) -> Classification | Regression:
    """A model's task. Raises ValueError where it gives other answers than GLUE knows, or reads not as many texts."""
    task = read_task(folder)
    kind = Classification if sheet.labels else Regression
    labels = task.label_names if task else ()
    known = {*labels} in ({*sheet.labels}, {*(sheet.names or sheet.labels)})
    if not isinstance(task, Classification | Regression) or type(task) is not kind or not known:
        expected = f"the labels {listed(sheet.labels)}" if sheet.labels else "a number"
        found = f"its task is {task.kind}" if task else "it was not fine-tuned on a task"
        having = f" with {listed(labels)}" if labels else ""
        raise ValueError(f"{folder}: {sheet.task} asks for {expected}; {found}{having}")
    told = (folder / TASK_FILE).is_file()  # a folder of transformers does not say how many texts it reads
    if told and (task.text_pair is None) != (len(sheet.texts) == 1):
        read = "single texts" if task.text_pair is None else "pairs of texts"
        raise ValueError(f"{folder}: fine-tuned on {read}, which {sheet.task} is not; fine-tune it on {sheet.task}")
    return task


def _trained_like(folder: Path, name: str) -> str | None:
    """Another task of GLUE whose columns and labels a model's training data had, where they were not this one's.

    Several tasks have the same labels, so that two models in each other's place would answer without a word.
    """

    def columns(task: Any) -> tuple[str, str | None, str]:
        return task.text, task.text_pair, task.label

    found = read_task(folder) if (folder / TASK_FILE).is_file() else None
    if found is None or columns(found) == columns(PRESETS[name].task):
        return None
    alike = (sheet.task for sheet in SHEETS if {*sheet.labels} == {*found.label_names})
    return next((other for other in alike if columns(PRESETS[other].task) == columns(found)), None)


def _checked_rows(sheet: SubmissionFile, path: Path, ignore_row_count: bool) -> int:
    """How many questions there are. Raises ValueError unless they are numbered from 0 on, and as many as GLUE asks."""
    rows = 0
    columns = TableSchema((sheet.index, *sheet.texts), quotes=False, hint="is this GLUE's own file?")
    for place, (index, *_) in read_rows(str(path), columns):
        if index != str(rows):
            raise ValueError(f"{place}: {sheet.index} {rows} expected, {index!r} found; is this GLUE's own file?")
        rows += 1
    if rows != sheet.rows and not ignore_row_count:
        raise ValueError(
            f"{path}: {rows:,} rows, {sheet.rows:,} expected; is this GLUE's own file? --ignore-row-count takes it as it is"
        )
    return rows


def _answered(
    model: str, asked: Sequence[SheetQuestions], place: ExecutionContext, console: Console
) -> dict[str, list[str]]:
    """One model's answers, sheet by sheet, as GLUE writes them."""
    bert = load(model, place.device, place.dtype)
    assert isinstance(bert.model, EncoderForTask)
    answers: dict[str, list[str]] = {}
    for sheet, path, task, rows in asked:
        given = answers[sheet.name] = []
        truncated = 0
        with item_progress(console, sheet.name, rows) as advance:
            try:
                for chunk in predict_chunks(bert.model, task, bert.tokenizer, task.read(str(path), labelled=False)):
                    given += [_written(one, sheet) for one in chunk.predictions]
                    truncated += chunk.truncated
                    advance(len(chunk.examples))
            except DivergedError as error:  # numbers that are not finite: say whose
                raise ValueError(f"{model}: {error}") from None
        if truncated:
            share = f"{truncated:,} of {rows:,} examples"
            notice(console, f"{sheet.name}: {share} lose tokens; {model} reads {task.max_length} of each")
    return answers


def _written(prediction: Any, sheet: SubmissionFile) -> str:
    """A prediction in GLUE's words; a number within the scale of STS-B.

    >>> [_written(number, SHEETS[3]) for number in (5.2, -0.0004, 3.14159)]
    ['5.000', '0.000', '3.142']
    """
    if isinstance(prediction, float):
        return f"{min(max(prediction, 0.0), 5.0):.3f}"
    words = dict(zip(sheet.names, sheet.labels, strict=False))
    label: str = prediction.label
    return words.get(label, label)


def _show(settings: SubmissionSettings, answers: Mapping[str, list[str]], missing: list[str], console: Console) -> None:
    heading(console, f"{settings.output}: {len(answers)} of {len(SHEETS)} files")
    table = make_table("file", "rows", "answers")
    for name, given in answers.items():
        table.add_row(f"{name}.tsv", f"{len(given):,}", _told(given))
    console.print(table)
    if missing and settings.fill_missing:
        notice(console, f"no model, so the most frequent answer throughout: {', '.join(missing)}")
    elif missing:
        notice(console, f"missing: {', '.join(missing)}; GLUE takes all files only: give models, or --fill-missing")
    say(console, "upload it    https://gluebenchmark.com/submit")


def _told(answers: Sequence[str]) -> str:
    """What a sheet says, in short: a model that says the same of everything shows.

    >>> _told(["1", "0", "1", "1"]), _told(["0.500", "4.500"])
    ('1 75%, 0 25%', '0.50 to 4.50, mean 2.50')
    """
    if "." in answers[0]:
        numbers = [float(answer) for answer in answers]
        return f"{min(numbers):.2f} to {max(numbers):.2f}, mean {statistics.fmean(numbers):.2f}"
    return ", ".join(f"{label} {count / len(answers):.0%}" for label, count in Counter(answers).most_common())
