"""Speed of `bertwright serve` with all-MiniLM-L6-v2: throughput, latency, overload, start, memory; a plain server.

    python bench/serving.py [--seconds 15] [--rounds 2]

In turns, on the same texts of 5 to 200 tokens: `Bert.embed` in a process of its own (lists of 32 in order of arrival);
`bertwright serve`, float32 and int8, with 64 connections, 32 texts and one text a request, and with one connection; one
client with 16 tokens; arrivals at twice the capacity that do not wait for replies; and a plain server, Starlette with
sentence-transformers' `encode` per request, as people write it. Further: the seconds from the start of a process to its
first answer, by `load` and by the server; and the memory of a server with one and with three heads on a BERT base. The
load comes from this process; its CPU seconds are taken off: rate = texts / (seconds − CPU seconds of this process /
CPUs). A line per measurement goes to bench/results/serving.jsonl. With --seconds 5 and --rounds 1, it takes about five
minutes on two cores: 64 requests of 32 texts each are what a slow machine computes in 40 seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertwright
from bertwright.inference.bert import Bert
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.classification import Classification
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from contenders import run_alone
from environment import RESULTS, append_result, make_parser, minilm

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


def make_texts(number: int, low: int, high: int) -> list[str]:
    """Return texts of `low` to `high` tokens: words of the vocabulary, with [CLS] and [SEP] around them."""
    tokens = (minilm() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words, rng = [token for token in tokens if token.isascii() and token.isalpha()], random.Random(1)
    return [" ".join(rng.choices(words, k=rng.randint(low, high) - 2)) for _ in range(number)]


def request_bytes(texts: Sequence[str]) -> bytes:
    """Return a request of POST /embed."""
    body = json.dumps({"inputs": [*texts]}).encode()
    return b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes, bytes]:
    """Send a request; return status, head in lower case, and body of its reply."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return int(head[9:12]), head, await reader.readexactly(length)


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
            code, _, _ = await exchange(reader, writer, requests[place % len(requests)])
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
        code, _, _ = await exchange(*pair, request_bytes([text]))
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


def embed_in_process(texts: Sequence[str], seconds: float, per_call: int) -> dict[str, Any]:
    """Return texts per second and the median milliseconds of a call."""
    model, times, place = bertwright.load(minilm(), "cpu"), list[float](), 0
    model.embed(texts[:per_call])
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        model.embed([texts[n % len(texts)] for n in range(place, place + per_call)])
        place += per_call
        times.append(time.perf_counter() - began)
    return {"texts_per_s": round(place / sum(times), 1), "p50_ms": round(1000 * float(np.median(times)), 2)}


class Running(NamedTuple):
    """A server that answers /health."""

    port: int
    process: subprocess.Popen[bytes]

    def resident_mib(self) -> float:
        """Return the memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


@contextmanager
def running(command: Callable[[int], list[str]], port: int = 0) -> Iterator[Running]:
    """Run a server until the block ends, at a port; 0: at a free one."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = int(listener.getsockname()[1])
    process = subprocess.Popen([sys.executable, *command(port)], stdout=subprocess.DEVNULL)
    try:
        while not is_healthy(port):
            if process.poll() is not None:
                raise SystemExit(f"{command(port)} ended with {process.returncode}")
            time.sleep(0.02)
        yield Running(port, process)
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


def our_command(port: int, max_wait: float = 120, models: Sequence[str] = (), dtype: str = "float32") -> list[str]:
    settings = ["--port", str(port), "--dtype", dtype, "--max-wait", str(max_wait)]
    return ["-m", "bertwright", "serve", *(models or [str(minilm())]), *settings]


def plain_command(port: int) -> list[str]:
    folder = str(Path(__file__).parent)
    return ["-c", f"import sys; sys.path.insert(0, {folder!r}); import serving; serving.serve_plainly({port})"]


def measure_start(times: int = 3) -> dict[str, Any]:
    """Return the median seconds from the start of a process to its first vector, by `load` and by the server."""
    script = f"import bertwright; print(bertwright.load({str(minilm())!r}, 'cpu').embed('a bear')[0], flush=True)"
    by_load, by_server = list[float](), list[float]()
    for _ in range(times):
        began = time.perf_counter()
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            by_load.append(time.perf_counter() - began)
        began = time.perf_counter()
        with running(our_command) as server:
            asyncio.run(closed_loop(server.port, ["a bear"], 1, 1, 0.001))
            by_server.append(time.perf_counter() - began)
    medians = statistics.median(by_load), statistics.median(by_server)
    return {"load_s": round(medians[0], 2), "serve_s": round(medians[1], 2)}


def measure_memory() -> dict[str, Any]:
    """Return the MiB of a server with one and with three heads on the trunk of a BERT base, with random weights."""
    tokenizer = open_tokenizer(minilm())
    trunk = BertEncoder(BertConfig(tokenizer.vocab_size), seed=1)
    tasks: tuple[AnyTask, ...] = (
        Classification(labels=("a", "b")),
        Tagging(labels=("O", "B-X", "I-X"), scheme="iob2"),
        QuestionAnswering(),
    )
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / task.kind) for task in tasks]
        for name, task in zip(names, tasks, strict=True):
            Bert(TaskModel(EncoderForTask(trunk, task.head, seed=1), task), tokenizer).save(name)
        for number in (1, 3):
            with running(lambda port: our_command(port, models=names[:number])) as server:  # noqa: B023
                found[f"heads_{number}_mib"] = server.resident_mib()
    return found


def measure_server(name: str, start: Callable[[int], list[str]], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield throughput and latency of a server."""
    texts, short = make_texts(4_096, 5, 200), make_texts(512, 16, 16)
    with running(start) as server:
        asyncio.run(closed_loop(server.port, texts, 32, 4, 2))  # warm
        for connections, per_request in ((CONNECTIONS, 32), (CONNECTIONS, 1), (1, 1)):
            load = asyncio.run(closed_loop(server.port, texts, per_request, connections, seconds))
            yield {"what": f"{name}, connections {connections}, texts a request {per_request}", **load.describe()}
        load = asyncio.run(closed_loop(server.port, short, 1, 1, seconds / 2))
        yield {"what": f"{name}, one client, 16 tokens", **load.describe()}


def measure(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the measurements of a round."""
    for per_call, kind, texts in ((32, "mixed", make_texts(4_096, 5, 200)), (1, "short", make_texts(512, 16, 16))):
        figures = run_alone(embed_in_process, texts, seconds, per_call)
        yield {"what": f"in process, {kind}, lists of {per_call}", **figures}
    capacity = 0.0
    for figures in measure_server("bertwright", our_command, seconds):
        capacity = max(capacity, figures["texts_per_s"])
        yield figures
    with running(lambda port: our_command(port, max_wait=1)) as server:
        load = asyncio.run(open_loop(server.port, make_texts(4_096, 5, 200), 2 * capacity, seconds))
        yield {"what": "bertwright, arrivals at twice the capacity", **load.describe()}
    yield from measure_server("bertwright int8", partial(our_command, dtype="int8"), seconds)
    yield from measure_server("plain", plain_command, seconds)
    yield {"what": "start", **measure_start()}
    yield {"what": "memory", **measure_memory()}


def main() -> None:
    """Measure in turns, print the figures, and append them to the results."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    for number in range(arguments.rounds):
        for figures in measure(arguments.seconds):
            append_result(FILE, {"seconds": arguments.seconds, "round": number, **figures})
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
