"""Speed of `bertwright serve` with all-MiniLM-L6-v2: throughput, latency, overload, beside a plain server.

    python bench/serving.py [--seconds 15] [--rounds 2] [--texts FILE]

In turns, on the same texts of 5 to 200 words: `Bert.embed` in a process of its own (lists of 32 in order of arrival);
`bertwright serve` with 64 connections, 32 texts and one text a request; one client with 16 tokens; arrivals at twice
the capacity that do not wait for replies; and a plain server, Starlette with sentence-transformers' `encode` per
request, as people write it. The load comes from this process; its CPU seconds are taken off: rate = texts / (seconds −
CPU seconds of this process / CPUs). A line per measurement goes to bench/results/serving.jsonl. With --seconds 5 and
--rounds 1, it takes about four minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from environment import RESULTS, append_result, make_parser, minilm

ROOT = Path(__file__).parents[1]
FILE = RESULTS / "serving.jsonl"
CONNECTIONS = 64
CPUS = os.cpu_count() or 1


class Load(NamedTuple):
    """What a measurement saw."""

    seconds: float
    generator_s: float
    """CPU seconds of this process."""
    texts: int
    codes: dict[int, int]
    latencies_s: Sequence[float]

    def describe(self) -> dict[str, Any]:
        """Return the figures for the results."""
        corrected = self.seconds - self.generator_s / CPUS
        shares = np.percentile(self.latencies_s, [50, 99]) * 1000 if self.latencies_s else [0, 0]
        return {
            "texts_per_s": round(self.texts / corrected, 1),
            "uncorrected_texts_per_s": round(self.texts / self.seconds, 1),
            "generator_cpu_share": round(self.generator_s / self.seconds / CPUS, 3), "codes": self.codes,
            "p50_ms": round(float(shares[0]), 2), "p99_ms": round(float(shares[1]), 2),
        }  # fmt: skip


def make_texts(words: Sequence[str], number: int, low: int, high: int) -> list[str]:
    """Return texts of `low` to `high` words."""
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=rng.randint(low, high))) for _ in range(number)]


def request_bytes(texts: Sequence[str]) -> bytes:
    """Return a request of POST /embed."""
    body = json.dumps({"inputs": [*texts]}).encode()
    return b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request and read its reply; return the status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head[9:12])


async def closed_loop(port: int, texts: Sequence[str], per_request: int, connections: int, seconds: float) -> Load:
    """Let each connection send its next request when it has the reply to the one before."""
    requests = [request_bytes(texts[n : n + per_request]) for n in range(0, len(texts) - per_request + 1, per_request)]
    codes, latencies, done = Counter[int](), list[float](), 0
    end = time.perf_counter() + seconds

    async def connection(number: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while (began := time.perf_counter()) < end:
            code = await exchange(reader, writer, requests[place % len(requests)])
            place += connections
            latencies.append(time.perf_counter() - began)
            codes[code] += 1
            done += per_request * (code == 200)
        writer.close()

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(connection(number) for number in range(connections)))
    return Load(time.perf_counter() - began, time.process_time() - cpu, done, dict(codes), latencies)


async def open_loop(port: int, texts: Sequence[str], per_second: float, seconds: float) -> Load:
    """Send single texts at a fixed rate, whether or not replies have come."""
    codes, latencies = Counter[int](), list[float]()
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(text: str) -> None:
        began = time.perf_counter()
        pair = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        code = await exchange(*pair, request_bytes([text]))
        idle.append(pair)
        codes[code] += 1
        if code == 200:
            latencies.append(time.perf_counter() - began)

    began, cpu, tasks = time.perf_counter(), time.process_time(), list[asyncio.Task[None]]()
    for number in range(int(per_second * seconds)):
        await asyncio.sleep(max(0.0, began + number / per_second - time.perf_counter()))
        tasks.append(asyncio.create_task(one(texts[number % len(texts)])))
    await asyncio.gather(*tasks)
    return Load(time.perf_counter() - began, time.process_time() - cpu, codes[200], dict(codes), latencies)


def serve_plainly(port: int) -> None:
    """Serve sentence-transformers as people write it: a route that encodes the texts of its own request."""
    import uvicorn
    from sentence_transformers import SentenceTransformer
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    model = SentenceTransformer(str(minilm()), device="cpu")

    async def embed(request: Request) -> Response:
        texts = (await request.json())["inputs"]
        vectors = await asyncio.to_thread(model.encode, texts, show_progress_bar=False)
        return JSONResponse(vectors.tolist())

    async def health(request: Request) -> Response:
        return Response()

    app = Starlette(routes=[Route("/embed", embed, methods=["POST"]), Route("/health", health)])
    uvicorn.run(app, port=port, log_level="error")


def embed_in_process(texts: Sequence[str], seconds: float, per_call: int) -> None:
    """Print texts per second and the median seconds of a call."""
    import torch

    import bertwright

    torch.set_num_threads(CPUS)
    model, times, place = bertwright.load(minilm(), "cpu", torch.float32), list[float](), 0
    model.embed(texts[:per_call])
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        model.embed([texts[n % len(texts)] for n in range(place, place + per_call)])
        place += per_call
        times.append(time.perf_counter() - began)
    print(json.dumps({"texts_per_s": round(place / sum(times), 1), "p50_ms": round(1000 * float(np.median(times)), 2)}))


@contextmanager
def running(command: Callable[[int], list[str]]) -> Iterator[int]:
    """Run a server until it answers /health; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    process = subprocess.Popen([sys.executable, *command(port)], env={**os.environ, "OMP_NUM_THREADS": str(CPUS)})
    try:
        for _ in range(600):
            if is_healthy(port):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def is_healthy(port: int) -> bool:
    """Return whether a server answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return b" 200 " in connection.recv(1_000)
    except OSError:
        return False


def our_command(port: int, max_wait: int = 120) -> list[str]:
    limits = ["--max-wait", str(max_wait)]
    return ["-m", "bertwright", "serve", str(minilm()), "--port", str(port), "--dtype", "float32", *limits]


def plain_command(port: int) -> list[str]:
    return [__file__, "--plain", str(port)]


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the measurements of a round."""
    seconds, words = arguments.seconds, arguments.words
    texts, short = make_texts(words, 4_096, 5, 200), make_texts(words, 512, 12, 12)
    for per_call, kind in ((32, "mixed"), (1, "short")):
        command = [sys.executable, __file__, "--in-process", str(per_call), "--seconds", str(seconds)]
        output = subprocess.run([*command, "--texts", str(arguments.texts)], check=True, capture_output=True, text=True)
        yield {"what": f"in process, {kind}, lists of {per_call}", **json.loads(output.stdout.splitlines()[-1])}
    capacity = 100.0
    for name, start in (("bertwright", our_command), ("plain", plain_command)):
        with running(start) as port:
            asyncio.run(closed_loop(port, texts, 32, 4, 2))  # warm
            for per_request in (32, 1):
                load = asyncio.run(closed_loop(port, texts, per_request, CONNECTIONS, seconds))
                yield {"what": f"{name}, {CONNECTIONS} connections, {per_request} texts a request", **load.describe()}
                capacity = load.texts / load.seconds
            load = asyncio.run(closed_loop(port, short, 1, 1, seconds / 2))
            yield {"what": f"{name}, one client, 12 words", **load.describe()}
        if name == "bertwright":
            with running(lambda port: our_command(port, max_wait=1)) as port:
                load = asyncio.run(open_loop(port, texts, 2 * capacity, seconds))
                yield {"what": f"{name}, arrivals at twice the capacity", **load.describe()}


def main() -> None:
    """Measure in turns, print the figures, and append them to the results."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--texts", type=Path, default=ROOT / "README.md", help="file whose words make the texts")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--in-process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.words = arguments.texts.read_text(encoding="utf-8", errors="replace").split()
    if arguments.plain:
        serve_plainly(arguments.plain)
    elif arguments.in_process:
        is_mixed = arguments.in_process > 1
        texts = make_texts(arguments.words, 4_096, 5, 200) if is_mixed else make_texts(arguments.words, 512, 12, 12)
        embed_in_process(texts, arguments.seconds, arguments.in_process)
    else:
        for number in range(arguments.rounds):
            for figures in measure(arguments):
                append_result(FILE, {"seconds": arguments.seconds, "round": number, **figures})
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
