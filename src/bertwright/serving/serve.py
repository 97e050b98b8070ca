"""`bertwright serve`: answer requests over HTTP."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from contextlib import suppress

import uvicorn

from bertwright.base.reporter import SILENT, Line, Reporter
from bertwright.serving.http_app import make_app
from bertwright.serving.serve_settings import ServeSettings
from bertwright.serving.served_models import ServedModels
from bertwright.training.context import execution_context

KEEP_ALIVE_S = 30
MAX_PENDING = 2_048  # connections that the system holds until they are accepted


def serve(settings: ServeSettings, reporter: Reporter = SILENT) -> None:
    """Load the models and answer requests until SIGTERM or Ctrl-C, which let those in progress end.

    Raises ValueError for models that cannot be loaded, and for an address that is not free.
    """
    logging.basicConfig(level=logging.INFO if settings.log != "errors" else logging.WARNING, format="%(message)s")
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until a reload is possible; it would end the process
    with execution_context(settings.device) as context, bind(settings.host, settings.port) as listener:
        models = ServedModels(settings, context)
        models.load()
        app = make_app(models)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        reporter.record(Line(f"{address}: {', '.join(models.by_name)}"))
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_keep_alive=KEEP_ALIVE_S, server_header=False,
            timeout_graceful_shutdown=settings.limits.drain_timeout, backlog=MAX_PENDING, lifespan="on", ws="none",
        )  # fmt: skip
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that has ended it
            uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ValueError for an address that is not free or not of this machine."""
    is_ipv6 = ":" in host
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if is_ipv6 else socket.AF_INET, backlog=MAX_PENDING,
            dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
        )  # fmt: skip
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        raise ValueError(f"--host {host} --port {port}: {reason}; choose another address") from None
