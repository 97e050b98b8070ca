"""A model of text vectors as mteb 2 calls it; mteb itself is not imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from bertwright.inference.bert import Bert
from bertwright.inference.text_vectors import embed_by_role, normalize_vectors
from bertwright.models.pooling import Vectors
from bertwright.tasks.embedding_scores import PLAIN
from bertwright.tasks.unknown_rates import InputCounts


@dataclass
class MtebEncoder:
    """Score a model on tasks of mteb: `mteb.evaluate(MtebEncoder(bertwright.load("runs/vectors")), tasks)`.

    Queries and documents get the model's prompts of these names, if it has them.
    """

    model: Bert
    mteb_model_meta: Any = None
    """mteb's `ModelMeta`, whose name its cache of results goes by; None: mteb uses a name for all such models."""

    def encode(
        self, inputs: Iterable[Mapping[str, list[str]]], *, prompt_type: Enum | None = None, **options: Any
    ) -> Vectors:
        """Compute the vectors, N × H float32, of batches of texts.

        `prompt_type`: mteb's "query" or "document". Further options, such as the task, change nothing.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        return embed_by_role(self.model, InputCounts())(texts, prompt_type.value if prompt_type else PLAIN)

    def similarity(self, first: Any, second: Any) -> Vectors:
        """Compute the cosines, N × M, of vectors N × H and M × H."""
        return self.model.similarity(np.asarray(first), np.asarray(second))

    def similarity_pairwise(self, first: Any, second: Any) -> Vectors:
        """Compute the cosine of each row of two arrays N × H."""
        cosines: Vectors = (normalize_vectors(np.asarray(first)) * normalize_vectors(np.asarray(second))).sum(1)
        return cosines
