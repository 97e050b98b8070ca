"""`bertwright serve` for an hour at twice its capacity, and after a hundred kills; every answer is compared.

    python bench/serving_soak.py [--minutes 60] [--kills 100]

The model is all-MiniLM-L6-v2 in float32; texts have 5 to 200 tokens. An answer is right if its bytes are those of
`Bert.embed` of the text alone. Overload: requests of one text, and every fifth of eight, come at twice the measured
capacity and do not wait for replies; a line per five minutes has the statuses, the number of wrong answers, the
server's memory, and the milliseconds to the refusals (429) and to the answers. Kills: a server under load from eight
connections gets SIGKILL after 0.2 to 1 s and is started again at the same port; the line has the seconds from each
start to the first right answer. The lines go to bench/results/serving_soak.jsonl.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import bertwright
from environment import RESULTS, append_result, make_parser, minilm
from serving import Running, exchange, make_texts, our_command, request_bytes, running

FILE = RESULTS / "serving_soak.jsonl"
MANY = 8  # texts of every fifth request
REPORT_S = 300
MAX_WAIT_S = 2.0


@dataclass
class Tally:
    """What came back."""

    codes: Counter[int] = field(default_factory=Counter)
    texts: int = 0
    wrong: int = 0
    without_retry_after: int = 0
    answered_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """Return the figures for the results."""
        shares = {
            f"{name}_p{share}_ms": round(1000 * float(np.percentile(values, share)), 1)
            for name, values in (("answered", self.answered_s), ("refused", self.refused_s))
            for share in (50, 99)
            if values
        }
        counts = {"texts": self.texts, "wrong": self.wrong, "without_retry_after": self.without_retry_after}
        return {"codes": dict(self.codes), **counts, **shares}


class Client:
    """Connections to a server, and what its answers must be."""

    def __init__(self, texts: Sequence[str], expected: np.ndarray[Any, Any]) -> None:
        self.texts, self.expected, self.port, self.tally = texts, expected, 0, Tally()
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an idle connection that the server has not closed, or a new one."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof():
                return reader, writer
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, first: int, number: int) -> None:
        """Send some texts, compare the answer, and count it."""
        began, tally = time.perf_counter(), self.tally
        pair = await self.connect()
        chosen = slice(first, first + number)
        code, head, body = await exchange(*pair, request_bytes(self.texts[chosen]))
        self.idle.append(pair)
        seconds = time.perf_counter() - began
        tally.codes[code] += 1
        if code == 200:
            tally.answered_s.append(seconds)
            tally.texts += number
            tally.wrong += not np.array_equal(np.array(json.loads(body), np.float32), self.expected[chosen])
        else:
            tally.refused_s.append(seconds)
            tally.without_retry_after += b"retry-after:" not in head

    async def ask_any(self, rng: random.Random) -> None:
        """Send one text, or in every fifth request several."""
        await self.ask(rng.randrange(len(self.texts) - MANY), MANY if rng.random() < 0.2 else 1)

    async def keep_asking(self, seed: int, seconds: float) -> None:
        """Send one request after the other until the time is over or the server gone."""
        rng, end = random.Random(seed), time.perf_counter() + seconds
        try:
            while time.perf_counter() < end:
                await self.ask_any(rng)
        except (OSError, asyncio.IncompleteReadError):
            self.idle.clear()

    async def load(self, connections: int, seconds: float) -> Tally:
        """Send requests from several connections; return what came back."""
        self.tally = Tally()
        await asyncio.gather(*(self.keep_asking(number, seconds) for number in range(connections)))
        return self.tally


async def overload(client: Client, server: Running, minutes: float) -> None:
    """Send twice what the server computes; a line per REPORT_S goes to the results."""
    client.port, rng = server.port, random.Random(1)
    warm = await client.load(8, 30)
    requests_per_s = 2 * len(warm.answered_s) / 30
    client.tally = Tally()

    def report(now: float) -> None:
        figures = {"minute": round((now - began) / 60, 1), "resident_mib": server.resident_mib()}
        keep({"what": "overload", "requests_per_s": round(requests_per_s, 1), **figures, **client.tally.describe()})
        client.tally = Tally()

    began = reported = due = time.perf_counter()
    async with asyncio.TaskGroup() as requests:
        while (now := time.perf_counter()) - began < 60 * minutes:
            requests.create_task(client.ask_any(rng))
            if now - reported >= REPORT_S:
                reported = now
                report(now)
            due = max(due + 1 / requests_per_s, now - 1)  # a machine that stood still does not catch up
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    report(time.perf_counter())


def kill_again_and_again(client: Client, kills: int) -> None:
    """Kill servers under load; a line goes to the results."""
    seconds, total, rng, port = list[float](), Tally(), random.Random(2), 0

    async def ask_then_load() -> Tally:
        await client.load(1, 0.001)
        assert client.tally.codes == {200: 1}
        assert client.tally.wrong == 0
        seconds.append(time.perf_counter() - began)
        kill = asyncio.get_running_loop().call_later(rng.uniform(0.2, 1), server.process.kill)
        tally = await client.load(8, 60)
        kill.cancel()
        return tally

    for _ in range(kills):
        began = time.perf_counter()
        with running(lambda port: our_command(port, MAX_WAIT_S), port) as server:
            client.port = port = server.port
            tally = asyncio.run(ask_then_load())
            client.idle.clear()
            total.codes += tally.codes
            total.texts, total.wrong = total.texts + tally.texts, total.wrong + tally.wrong
    median, longest = round(statistics.median(seconds), 2), round(max(seconds), 2)
    keep({"what": "kills", "kills": kills, "first_answer_s": median, "longest_s": longest, **total.describe()})


def keep(figures: dict[str, Any]) -> None:
    """Print figures and append them to the results."""
    append_result(FILE, figures)
    print(json.dumps(figures), flush=True)


def main() -> None:
    """Kill first, then overload."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kills", type=int, default=100)
    arguments = parser.parse_args()
    texts = make_texts(256, 5, 200)
    model = bertwright.load(minilm(), "cpu")
    client = Client(texts, np.stack([model.embed(text) for text in texts]))
    if arguments.kills:
        kill_again_and_again(client, arguments.kills)
    if arguments.minutes:
        with running(lambda port: our_command(port, MAX_WAIT_S)) as server:
            asyncio.run(overload(client, server, arguments.minutes))


if __name__ == "__main__":
    main()
