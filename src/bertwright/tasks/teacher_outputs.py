"""What a teacher computes for unlabelled texts, vectors or logits: a file, and beside it the record of what it is of.

N texts, D numbers per text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.files import digest_bytes, digest_file, read_json, write_json

RECORD = ".json"  # suffix of the record


class OutputRecord(NamedTuple):
    """What a file of outputs is of."""

    teacher: str
    """Digest of the model folder."""
    texts: str
    """Digest of the texts, in order."""
    outputs: str
    """Digest of the file."""
    labels: tuple[str, ...] = ()
    """Labels of the columns of logits."""


@lru_cache(maxsize=1)
def open_outputs(path: str) -> npt.NDArray[np.float32]:
    """Map the outputs of a file, N × D, into memory."""
    outputs: npt.NDArray[np.float32] = np.load(path, mmap_mode="r")
    return outputs


def digest_texts(texts: Sequence[str]) -> str:
    """Return the digest of the texts whose outputs are learned."""
    return digest_bytes(*(text.encode() for text in texts))


def read_record(path: Path) -> OutputRecord:
    """Read what the outputs at `path` are of. Raises ValueError if the file beside them does not say it."""
    beside = path.with_suffix(RECORD)
    try:
        values: Any = read_json(beside)
        teacher, texts, outputs = (str(values[name]) for name in OutputRecord._fields[:3])
        return OutputRecord(teacher, texts, outputs, tuple(map(str, values["labels"])))
    except (OSError, KeyError, TypeError):
        raise ValueError(f"{beside}: expected the record of {path.name}; delete both, and distill again") from None


def write_record(path: Path, record: OutputRecord) -> None:
    """Write beside the outputs at `path` what they are of, with the digest of the file."""
    write_json(path.with_suffix(RECORD), record._replace(outputs=digest_file(path))._asdict())


def check_record(path: Path, expected: OutputRecord) -> None:
    """Raise ValueError if the outputs at `path` are of another teacher or of other texts, or have changed."""
    found = read_record(path)
    if odd := [name for name, one, other in zip(OutputRecord._fields, found, expected, strict=True) if one != other]:
        whose = {"teacher": "another teacher", "texts": "other texts", "outputs": "a file that has changed"}
        what = whose.get(odd[0], "other labels")
        raise ValueError(f"{path}: computed for {what}; delete the folder, or name another one with --cache")


def check_outputs(option: str, path: str, texts: Sequence[str]) -> OutputRecord:
    """Return what the file of an option is of. Raises ValueError if it is of other texts or has changed."""
    file = Path(path)
    if not path or not file.is_file():
        raise ValueError(f"{option}: no file {path!r}; bertwright distill computes it")
    record = read_record(file)
    check_record(file, record._replace(texts=digest_texts(texts), outputs=digest_file(file)))
    return record
