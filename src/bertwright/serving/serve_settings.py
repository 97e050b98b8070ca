"""Settings of `bertwright serve`. This module imports neither torch nor the packages of the extra `serve`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bertwright.base.optional import check_installed
from bertwright.base.settings import Positional, check_limit, check_minimum, check_not_str, check_range
from bertwright.interop.model_files import check_model
from bertwright.text.sources import check_exist
from bertwright.training.device_settings import InferenceDeviceSettings

PACKAGES = ("msgspec", "prometheus_client", "starlette", "uvicorn")
KEY_VARIABLE = "BERTWRIGHT_API_KEY"


@dataclass(frozen=True)
class LimitSettings:
    """Limits of requests."""

    batch_tokens: int | None = None
    """Tokens per batch; a longer request is computed in parts that take turns with others. Unset: 4,096 on a CPU,
    65,536 on a GPU."""
    max_wait: float = 10.0
    """Longest wait in seconds that a new request may expect, by the measured speed; beyond it, it gets 429."""
    max_bytes: int = 16_000_000
    """Bytes of a request's body."""
    max_texts: int = 10_000
    """Texts of a request."""
    max_tokens: int = 1_000_000
    """Estimated tokens of a request."""
    body_timeout: float = 30.0
    """Seconds in which a request's body must arrive."""
    drain_timeout: int = 30
    """Seconds for the requests in progress after SIGTERM."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "batch_tokens", "max_bytes", "max_texts", "max_tokens", "drain_timeout")
        check_limit(self, "above 0", "max_wait", "body_timeout")


@dataclass(frozen=True)
class ServeSettings:
    """Answer requests over HTTP with one or several models; SIGHUP loads them again, SIGTERM ends the server."""

    models: Positional[tuple[str, ...]]
    """Model folders, run folders, or hub names."""
    index: Path | None = None
    """Folder of an index of bertwright search build; POST /search finds its documents."""
    examples: tuple[str, ...] = ()
    """Files in the format of the models' tasks, such as dev files, in the order of the models; the page shows the first
    examples of each."""
    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0 listens to the network: set a key then."""
    port: int = 8000
    """Port; 0: a free one."""
    api_key: str | None = None
    """Key that every request must have. Unset: the environment variable BERTWRIGHT_API_KEY, which other users of this
    machine do not see in its list of processes."""
    allow_hosts: tuple[str, ...] = ()
    """Names of this server in the header Host, beside localhost and addresses of numbers."""
    allow_origins: tuple[str, ...] = ()
    """Origins of other web sites whose pages may send requests, as in https://app.example.com."""
    log: Literal["errors", "requests", "texts"] = "errors"
    """requests: a line for each; texts: with its body."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "models", "examples", "allow_hosts", "allow_origins")
        check_range(self, 0, 65_535, "port")
        if not self.models:
            raise ValueError("no model given; for example: bertwright serve runs/task")
        for host in self.allow_hosts:
            if set(host) & set(":/ "):
                raise ValueError(
                    f"--allow-hosts {host}: expected a name alone, as in bears.example; omit scheme and port"
                )
        for origin in self.allow_origins:
            check_origin(origin)
        if self.api_key == "":
            raise ValueError("--api-key: expected a key, got an empty text; omit it for a server without one")

    @property
    def key(self) -> str | None:
        """The key of the setting or the environment; None if requests need none."""
        return self.api_key or os.environ.get(KEY_VARIABLE) or None


def check_origin(origin: str) -> None:
    """Raise ValueError for a text that no browser sends as an origin, or in this form."""
    parts = urlsplit(origin)
    port = {"http": ":80", "https": ":443"}.get(parts.scheme, " ")
    is_whole = origin.lower() == f"{parts.scheme}://{parts.netloc}".lower() and not origin.endswith(port)
    if origin != "null" and not (parts.scheme and parts.netloc and is_whole):
        raise ValueError(
            f"--allow-origins {origin}: expected scheme, name and no usual port, as in https://app.example.com, and "
            "nothing behind them"
        )


def check_inputs(settings: ServeSettings) -> None:
    """Check packages and models, without torch. Raises ValueError."""
    for package in PACKAGES:
        check_installed(package, "serve", "bertwright serve")
    for name in settings.models:
        check_model(name)
    check_exist(settings.examples)
    if settings.index is not None and not settings.index.is_dir():
        raise ValueError(
            f"--index {settings.index}: expected the folder of an index; bertwright search build writes one"
        )
