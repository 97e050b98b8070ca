"""Results of a probe's heads: a file with one line of JSON per head, rewritten after each and read on resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from bertwright.base.files import read_bytes, write_text

R = TypeVar("R")

RESULTS_FILE = "results.jsonl"


def write_results(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one line of JSON per head, atomically."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def read_results(path: Path, parse: Callable[[Any], R]) -> list[R]:
    """Read the results of earlier heads in order; none if the file does not exist.

    `parse` turns a record into a result. It raises ValueError, KeyError, TypeError or AttributeError for a record of
    other content, which `read_results` reports as a ValueError with file and line.
    """
    if not path.is_file():
        return []
    results = []
    for number, line in enumerate(read_bytes(path).decode(errors="replace").splitlines(), 1):
        try:
            results.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: not a result of these heads ({type(error).__name__}: {error}); delete the "
                "line to train its head again"
            ) from None
    return results
