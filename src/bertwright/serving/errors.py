"""Errors of a request, with their status and the name of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
