"""Replies in JSON, and the error of a request that is answered with one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.json import Encoder
from starlette.responses import Response

encode = Encoder().encode


class HttpError(Exception):
    """A request that is answered with an error.

    `kind` is the `error_type` of text-embeddings-inference: Validation, Tokenizer, Backend (the model cannot do it),
    Overloaded, Unhealthy (it starts, or is about to end).
    """

    def __init__(self, message: str, status: int, kind: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers or {}

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.status, self.kind, self.headers)


class ErrorReply(Struct):
    """The reason why a request was not answered."""

    error: str
    error_type: str


class ErrorDetail(Struct):
    """The reason, and the kind of the error."""

    message: str
    type: str


class OpenAiError(Struct):
    """An error as OpenAI's clients read it."""

    error: ErrorDetail


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Return a reply that msgspec encodes."""
    return Response(encode(content), status, headers, "application/json")


def error_response(error: HttpError, path: str) -> Response:
    """Return the reply of an error: on OpenAI's paths in its form, else in the usual one."""
    message, is_openai = str(error), path.startswith("/v1/") and path != "/v1/rerank"  # that one is Cohere's
    content = OpenAiError(ErrorDetail(message, error.kind)) if is_openai else ErrorReply(message, error.kind)
    return json_response(content, error.status, error.headers)
