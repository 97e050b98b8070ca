"""Limits, overload, clients that leave, batches, reload, the end of a server, and figures that add up."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import bertwright
from bertwright.serving.batcher import Batcher, Call
from bertwright.serving.model_methods import Counts
from bertwright.serving.serve_settings import LimitSettings, ServeSettings
from bertwright.serving.served_models import ServedModel, ServedModels
from helpers import CPU_CONTEXT
from serving.servers import TEXTS, running_server, wait_until_healthy

pytestmark = pytest.mark.filterwarnings("ignore:.* lose tokens", "ignore:.*UNK")


class SlowModel(ServedModel):
    """A model of 1,000 estimated tokens per second that records its batches."""

    def __init__(self) -> None:
        super().__init__("slow", None, measured_cost=10.0)  # type: ignore[arg-type]
        self.batches: list[list[str]] = []
        self.may_go = threading.Event()

    def measure(self, method: str, items: Any, options: Any) -> Counts:
        return Counts([len(item) for item in items], [False] * len(items), None)

    def compute(self, method: str, items: Any, options: Any) -> list[str]:
        assert self.may_go.wait(10)
        self.batches.append(list(items))
        if "wrong" in items:
            raise ValueError("wrong")
        return [item.upper() for item in items]


def run_batcher(requests: list[tuple[str, list[str]]], batch_tokens: int = 10) -> tuple[SlowModel, list[Any]]:
    """Let requests wait together; return the model and the results, or errors, of the requests."""
    model = SlowModel()
    batcher = Batcher(lambda name: model, batch_tokens)

    async def run() -> list[Any]:
        tasks = []
        for method, items in requests:
            tasks.append(
                asyncio.create_task(batcher.compute(Call("slow", method), items, [len(item) for item in items], 0.0))
            )
            await asyncio.sleep(0.01)
        model.may_go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    batcher.close()
    assert not any(batcher.tokens.values())
    return model, [result if isinstance(result, Exception) else result.values for result in results]


def test_waiting_requests_of_one_call_share_a_batch() -> None:
    model, results = run_batcher([("a", ["x"]), ("a", ["one"]), ("b", ["four"]), ("a", ["two", "six"])])
    assert model.batches == [["x"], ["one", "two", "six"], ["four"]]  # the first one found the thread free
    assert results == [["X"], ["ONE"], ["FOUR"], ["TWO", "SIX"]]


def test_a_long_request_takes_turns_with_short_ones() -> None:
    long = [f"long{number}" for number in range(6)]
    model, results = run_batcher([("a", ["x"]), ("a", long), ("b", ["b"]), ("a", ["y"])])
    assert model.batches == [["x"], long[:2], ["b"], ["y", long[2]], long[3:5], long[5:]]
    assert results[1] == [text.upper() for text in long]


def test_an_error_fails_only_its_own_request() -> None:
    _, results = run_batcher([("a", ["x"]), ("a", ["wrong"]), ("a", ["y"])], batch_tokens=100)
    assert (results[0], str(results[1]), results[2]) == (["X"], "wrong", ["Y"])


def test_items_of_a_cancelled_request_leave_the_queue() -> None:
    model = SlowModel()
    batcher = Batcher(lambda name: model, 10)

    async def run() -> None:
        first = asyncio.create_task(batcher.compute(Call("slow", "a"), ["x"], [1], 0.0))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(batcher.compute(Call("slow", "a"), ["y"] * 100, [1_000] * 100, 0.0))
        await asyncio.sleep(0.02)
        assert batcher.promised_wait() > 99
        second.cancel()
        await asyncio.sleep(0.02)
        assert batcher.promised_wait() < 1
        model.may_go.set()
        await first

    asyncio.run(run())
    batcher.close()
    assert model.batches == [["x"]]


def test_requests_beyond_the_promised_wait_get_429_at_once(model_folders: Path) -> None:
    limits = LimitSettings(max_wait=0.05, batch_tokens=64)
    with running_server([str(model_folders / "classes")], limits=limits) as client:
        body = {"texts": ["the cat sat"] * 200}
        with ThreadPoolExecutor(24) as pool:
            replies = [*pool.map(lambda _: client.post("/classify", json=body), range(96))]
        codes = [reply.status_code for reply in replies]
        assert set(codes) == {200, 429}
        rejected = next(reply for reply in replies if reply.status_code == 429)
        assert int(rejected.headers["retry-after"]) >= 1
        assert rejected.json()["error_type"] == "Overloaded"
        (expected,) = bertwright.load(model_folders / "classes", "cpu").classify(["the cat sat"])
        for reply in replies:
            if reply.status_code == 200:
                found = [[*one["probabilities"].values()] for one in reply.json()["predictions"]]
                assert np.allclose(found, [*expected.probabilities.values()], atol=1e-5)
        assert client.post("/classify", json={"texts": "the cat"}).status_code == 200  # once the queue is empty


def test_long_bodies_many_texts_and_tokens_are_rejected_with_the_limit(model_folders: Path) -> None:
    limits = LimitSettings(max_bytes=1_000, max_texts=3, max_tokens=20, body_timeout=0.3)
    with running_server([str(model_folders / "pretrained")], limits=limits) as client:
        for body, expected in (
            ({"inputs": "a" * 1_000}, "1,000 bytes"),
            ({"inputs": ["a"] * 4}, "3 texts"),
            ({"inputs": ["a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3] * 3}, "20 tokens"),
        ):
            reply = client.post("/embed", json=body)
            assert (reply.status_code, expected in reply.json()["error"]) == (413, True)
        chunks = client.post("/embed", content=iter([b"{" + b" " * 600, b" " * 600]))
        assert chunks.status_code == 413
        with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as slow:
            slow.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in slow.recv(1_000)


def test_a_client_that_leaves_is_counted_as_dropped(model_folders: Path) -> None:
    with running_server([str(model_folders / "pretrained")], limits=LimitSettings(batch_tokens=100)) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/embed", json={"inputs": [TEXTS[3]] * 9_000}, timeout=0.15)
        wait_for(lambda: 'failure_total{err="dropped"} 1.0' in client.get("/metrics").text)
        assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200


def test_a_defect_gets_500_and_its_place_without_texts_in_the_log(
    model_folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(bert: bertwright.Bert, texts: list[str]) -> None:
        raise RuntimeError(texts[0])

    with running_server([str(model_folders / "pretrained")]) as client:
        monkeypatch.setattr(bertwright.Bert, "embed", fail)
        reply = client.post("/embed", json={"inputs": "the cat"})
        assert (reply.status_code, reply.json()["error_type"]) == (500, "Backend")
        assert "in fail" in caplog.text
        assert "the cat" not in caplog.text + reply.text
        monkeypatch.undo()
        assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def read_metrics(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_figures_add_up(model_folders: Path) -> None:
    with running_server([str(model_folders / "pretrained")]) as client:
        bodies: list[dict[str, Any]] = [{"inputs": TEXTS * number} for number in range(1, 40)]
        with ThreadPoolExecutor(8) as pool:
            replies = [*pool.map(lambda body: client.post("/embed", json=body), bodies)]
        assert client.post("/embed", content=b"{").status_code == 400
        assert client.post("/tag", json={"texts": "a"}).status_code == 424
        metrics = read_metrics(client)
        counted = sum(value for name, value in metrics.items() if name.startswith("te_request_count_total"))
        outcomes = sum(value for name, value in metrics.items() if re.match("te_request_(success|failure)_total", name))
        assert counted == outcomes == len(bodies) + 2
        tokens = sum(int(reply.headers["x-compute-tokens"]) for reply in replies)
        assert metrics['te_request_tokens_total{model="pretrained"}'] == tokens == metrics["te_batch_next_tokens_sum"]
        bert = bertwright.load(model_folders / "pretrained", "cpu")
        assert tokens == len(bert.tokenizer.encode_ids(TEXTS).ids) * sum(range(1, 40))
        parts = sum(metrics[f"te_request_{name}_duration_sum"] for name in ("tokenization", "queue", "inference"))
        assert parts == pytest.approx(metrics["te_request_duration_sum"], rel=0.05)
        headers = replies[-1].headers
        times = [float(headers[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
        assert 0 < sum(times) <= float(headers["x-total-time"])


def test_heads_on_one_trunk_share_its_weights(model_folders: Path) -> None:
    models = ServedModels(
        ServeSettings(tuple(str(model_folders / name) for name in ("classes", "names", "gpt"))), CPU_CONTEXT
    )
    models.load()
    first, second, other = (model.bert.model.encoder.state_dict() for model in models.by_name.values())
    assert {tensor.data_ptr() for tensor in first.values()} == {tensor.data_ptr() for tensor in second.values()}
    assert not {tensor.data_ptr() for tensor in first.values()} & {tensor.data_ptr() for tensor in other.values()}


def test_search_finds_the_documents_of_an_index(model_folders: Path, tmp_path: Path) -> None:
    bert = bertwright.load(model_folders / "pretrained", "cpu")
    texts = [text for text in TEXTS if text]
    index = bertwright.SearchIndex.build(bert, texts, tmp_path / "index")
    folders = [str(model_folders / name) for name in ("relevance", "pretrained")]
    with running_server(folders, index=tmp_path / "index") as client:
        for by in ("vectors", "bm25", "fusion"):
            reply = client.post("/search", json={"query": ["the cat", "sat"], "top_k": 2, "by": by}).json()
            expected = index.search(["the cat", "sat"], 2, by)  # type: ignore[arg-type]
            assert [[tuple(hit.values()) for hit in hits] for hits in reply["predictions"]] == [
                [tuple(hit) for hit in hits] for hits in expected
            ]
        reranked = client.post("/search", json={"query": "the cat", "rerank": True}).json()["predictions"][0]
        ranks = bertwright.load(model_folders / "relevance", "cpu").rank("the cat", texts)
        assert np.allclose([hit["score"] for hit in reranked], [one.score for one in ranks], atol=1e-6)


@contextmanager
def running_command(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Start `bertwright serve`; yield its process and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])  # free from here on
    command = [sys.executable, "-m", "bertwright", "serve", *arguments, "--port", port]
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--threads", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            yield process, client
    finally:
        process.kill()


def test_the_command_reloads_on_sighup_from_the_first_moment_and_drains_on_sigterm(model_folders: Path) -> None:
    with running_command(str(model_folders / "classes")) as (process, client):
        address = (client.base_url.host, client.base_url.port)
        wait_for(lambda: process.poll() is not None or not socket.socket().connect_ex(address))
        process.send_signal(signal.SIGHUP)  # the socket listens, and the models are not loaded yet
        wait_until_healthy(client)
        for _ in range(10):
            process.send_signal(signal.SIGHUP)
            for _ in range(5):  # while it loads
                assert client.post("/classify", json={"texts": "the cat"}).status_code == 200
        with ThreadPoolExecutor(4) as pool:
            body = {"texts": [TEXTS[3]] * 1_000}
            replies = [pool.submit(client.post, "/classify", json=body) for _ in range(4)]
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert [reply.result().status_code for reply in replies] == [200] * 4
        output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 0, output
    assert "loaded the models again: classes" in output
    assert "the cat" not in output


@pytest.mark.slow
def test_a_minute_at_twice_the_capacity_has_right_answers_and_429_alone(model_folders: Path) -> None:
    """Clients that do not wait for replies send more than the server computes."""
    with running_server([str(model_folders / "pretrained")], limits=LimitSettings(max_wait=0.1)) as client:
        texts = [text for text in TEXTS if text] * 50
        expected = bertwright.load(model_folders / "pretrained", "cpu").embed(texts)
        codes: list[int] = []
        end = time.monotonic() + 60

        def send(number: int) -> None:
            chosen = slice(None) if number % 2 else slice(0, 1)
            with httpx.Client(base_url=client.base_url, timeout=30) as own:  # a client that threads share loses sockets
                while time.monotonic() < end:
                    reply = own.post("/embed", json={"inputs": texts[chosen], "model": "pretrained"})
                    codes.append(reply.status_code)
                    if reply.status_code == 200:
                        assert np.array_equal(np.array(reply.json(), np.float32), expected[chosen])
                    else:
                        assert (reply.status_code, int(reply.headers["retry-after"]) > 0) == (429, True)

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(send, range(32)))
        assert {*codes} == {200, 429}


@pytest.mark.slow
def test_schemathesis_finds_no_failure(client: httpx.Client) -> None:
    """All of its checks but one: a schema cannot say that a mask, an index or a name is missing."""
    command = ["schemathesis", "run", f"{client.base_url}/openapi.json", "--checks", "all", "--max-examples", "500"]
    left_out = ["--exclude-checks", "positive_data_acceptance", "--phases", "examples,coverage,fuzzing"]
    done = subprocess.run(
        [Path(sys.executable).with_name(command[0]), *command[1:], *left_out], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4_000:]
