"""The HTTP application: reads a request, checks it, lets the batcher compute it, and writes the reply."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

from msgspec import DecodeError, ValidationError
from msgspec.json import Decoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from bertwright.base.messages import escape_control
from bertwright.serving import (
    cohere_dialect,
    document_routes,
    hugging_face_dialect,
    openai_dialect,
    tei_dialect,
    typed_routes,
)
from bertwright.serving.batcher import Batcher, Request
from bertwright.serving.examples import read_examples
from bertwright.serving.openapi import describe_api
from bertwright.serving.protection import Protection
from bertwright.serving.replies import HttpError, error_response, json_response
from bertwright.serving.route import Job, Route
from bertwright.serving.served_models import ServedModels
from bertwright.serving.serving_metrics import CONTENT_TYPE, ServingMetrics

log = logging.getLogger("bertwright.serving")
DIALECTS = (typed_routes, document_routes, tei_dialect, openai_dialect, cohere_dialect, hugging_face_dialect)
ROUTES: tuple[Route, ...] = tuple(route for dialect in DIALECTS for route in dialect.ROUTES)
MAX_RESULTS = 100_000  # of a request: candidates for masks, documents found
CLIENT_GONE = 499  # nginx' status of a request whose client has left; nobody receives it
FAILURES = {
    400: "validation", 404: "validation", 408: "timeout", 413: "batch_size", 422: "validation", 424: "model_type",
    429: "overloaded", CLIENT_GONE: "dropped", 503: "unhealthy",
}  # fmt: skip


class Server:
    """What the routes share."""

    def __init__(self, models: ServedModels) -> None:
        self.models, self.limits, self.log_level = models, models.settings.limits, models.settings.log
        self.metrics = ServingMetrics()
        self.batcher = Batcher(models.find, models.batch_tokens, self.metrics.observe_batch, lambda: warm_up(models))

    def check_admission(self) -> None:
        """Raise HttpError 503 before the first right answer, 429 if what waits takes too long."""
        self.models.check_ready()
        wait = self.batcher.promised_wait()
        if wait > self.limits.max_wait:
            seconds = str(math.ceil(wait - self.limits.max_wait))
            message = f"{wait:.1f} s of work are waiting; try again in {seconds} s"
            raise HttpError(message, 429, "Overloaded", {"Retry-After": seconds})

    def estimate(self, job: Job) -> list[int]:
        """Return the estimated tokens of each item. Raises HttpError 413 for a request above the limits."""
        limits = self.limits
        if len(job.items) > limits.max_texts:
            raise HttpError(f"expected at most {limits.max_texts:,} texts, got {len(job.items):,}", 413, "Validation")
        model, method, options = self.models.find(job.call.model), job.call.method, dict(job.call.options)
        results = sum(model.results(method, item, options) for item in job.items)
        if results > MAX_RESULTS:
            raise HttpError(
                f"expected at most {MAX_RESULTS:,} results, got {results:,}; send several requests", 413, "Validation"
            )
        costs = [model.cost(method, item, options) for item in job.items]
        if sum(costs) > limits.max_tokens:
            raise HttpError(
                f"expected at most {limits.max_tokens:,} tokens, got about {sum(costs):,}", 413, "Validation"
            )
        return costs

    async def read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body. Raises HttpError 413 for a long one, 408 for a slow one, 499 for a client that leaves."""
        limit, body = self.limits.max_bytes, bytearray()
        too_long = HttpError(f"body: expected at most {limit:,} bytes; send several requests", 413, "Validation")
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(length) > limit:
            raise too_long
        more = True
        try:
            async with asyncio.timeout(self.limits.body_timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HttpError("the client has left", CLIENT_GONE, "Validation")
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_long
                    more = message.get("more_body", False)
        except TimeoutError:
            raise HttpError(f"body: it took more than {self.limits.body_timeout:g} s", 408, "Validation") from None
        return bytes(body)

    async def compute(self, job: Job, receive: Receive, began: float) -> Request:
        """Compute a job that waits since `began`. Raises HttpError 499 if the client leaves in the meantime."""
        work = asyncio.ensure_future(self.batcher.compute(job.call, job.items, self.estimate(job), began))
        gone = asyncio.ensure_future(wait_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise HttpError("the client has left", CLIENT_GONE, "Validation")
            request = work.result()
        finally:  # also if the server ends: what waits is dropped, instead of being computed for nobody
            work.cancel()
            gone.cancel()
        request.end_wait()  # until the event loop was free
        return request


async def wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PostEndpoint:
    """A POST route as an ASGI application."""

    def __init__(self, route: Route, server: Server) -> None:
        self.route, self.server = route, server
        self.decode = Decoder(route.body).decode
        self.label = route.path.strip("/") or "task"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server, metrics = self.server, self.server.metrics
        began, body = time.perf_counter(), b""
        metrics.count.labels(self.label).inc()
        try:
            server.check_admission()
            body = await server.read_body(scope, receive)
            response = await self.answer(body, scope, receive)
            metrics.success.labels(self.label).inc()
        except HttpError as error:
            metrics.failure.labels(FAILURES.get(error.status, "inference")).inc()
            response = error_response(error, self.route.path)
        except asyncio.CancelledError:  # --drain-timeout is over; only the end of the server cancels
            metrics.failure.labels("dropped").inc()
            ends = HttpError("the server ends before the answer is there", 503, "Unhealthy", {"Retry-After": "1"})
            response = error_response(ends, self.route.path)
        if server.log_level != "errors":
            seconds = time.perf_counter() - began
            text = body.decode(errors="replace") if server.log_level == "texts" else f"{len(body):,} bytes"
            path, shown = escape_control(scope["path"]), escape_control(text)
            log.info("%s %d %.1f ms %s", path, response.status_code, 1000 * seconds, shown)
        if response.status_code != CLIENT_GONE:
            await response(scope, receive, send)

    async def answer(self, body: bytes, scope: Scope, receive: Receive) -> Response:
        """Compute the reply. Raises HttpError for everything that can go wrong."""
        began = time.perf_counter()
        try:
            given = self.decode(body)
            name = scope["path_params"].get("name") or getattr(given, "model", None)
            job = self.route.prepare(self.server.models, given, name)
            request = await self.server.compute(job, receive, began)
            content = job.reply(request)
        except (ValidationError, DecodeError, UnicodeDecodeError, RecursionError) as error:
            status = 422 if isinstance(error, ValidationError) else 400
            raise HttpError(f"body: {error}", status, "Validation") from None
        except ValueError as error:
            raise HttpError(str(error), 422, "Validation") from None
        except (HttpError, asyncio.CancelledError):
            raise
        except Exception as error:
            place = "".join(traceback.format_tb(error.__traceback__))  # the message may have parts of a text
            log.error("%s: %s\n%s", escape_control(scope["path"]), type(error).__name__, place)
            raise HttpError(f"{type(error).__name__}; the server's log says where", 500, "Backend") from error
        total_s = time.perf_counter() - began
        self.server.metrics.observe_request(request, total_s)
        return json_response(content, headers=reply_headers(request, total_s))


def reply_headers(request: Request, total_s: float) -> dict[str, str]:
    """Return the headers of text-embeddings-inference, times in milliseconds, and the truncated texts."""
    headers = {
        "X-Model": escape_control(request.call.model).encode("ascii", "replace").decode(),
        "X-Compute-Tokens": str(sum(request.tokens)),
        "X-Total-Time": f"{1000 * total_s:.2f}",
        "X-Tokenization-Time": f"{1000 * request.tokenize_s:.2f}",
        "X-Queue-Time": f"{1000 * request.queue_s:.2f}",
        "X-Inference-Time": f"{1000 * request.compute_s:.2f}",
    }
    if truncated := request.truncated_items:
        headers["X-Truncated-Texts"] = ",".join(map(str, truncated[:100]))
    return headers


def make_path(route: Route, server: Server) -> Path:
    if route.method == "POST":
        return Path(route.path, PostEndpoint(route, server), methods=["POST"])

    async def endpoint(request: HttpRequest) -> Response:
        return json_response(route.prepare(server.models))

    return Path(route.path, endpoint)


def plain_routes(server: Server) -> list[Path]:
    """Return the routes that answer without a model: the page, the document, health and metrics."""
    page = HTMLResponse(files("bertwright.serving").joinpath("page.html").read_text(encoding="utf-8"))

    async def health(request: HttpRequest) -> Response:
        server.models.check_ready()
        return json_response({"status": "ok"})

    async def metrics(request: HttpRequest) -> Response:
        return Response(server.metrics.render(len(server.batcher.waiting)), media_type=CONTENT_TYPE)

    async def api(request: HttpRequest) -> Response:
        return json_response(describe_api(ROUTES))

    answers = {"/openapi.json": api, "/health": health, "/metrics": metrics}
    return [Path("/", page, methods=["GET"]), *(Path(path, answer) for path, answer in answers.items())]


async def http_error(request: HttpRequest, error: Exception) -> Response:
    """Answer an error of a route without a body, and what Starlette rejects: unknown paths and methods."""
    if isinstance(error, HTTPException):
        headers = error.headers
        if error.status_code == 405:  # Starlette names the methods of the first route of a path alone
            of_path = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
            headers = {"Allow": ", ".join(sorted({method for route in of_path for method in route.methods}))}
        error = HttpError(error.detail, error.status_code, "Validation", headers)
    assert isinstance(error, HttpError)
    return error_response(error, request.url.path)


def make_app(models: ServedModels) -> ASGIApp:
    """Return the ASGI application; its start-up lets the models answer once.

    Raises ValueError for a file of examples that no model can read.
    """
    settings = models.settings
    read_examples([*models.by_name.values()], settings.examples)
    server = Server(models)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def start_reload() -> None:
            if len(reloads) < 2:  # one that waits for its turn will load what is there now, too
                reloads.add(task := loop.create_task(reload_models(models)))
                task.add_done_callback(reloads.discard)

        if hasattr(signal, "SIGHUP"):
            try:
                loop.add_signal_handler(signal.SIGHUP, start_reload)
            except (RuntimeError, ValueError):  # not in the main thread, which has no signals
                log.debug("no reload by SIGHUP outside the main thread")
        yield
        await asyncio.to_thread(server.batcher.close)

    routes = [*plain_routes(server), *(make_path(route, server) for route in ROUTES)]
    handlers = {HTTPException: http_error, HttpError: http_error}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    hosts, origins = ({name.lower() for name in names} for names in (settings.allow_hosts, settings.allow_origins))
    return Protection(app, settings.key, hosts, origins)


def warm_up(models: ServedModels) -> None:
    """Let each model answer once; after a wrong answer, the server stays unhealthy."""
    try:
        models.warm_up()
    except Exception as error:
        log.error("not ready: %s", escape_control(str(error)))


async def reload_models(models: ServedModels) -> None:
    """Load the models again beside the present ones, which stay if that fails."""
    try:
        await asyncio.to_thread(models.reload)
        log.warning("loaded the models again: %s", escape_control(", ".join(models.by_name)))
    except Exception as error:
        log.error("the models could not be loaded again, those before stay: %s", escape_control(str(error)))
