"""A route of the server: how a request's body becomes items for a model, and the results become the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from bertwright.serving.batcher import Call, Request
from bertwright.serving.served_models import ServedModels

Texts = str | list[str]
"""A text, or several."""
Name = str | None
"""Name of a model."""
Count = Annotated[int, Meta(ge=1, le=10_000)]
Dimensions = Annotated[int, Meta(ge=1, le=100_000)] | None
"""Number of a vector's first numbers that are wanted; null: all."""


class Job(NamedTuple):
    """What is to be computed for a request."""

    call: Call
    items: Sequence[Any]
    reply: Callable[[Request], Any]
    """Build the reply, which msgspec encodes."""


class Route(NamedTuple):
    """A path of the server and its function."""

    path: str
    method: str
    """GET or POST."""
    summary: str
    body: Any
    """Type of the body; None for GET."""
    reply: Any
    """Type of the reply, for the OpenAPI document."""
    prepare: Callable[..., Any]
    """For POST, turn models, body and the model's name (of the path or the body) into a `Job`, or a reply that needs no
    model; for GET, turn models into a reply. Raises ValueError or HttpError for a request that cannot be answered."""


def to_list(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def make_job(
    models: ServedModels,
    method: str,
    name: Name,
    items: Sequence[Any],
    reply: Callable[[Request], Any],
    **options: Any,
) -> Job:
    """Return the job of a method, for the named model or the first one that has it. Raises HttpError if none has."""
    return Job(Call(models.choose(method, name).name, method, tuple(options.items())), items, reply)
