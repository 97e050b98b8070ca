"""OpenAI's route of vectors, for its clients and the libraries that use them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from bertwright.serving.batcher import Request
from bertwright.serving.replies import HttpError
from bertwright.serving.route import Dimensions, Job, Name, Route, make_job
from bertwright.serving.served_models import ServedModels

Ids = list[int]


class EmbeddingsRequest(Struct):
    """Texts; ids of tokens are another vocabulary's, so that they get an error."""

    input: str | list[str | int | Ids]
    model: Name = None
    dimensions: Dimensions = None
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class EmbeddingEntry(Struct, kw_only=True):
    """A vector."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class Usage(Struct):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(Struct, kw_only=True):
    """The vectors of all texts."""

    object: str = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


def to_entry(index: int, vector: Any, encoding_format: str) -> EmbeddingEntry:
    """Return a vector as numbers or as the base64 of its float32."""
    if encoding_format == "base64":
        return EmbeddingEntry(index=index, embedding=b64encode(vector.astype("<f4").tobytes()).decode())
    return EmbeddingEntry(index=index, embedding=np.asarray(vector).tolist())


def embeddings(models: ServedModels, body: EmbeddingsRequest, name: Name) -> Job:
    """Prepare vectors. Raises HttpError 422 for ids of tokens."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not all(isinstance(text, str) for text in texts):
        raise HttpError(
            "input: expected texts, got ids of tokens, which are not this model's; LangChain: set "
            "OpenAIEmbeddings(check_embedding_ctx_length=False)",
            422,
            "Validation",
        )
    if not texts or "" in texts:
        raise HttpError("input: expected at least one text, and no empty one", 422, "Validation")

    def reply(request: Request) -> EmbeddingsReply:
        total = sum(request.tokens)
        entries = [to_entry(index, vector, body.encoding_format) for index, vector in enumerate(request.values)]
        return EmbeddingsReply(data=entries, model=request.call.model, usage=Usage(total, total))

    options = {} if body.dimensions is None else {"dims": body.dimensions}
    return make_job(models, "embed", name, texts, reply, **options)


class OpenAiModel(Struct, kw_only=True):
    """A model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "bertwright"


class OpenAiModels(Struct, kw_only=True):
    """All models."""

    object: str = "list"
    data: list[OpenAiModel]


def list_models(models: ServedModels) -> OpenAiModels:
    return OpenAiModels(data=[OpenAiModel(id=name) for name in models.by_name])


ROUTES = (
    Route("/v1/embeddings", "POST", "Compute vectors (OpenAI)", EmbeddingsRequest, EmbeddingsReply, embeddings),
    Route("/v1/models", "GET", "List the models (OpenAI)", None, OpenAiModels, list_models),
)
