"""`bertwright push` against a stub of the hub's HTTP API, over a socket: what arrives is what loading reads."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, jsonify, request
from huggingface_hub import ModelCard, constants
from werkzeug.serving import make_server

from bertwright.cli.main import run
from bertwright.interop.model_files import CHECKSUMS, WEIGHTS


class Hub:
    """A stub of the hub: a repository without files, which takes commits of one token."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.app = Flask("hub")
        self.app.before_request(self.check_token)
        self.app.post("/api/repos/create")(self.create)
        self.app.post("/api/models/me/tiny/preupload/main")(self.preupload)
        self.app.post("/me/tiny.git/info/lfs/objects/batch")(self.batch)
        self.app.put("/lfs/<digest>")(self.upload)
        self.app.post("/api/models/me/tiny/commit/main")(self.commit)
        self.app.post("/api/validate-yaml")(lambda: jsonify({"errors": [], "warnings": []}))
        self.stored: dict[str, bytes] = {}
        self.server = make_server("127.0.0.1", 0, self.app, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.port}"

    def check_token(self) -> tuple[Response, int] | None:
        if request.path.startswith("/lfs/") or request.headers.get("authorization") == "Bearer hf_right":
            return None
        return jsonify({"error": "Invalid credentials"}), 401

    def create(self) -> Response:
        self.created.append(request.get_json())
        return jsonify({"url": f"{self.url}/me/tiny"})

    def preupload(self) -> Response:
        names = [file["path"] for file in request.get_json()["files"]]
        modes = {name: "lfs" if name == WEIGHTS else "regular" for name in names}
        return jsonify({"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]})

    def batch(self) -> Response:
        found = [{**o, "actions": {"upload": {"href": f"{self.url}/lfs/{o['oid']}"}}} for o in request.json["objects"]]
        return jsonify({"transfer": "basic", "objects": found})

    def upload(self, digest: str) -> str:
        self.stored[digest] = request.get_data()
        return ""

    def commit(self) -> Response:
        for line in request.get_data().splitlines():
            record = json.loads(line)
            value = record["value"]
            if record["key"] == "header":
                self.messages.append(value["summary"])
            elif record["key"] == "lfsFile":
                self.files[value["path"]] = self.stored[value["oid"]]
            else:
                self.files[value["path"]] = base64.b64decode(value["content"])
        return jsonify({"commitUrl": f"{self.url}/me/tiny/commit/1", "commitOid": "1"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run the stub, with the settings that huggingface_hub reads when it is imported and the right token."""
    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()


def test_push_sends_the_files_of_a_checkpoint_without_its_optimizer(hub: Hub, unfinished_run: Path) -> None:
    (checkpoint,) = (unfinished_run / "checkpoints").iterdir()
    (checkpoint / "notes.txt").write_text("not of the model")
    assert run(["push", str(unfinished_run), "me/tiny", "--license", "mit", "--language", "en", "ko"]) == 0
    assert hub.created[0]["name"] == "tiny"
    assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"
    assert hub.messages == ["Upload a model by bertwright"]
    assert {WEIGHTS, CHECKSUMS, "config.json", "vocab.txt"} <= hub.files.keys()
    assert not {name for name in hub.files if "optimizer" in name or name in ("state.json", "notes.txt")}
    for name in hub.files.keys() - {"README.md"}:
        assert hub.files[name] == (checkpoint / name).read_bytes(), name
    card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.license, card.data.language) == ("mit", ["en", "ko"])


def test_push_with_a_wrong_token_says_how_to_log_in(
    hub: Hub, one_layer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert run(["push", str(one_layer_folder), "me/tiny"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: me/tiny: " in line
    assert "HF_TOKEN" in line
    assert hub.files == {}


def test_push_of_a_name_that_is_no_folder_is_rejected(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run(["push", "me/elsewhere", "me/tiny"]), hub.created) == (2, [])
    assert "me/elsewhere" in capsys.readouterr().err
