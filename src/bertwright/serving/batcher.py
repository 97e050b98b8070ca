"""A queue of requests, and the one thread that owns the models.

The thread takes all that waits, up to a budget of tokens, as soon as it is free: a lone request waits for nothing, and
under load batches fill by themselves. A long request is computed in parts that take turns with other requests.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertwright.serving.served_models import ServedModel

INDEXED = re.compile(r"^(text|prompt|question|context|choice) (\d+)")  # messages about one of several items


class Call(NamedTuple):
    """A computation; items of requests with equal calls are computed together."""

    model: str
    method: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False)
class Request:
    """Items that wait for their results, and the results so far, in order."""

    call: Call
    items: Sequence[Any]
    costs: Sequence[int]
    """Estimated tokens per item."""
    future: asyncio.Future[None]
    waits_since: float
    """Time since which nothing of it is computed."""
    taken: int = 0
    """Items that have left the queue."""
    values: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Tokens that were read of each item."""
    truncated: list[bool] = field(default_factory=list)
    queue_s: float = 0.0
    tokenize_s: float = 0.0
    compute_s: float = 0.0

    @property
    def truncated_items(self) -> list[int]:
        """Indices of the items that lost tokens."""
        return [index for index, is_truncated in enumerate(self.truncated) if is_truncated]

    def end_wait(self) -> None:
        """Add the time in which nothing was computed to `queue_s`."""
        now = time.perf_counter()
        self.queue_s += now - self.waits_since
        self.waits_since = now

    def take(self, budget: int, at_least_one: bool) -> Part:
        """Take the next items, up to a budget of tokens; the first one may be larger if `at_least_one`."""
        self.end_wait()
        first, cost = self.taken, 0
        for item_cost in self.costs[first:]:
            if cost + item_cost > budget and not (at_least_one and self.taken == first):
                break
            cost += item_cost
            self.taken += 1
        return Part(self, first, self.items[first : self.taken], cost)


class Part(NamedTuple):
    """Consecutive items of a request that are computed in one batch."""

    request: Request
    first: int
    """Index of the first of them."""
    items: Sequence[Any]
    cost: int


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
        self.tokens = Counter[tuple[str, str]]()  # estimated, of all that waits or is computed, by model and method
        self.changed = threading.Condition()
        self.is_open = True
        self.thread = threading.Thread(target=self._run, name="models", daemon=True)
        self.thread.start()

    def promised_wait(self) -> float:
        """Return the seconds until all that waits now is done, by the measured rate of each method."""
        with self.changed:
            return sum(
                tokens / self.find(name).rate(method) for (name, method), tokens in self.tokens.items() if tokens
            )

    async def compute(self, call: Call, items: Sequence[Any], costs: Sequence[int], began: float) -> Request:
        """Compute the items' results; return the request with them. `began`: time from which it counts as waiting.

        Raises the error of the computation. A task that is cancelled in the meantime takes its items with it.
        """
        request = Request(call, items, costs, asyncio.get_running_loop().create_future(), began)
        if not items:
            return request
        with self.changed:
            self.waiting.append(request)
            self.tokens[call[:2]] += sum(costs)
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
        self.tokens[request.call[:2]] -= sum(request.costs[request.taken :])
        request.taken = len(request.items)
        if request in self.waiting:
            self.waiting.remove(request)

    def _run(self) -> None:
        self.prepare()
        while parts := self._take():
            ended = self._compute(parts)
            request = parts[0].request
            with self.changed:
                self.tokens[request.call[:2]] -= sum(part.cost for part in parts)
            request.future.get_loop().call_soon_threadsafe(notify, ended)

    def _take(self) -> list[Part]:
        """Wait; take the next items of all requests that have the first one's call, up to the budget.

        A request that does not fit goes to the end of the queue, behind those that it has delayed. There are no items
        once the batcher is closed.
        """
        parts, unfinished, others = list[Part](), list[Request](), list[Request]()
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or not self.is_open)
            left = self.batch_tokens
            while self.waiting and (left > 0 or not parts):
                request = self.waiting.popleft()
                if parts and request.call != parts[0].request.call:
                    others.append(request)
                    continue
                part = request.take(left, at_least_one=not parts)
                left -= part.cost
                if part.items:
                    parts.append(part)
                if request.taken < len(request.items):
                    unfinished.append(request)
                    break
            self.waiting.extendleft(reversed(others))
            self.waiting.extend(unfinished)
        return parts

    def _compute(self, parts: Sequence[Part]) -> list[tuple[Request, Exception | None]]:
        """Compute a batch; return the requests that it ends, with their errors.

        If it fails, each part is computed by itself, so that only the request at fault fails.
        """
        try:
            self._compute_together(parts)
        except Exception as error:
            if len(parts) > 1:
                return [ended for part in parts for ended in self._compute([part])]
            with self.changed:
                self._drop(parts[0].request)
            if isinstance(error, ValueError):
                error = ValueError(shift_index(str(error), parts[0].first))
            return [(parts[0].request, error)]
        return [(request, None) for request, *_ in parts if len(request.values) == len(request.items)]

    def _compute_together(self, parts: Sequence[Part]) -> None:
        call = parts[0].request.call
        model = self.find(call.model)
        items = [item for part in parts for item in part.items]
        began = time.perf_counter()
        options = dict(call.options)
        tokens, truncated, density = model.measure(call.method, items, options)
        tokenized = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each reply says what was truncated
            values = model.compute(call.method, items, options)
        ended = time.perf_counter()
        model.learn_rate(call.method, sum(part.cost for part in parts), density, ended - began)
        self.observe(len(items), sum(tokens))
        start = 0
        for request, _, of_part, _ in parts:
            chosen = slice(start, start := start + len(of_part))
            request.values.extend(values[chosen])
            request.tokens.extend(tokens[chosen])
            request.truncated.extend(truncated[chosen])
            request.tokenize_s += tokenized - began
            request.compute_s += ended - tokenized
            request.waits_since = ended


def shift_index(message: str, first: int) -> str:
    """Return a message about an item of a part with its index in the request.

    >>> shift_index("text 3: expected a text, got an empty one; leave it out", 100)
    'text 103: expected a text, got an empty one; leave it out'
    """
    return INDEXED.sub(lambda match: f"{match[1]} {int(match[2]) + first}", message)


def notify(ended: Sequence[tuple[Request, Exception | None]]) -> None:
    """Let those who wait for requests go on; the event loop calls this."""
    for request, error in ended:
        if request.future.done():  # the client has left
            continue
        if error is None:
            request.future.set_result(None)
        else:
            request.future.set_exception(error)
