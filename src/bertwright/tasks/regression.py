"""Regression on texts and pairs of texts (section 4.1, STS-B): one number from the pooled [CLS] state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from bertwright.metrics import scores
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.tables.tables import MAX_NUMBER, format_label, parse_number
from bertwright.tasks.encoded import Encoded, Outputs, repeat_output
from bertwright.tasks.score_formats import DisplayTable
from bertwright.tasks.task import LEARNED, check_metric
from bertwright.tasks.text_task import TextExample, TextTask, known_labels

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.heads import TaskBatch, TaskHead

Examples = Sequence[TextExample[float]]
MAX_EXPONENT = 100  # beyond 2^100, scaled weights would leave the range of float32


@dataclass(frozen=True)
class Regression(TextTask[float, float]):
    """A number per text, or per pair of texts.

    Training sees the labels divided by `scale`, a power of two near their standard deviation, and the head's bias
    starts at their mean, so that labels of any magnitude are learned at the usual rates. In a model folder the head's
    weights are multiplied by `scale` (exactly, since it is a power of two), so that `transformers` predicts in the
    original units.
    """

    kind: ClassVar[str] = "regression"
    is_regression: ClassVar[bool] = True
    head: ClassVar[HeadSpec] = HeadSpec("sequence", 1)

    metric: str = "spearman"
    """Score that selects the best checkpoint: spearman or pearson."""
    mean: float = field(default=0.0, metadata=LEARNED)
    """Mean of the training labels, at which the head's bias starts."""
    scale: float = field(default=1.0, metadata=LEARNED)
    """Power of two near the standard deviation of the training labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric(self.metric, ("spearman", "pearson"))
        if not (self.scale > 0 and math.frexp(self.scale)[0] == 0.5 and abs(self.mean) <= MAX_NUMBER):
            raise ValueError(f"scale = {self.scale}, mean = {self.mean}: expected a power of two and a finite number")

    @property
    def head_scale(self) -> float:
        return self.scale

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        return cls(max_length=max_positions) if record.regression and not record.activation else None

    def parse_label(self, value: Any, location: str) -> float:
        text = format_label(value, self.label, location)
        number = parse_number(text)
        if number is None:
            raise ValueError(f"{location}: expected a finite number in {self.label!r}, got {text!r}")
        return number

    def with_labels_of(self, examples: Examples) -> Self:
        self.distinct_labels(examples)
        labels = self._numbers(examples)
        deviation = float(labels.std())
        exponent = round(math.log2(deviation)) if deviation > 0 else -MAX_EXPONENT
        return replace(self, mean=float(labels.mean()), scale=2.0 ** max(-MAX_EXPONENT, min(exponent, MAX_EXPONENT)))

    def initialize_head(self, head: TaskHead) -> None:
        import torch

        with torch.no_grad():
            head.get_parameter("classifier.bias").fill_(self.mean / self.scale)

    def check(self, examples: Examples) -> None:
        """Raise ValueError if no correlation is defined: all labels are the same."""
        super().check(examples)
        if len(distinct := set(known_labels(examples))) == 1:
            reason = (
                "and all others are equal, so that no score is defined; is it a test file published without labels?"
            )
            if len(examples) == 1:
                reason = "and there is no other; correlations need at least two"
            raise ValueError(f"{examples[0].location}: this number is {distinct.pop():g}, {reason}")

    def encode_labels(self, examples: Examples) -> Outputs:
        return (self._numbers(examples) / self.scale).astype(np.float32)

    def _numbers(self, examples: Examples) -> np.ndarray[Any, np.dtype[np.float64]]:
        numbers = np.array(known_labels(examples), dtype=np.float64)
        if odd := np.flatnonzero(~(np.abs(numbers) <= MAX_NUMBER)).tolist():
            raise ValueError(f"{examples[odd[0]].location}: expected a finite number, got {numbers[odd[0]]}")
        return numbers

    def loss(self, logits: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum of squared errors in units of `scale`. Raises ValueError for a smoothing."""
        if smoothing:
            raise ValueError(f"label smoothing = {smoothing}: a regression has no labels to smooth; set it to 0")
        import torch.nn.functional as F

        return F.mse_loss(logits.squeeze(1), batch.labels, reduction="sum")

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        return repeat_output(train.labels.mean(keepdims=True), encoded)

    def decode(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[float]:
        numbers: list[float] = (outputs[:, 0].astype(np.float64) * self.scale).tolist()
        return numbers

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        """Compute the mean numbers in units of this task's scale."""
        pairs = zip(tasks, outputs, strict=True)
        scaled = [numbers.astype(np.float64) * (task.scale / self.scale) for task, numbers in pairs]
        mean: Outputs = np.mean(scaled, axis=0).astype(np.float32)
        return mean

    def score(self, examples: Examples, predictions: Sequence[float]) -> dict[str, float]:
        y_true = known_labels(examples)
        return {
            "spearman": scores.spearman(y_true, predictions),
            "pearson": scores.pearson(y_true, predictions),
            "mse": scores.mean_squared_error(y_true, predictions),
        }

    def example_scores(self, examples: Examples, predictions: Sequence[float]) -> ExampleScores | None:
        pairs = list(zip(known_labels(examples), predictions, strict=True))
        return ExampleScores("spearman", np.array(pairs, dtype=float)) if self.metric == "spearman" else None

    def to_record(self, example: TextExample[float], prediction: float) -> dict[str, Any]:
        return {"score": prediction}

    def display(self, predicted: Sequence[tuple[TextExample[float], float]]) -> list[DisplayTable]:
        rows = [(str(example), f"{number:.3f}") for example, number in predicted]
        return [DisplayTable(("text", "score"), rows)]
