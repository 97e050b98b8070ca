"""The loss of a step of text vectors, by name, from the vectors of all its texts.

B rows of the step, C columns (all texts but the anchors), N texts, D numbers per vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bertwright.interop.huggingface import start_task_model
from bertwright.interop.model_files import model_folder
from bertwright.models import embedding_losses as losses
from bertwright.models.embedding_losses import Guide, LossSum, Pairs, RankingBatch
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding_batches import ANCHOR, POSITIVE, KnownPairs, find_masked, label_texts
from bertwright.tasks.encoded import Ints
from bertwright.tasks.prediction import predict_logits
from bertwright.training.loop import LossOutput
from bertwright.vocabulary.open_tokenizer import open_tokenizer

if TYPE_CHECKING:
    from bertwright.tasks.embedding import Embedding


@dataclass(frozen=True)
class VectorObjective:
    """The loss of a training run, a function of the vectors N × D of a step and of NUM_LABELS numbers per text."""

    task: Embedding
    known: KnownPairs
    """For each anchor, the texts that belong to it."""
    reverse: KnownPairs
    """For each text, the anchors that it belongs to."""
    guide: Tensor | None = None
    """Distinct texts × G, unit vectors of another model."""

    @classmethod
    def of(cls, task: Embedding, rows: Sequence[TextRow]) -> VectorObjective:
        """Collect the known pairs of all training rows, and the guide's vectors; texts are numbered as in `encode`."""
        labels = label_texts(rows)
        roles, texts = labels[:, :2].astype(np.int64).T
        (places,) = np.nonzero(roles == POSITIVE)  # each follows its anchor, because a row has one positive
        size = int(texts.max(initial=-1)) + 1
        known, reverse = (KnownPairs.of(texts[places - 1 + k], texts[places - k], size) for k in (0, 1))
        return cls(task, known, reverse, embed_guide(task, rows) if task.guide else None)

    def __call__(self, vectors: Tensor, rows: Tensor) -> LossOutput:
        """Compute the loss of a step, and the sums that are reported."""
        name, masked = self.task.vector_loss, 0
        if name in ("ranking", "simcse"):
            batch = self.make_ranking(rows)
            masked = len(batch.masked.rows)
            found = losses.in_dims(partial(self.rank, batch=batch, rows=rows), vectors, self.task.dims)
        else:
            found = losses.in_dims(partial(self.compare, rows=rows), vectors, self.task.dims)
        sums = {"loss": found.mean.detach(), "masked_pairs": vectors.new_tensor(float(masked))}
        return LossOutput(found.mean, sums)

    def rank(self, vectors: Tensor, batch: RankingBatch, rows: Tensor) -> LossSum:
        """Compute `ranking` in its variants."""
        task, unit = self.task, losses.unit(vectors)
        if task.all_pairs:
            same, reverse = self.find_same(batch, rows)
            return losses.ranking_all_pairs(unit, batch, task.similarity_scale, same, reverse)
        forward = losses.ranking(unit, batch, task.similarity_scale, task.hardness)
        if not task.symmetric:
            return forward
        back = losses.ranking(unit, self.turn(batch, rows), task.similarity_scale, task.hardness)
        return LossSum((forward.total + back.total) / 2, forward.rows)

    def compare(self, vectors: Tensor, rows: Tensor) -> LossSum:
        """Compute a loss of classes, of rated pairs or of triplets."""
        name, scale = self.task.vector_loss, self.task.similarity_scale
        anchors = rows[:, 0] == ANCHOR
        scores = rows[anchors, 2]
        if name == "labels":
            return losses.same_class(losses.unit(vectors), scores.long(), scale)
        if name == "triplet":
            return losses.triplets(vectors[0::3], vectors[1::3], vectors[2::3])
        unit = losses.unit(vectors)
        first, second = unit[anchors], unit[~anchors]
        if name == "angle":
            return losses.rank_scores(losses.angle_similarity(first, second), scores, scale)
        cosines = (first * second).sum(1)
        if name == "cosine":
            return losses.squared_errors(cosines, scores.to(cosines.dtype))
        if name == "contrastive":
            return losses.online_contrastive(cosines, scores)
        return losses.rank_scores(cosines, scores, scale)  # cosent

    def make_ranking(self, rows: Tensor) -> RankingBatch:
        """Find anchors, columns, targets and the pairs that are no negatives, in the texts of a step."""
        roles, texts = rows[:, :2].long().cpu().numpy().T
        anchors, columns = np.flatnonzero(roles == ANCHOR), np.flatnonzero(roles != ANCHOR)
        targets = np.flatnonzero(roles[columns] == POSITIVE)  # in the order of the rows
        masked = find_masked(texts[anchors], self.known, texts[columns], targets)
        is_own = np.searchsorted(anchors, columns, side="right") - 1  # row of each column
        negatives = np.flatnonzero(roles[columns] != POSITIVE)
        explicit = _pairs(rows, is_own[negatives], negatives) if len(negatives) and self.task.hardness else None
        guide = None
        if self.guide is not None:
            first, second = (self.guide[texts[places]].to(rows.device) for places in (anchors, columns))
            guide = Guide(first, second, self.task.guide_margin)
        first, second, chosen = (torch.from_numpy(array).to(rows.device) for array in (anchors, columns, targets))
        return RankingBatch(first, second, chosen, _pairs(rows, *masked), explicit, guide)

    def turn(self, batch: RankingBatch, rows: Tensor) -> RankingBatch:
        """Return the batch in which each row's target looks for its anchor among all anchors."""
        texts = rows[:, 1].long().cpu().numpy()
        anchors, targets = batch.anchors.cpu().numpy(), batch.columns[batch.targets].cpu().numpy()
        own = np.arange(len(anchors))
        masked = find_masked(texts[targets], self.reverse, texts[anchors], own)
        guide = batch.guide and Guide(batch.guide.second[batch.targets], batch.guide.first, batch.guide.margin)
        targets_of = torch.from_numpy(own).to(rows.device)
        return RankingBatch(batch.columns[batch.targets], batch.anchors, targets_of, _pairs(rows, *masked), guide=guide)

    def find_same(self, batch: RankingBatch, rows: Tensor) -> tuple[Pairs, Pairs]:
        """Return the pairs of rows whose anchors or targets belong together, and of targets and other rows' anchors."""
        texts = rows[:, 1].long().cpu().numpy()
        first, second = texts[batch.anchors.cpu().numpy()], texts[batch.columns[batch.targets].cpu().numpy()]
        own, both_ways = np.arange(len(first)), (self.known, self.reverse)
        same = [np.stack(find_masked(one, known, one, own), 1) for one in (first, second) for known in both_ways]
        both = np.unique(np.concatenate(same), axis=0).reshape(-1, 2)
        return _pairs(rows, *both.T), _pairs(rows, *find_masked(second, self.reverse, first, own))


def embed_guide(task: Embedding, rows: Sequence[TextRow]) -> Tensor:
    """Compute the unit vectors of the guide for all distinct texts, in the order of their numbers."""
    folder = model_folder(task.guide)
    guide = type(task)(prompts=("none=",)).with_model(folder)
    model = start_task_model(folder, guide.head_for(folder), seed=0).model.eval()
    texts = dict.fromkeys(text.strip() for row in rows for text in row.texts)  # numbered as by `label_texts`
    encoded = guide.encode([TextRow(text, "") for text in texts], open_tokenizer(folder), labeled=False)
    return losses.unit(torch.from_numpy(predict_logits(model, encoded)))


def _pairs(like: Tensor, rows: Ints, columns: Ints) -> Pairs:
    return Pairs(*(torch.from_numpy(np.ascontiguousarray(array)).to(like.device) for array in (rows, columns)))
