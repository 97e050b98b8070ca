"""Re-ranking: the order of candidate texts for a query, by a score of each pair of query and text.

N queries with k candidates each, not all the same number; S sequences [CLS] query [SEP] text [SEP], query by query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from bertwright.base.ragged import offsets_from_lengths
from bertwright.base.settings import did_you_mean
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.tables.schema import TableSchema
from bertwright.tasks.encoded import Encoded, Floats, Outputs
from bertwright.tasks.ranking_examples import METRICS, RankingExample, read_candidates, read_queries, score_candidates
from bertwright.tasks.score_formats import DisplayTable
from bertwright.tasks.table_task import RoleTask
from bertwright.tasks.task import LEARNED, check_metric
from bertwright.tasks.truncation import SegmentTokens, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.heads import TaskBatch

LOSSES = ("binary", "candidates", "mse", "margin")
OF_TEACHERS = ("mse", "margin")
Examples = Sequence[RankingExample]
Predictions = Sequence[tuple[float, ...]]
NO_NEGATIVES = "add texts that do not answer the query, or let bertwright mine-negatives find them"


@dataclass(frozen=True)
class Reranking(RoleTask[RankingExample, tuple[float, ...]]):
    """The order of candidate texts for a query: a cross-encoder (Nogueira and Cho 2019, 1901.04085)."""

    kind: ClassVar[str] = "reranking"
    inference_call: ClassVar[str] = "rank(query, texts)"
    examples_name: ClassVar[str] = "queries"
    is_regression: ClassVar[bool] = True
    base_learning_rate: ClassVar[float | None] = 2e-5
    head: ClassVar[HeadSpec] = HeadSpec("sequence", 1)
    num_segments: ClassVar[int] = 2

    ranking_loss: str = "binary"
    """Loss of a re-ranker. binary: is the text relevant, where positives weigh as much as negatives; candidates: which
    of a positive and the query's negatives is the positive (2101.08751); mse: a teacher's score; margin: the difference
    of a teacher's scores of a positive and a negative (2010.02666)."""
    max_length: int = 512
    """Longest sequence in tokens, [CLS] and [SEP] included; of two segments, the longer one is truncated first."""
    metric: str = "ndcg@10"
    """Score that selects the best checkpoint: ndcg@10, mrr@10 or map."""
    positive_weight: float = field(default=1.0, metadata=LEARNED)
    """Weight of a positive in the binary loss: negatives per positive in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric(self.metric, METRICS)
        if self.ranking_loss not in LOSSES:
            raise ValueError(f"ranking_loss = {self.ranking_loss!r}: {did_you_mean(self.ranking_loss, LOSSES)}")
        if self.max_length < 5:
            raise ValueError(f"max_length = {self.max_length}: at least 5, [CLS] and [SEP] included")

    @property
    def activation(self) -> str:
        """Sigmoid after the binary loss; after others none, because it would round high scores to ties."""
        return "sigmoid" if self.ranking_loss == "binary" else "identity"

    @property
    def score_name(self) -> str:
        """Name of the output: probability or score."""
        return "probability" if self.ranking_loss == "binary" else "score"

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        if not record.activation:
            return None
        return cls(ranking_loss="binary" if record.activation == "sigmoid" else "candidates", max_length=max_positions)

    # Examples

    def read(self, path: str, labeled: bool = True) -> Iterator[RankingExample]:
        """Read queries with their candidates; with `labeled`, the rows of one query are one example.

        A row has a query with positives and negatives, or a query, a text and its label.
        """
        if labeled:
            return iter(read_queries(path, self.table_options, with_teacher=self.ranking_loss in OF_TEACHERS))
        return iter(read_candidates(path, self.table_options))

    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[RankingExample]:
        if len(texts) < 2:
            raise ValueError("re-ranking: give a query and at least one text")
        return [RankingExample(texts[0], tuple(texts[1:]), None, None, location)]

    def passthrough_schema(self, columns: Sequence[str], hint: str) -> TableSchema:
        return replace(self.table_options.schema(columns), hint=hint)

    def with_labels_of(self, examples: Examples) -> Self:
        """Return the task with the weight of positives. Raises ValueError if the loss has nothing to compare."""
        if not examples:
            raise ValueError("no examples to learn from")
        first = examples[0].location
        if self.ranking_loss in OF_TEACHERS:
            scores = {score for example in examples for score in example.teacher_scores}
            if len(scores) < 2:
                raise ValueError(f"{first}: from there on all scores are {scores.pop():g}; they give no order to learn")
        if self.ranking_loss == "mse":
            return self
        grades = [grade for example in examples for grade in example.known_grades]
        positives = sum(grade > 0 for grade in grades)
        if not positives:
            raise ValueError(f"{first}: from there on no text is marked as relevant; is the column of labels right?")
        if positives == len(grades):
            raise ValueError(f"{first}: from there on all texts are marked as relevant; {NO_NEGATIVES}")
        if self.ranking_loss != "binary" and not any(0 in one.known_grades for one in examples if one.is_scored):
            raise ValueError(f"{first}: from there on no query has a positive and a negative; {NO_NEGATIVES}")
        return replace(self, positive_weight=(len(grades) - positives) / positives)

    def check(self, examples: Examples) -> None:
        """Raise ValueError for unknown labels, and if no query has a relevant text, so that no score is defined."""
        if examples and not any(any(example.known_grades) for example in examples):
            raise ValueError(
                f"{examples[0].location}: from there on no query has a text that is marked as relevant, so that no "
                "score is defined; is it a test file published without labels?"
            )

    def warnings(self, examples: Examples, paths: Sequence[str] = ()) -> list[str]:
        unscored = [example for example in examples if example.grades is not None and not example.is_scored]
        if not unscored:
            return []
        unused = "" if self.ranking_loss in ("binary", "mse") else ", and this loss does not use them"
        share = f"{len(unscored):,} of {len(examples):,} queries have no relevant text ({unscored[0].location})"
        return [f"{share}: scores leave them out{unused}"]

    def group_keys(self, examples: Examples) -> Sequence[Hashable]:
        return [example.query for example in examples]

    def texts(self, examples: Examples) -> Iterator[str]:
        return (text for example in examples for text in (example.query, *example.texts))

    def encode(self, examples: Examples, tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        """Encode each pair of query and text or, with `labeled`, the pairs that the loss compares, item by item."""
        items = [(number, item) for number, example in enumerate(examples) for item in self._items(example, labeled)]
        sizes = np.array([len(item.texts) for _, item in items], dtype=np.int64)
        example_ids = np.repeat(np.array([number for number, _ in items], dtype=np.int64), sizes)
        first_texts = offsets_from_lengths(np.array([len(example.texts) for example in examples]))[example_ids]
        chosen = first_texts + np.array([place for _, item in items for place in item.texts], dtype=np.int64)
        queries = SegmentTokens.of([example.query for example in examples], tokenizer).take(example_ids)
        texts = SegmentTokens.of([text for example in examples for text in example.texts], tokenizer).take(chosen)
        dtype = np.int64 if self.ranking_loss == "candidates" else np.float32
        targets = np.array([item.target for _, item in items] if labeled else [], dtype=dtype)
        return encode_segments([queries, texts], targets, tokenizer, self.max_length, sizes, example_ids)

    def _items(self, example: RankingExample, labeled: bool) -> Iterator[Item]:
        """Yield what the loss compares; without labels, each text by itself."""
        if not labeled:
            yield from (Item((place,), 0.0) for place in range(len(example.texts)))
            return
        teacher = example.teacher_scores if self.ranking_loss in OF_TEACHERS else ()
        if self.ranking_loss == "mse":
            yield from (Item((place,), score) for place, score in enumerate(teacher))
            return
        grades = example.known_grades
        if self.ranking_loss == "binary":
            yield from (Item((place,), float(grade > 0)) for place, grade in enumerate(grades))
            return
        negatives = tuple(place for place, grade in enumerate(grades) if not grade)
        for place in (place for place, grade in enumerate(grades) if grade and negatives):
            if self.ranking_loss == "candidates":
                yield Item((place, *negatives), 1 + len(negatives))
            else:
                yield from (Item((place, other), teacher[place] - teacher[other]) for other in negatives)

    # The head

    def loss(self, logits: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum of the losses of a batch's items. Raises ValueError for a smoothing."""
        if smoothing:
            raise ValueError(f"label smoothing = {smoothing}: a re-ranker has no labels to smooth; set it to 0")
        import torch
        import torch.nn.functional as F
        from torch.nn.utils.rnn import pad_sequence

        scores, targets = logits.squeeze(1), batch.labels
        if self.ranking_loss == "candidates":  # the positive is the first of each item
            lists = list(torch.split(scores, targets.tolist()))
            padded = pad_sequence(lists, batch_first=True, padding_value=float("-inf"))
            return F.cross_entropy(padded, targets.new_zeros(len(targets)), reduction="sum")
        targets = targets.to(scores.dtype)
        if self.ranking_loss == "binary":
            weight = scores.new_tensor(self.positive_weight)
            return F.binary_cross_entropy_with_logits(scores, targets, pos_weight=weight, reduction="sum")
        if self.ranking_loss == "margin":
            scores = scores[::2] - scores[1::2]
        return F.mse_loss(scores, targets, reduction="sum")

    def decode(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[tuple[float, ...]]:
        values = self.activate(outputs)
        bounds = np.searchsorted(encoded.example_ids, np.arange(len(examples) + 1)).tolist()
        return [tuple(values[start:end].tolist()) for start, end in pairwise(bounds)]

    def activate(self, outputs: Outputs) -> Floats:
        """Return the scores of logits R × 1, R in double precision, so that the sigmoid makes no ties."""
        from scipy.special import expit

        logits: Floats = outputs[:, 0].astype(np.float64)
        return expit(logits) if self.activation == "sigmoid" else logits

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        """Return logits R × 1 that give the mean of the models' scores."""
        from scipy.special import logit

        mean = np.mean([self.activate(logits) for logits in outputs], axis=0)
        merged: Outputs = (logit(mean) if self.activation == "sigmoid" else mean)[:, None].astype(np.float32)
        return merged

    # Scores

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        """Compute the means over the queries with a relevant text; of texts with equal scores, the worst come first."""
        return dict(zip(METRICS, self._query_scores(examples, predictions).mean(0).tolist(), strict=True))

    def _query_scores(self, examples: Examples, predictions: Predictions) -> Floats:
        """Compute the metrics of each query with a relevant text, Q × 3."""
        pairs = zip(examples, predictions, strict=True)
        return np.array([score_candidates(one.known_grades, scores) for one, scores in pairs if one.is_scored])

    def example_scores(self, examples: Examples, predictions: Predictions) -> ExampleScores:
        return ExampleScores("mean", self._query_scores(examples, predictions)[:, [METRICS.index(self.metric)]])

    def is_right(self, example: RankingExample, prediction: tuple[float, ...]) -> bool:
        """Return whether the first text is relevant; true for a query without a relevant text."""
        return not example.is_scored or example.known_grades[int(np.argmax(prediction))] > 0

    def single_class_warnings(self, predictions: Predictions) -> list[str]:
        """Warn if all texts have the same score."""
        scores = {score for prediction in predictions for score in prediction}
        if len(scores) == 1 and sum(map(len, predictions)) > 1:
            return [f"all texts have the {self.score_name} {scores.pop():.3g}: the model does not order them"]
        return []

    # Reports and files

    def gold_columns(self, example: RankingExample) -> dict[str, Any]:
        gold = None if example.grades is None else list(example.grades)
        return {"location": example.location, "query": example.query, "texts": list(example.texts), "gold": gold}

    def show(self, example: RankingExample) -> dict[str, str]:
        """Return the query and its texts, each with its mark."""
        grades = example.grades or (None,) * len(example.texts)
        marks = [("" if grade is None else ", relevant" if grade else ", not relevant") for grade in grades]
        texts = {
            f"text {number}{mark}": text
            for number, (mark, text) in enumerate(zip(marks, example.texts, strict=True), 1)
        }
        return {"location": example.location, "query": example.query} | texts

    def count_gold(self, examples: Examples) -> Mapping[str, int]:
        grades = [grade > 0 for example in examples for grade in example.grades or ()]
        return Counter({"relevant": sum(grades), "not relevant": len(grades) - sum(grades)})

    def describe(self) -> dict[str, str]:
        return {"output": self.score_name}

    def to_record(self, example: RankingExample, prediction: tuple[float, ...]) -> dict[str, Any]:
        """Convert the score of a text; of several, a list in the order of the texts."""
        return {self.score_name: prediction[0] if len(prediction) == 1 else list(prediction)}

    def display(self, predicted: Sequence[tuple[RankingExample, tuple[float, ...]]]) -> list[DisplayTable]:
        tables = []
        for example, prediction in predicted:
            rows = [(one.text, f"{one.score:.4f}") for one in rank_texts(example.texts, prediction)]
            tables.append(DisplayTable(("text", self.score_name), rows, heading=example.query))
        return tables


class RankedText(NamedTuple):
    """A text in the order that a re-ranker gives."""

    position: int
    """Index of the text in the given list, from 0."""
    score: float
    """Probability of being relevant or, after other losses than binary, a number without a scale."""
    text: str


class Item(NamedTuple):
    """Texts of a query that the loss compares."""

    texts: tuple[int, ...]
    """Their indices; a positive comes before its negatives."""
    target: float
    """Label, teacher's score or margin; in the loss of candidates, their number."""


def rank_texts(texts: Sequence[str], scores: Sequence[float]) -> list[RankedText]:
    """Return the texts by falling score; of equal scores, the first in the list comes first."""
    order = sorted(range(len(texts)), key=lambda position: -scores[position])
    return [RankedText(position, scores[position], texts[position]) for position in order]
