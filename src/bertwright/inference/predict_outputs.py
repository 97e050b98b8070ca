"""Files of predictions: one record per example, as JSON lines or as a row of a table."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bertwright.base.files import new_file
from bertwright.inference.predict_settings import STANDARD_OUTPUT
from bertwright.tasks.task import AnyTask

SEPARATORS = re.compile("\r\n|[\t\r\n]")  # what a .tsv field cannot contain
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of what a spreadsheet may run as a formula (OWASP)
DECIMALS = 6  # of numbers in tables; JSON lines have all digits


class PredictedExample(NamedTuple):
    """An example, its prediction, and the columns of its row that are copied."""

    example: Any
    prediction: Any
    passthrough: dict[str, Any]


@contextmanager
def open_output(path: Path) -> Iterator[TextIO]:
    """Open a new file, which appears when it is complete, or standard output."""
    if path == STANDARD_OUTPUT:
        if sys.stdout is None:
            raise ValueError("standard output is closed; give a new file with --output")
        file = TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
        try:
            yield file
        finally:
            file.detach()  # flushes; closing would close standard output
    else:
        with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            yield file


def write_predictions(
    file: TextIO, suffix: str, task: AnyTask, predicted: Iterable[PredictedExample], safe_csv: bool = False
) -> int:
    """Write one record per example in the format of `suffix`.

    Returns the number of fields in which tabs or line breaks became spaces. `safe_csv`: prefix texts that a spreadsheet
    would run as formulas (`_escape_formula`).
    """
    if suffix == task.native_suffix:
        file.writelines(task.format_native(((example, prediction) for example, prediction, _ in predicted)))
        return 0
    changed = 0
    for number, (example, prediction, passthrough) in enumerate(predicted):
        record = task.to_record(example, prediction)
        if suffix == ".jsonl":
            file.write(json.dumps(passthrough | record, ensure_ascii=False) + "\n")
            continue
        if number == 0:
            changed += _write_row(file, suffix, [*passthrough, *record], safe_csv)
        rounded = [round(value, DECIMALS) if isinstance(value, float) else value for value in record.values()]
        changed += _write_row(file, suffix, [*passthrough.values(), *rounded], safe_csv)
    return changed


def _write_row(file: TextIO, suffix: str, values: Iterable[Any], safe_csv: bool) -> int:
    """Write a row; return the number of fields in which tabs or line breaks became spaces, which .csv keeps.

    In .csv quotes enclose fields that need them; in .tsv they are plain characters, as when it is read.
    """
    cells = [_escape_formula(cell) if safe_csv else cell for cell in map(_format_cell, values)]
    if suffix == ".csv":
        has_return = any("\r" in str(cell) for cell in cells)  # QUOTE_MINIMAL does not quote it
        quoting = csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL
        csv.writer(file, lineterminator="\n", quoting=quoting).writerow(cells)  # type: ignore[arg-type]
        return 0
    replaced = [SEPARATORS.subn(" ", str(cell)) for cell in cells]
    file.write("\t".join(text for text, _ in replaced) + "\n")
    return sum(count > 0 for _, count in replaced)


def _format_cell(value: Any) -> Any:
    """Return a value as one field of a table: lists as JSON, a missing value as the empty text.

    >>> _format_cell(0.123456), _format_cell(["B-PER", "O"])
    (0.123456, '["B-PER", "O"]')
    """
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | tuple) else value


def _escape_formula(cell: Any) -> Any:
    """Prefix an apostrophe to a text that a spreadsheet may run as a formula; numbers remain numbers.

    >>> _escape_formula("=1+2"), _escape_formula(-0.5), _escape_formula("a = b")
    ("'=1+2", -0.5, 'a = b')
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
