"""What a fine-tuned model says about texts that nobody has labelled."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from datetime import time as time_of_day
from io import TextIOWrapper
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from tyro.conf import Positional

from bertwright.commands.evaluate import load_for_task
from bertwright.commands.output_paths import check_absent, new_file
from bertwright.console import ProgressCallback, filled_table, heading, item_progress, make_console, notice, say
from bertwright.inference.model import Bert
from bertwright.io.decoding import FIX_INPUT, STDIN, STDIN_NAME, ReadStats, TextCodec, check_stdin_alone, read_stdin
from bertwright.io.tables import lines, read_rows
from bertwright.models.heads import EncoderForTask
from bertwright.settings import check_not_str
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.presentation import (
    NATIVE_SUFFIXES,
    DisplayTable,
    check_writable,
    format_native,
    is_single_text,
    passthrough_schema,
    to_record,
    to_tables,
    truncation_warnings,
)
from bertwright.tasks.presets import TaskOptions
from bertwright.tasks.task_io import AnyTask
from bertwright.training.context import execution_context
from bertwright.training.settings import DeviceSettings

STANDARD_OUTPUT = Path(STDIN)
OWN = {suffix: cls.kind for suffix, cls in NATIVE_SUFFIXES.items()}  # formats for one kind of task only
OUTPUTS = (".jsonl", ".tsv", ".csv", *OWN)
BREAK = re.compile("\r\n|[\t\r\n]")  # what a field without quotes cannot hold


@dataclass(frozen=True)
class PredictSettings:
    """Let a fine-tuned model label a few texts on the screen, or files of any size, streamed to --output."""

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    texts: Positional[tuple[str, ...]] = ()
    """Texts to label or tag, or one pair where the task is about pairs; for question answering a question and its
    context; for multiple choice a prompt and its endings. - alone: standard input, one text a line."""
    inputs: tuple[str, ...] = ()
    """Files in the form of the training files; labels in them are not looked at. - alone: standard input, one text a
    line, each of which gets its prediction."""
    output: Path | None = None
    """New file for the predictions, one record an example, in order: .jsonl, .tsv (without quotes) or .csv; .conll for
    tags; .json for the official form of SQuAD answers. -: standard output, as .jsonl."""
    keep_columns: tuple[str, ...] = ()
    """Columns of the inputs that go to the output, too, before the prediction: an id, the text. For tables."""
    overrides: TaskOptions = field(default_factory=TaskOptions)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts", "inputs", "keep_columns")
        if bool(self.texts) == bool(self.inputs):
            raise ValueError(f"give either texts, or files with --inputs; {STDIN} stands for standard input")
        check_stdin_alone(self.inputs)
        if self.inputs and self.output is None:
            raise ValueError(
                f"predictions of files need a place: --output predictions.jsonl, or {STDIN} for standard output"
            )
        if self.output is not None and self.texts:
            raise ValueError("--output is for --inputs; predictions of texts are shown")
        if self.output is not None and self.form not in OUTPUTS:
            raise ValueError(f"{self.output}: predictions are written as {', '.join(OUTPUTS)}")
        if self.keep_columns and (self.inputs in ((), (STDIN,)) or self.form in OWN):
            raise ValueError(
                "--keep-columns is for columns of tables, and for .jsonl, .tsv and .csv, which take them over"
            )
        if twice := [name for name in self.keep_columns if self.keep_columns.count(name) > 1]:
            raise ValueError(f"--keep-columns names {twice[0]!r} twice")

    @property
    def form(self) -> str:
        """How the output is written."""
        return ".jsonl" if self.output in (None, STANDARD_OUTPUT) else self.output.suffix


def predict(settings: PredictSettings, console: Console | None = None) -> None:
    """Show predictions of texts, or write those of files, in constant memory, whole or not at all.

    Raises ValueError for a model without a task and, before anything is predicted, for what is wrong with the input.
    Standard input cannot be read twice, and standard output not taken back: there, errors come late.
    """
    piped_out = settings.output == STANDARD_OUTPUT
    console = console or make_console(stderr=piped_out)
    if settings.output is not None and not piped_out:
        check_absent(settings.output)
    tally = _Tally()
    with execution_context(settings.device) as place:
        model, task, _ = load_for_task(settings.model, settings.overrides, place)
        if settings.output is None:
            typed = (
                list(_piped(task))
                if settings.texts == (STDIN,)
                else task.examples_from_texts(settings.texts, "what was typed")
            )
            with item_progress(console, "predicting", len(typed)) as advance:
                shown = list(_predictions(model, task, typed, tally, advance))
            _show(console, to_tables(task, shown))
        else:
            _check_form(settings, task)
            if settings.keep_columns:
                _check_names(settings, model, task)
            number = None if settings.inputs == (STDIN,) else _read_through(settings, task)
            started = time.perf_counter()
            with item_progress(console, "predicting", number) as advance, _output(settings.output) as file:
                pairs = _predictions(model, task, _examples(settings.inputs, task), tally, advance)
                found = zip(pairs, _kept(settings, task), strict=bool(settings.keep_columns))
                _write(file, settings.form, task, found, tally)
            rate = tally.examples / (time.perf_counter() - started)
            name = "standard output" if piped_out else settings.output
            say(console, f"{name}: {tally.examples:,} predictions, {rate:,.0f} a second")
    for note in truncation_warnings(task, tally.examples, tally.truncated, model.config.max_positions):
        notice(console, note)
    if tally.spaced:
        notice(console, f"{tally.spaced:,} fields held tabs or line breaks, now spaces; .jsonl and .csv keep them")
    for text in filter(os.path.isfile, settings.texts):  # which, unlike Path, takes a text of any length
        notice(console, f"{text} is a file, but was read as a text; to label what it holds: --inputs {text}")


@dataclass
class _Tally:
    """What is counted on the way from examples to predictions, and told at the end."""

    examples: int = 0
    truncated: int = 0
    """Examples that lost tokens."""
    spaced: int = 0
    """Fields of a table that held what it cannot hold."""


def _predictions(
    model: Bert, task: AnyTask, examples: Iterable[Any], tally: _Tally, advance: ProgressCallback
) -> Iterator[tuple[Any, Any]]:
    """Examples with their predictions, in order; `tally` and `advance` are told of each chunk of them."""
    assert isinstance(model.model, EncoderForTask)
    for chunk in predict_chunks(model.model, task, model.tokenizer, examples):
        yield from zip(chunk.examples, chunk.predictions, strict=True)
        tally.examples += len(chunk.examples)
        tally.truncated += chunk.truncated
        advance(len(chunk.examples))


# --- files


def _check_form(settings: PredictSettings, task: AnyTask) -> None:
    """Some forms are for one kind of task alone, and so are columns to keep."""
    if (kind := OWN.get(settings.form, task.kind)) != task.kind:
        raise ValueError(
            f"{settings.output}: {settings.form} is the form of {kind}; for {task.kind} name a .jsonl or .tsv file"
        )
    if settings.keep_columns and passthrough_schema(task, settings.keep_columns, "") is None:
        raise ValueError(
            f"--keep-columns is for tables of texts; records of {task.kind} say themselves what they are about"
        )


def _check_names(settings: PredictSettings, model: Bert, task: AnyTask) -> None:
    """Raise ValueError where a column to keep is called as a field of the predictions; the first one tells of all."""
    assert isinstance(model.model, EncoderForTask)
    for chunk in predict_chunks(model.model, task, model.tokenizer, islice(_examples(settings.inputs, task), 1)):
        record = to_record(task, chunk.examples[0], chunk.predictions[0])
        if clash := [name for name in settings.keep_columns if name in record]:
            raise ValueError(
                f"--keep-columns {clash[0]}: that is what a field of the prediction is called; rename the column"
            )


@contextmanager
def _output(path: Path) -> Iterator[TextIO]:
    """Where predictions go: a new file, whole or not at all, or standard output."""
    if path == STANDARD_OUTPUT:
        if sys.stdout is None:
            raise ValueError("standard output is closed; name a new file with --output")
        file = TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
        try:
            yield file
        finally:
            file.detach()  # writes what it holds; to close it is not for us
    else:
        with new_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
            yield file


def _piped(task: AnyTask) -> Iterator[Any]:
    """The lines of standard input as a task's examples, blank ones, too: one prediction belongs to each."""
    if not is_single_text(task):
        raise ValueError(f"{STDIN_NAME} is read one text a line, and this task takes more than one; name a file")
    number = 0
    for number, line in lines(STDIN_NAME, read_stdin(TextCodec(hint=FIX_INPUT), ReadStats())):
        yield from task.examples_from_texts([line.removesuffix("\r")], f"{STDIN_NAME}, line {number}")
    if not number:
        raise ValueError(f"no text in {STDIN_NAME}; pipe texts in, one a line")


def _examples(inputs: Sequence[str], task: AnyTask) -> Iterator[Any]:
    """Those of all files, in order; labels are not looked at."""
    if inputs == (STDIN,):
        return _piped(task)
    return chain.from_iterable(task.read(path, labelled=False) for path in inputs)


def _kept(settings: PredictSettings, task: AnyTask) -> Iterator[dict[str, Any]]:
    """What is kept of each example: its row has the same place in the files. Without columns to keep, nothing."""
    wanted = (
        passthrough_schema(task, settings.keep_columns, "choose columns with --keep-columns")
        if settings.keep_columns
        else None
    )
    if wanted is None:
        return repeat({})
    found = chain.from_iterable(read_rows(path, wanted) for path in settings.inputs)
    return (
        {name: _taken(value, name, place) for name, value in zip(settings.keep_columns, values, strict=True)}
        for place, values in found
    )


def _taken(value: Any, name: str, place: str) -> Any:
    """A value as it goes to the output: dates as texts, NaN as nothing. Raises ValueError for one without a form."""
    if isinstance(value, date | time_of_day):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):  # NaN is how pandas writes a missing number
        return None
    if isinstance(value, list):
        return [_taken(one, name, place) for one in value]
    if isinstance(value, dict):
        return {str(key): _taken(one, name, place) for key, one in value.items()}
    try:
        json.dumps(value)
    except TypeError as error:
        raise ValueError(
            f"{place}: --keep-columns {name}: {type(value).__name__} values cannot be written; leave it out"
        ) from error
    return value


def _read_through(settings: PredictSettings, task: AnyTask) -> int:
    """How many examples all files hold: read once beforehand, so that what is wrong shows before the work, not after.

    Raises ValueError as `task.read` and `check_writable` do.
    """
    examples = check_writable(task, _examples(settings.inputs, task), settings.form)
    number = sum(1 for _ in zip(examples, _kept(settings, task), strict=bool(settings.keep_columns)))
    if not number:
        raise ValueError(f"{settings.inputs[0]}: no examples in it")
    return number


def _write(
    file: TextIO, form: str, task: AnyTask, found: Iterator[tuple[tuple[Any, Any], dict[str, Any]]], tally: _Tally
) -> None:
    """Write one record an example, what is kept of it first; `tally` is told of fields that were changed."""
    if form in NATIVE_SUFFIXES:
        file.writelines(format_native(task, (pair for pair, _ in found)))
        return
    for number, ((example, prediction), kept) in enumerate(found):
        record = to_record(task, example, prediction)
        if form == ".jsonl":
            file.write(json.dumps(kept | record, ensure_ascii=False) + "\n")
            continue
        if number == 0:
            _write_row(file, form, [*kept, *record], tally)
        rounded = [round(value, 6) if isinstance(value, float) else value for value in record.values()]
        _write_row(file, form, [*kept.values(), *rounded], tally)


def _write_row(file: TextIO, suffix: str, values: Iterable[Any], tally: _Tally) -> None:
    """One line of a table. Quotes enclose what needs them in .csv; in .tsv they are plain characters, as when read."""
    cells = [_cell(value) for value in values]
    if suffix == ".csv":
        returns = any("\r" in str(cell) for cell in cells)  # which the writer takes for no reason to quote
        csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL).writerow(cells)
        return
    found = [BREAK.subn(" ", str(cell)) for cell in cells]
    tally.spaced += sum(breaks > 0 for _, breaks in found)
    file.write("\t".join(text for text, _ in found) + "\n")


def _cell(value: Any) -> Any:
    """A value in one field of a table: lists as JSON, what is missing as nothing.

    >>> _cell(0.123456), _cell(["B-PER", "O"])
    (0.123456, '["B-PER", "O"]')
    """
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | tuple) else value


# --- the screen


def _show(console: Console, tables: Sequence[DisplayTable]) -> None:
    """Texts given on the command line with their predictions, as their kind of task shows them."""
    for one in tables:
        if one.heading:
            heading(console, one.heading)
        if one.rows:
            console.print(filled_table(one.columns, one.rows))
        else:
            say(console, one.if_empty)
