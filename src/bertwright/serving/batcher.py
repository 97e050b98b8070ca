"""A queue of requests, and the one thread that owns the models.

The thread takes all that waits, up to a budget of tokens, as soon as it is free: a lone request waits for nothing, and
under load batches fill by themselves. A long request is computed in parts that take turns with other requests.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertwright.serving.model_methods import count_characters
from bertwright.serving.served_models import ServedModel


class Call(NamedTuple):
    """A computation; items of requests with equal calls are computed together."""

    model: str
    method: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False)
class Request:
    """Items that wait for their results, and what is known of them so far."""

    call: Call
    items: Sequence[Any]
    costs: Sequence[int]
    """Estimated tokens per item."""
    future: asyncio.Future[None]
    waits_since: float
    """Time since which nothing of it is computed."""
    taken: int = 0
    """Items that have left the queue."""
    done: int = 0
    values: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    queue_s: float = 0.0
    tokenize_s: float = 0.0
    compute_s: float = 0.0

    def end_wait(self) -> None:
        """Add the time in which nothing was computed to `queue_s`."""
        now = time.perf_counter()
        self.queue_s += now - self.waits_since
        self.waits_since = now


class Part(NamedTuple):
    """Consecutive items of a request that are computed in one batch."""

    request: Request
    items: Sequence[Any]
    cost: int


class PartResult(NamedTuple):
    """Results of a part, or the error that ended it."""

    part: Part
    values: Sequence[Any]
    tokens: Sequence[int]
    truncated: Sequence[bool]
    tokenize_s: float
    compute_s: float
    ended: float
    error: Exception | None = None


class Batch(NamedTuple):
    """Parts of requests that have the same call."""

    call: Call
    parts: list[Part]

    @property
    def cost(self) -> int:
        """Estimated tokens."""
        return sum(part.cost for part in self.parts)


class Batcher:
    """The queue and its thread."""

    def __init__(
        self,
        find: Callable[[str], ServedModel],
        batch_tokens: int,
        observe: Callable[[int, int], None] = lambda items, tokens: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread.

        `find`: return the model of a name; `observe`: receive items and tokens of each batch; `prepare`: what the
        thread does first.
        """
        self.find, self.batch_tokens, self.observe, self.prepare = find, batch_tokens, observe, prepare
        self.waiting: deque[Request] = deque()
        self.tokens = dict[str, int]()  # estimated, of all that waits or is computed, by model
        self.changed = threading.Condition()
        self.is_open = True
        self.thread = threading.Thread(target=self._run, name="models", daemon=True)
        self.thread.start()

    def promised_wait(self) -> float:
        """Return the seconds until all that waits now is done, by the measured rate of each model."""
        with self.changed:
            return sum(tokens / self.find(name).rate for name, tokens in self.tokens.items() if tokens)

    async def compute(self, call: Call, items: Sequence[Any], costs: Sequence[int], began: float) -> Request:
        """Compute the items' results; return the request with them. `began`: time from which it counts as waiting.

        Raises the error of the computation. A task that is cancelled in the meantime takes its items with it.
        """
        request = Request(call, items, costs, asyncio.get_running_loop().create_future(), began)
        if not items:
            return request
        with self.changed:
            self.waiting.append(request)
            self.tokens[call.model] = self.tokens.get(call.model, 0) + sum(costs)
            self.changed.notify()
        try:
            await request.future
        except asyncio.CancelledError:
            with self.changed:
                self._drop(request)
            raise
        return request

    def close(self) -> None:
        """End the thread once nothing waits."""
        with self.changed:
            self.is_open = False
            self.changed.notify()
        self.thread.join()

    def _drop(self, request: Request) -> None:
        """Forget the items of a request that are still in the queue; the lock is taken."""
        self.tokens[request.call.model] -= sum(request.costs[request.taken :])
        request.taken = len(request.items)
        if request in self.waiting:
            self.waiting.remove(request)

    def _run(self) -> None:
        self.prepare()
        while True:
            with self.changed:
                while self.is_open and not self.waiting:
                    self.changed.wait()
                if not self.waiting:
                    return
                batch = self._take()
            results = self._compute(batch)
            with self.changed:
                self.tokens[batch.call.model] -= batch.cost
                for result in results:
                    result.part.request.waits_since = result.ended
            loop = batch.parts[0].request.future.get_loop()
            loop.call_soon_threadsafe(self._deliver, results)

    def _take(self) -> Batch:
        """Take the next items of all requests that have the first one's call, up to the budget; the lock is taken.

        A request that does not fit goes to the end of the queue, behind those that it has delayed.
        """
        call, left = self.waiting[0].call, self.batch_tokens
        parts, unfinished, others = list[Part](), list[Request](), list[Request]()
        while self.waiting and (left > 0 or not parts):
            request = self.waiting.popleft()
            if request.call != call:
                others.append(request)
                continue
            first, cost = request.taken, 0
            for item_cost in request.costs[first:]:
                if cost + item_cost > left and (parts or cost):
                    break
                cost += item_cost
                request.taken += 1
            left -= cost
            if request.taken > first:
                parts.append(Part(request, request.items[first : request.taken], cost))
                request.end_wait()
            if request.taken < len(request.items):
                unfinished.append(request)
                break
        self.waiting.extendleft(reversed(others))
        self.waiting.extend(unfinished)
        return Batch(call, parts)

    def _compute(self, batch: Batch) -> list[PartResult]:
        """Compute a batch; if it fails, compute each part by itself, so that only the request at fault fails."""
        try:
            return self._compute_parts(batch.call, batch.parts)
        except Exception as error:
            if len(batch.parts) > 1:
                return [result for part in batch.parts for result in self._compute(Batch(batch.call, [part]))]
            return [PartResult(batch.parts[0], (), (), (), 0.0, 0.0, time.perf_counter(), error)]

    def _compute_parts(self, call: Call, parts: Sequence[Part]) -> list[PartResult]:
        model = self.find(call.model)
        items = [item for part in parts for item in part.items]
        began = time.perf_counter()
        tokens, truncated = model.measure(call.method, items)
        tokenized = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each reply says what was truncated
            values = model.compute(call.method, items, dict(call.options))
        ended = time.perf_counter()
        model.learn_rate(
            sum(part.cost for part in parts),
            sum(tokens),
            sum(map(count_characters, items)),
            ended - began,
        )
        self.observe(len(items), sum(tokens))
        results, start = list[PartResult](), 0
        for part in parts:
            chosen = slice(start, start := start + len(part.items))
            results.append(
                PartResult(
                    part, values[chosen], tokens[chosen], truncated[chosen], tokenized - began, ended - tokenized, ended
                )
            )
        return results

    def _deliver(self, results: Sequence[PartResult]) -> None:
        """Give requests the results of their parts; the event loop calls this."""
        for part, values, tokens, truncated, tokenize_s, compute_s, _, error in results:
            request = part.request
            request.values.extend(values)
            request.tokens.extend(tokens)
            request.truncated.extend(truncated)
            request.tokenize_s += tokenize_s
            request.compute_s += compute_s
            request.done += len(part.items)
            if request.future.done():
                continue
            if error is not None:
                with self.changed:
                    self._drop(request)
                request.future.set_exception(error)
            elif request.done == len(request.items):
                request.future.set_result(None)
