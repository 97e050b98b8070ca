"""`bertwright glue-submission`: answer GLUE's test files, as a zip for gluebenchmark.com.

The test files are read as GLUE publishes them: without labels, with an index column and a header, even if the training
file has none.
"""

from __future__ import annotations

import statistics
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from bertwright.console import heading, item_progress, make_console, make_table, notice, say
from bertwright.files import check_absent, new_file
from bertwright.interop.model_files import check_model, model_folder
from bertwright.io.schema import TableSchema
from bertwright.io.tables import read_rows
from bertwright.settings import Positional, did_you_mean
from bertwright.tasks.classification import TextTask, format_labels
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.task import TASK_FILE, AnyTask
from bertwright.training.optimizer_settings import DeviceSettings

if TYPE_CHECKING:
    from bertwright.training.context import ExecutionContext


@dataclass(frozen=True)
class SubmissionFile:
    """A file of a submission: NAME.tsv."""

    name: str
    task: str
    """Its task; one model may answer several files."""
    files: tuple[str, ...]
    """Its questions, as paths in GLUE's folder; the first that exists is read."""
    rows: int
    """Number of questions."""
    texts: tuple[str, ...]
    """Column of the text, or columns of the pair."""
    labels: tuple[str, ...]
    """The answers that GLUE accepts; empty: numbers from 0 to 5."""
    majority_answer: str
    """The most frequent label of the training set; for numbers, the middle."""
    index: str = "index"
    """Column with the number of the question, from 0."""
    names: tuple[str, ...] = ()
    """The same labels in the hub's copy of the task, if they differ."""


YES_NO = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
PAIR = ("sentence1", "sentence2")
STRINGS, QUESTIONS = ("#1 String", "#2 String"), ("question1", "question2")
MATCHED, MISMATCHED = ("MNLI/test_matched.tsv",), ("MNLI/test_mismatched.tsv",)
DIAGNOSTIC = ("diagnostic/diagnostic.tsv", "diagnostic/AX.tsv", "AX/AX.tsv", "AX.tsv")
SUBMISSION_FILES = (
    SubmissionFile(
        "CoLA", "cola", ("CoLA/test.tsv",), 1_063, ("sentence",), YES_NO, "1", names=("unacceptable", "acceptable")
    ),
    SubmissionFile(
        "SST-2", "sst2", ("SST-2/test.tsv",), 1_821, ("sentence",), YES_NO, "1", names=("negative", "positive")
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
    """Answer GLUE's test files with fine-tuned models, as a zip for gluebenchmark.com."""

    models: Positional[tuple[str, ...]]
    """TASK=MODEL per task: cola=runs/cola sst2=runs/sst2 mrpc=… stsb=… qqp=… mnli=… qnli=… rte=… wnli=…; a model is the
    folder of a fine-tuned model, its run folder, or a hub name. mnli answers both MNLI files and the diagnostic file
    (AX)."""
    data: Path
    """GLUE's folder as published, with CoLA/test.tsv, MNLI/test_matched.tsv, diagnostic/diagnostic.tsv and so on."""
    output: Path
    """New .zip file."""
    fill_missing: bool = False
    """Answer tasks without a model by the most frequent label of their training set: GLUE accepts complete submissions
    only (for WNLI the paper submits exactly that: B.1)."""
    ignore_row_count: bool = False
    """Accept test files with another number of rows than GLUE's."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("no model given; for example: cola=runs/cola mnli=runs/mnli")
        if self.output.suffix != ".zip":
            raise ValueError(f"{self.output}: expected a .zip, got {self.output.suffix or 'no suffix'}")
        tasks = {file.task for file in SUBMISSION_FILES}
        for pair in self.models:
            name, equals, model = pair.partition("=")
            if not (equals and model):
                raise ValueError(f"{pair!r}: expected TASK=MODEL, such as cola=runs/cola")
            if name not in tasks:
                raise ValueError(f'no task "{name}" in GLUE; {did_you_mean(name, tasks)}')
        if len(self.by_task) < len(self.models):
            raise ValueError("a task is given twice; give each one model")

    @property
    def by_task(self) -> dict[str, str]:
        """Models by task."""
        return {name: model for name, _, model in (pair.partition("=") for pair in self.models)}


class TestFile(NamedTuple):
    """A test file of GLUE, found and checked."""

    file: SubmissionFile
    path: Path
    task: AnyTask
    """The model's task, adapted to read that file."""
    rows: int


def submission(settings: SubmissionSettings, console: Console | None = None) -> Path:
    """Write the zip atomically and print a summary of the answers; return its path.

    Models, labels, files, indices and row counts are checked before the first prediction. Raises ValueError for
    anything that GLUE would not accept, and if the zip exists.
    """
    console = console or make_console()
    check_absent(settings.output)
    for model in settings.by_task.values():
        check_model(model)
    from bertwright.training.context import execution_context  # imports torch, which takes longer than the checks above

    test_files = [file for name, model in settings.by_task.items() for file in _find_test_files(settings, name, model)]
    for name, model in settings.by_task.items():
        if other := _find_other_task(model_folder(model), name):
            notice(console, f"{name}={model}: trained on the columns of {other}, not of {name}; is it the right model?")
    answers: dict[str, list[str]] = {}
    with new_file(settings.output) as temporary, execution_context(settings.device) as context:
        for name, model in settings.by_task.items():
            answers |= _answer(
                model, [test_file for test_file in test_files if test_file.file.task == name], context, console
            )
        missing = [file for file in SUBMISSION_FILES if file.name not in answers]
        if settings.fill_missing:
            answers |= {file.name: [file.majority_answer] * file.rows for file in missing}
        answers = {file.name: answers[file.name] for file in SUBMISSION_FILES if file.name in answers}
        write_zip(temporary, answers)
    _print_summary(settings, answers, [file.name for file in missing], console)
    return settings.output


def write_zip(path: Path, answers: Mapping[str, Sequence[str]]) -> None:
    """Write NAME.tsv per file of the submission; equal answers give equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, predictions in answers.items():
            lines = ["index\tprediction", *(f"{number}\t{answer}" for number, answer in enumerate(predictions))]
            entry = zipfile.ZipInfo(f"{name}.tsv")  # always of 1980
            entry.external_attr = 0o644 << 16  # without it unzip makes a file that nobody may read
            archive.writestr(entry, "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)


def _find_test_files(settings: SubmissionSettings, name: str, model: str) -> list[TestFile]:
    """Return the test files that a model answers. Raises ValueError if the model or a file does not fit GLUE."""
    folder = model_folder(model)
    test_files = []
    for file in (file for file in SUBMISSION_FILES if file.task == name):
        task = _read_matching_task(file, folder)
        path = next((settings.data / name for name in file.files if (settings.data / name).is_file()), None)
        if path is None:
            raise ValueError(f"{settings.data}: no {file.files[0]}; name the folder with GLUE's files as published")
        rows = _check_rows(file, path, settings.ignore_row_count)
        first, *second = file.texts
        pair = second[0] if second else None
        adapted = replace(task, text=first, text_pair=pair, header=True, quotes=False, encoding="utf-8")
        test_files.append(TestFile(file, path, adapted, rows))
    return test_files


def _read_matching_task(file: SubmissionFile, folder: Path) -> TextTask[Any, Any]:
    """Read a model's task. Raises ValueError if its labels or its number of texts differ from the file's."""
    from bertwright.tasks.task_io import read_task

    task = read_task(folder)
    labels = task.label_names if task else ()
    known = {*labels} in ({*file.labels}, {*(file.names or file.labels)})
    if not isinstance(task, TextTask) or task.kind != PRESETS[file.task].task.kind or not known:
        expected = f"the labels {format_labels(file.labels)}" if file.labels else "a number"
        actual = f"its task is {task.kind}" if task else "it was not fine-tuned on a task"
        having = f" with {format_labels(labels)}" if labels else ""
        raise ValueError(f"{folder}: {file.task} expects {expected}; {actual}{having}")
    # A folder of transformers does not say how many texts it reads.
    if (folder / TASK_FILE).is_file() and (task.text_pair is None) != (len(file.texts) == 1):
        read = "single texts" if task.text_pair is None else "pairs of texts"
        raise ValueError(f"{folder}: fine-tuned on {read}, which {file.task} is not; fine-tune it on {file.task}")
    return task


def _find_other_task(folder: Path, name: str) -> str | None:
    """Return another task of GLUE whose columns and labels the model was trained on, if they are not this one's.

    Several tasks have the same labels, so exchanged models would answer without an error.
    """
    from bertwright.tasks.task_io import read_task

    def columns(task: Any) -> tuple[str, str | None, str]:
        return task.text, task.text_pair, task.label

    trained = read_task(folder) if (folder / TASK_FILE).is_file() else None
    if trained is None or columns(trained) == columns(PRESETS[name].task):
        return None
    tasks = (file.task for file in SUBMISSION_FILES if {*file.labels} == {*trained.label_names})
    return next((other for other in tasks if columns(PRESETS[other].task) == columns(trained)), None)


def _check_rows(file: SubmissionFile, path: Path, ignore_row_count: bool) -> int:
    """Return the number of questions. Raises ValueError unless they are numbered from 0 and as many as GLUE has."""
    rows = 0
    columns = TableSchema((file.index, *file.texts), quotes=False, hint="is this GLUE's own file?")
    for location, (index, *_) in read_rows(str(path), columns):
        if index != str(rows):
            raise ValueError(f"{location}: expected {file.index} {rows}, got {index!r}; is this GLUE's own file?")
        rows += 1
    if rows != file.rows and not ignore_row_count:
        raise ValueError(
            f"{path}: expected {file.rows:,} rows, got {rows:,}; is this GLUE's own file? Pass --ignore-row-count to "
            "use it as it is"
        )
    return rows


def _answer(
    model: str, test_files: Sequence[TestFile], context: ExecutionContext, console: Console
) -> dict[str, list[str]]:
    """Return one model's answers in GLUE's words, by file."""
    from bertwright.inference.model import load
    from bertwright.models.heads import EncoderForTask
    from bertwright.tasks.input_counts import InputCounts
    from bertwright.tasks.prediction import predict_chunks
    from bertwright.training.loop import DivergedError

    bert = load(model, context.device, context.dtype)
    assert isinstance(bert.model, EncoderForTask)
    answers: dict[str, list[str]] = {}
    for file, path, task, rows in test_files:
        predictions = answers[file.name] = []
        counts = InputCounts()
        with item_progress(console, file.name, rows) as advance:
            try:
                for chunk in predict_chunks(bert.model, task, bert.tokenizer, task.read(str(path), labeled=False)):
                    predictions += [_format_answer(prediction, file) for prediction in chunk.predictions]
                    counts.add(chunk.counts)
                    advance(len(chunk.examples))
            except DivergedError as error:  # numbers that are not finite: add the model's name
                raise ValueError(f"{model}: {error}") from None
        if counts.truncated:
            share = f"{counts.truncated:,} of {rows:,} examples"
            notice(console, f"{file.name}: {share} lose tokens; {model} reads {task.max_length} of each")
        for warning in counts.vocabulary_warnings():
            notice(console, f"{file.name}: {warning}")
    return answers


def _format_answer(prediction: Any, file: SubmissionFile) -> str:
    """Return a prediction in GLUE's words; a number within the scale of STS-B.

    >>> [_format_answer(number, SUBMISSION_FILES[3]) for number in (5.2, -0.0004, 3.14159)]
    ['5.000', '0.000', '3.142']
    """
    if isinstance(prediction, float):
        return f"{min(max(prediction, 0.0), 5.0):.3f}"
    words = dict(zip(file.names, file.labels, strict=False))
    label: str = prediction.label
    return words.get(label, label)


def _print_summary(
    settings: SubmissionSettings, answers: Mapping[str, list[str]], missing: list[str], console: Console
) -> None:
    heading(console, f"{settings.output}: {len(answers)} of {len(SUBMISSION_FILES)} files")
    table = make_table("file", "rows", "answers")
    for name, predictions in answers.items():
        table.add_row(f"{name}.tsv", f"{len(predictions):,}", _summarize(predictions))
    console.print(table)
    if missing and settings.fill_missing:
        notice(console, f"no model, so the most frequent label throughout: {', '.join(missing)}")
    elif missing:
        notice(
            console, f"missing: {', '.join(missing)}; GLUE accepts complete submissions: add models or --fill-missing"
        )
    say(console, "upload it    https://gluebenchmark.com/submit")


def _summarize(answers: Sequence[str]) -> str:
    """Return the shares of the answers, or the range of numbers: a model that always answers the same shows.

    >>> _summarize(["1", "0", "1", "1"]), _summarize(["0.500", "4.500"])
    ('1 75%, 0 25%', '0.50 to 4.50, mean 2.50')
    """
    if "." in answers[0]:
        numbers = [float(answer) for answer in answers]
        return f"{min(numbers):.2f} to {max(numbers):.2f}, mean {statistics.fmean(numbers):.2f}"
    return ", ".join(f"{label} {count / len(answers):.0%}" for label, count in Counter(answers).most_common())
