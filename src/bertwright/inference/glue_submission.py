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
from typing import TYPE_CHECKING, Any

from bertwright.base.files import check_absent, new_file
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional, did_you_mean
from bertwright.interop.model_files import check_model, model_folder
from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import read_rows
from bertwright.tasks.classification import format_labels
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextTask
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from bertwright.inference.bert import Bert


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
    labels: tuple[str, ...] = ()
    """The answers that GLUE accepts, the most frequent label of the training set first; empty: numbers from 0 to 5."""
    hub_labels: tuple[str, ...] = ()
    """The same labels in the hub's copy of the task, if they differ."""
    index: str = "index"
    """Column with the number of the question, from 0."""


TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
PAIR = ("sentence1", "sentence2")
STRINGS, QUESTIONS = ("#1 String", "#2 String"), ("question1", "question2")
DIAGNOSTIC = ("diagnostic/diagnostic.tsv", "diagnostic/AX.tsv", "AX/AX.tsv", "AX.tsv")
SUBMISSION_FILES = (
    SubmissionFile(
        "CoLA", "cola", ("CoLA/test.tsv",), 1_063, ("sentence",), ("1", "0"), ("acceptable", "unacceptable")
    ),
    SubmissionFile("SST-2", "sst2", ("SST-2/test.tsv",), 1_821, ("sentence",), ("1", "0"), ("positive", "negative")),
    SubmissionFile("MRPC", "mrpc", ("MRPC/test.tsv",), 1_725, STRINGS, ("1", "0"), ("equivalent", "not_equivalent")),
    SubmissionFile("STS-B", "stsb", ("STS-B/test.tsv",), 1_379, PAIR),
    SubmissionFile(
        "QQP", "qqp", ("QQP/test.tsv",), 390_965, QUESTIONS, ("0", "1"), ("not_duplicate", "duplicate"), "id"
    ),
    SubmissionFile("MNLI-m", "mnli", ("MNLI/test_matched.tsv",), 9_796, PAIR, THREE_WAY),
    SubmissionFile("MNLI-mm", "mnli", ("MNLI/test_mismatched.tsv",), 9_847, PAIR, THREE_WAY),
    SubmissionFile("QNLI", "qnli", ("QNLI/test.tsv",), 5_463, ("question", "sentence"), TWO_WAY),
    SubmissionFile("RTE", "rte", ("RTE/test.tsv",), 3_000, PAIR, TWO_WAY),
    SubmissionFile("WNLI", "wnli", ("WNLI/test.tsv",), 146, PAIR, ("0", "1"), ("not_entailment", "entailment")),
    SubmissionFile("AX", "mnli", DIAGNOSTIC, 1_104, PAIR, THREE_WAY),
)
MIDDLE = "2.500"  # answer to STS-B without a model
TestFile = tuple[SubmissionFile, Path, TextTask[Any, Any]]  # a file, its path, and the model's task adapted to read it


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
        return {name: model for name, _, model in (pair.partition("=") for pair in self.models)}


def submission(settings: SubmissionSettings, reporter: Reporter = SILENT) -> Path:
    """Write the zip atomically and print a summary of the answers; return its path.

    Models, labels, files, indices and row counts are checked before the first prediction. Raises ValueError for
    anything that GLUE would not accept, and if the zip exists.
    """
    check_absent(settings.output)
    for model in settings.by_task.values():
        check_model(model)
    from bertwright.inference.bert import open_in
    from bertwright.tasks.task_folder import TASK_FILE, read_task
    from bertwright.training.context import execution_context

    test_files: dict[str, list[TestFile]] = {}
    for name, model in settings.by_task.items():
        folder = model_folder(model)
        task, is_ours = read_task(folder), (folder / TASK_FILE).is_file()  # other folders do not name their columns
        files = [file for file in SUBMISSION_FILES if file.task == name]
        test_files[name] = [_check_test_file(file, task, folder, is_ours, settings) for file in files]
        if is_ours and (other := _find_other_task(task, name)):
            reporter.note(f"{name}={model}: trained on the columns of {other}, not of {name}; is it the right model?")
    answers: dict[str, list[str]] = {}
    with new_file(settings.output) as temporary, execution_context(settings.device) as context:
        for name, model in settings.by_task.items():
            bert = open_in(context, model)
            if bert.task_model is not None:
                bert.task_model.check_computed(model)
            answers |= {test_file[0].name: _answer(bert, model, test_file, reporter) for test_file in test_files[name]}
        missing = [file for file in SUBMISSION_FILES if file.name not in answers]
        if settings.fill_missing:
            answers |= {file.name: [*file.labels, MIDDLE][:1] * file.rows for file in missing}
        answers = {file.name: answers[file.name] for file in SUBMISSION_FILES if file.name in answers}
        _write_zip(temporary, answers)
    _print_summary(settings, answers, [file.name for file in missing], reporter)
    return settings.output


def _check_test_file(
    file: SubmissionFile, task: AnyTask | None, folder: Path, is_ours: bool, settings: SubmissionSettings
) -> TestFile:
    """Find a test file, and adapt the task of the model in `folder` to it.

    Raises ValueError for other labels, for another number of texts, and for rows that are not numbered from 0 or not as
    many as GLUE has.
    """
    labels = task.label_names if task else ()
    known = {*labels} in ({*file.labels}, {*(file.hub_labels or file.labels)})
    if not isinstance(task, TextTask) or task.kind != PRESETS[file.task].task.kind or not known:
        expected = f"the labels {format_labels(file.labels)}" if file.labels else "a number"
        actual = f"its task is {task.kind}" if task else "it was not fine-tuned on a task"
        having = f" with {format_labels(labels)}" if labels else ""
        raise ValueError(f"{folder}: {file.task} expects {expected}; {actual}{having}")
    if is_ours and (task.text_pair is None) != (len(file.texts) == 1):
        read = "single texts" if task.text_pair is None else "pairs of texts"
        raise ValueError(f"{folder}: fine-tuned on {read}, which {file.task} is not; fine-tune it on {file.task}")
    path = next((settings.data / name for name in file.files if (settings.data / name).is_file()), None)
    if path is None:
        raise ValueError(f"{settings.data}: no {file.files[0]}; name the folder with GLUE's files as published")
    rows = 0
    columns = TableSchema((file.index, *file.texts), quotes=False, hint="is this GLUE's own file?")
    for location, (index, *_) in read_rows(str(path), columns):
        if index != str(rows):
            raise ValueError(f"{location}: expected {file.index} {rows}, got {index!r}; is this GLUE's own file?")
        rows += 1
    if rows != file.rows and not settings.ignore_row_count:
        raise ValueError(
            f"{path}: expected {file.rows:,} rows, got {rows:,}; is this GLUE's own file? --ignore-row-count accepts it"
        )
    first, second = file.texts[0], file.texts[1] if len(file.texts) > 1 else None
    return file, path, replace(task, text=first, text_pair=second, header=True, quotes=False, encoding="utf-8")


def _find_other_task(trained: Any, name: str) -> str | None:
    """Return another task of GLUE whose columns and labels the model was trained on, if they are not this one's.

    Several tasks have the same labels, so exchanged models would answer without an error.
    """

    def columns(task: Any) -> tuple[str, str | None, str]:
        return task.text, task.text_pair, task.label

    if columns(trained) == columns(PRESETS[name].task):
        return None
    tasks = (file.task for file in SUBMISSION_FILES if {*file.labels} == {*trained.label_names})
    return next((task for task in tasks if columns(PRESETS[task].task) == columns(trained)), None)


def _answer(bert: Bert, model: str, test_file: TestFile, reporter: Reporter) -> list[str]:
    """Return a model's answers to a file in GLUE's words."""
    from bertwright.models.task_model import EncoderForTask
    from bertwright.tasks.prediction import predict_chunks
    from bertwright.tasks.unknown_rates import InputCounts
    from bertwright.training.loop import DivergedError

    file, path, task = test_file
    assert isinstance(bert.model, EncoderForTask)
    answers: list[str] = []
    counts = InputCounts()
    with reporter.progress(file.name, file.rows) as advance:
        try:
            for chunk in predict_chunks(bert.model, task, bert.tokenizer, task.read(str(path), labeled=False)):
                answers += [_format_answer(prediction, file) for prediction in chunk.predictions]
                counts.add(chunk.counts)
                advance(len(chunk.examples))
        except DivergedError as error:  # numbers that are not finite: add the model's name
            raise ValueError(f"{model}: {error}") from None
    if counts.truncated:
        share = f"{counts.truncated:,} of {len(answers):,} examples"
        reporter.note(f"{file.name}: {share} lose tokens; {model} reads {task.max_length} of each")
    for warning in counts.vocabulary_warnings():
        reporter.note(f"{file.name}: {warning}")
    return answers


def _format_answer(prediction: Any, file: SubmissionFile) -> str:
    """Return a prediction in GLUE's words; a number within the scale of STS-B.

    >>> [_format_answer(number, SUBMISSION_FILES[3]) for number in (5.2, -0.0004, 3.14159)]
    ['5.000', '0.000', '3.142']
    """
    if isinstance(prediction, float):
        return f"{min(max(prediction, 0.0), 5.0):.3f}"
    label: str = prediction.label
    return dict(zip(file.hub_labels, file.labels, strict=False)).get(label, label)


def _write_zip(path: Path, answers: Mapping[str, Sequence[str]]) -> None:
    """Write NAME.tsv per file of the submission; equal answers give equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, predictions in answers.items():
            lines = ["index\tprediction", *(f"{number}\t{answer}" for number, answer in enumerate(predictions))]
            entry = zipfile.ZipInfo(f"{name}.tsv")  # its date is always in 1980
            entry.external_attr = 0o644 << 16  # without it unzip makes a file that nobody may read
            archive.writestr(entry, "\n".join(lines) + "\n", zipfile.ZIP_DEFLATED)


def _print_summary(
    settings: SubmissionSettings, answers: Mapping[str, list[str]], missing: list[str], reporter: Reporter
) -> None:
    reporter.record(Heading(f"{settings.output}: {len(answers)} of {len(SUBMISSION_FILES)} files"))
    rows = [(f"{name}.tsv", f"{len(predictions):,}", _summarize(predictions)) for name, predictions in answers.items()]
    reporter.record(Rows(("file", "rows", "answers"), rows))
    if missing and settings.fill_missing:
        reporter.note(f"no model, so the most frequent label throughout: {', '.join(missing)}")
    elif missing:
        hint = "GLUE accepts complete submissions: add models or --fill-missing"
        reporter.note(f"missing: {', '.join(missing)}; {hint}")
    reporter.record(Line("upload it    https://gluebenchmark.com/submit"))


def _summarize(answers: Sequence[str]) -> str:
    """Return the shares of the answers, or the range of numbers: a model that always answers the same shows.

    >>> _summarize(["1", "0", "1", "1"]), _summarize(["0.500", "4.500"])
    ('1 75%, 0 25%', '0.50 to 4.50, mean 2.50')
    """
    if "." in answers[0]:
        numbers = [float(answer) for answer in answers]
        return f"{min(numbers):.2f} to {max(numbers):.2f}, mean {statistics.fmean(numbers):.2f}"
    return ", ".join(f"{label} {count / len(answers):.0%}" for label, count in Counter(answers).most_common())
