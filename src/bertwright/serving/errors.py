"""Errors of a request, with their status and the name of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class HttpError(Exception):
    """A request that is answered with an error.

    `kind` is the `error_type` of text-embeddings-inference: Validation, Tokenizer, Backend (the model cannot do it),
    Overloaded, Unhealthy (it starts, or is about to end).
    """

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers
