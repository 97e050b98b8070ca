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


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Return a reply that msgspec encodes."""
    return Response(encode(content), status, headers, "application/json")


def error_response(error: HttpError, is_openai: bool = False) -> Response:
    """Return the reply of an error; OpenAI's clients read the message of an object."""
    content = ErrorReply(str(error), error.kind)
    if not is_openai:
        return json_response(content, error.status, error.headers)
    return json_response({"error": {"message": content.error, "type": error.kind}}, error.status, error.headers)
