"""Distillation of classifiers: a student learns a teacher's logits for unlabelled texts (Hinton et al., 1503.02531).

N texts, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertwright.base.files import digest_file
from bertwright.tasks.teacher_outputs import check_record, digest_texts, read_record

if TYPE_CHECKING:
    from torch import Tensor

TEMPERATURE = 2.0  # of both softmaxes, as for DistilBERT: improbable labels count more than with 1


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Compute the sum of T² · KL(teacher ‖ student) over N × C logits, both divided by T = TEMPERATURE."""
    from torch.nn.functional import kl_div, log_softmax

    target, found = log_softmax(teacher.to(logits) / TEMPERATURE, 1), log_softmax(logits / TEMPERATURE, 1)
    return TEMPERATURE**2 * kl_div(found, target, reduction="sum", log_target=True)


def read_teacher_labels(path: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the labels whose logits a file has, in the order of its columns.

    `texts`: all texts of the training examples. Raises ValueError unless the file is of them and unchanged.
    """
    if not Path(path).is_file():
        raise ValueError(f"teacher_logits: no file {path!r}; bertwright distill computes it")
    record = read_record(Path(path))
    check_record(Path(path), record._replace(texts=digest_texts(texts), outputs=digest_file(Path(path))))
    return record.labels
