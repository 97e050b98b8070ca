"""Figures of a server in Prometheus' format, with the names of text-embeddings-inference where it has them.

`te_request_count_total` = `te_request_success_total` + the sum of `te_request_failure_total` + requests in progress.
For each answered request, from its last byte on, total = tokenization + queue + inference + what it takes to build the
reply; the queue is all the time in which nothing of it is computed.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bertwright.serving.batcher import Request

SECONDS = tuple(15e-6 * 1.5**power for power in range(35))
SIZES = tuple(2.0**power for power in range(21))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServingMetrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.count = Counter("te_request_count", "Requests", ["method"], registry=registry)
        self.success = Counter("te_request_success", "Answered requests", ["method"], registry=registry)
        self.failure = Counter("te_request_failure", "Requests that failed, by reason", ["err"], registry=registry)
        self.tokens = Counter("te_request_tokens", "Tokens read of answered requests", ["model"], registry=registry)
        self.truncated = Counter("te_request_truncated", "Texts that lost tokens", ["model"], registry=registry)
        self.total = self._seconds("te_request_duration", "Seconds of an answered request")
        self.tokenization = self._seconds("te_request_tokenization_duration", "Seconds of counting its tokens")
        self.queue = self._seconds("te_request_queue_duration", "Seconds in the queue")
        self.inference = self._seconds("te_request_inference_duration", "Seconds of its batches in the model")
        self.input_length = Histogram("te_request_input_length", "Tokens", registry=registry, buckets=SIZES)
        self.batch_size = Histogram("te_batch_next_size", "Texts per batch", registry=registry, buckets=SIZES)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens per batch", registry=registry, buckets=SIZES)
        self.queue_size = Gauge("te_queue_size", "Requests that wait", registry=registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=SECONDS)

    def observe_batch(self, items: int, tokens: int) -> None:
        self.batch_size.observe(items)
        self.batch_tokens.observe(tokens)

    def observe_request(self, request: Request, total_s: float) -> None:
        tokens = sum(request.tokens)
        self.tokens.labels(request.call.model).inc(tokens)
        self.truncated.labels(request.call.model).inc(sum(request.truncated))
        self.input_length.observe(tokens)
        self.total.observe(total_s)
        self.tokenization.observe(request.tokenize_s)
        self.queue.observe(request.queue_s)
        self.inference.observe(request.compute_s)

    def render(self, waiting: int) -> bytes:
        self.queue_size.set(waiting)
        return generate_latest(self.registry)
