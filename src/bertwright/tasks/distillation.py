"""Distillation of text vectors: a student learns the vectors that a teacher has computed (2004.09813).

N texts, D numbers per vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertwright.base.files import digest_bytes, digest_file, read_json, write_json
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_data import Example, as_rows, choose_metric
from bertwright.tasks.encoded import Encoded, Ints
from bertwright.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.models.heads import TaskBatch

ROW = 2  # column of a text's labels with the number of its vector
RECORD = ".json"  # suffix of the file beside the vectors that says what they are of


class VectorRecord(NamedTuple):
    """What a file of vectors is of."""

    teacher: str
    """Digest of the model folder."""
    texts: str
    """Digest of the texts, in order."""
    vectors: str
    """Digest of the file."""


@dataclass(frozen=True)
class Distillation(Embedding):
    """Vectors that equal a teacher's; a translation has the vector of its source."""

    kind: ClassVar[str] = "distillation"

    teacher_vectors: str = ""
    """File with the teacher's vector of each row of the training files, written by bertwright distill."""

    @property
    def default_dropout(self) -> float | None:
        """Return 0, because the target has no noise."""
        return 0.0

    def prompts_of(self, examples: Sequence[Example], labeled: bool) -> tuple[str, str] | None:
        return None

    def describe_training(self, examples: Sequence[Example]) -> dict[str, str]:
        return {"loss": f"1 - cosine of the vectors in {self.teacher_vectors}, {self.size} numbers"}

    def prepare_splits(self, splits: Mapping[str, Sequence[Example]]) -> tuple[Self, dict[str, Sequence[Example]]]:
        """Give each training row the number of its vector. Raises ValueError for the vectors of other texts."""
        metric = choose_metric(self.metric, splits.get("dev", ()))
        task, train = replace(self, metric=metric), as_rows(splits["train"])
        path = Path(self.teacher_vectors)
        if not self.teacher_vectors or not path.is_file():
            raise ValueError(f"teacher_vectors: no file {str(path)!r}; bertwright distill computes it")
        check_record(path, read_record(path)._replace(texts=digest_texts(train), vectors=digest_file(path)))
        return task, {**splits, "train": [row._replace(score=float(number)) for number, row in enumerate(train)]}

    def item_order(
        self, encoded: Encoded, examples: Sequence[Example], batch_size: int, seed: int
    ) -> Callable[[int], Ints]:
        return Task.item_order(self, encoded, examples, batch_size, seed)

    def whole_batch_loss(self, examples: Sequence[Example]) -> Any:
        return None

    def loss(self, vectors: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum of 1 - cosine of the student's vectors and the teacher's."""
        import torch
        from torch.nn.functional import cosine_similarity

        rows = batch.labels[:, ROW].long().cpu().numpy()
        targets = torch.from_numpy(open_vectors(self.teacher_vectors)[rows]).to(vectors)
        return (1 - cosine_similarity(vectors, targets)).sum()


@lru_cache(maxsize=1)
def open_vectors(path: str) -> npt.NDArray[np.float32]:
    """Map the vectors of a file, N × D, into memory."""
    vectors: npt.NDArray[np.float32] = np.load(path, mmap_mode="r")
    return vectors


def digest_texts(rows: Sequence[TextRow]) -> str:
    """Return the digest of the texts whose vectors are learned."""
    return digest_bytes(*(row.anchor.encode() for row in rows))


def read_record(path: Path) -> VectorRecord:
    """Read what the vectors at `path` are of. Raises ValueError if the file beside them does not say it."""
    beside = path.with_suffix(RECORD)
    try:
        values: Any = read_json(beside)
        return VectorRecord(**{name: str(values[name]) for name in VectorRecord._fields})
    except (OSError, KeyError, TypeError):
        raise ValueError(f"{beside}: expected the record of {path.name}; delete both, and distill again") from None


def write_record(path: Path, record: VectorRecord) -> None:
    """Write beside the vectors at `path` what they are of."""
    write_json(path.with_suffix(RECORD), record._asdict())


def check_record(path: Path, expected: VectorRecord) -> None:
    """Raise ValueError if the vectors at `path` are of another teacher or of other texts, or have changed."""
    found = read_record(path)
    if odd := [name for name, one, other in zip(VectorRecord._fields, found, expected, strict=True) if one != other]:
        what = {"teacher": "another teacher", "texts": "other texts", "vectors": "a file that has changed"}[odd[0]]
        raise ValueError(f"{path}: vectors of {what}; delete the folder, or name another one with --cache")
