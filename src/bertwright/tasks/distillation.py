"""Distillation of text vectors: a student learns the vectors that a teacher has computed (2004.09813).

N texts, D numbers per vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_data import Example, as_rows, choose_metric
from bertwright.tasks.encoded import Encoded, Ints
from bertwright.tasks.task import Task
from bertwright.tasks.teacher_outputs import check_outputs, open_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.models.heads import TaskBatch

ROW = 2  # column of a text's labels with the number of its vector


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
        check_outputs("teacher_vectors", self.teacher_vectors, [row.anchor for row in train])
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
        targets = torch.from_numpy(open_outputs(self.teacher_vectors)[rows]).to(vectors)
        return (1 - cosine_similarity(vectors, targets)).sum()
