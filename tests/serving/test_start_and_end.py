"""Reloads during and after the start, the bound of the end, addresses, names, and files that are missing."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bertwright.cli.main import run
from bertwright.serving.batcher import Call
from bertwright.serving.http_app import Server, make_app
from bertwright.serving.route import Job
from bertwright.serving.serve import bind, serve
from bertwright.serving.serve_settings import LimitSettings, ServeSettings, check_inputs
from bertwright.serving.served_models import ServedModel, ServedModels, unique_name
from helpers import CPU_CONTEXT
from serving.servers import TEXTS, wait_until_healthy
from serving.test_limits_and_load import running_command


def served(model_folders: Path, name: str = "vectors") -> ServedModels:
    """Load a model without an answer."""
    models = ServedModels(ServeSettings((str(model_folders / name),)), CPU_CONTEXT)
    models.load()
    return models


def test_a_reload_while_models_start_waits_and_serves_what_has_answered(
    model_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, may_go, warmed = served(model_folders), threading.Event(), list[ServedModel]()
    own = ServedModel.warm_up

    def warm_up(model: ServedModel) -> None:
        assert may_go.wait(10)
        own(model)
        warmed.append(model)

    monkeypatch.setattr(ServedModel, "warm_up", warm_up)
    with ThreadPoolExecutor(3) as pool:
        started = pool.submit(models.warm_up)
        time.sleep(0.1)
        reloads = [pool.submit(models.reload) for _ in range(2)]
        time.sleep(0.1)
        assert not models.is_ready
        may_go.set()
        for future in (started, *reloads):
            future.result()
    assert models.is_ready
    assert models.by_name["vectors"] is warmed[-1]
    assert models.by_name["vectors"].methods
    assert len(warmed) == 3


def test_a_reload_makes_a_server_ready_whose_start_failed(model_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = served(model_folders)

    def fail(model: ServedModel) -> None:
        raise ValueError("wrong")

    monkeypatch.setattr(ServedModel, "warm_up", fail)
    with pytest.raises(ValueError, match="wrong"):
        models.warm_up()
    before = models.by_name
    with pytest.raises(ValueError, match="wrong"):
        models.reload()
    assert (models.is_ready, models.by_name is before) == (False, True)
    monkeypatch.undo()
    models.reload()
    assert models.is_ready
    assert models.choose("embed").methods


def test_reloads_take_turns(model_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, running, most = served(model_folders), [0], [0]
    models.warm_up()
    own = ServedModels._load_all

    def load(self: ServedModels, warm_up: bool) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.05)
        own(self, warm_up)
        running[0] -= 1

    monkeypatch.setattr(ServedModels, "_load_all", load)
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(models.reload) for _ in range(4)]:
            future.result()
    assert most == [1]


def test_what_waits_is_dropped_when_a_handler_is_cancelled(model_folders: Path) -> None:
    """After --drain-timeout, the server of HTTP cancels its handlers."""
    models = served(model_folders, "classes")
    models.settings = ServeSettings(models.settings.models, limits=LimitSettings(batch_tokens=50))
    server = Server(models)
    computed = list[int]()
    server.batcher.observe = lambda items, tokens: computed.append(items)

    async def run() -> None:
        while not models.is_ready:
            await asyncio.sleep(0.02)
        model, may_go = models.choose("classify"), threading.Event()
        own = model.compute

        def compute(method: str, items: Any, options: Any) -> Any:
            assert may_go.wait(10)
            return own(method, items, options)

        model.compute = compute  # type: ignore[method-assign]
        job = Job(Call("classes", "classify"), [TEXTS[0]] * 1_000, lambda request: None)

        async def receive() -> Any:
            await asyncio.sleep(100)

        handler = asyncio.create_task(server.compute(job, receive, time.perf_counter()))
        await asyncio.sleep(0.1)
        handler.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handler
        await asyncio.sleep(0.1)
        may_go.set()
        await asyncio.to_thread(server.batcher.close)

    asyncio.run(run())
    assert sum(computed) < 100
    assert not any(server.batcher.tokens.values())


def test_a_long_request_ends_with_the_drain_timeout(model_folders: Path) -> None:
    limits = ["--drain-timeout", "1", "--batch-tokens", "8"]
    with running_command(str(model_folders / "classes"), *limits) as (process, client), ThreadPoolExecutor(1) as pool:
        wait_until_healthy(client)
        reply = pool.submit(client.post, "/classify", json={"texts": [TEXTS[3]] * 10_000})
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.communicate(timeout=120)
        took = time.monotonic() - began
        assert (reply.result().status_code, reply.result().json()["error_type"]) == (503, "Unhealthy")
    assert took < 10


def test_info_before_the_first_answer_is_503_in_json(model_folders: Path) -> None:
    models = served(model_folders)
    models.warm_up = lambda: None  # type: ignore[method-assign]
    with TestClient(make_app(models), base_url="http://localhost") as client:
        for path in ("/info", "/health"):
            reply = client.get(path)
            assert (reply.status_code, reply.json()["error_type"]) == (503, "Unhealthy")
            assert reply.headers["retry-after"] == "1"
        assert client.get("/models").json()["data"][0]["routes"] == []


def test_a_second_server_at_an_address_is_refused_before_models_are_loaded(
    model_folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ServedModels, "load", lambda _: pytest.fail("loaded"))
    with bind("127.0.0.1", 0) as first:
        assert run(["serve", str(model_folders / "vectors"), "--port", str(first.getsockname()[1])]) == 2
    assert "--port" in capsys.readouterr().err


def test_addresses_of_numbers_with_colons_are_urls(monkeypatch: pytest.MonkeyPatch, model_folders: Path) -> None:
    lines = list[str]()

    class Lines:
        def record(self, line: Any) -> None:
            lines.append(line.text)

    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("bertwright.serving.serve.bind", lambda host, port: bind("127.0.0.1", 0))
    serve(ServeSettings((str(model_folders / "vectors"),), host="::1"), Lines())  # type: ignore[arg-type]
    assert lines[0].startswith("http://[::1]:")


def test_folders_without_a_name_get_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mrpc" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mrpc")
    assert [unique_name(name, {}) for name in (".", "./", "model/..")] == ["mrpc"] * 3
    monkeypatch.chdir("model")
    assert [unique_name(name, {}) for name in (".", "..")] == ["mrpc"] * 2


def test_missing_files_of_examples_are_found_before_models_are_loaded(model_folders: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nix\.tsv"):
        check_inputs(ServeSettings((str(model_folders / "classes"),), examples=(str(tmp_path / "nix.tsv"),)))
