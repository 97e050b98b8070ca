"""Checks that come before every route: the header Host, the header Origin, and the key.

A page of another web site can send requests to a server on the user's own machine. It cannot forge Origin, and if it
lets its own name point to this machine (DNS rebinding), Host has that name.
"""

from __future__ import annotations

import hmac
import ipaddress
from base64 import b64decode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bertwright.serving.errors import HttpError
from bertwright.serving.replies import error_response

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="bertwright", Basic realm="bertwright", charset="UTF-8"'}


@dataclass(frozen=True)
class Protection:
    """The rules of a server."""

    app: ASGIApp
    key: str | None = None
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 400, 401 or 403."""
        if scope["type"] == "http":
            try:
                self.check(Headers(scope=scope))
            except HttpError as error:
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise HttpError for a request that may not pass."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.is_own_host(host):
            raise HttpError(f"Host: {host[:80]!r} is no name of this server; --allow-hosts adds it", 400, "Validation")
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != host:
            raise HttpError(
                f"Origin: {origin[:80]!r} may not send requests; --allow-origins adds it", 403, "Validation"
            )
        if self.key is not None and not hmac.compare_digest(sent_key(headers).encode(), self.key.encode()):
            raise HttpError("Authorization: expected Bearer and this server's key", 401, "Validation", CHALLENGE)

    def is_own_host(self, host: str) -> bool:
        """Return whether Host is localhost, a numeric address, or a name that was allowed."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # half of an address in brackets
            return False
        return name in ("localhost", *self.hosts) or is_address(name)


def is_address(name: str) -> bool:
    """Return whether a name is a numeric address.

    >>> is_address("127.0.0.1"), is_address("::1"), is_address("bears.example")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def sent_key(headers: Mapping[str, str]) -> str:
    """Return the key of a request: a bearer token, or the password that a browser asks for; empty if there is none."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    return headers.get("x-api-key", "")
