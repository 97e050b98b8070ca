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

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertwright.serving.replies import HttpError, error_response

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="bertwright", Basic realm="bertwright", charset="UTF-8"'}


@dataclass(frozen=True)
class Protection:
    """The rules of a server; hosts and origins are in small letters, as browsers send them."""

    app: ASGIApp
    key: str | None = None
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 400, 401 or 403; answer what a browser asks before it sends one."""
        app = self.app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin, asked = headers.get("origin"), headers.get("access-control-request-method")
            is_preflight = scope["method"] == "OPTIONS" and origin is not None and asked is not None
            if origin is not None and origin in self.origins:
                send = allow_origin(send, origin)
            try:
                self.check(headers, not is_preflight)  # browsers ask without the key
                app = preflight_response(headers) if is_preflight else app
            except HttpError as error:
                app = error_response(error, scope["path"])
        await app(scope, receive, send)

    def check(self, headers: Mapping[str, str], needs_key: bool = True) -> None:
        """Raise HttpError for a request that may not pass."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.is_own_host(host):
            raise HttpError(f"Host: {host[:80]!r} is no name of this server; --allow-hosts adds it", 400, "Validation")
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != host:
            raise HttpError(
                f"Origin: {origin[:80]!r} may not send requests; --allow-origins adds it", 403, "Validation"
            )
        key = (self.key or "").encode(errors="surrogateescape")  # what is not UTF-8 in the environment
        if needs_key and key and not hmac.compare_digest(sent_key(headers), key):
            raise HttpError("Authorization: expected Bearer and this server's key", 401, "Validation", CHALLENGE)

    def is_own_host(self, host: str) -> bool:
        """Return whether Host is localhost, a numeric address, or a name that was allowed."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # half of an address in brackets
            return False
        return name in ("localhost", *self.hosts) or is_address(name)


def allow_origin(send: Send, origin: str) -> Send:
    """Return a `send` that lets the browser show a reply to the page of an origin."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "*"
            headers.add_vary_header("Origin")
        await send(message)

    return send_with_headers


def preflight_response(headers: Mapping[str, str]) -> Response:
    """Return the reply to a browser that asks which requests a page may send: all that the routes read."""
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "Authorization, Content-Type"),
        "Access-Control-Allow-Private-Network": "true",  # a page of the web may reach this machine
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=204, headers=allowed)


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


def sent_key(headers: Mapping[str, str]) -> bytes:
    """Return the key of a request: a bearer token, or the password that a browser asks for; empty if there is none."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip().encode("latin-1")  # the bytes of the header
    if kind.lower() == "basic":
        try:
            return b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return headers.get("x-api-key", "").encode("latin-1")
