"""Examples to predict, and the columns of their files that are copied to the output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import date, time
from itertools import chain, islice, repeat
from pathlib import PurePath
from typing import Any

from bertwright.inference.predict_settings import PredictSettings
from bertwright.tables.neighbours import join_as_glob
from bertwright.tables.tables import read_rows
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextTask
from bertwright.text.decoding import FIX_INPUT, STDIN_NAME, TextCodec
from bertwright.text.sources import STDIN
from bertwright.text.stdin_texts import stdin_lines


def examples_from_arguments(settings: PredictSettings, task: AnyTask) -> list[Any]:
    """Return the texts of the command line, or the lines of standard input, as examples."""
    if settings.texts == (STDIN,):
        return list(_stdin_examples(task))
    return task.examples_from_texts(settings.texts, "command line")


def read_examples(settings: PredictSettings, task: AnyTask) -> Iterator[Any]:
    """Yield the first `limit` examples of all input files in order, without labels."""
    if settings.inputs == (STDIN,):
        examples = _stdin_examples(task)
    else:
        examples = chain.from_iterable(task.read(path, labeled=False) for path in _input_paths(settings, task))
    return islice(examples, settings.limit)


def _input_paths(settings: PredictSettings, task: AnyTask) -> Sequence[str]:
    """Return the inputs or, of texts in the same order, their glob: names of files may say what a table is."""
    is_sorted = [*map(PurePath, settings.inputs)] == sorted(map(PurePath, settings.inputs))
    return join_as_glob(settings.inputs) if is_sorted and isinstance(task, TextTask) else settings.inputs


def read_passthrough(settings: PredictSettings, task: AnyTask) -> Iterator[dict[str, Any]]:
    """Yield, for each example, the columns to copy from its row; {} without end if no columns are copied.

    Raises ValueError for a missing column, and for a value that JSON cannot represent.
    """
    names = settings.keep_columns
    schema = task.passthrough_schema(names, "choose columns with --keep-columns") if names else None
    if schema is None:
        return repeat({})
    rows = chain.from_iterable(read_rows(path, schema) for path in _input_paths(settings, task))
    return (
        {name: _to_json_value(value, name, location) for name, value in zip(names, values, strict=True)}
        for location, values in islice(rows, settings.limit)
    )


def count_checked_examples(settings: PredictSettings, task: AnyTask) -> int:
    """Read all files once, so that invalid input is reported before any prediction; return the number of examples.

    Raises ValueError as `task.read` and `check_writable` do.
    """
    examples = task.check_writable(read_examples(settings, task), settings.suffix)
    count = sum(1 for _ in zip(examples, read_passthrough(settings, task), strict=bool(settings.keep_columns)))
    if not count:
        raise ValueError("--inputs: expected at least one example, got none; check the files")
    return count


def _stdin_examples(task: AnyTask) -> Iterator[Any]:
    """Yield an example per line of standard input, blank lines included: every line gets a prediction."""
    if not task.reads_single_texts:
        raise ValueError(
            f"{STDIN_NAME}: expected a task that reads single texts, one per line, got {task.kind} with several texts "
            "per example; use a file"
        )
    for number, line in stdin_lines(TextCodec(hint=FIX_INPUT)):
        yield from task.examples_from_texts([line.removesuffix("\r")], f"{STDIN_NAME}, line {number}")


def _to_json_value(value: Any, name: str, location: str) -> Any:
    """Convert a value of a table to one of JSON: dates to text, NaN (pandas: no value) and infinities to null."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_to_json_value(item, name, location) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json_value(item, name, location) for key, item in value.items()}
    try:
        json.dumps(value)
    except TypeError as error:
        raise ValueError(
            f"{location}: --keep-columns {name}: {type(value).__name__} values cannot be written; omit the column"
        ) from error
    return value
