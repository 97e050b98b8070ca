"""What the server says of its models, for clients and for its page."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from bertwright.serving.served_models import ServedModels


class ModelEntry(Struct):
    """A served model."""

    name: str
    system: str
    """Architecture, such as bert."""
    task: str | None
    """Type of its task; null for a model without one."""
    labels: list[str]
    routes: list[str]
    """Paths of the own routes that it answers; its purpose comes first."""
    reads_pairs: bool
    """Whether its examples are pairs of texts."""
    max_length: int
    """Longest sequence in tokens."""
    vector_size: int
    mask_token: str | None
    examples: list[dict[str, Any]]
    """Unlabeled examples of the file of --examples, by the names of their parts."""


class ModelList(Struct):
    """All models, in the order of the command line."""

    data: list[ModelEntry]
    search: bool
    """Whether POST /search is there."""


def list_models(models: ServedModels) -> ModelList:
    entries = []
    for model in models.by_name.values():
        bert, task = model.bert, model.bert.task
        mask = bert.tokenizer.token(bert.tokenizer.mask_id) if "fill-mask" in model.methods else None
        routes, labels = [f"/{method}" for method in model.methods], [*task.label_names] if task else []
        system, kind = str(bert.model.encoder.model_type), task.kind if task else None
        entries.append(
            ModelEntry(
                model.name, system, kind, labels, routes, bool(getattr(task, "text_pair", None)), model.max_length,
                bert.vector_size(), mask, model.examples,
            )
        )  # fmt: skip
    return ModelList(entries, models.index is not None)
