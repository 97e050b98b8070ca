"""Replies in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.json import Encoder
from starlette.responses import Response

from bertwright.serving.errors import HttpError

encode = Encoder().encode


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
