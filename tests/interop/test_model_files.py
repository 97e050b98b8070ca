"""Names of models: a folder, a run, a name on the hub."""

from __future__ import annotations

import json
import os
import re
from functools import partial

import pytest
import torch

from bertwright.base.files import write_text
from bertwright.interop.checksums import read_checksums
from bertwright.interop.model_files import CHECKSUMS, SHARDS, is_run, model_folder
from bertwright.interop.tf_checkpoint import read_bundle
from bertwright.interop.weights import read_weights
from bertwright.training import checkpoint
from bertwright.training.run_folder import delete_weights


def test_run_means_its_newest_checkpoint_then_its_best_then_its_model(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    assert not is_run(run)
    with pytest.raises(ValueError, match=r"run: no config\.json"):
        model_folder(run)
    write_text(run / "settings.toml", "")
    assert is_run(run)
    with pytest.raises(ValueError, match=r"run: .*no checkpoint"):
        model_folder(run)
    write = partial(write_text, text="")
    for step in (9, 10):
        checkpoint.save(run / "checkpoints", step, lambda folder: write(folder / "config.json"), {"m": torch.zeros(1)})
    with pytest.warns(UserWarning, match=r"run: .*newest checkpoint, step-00000010"):
        assert model_folder(str(run)) == run / "checkpoints/step-00000010"
    checkpoint.save(run / "best", 9, lambda folder: write(folder / "config.json"), {})
    with pytest.warns(UserWarning, match=r"run: .*best checkpoint, step-00000009"):
        assert model_folder(run) == run / "best/step-00000009"
    (run / "model").mkdir()
    assert model_folder(run) == run / "model"
    delete_weights(run, with_model=True)
    write_text(run / "report.json", "{}")
    with pytest.raises(ValueError, match="weights were deleted"):
        model_folder(run)


def test_unknown_name_is_rejected(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"no config\.json, .*not a model folder"):
        model_folder(tmp_path)
    write_text(tmp_path / "config.json", "{}")
    assert model_folder(tmp_path) == tmp_path
    with pytest.raises(ValueError, match=r"such as google-bert/bert-base-uncased"):
        model_folder("bert-base-uncased")
    with pytest.raises(ValueError, match=r"no such folder; .*hub name"):
        model_folder(tmp_path / "nothing")

    def offline(*_args, **_kwargs):
        raise ConnectionError("no route to host\nmany more lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    for name in ("google-bert/bert-base-uncased", "hf://google-bert/bert-base-uncased"):
        with pytest.raises(
            ValueError, match=r"google-bert/bert-base-uncased could not be downloaded .*\(no route to host\)"
        ):
            model_folder(name)


def test_hub_name_is_downloaded_without_pickles(tmp_path, monkeypatch):
    requests = {}

    def download(name, revision, allow_patterns):
        requests[name, revision] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert model_folder("hf://org/name") == tmp_path
    assert model_folder("org/name@v1.0") == model_folder("hf://org/other@refs/pr/3") == tmp_path
    assert [*requests] == [("org/name", None), ("org/name", "v1.0"), ("org/other", "refs/pr/3")]
    assert not any(pattern.endswith(".bin") or pattern == "*" for pattern in requests["org/name", None])


@pytest.mark.parametrize(
    "name", ["..", "", ".", "../x", "/etc/passwd", "/proc/kmsg", "C:x", "a\\b", "a\0b", "\ud800", 5]
)
def test_listed_names_are_files_of_their_own_folder(tmp_path, name):
    """A folder of weights, of checksums or of a checkpoint comes from elsewhere and must not name other files."""
    expected = f"expected the names of files in its own folder, got {re.escape(repr(name))}"
    (tmp_path / SHARDS).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match=f"^{tmp_path / SHARDS}: {expected}"):
        read_weights(tmp_path)
    if isinstance(name, str):  # keys of JSON are
        (tmp_path / CHECKSUMS).write_text(json.dumps({"crc32c": {name: "0"}}))
        with pytest.raises(ValueError, match=f"^{tmp_path / CHECKSUMS}: {expected}"):
            read_checksums(tmp_path)
        step = tmp_path / "step-00000001"
        step.mkdir()
        (step / checkpoint.STATE).write_text(json.dumps({"files": {name: {"bytes": 0, "digest": ""}}}))
        with pytest.raises(ValueError, match=f"^{step / checkpoint.STATE}: damaged"):
            checkpoint.verify(step)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_named_pipe_in_place_of_a_file_is_an_error_and_no_endless_wait(tmp_path):
    (tmp_path / SHARDS).write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"x\.safetensors: missing or.* regular file"):
        read_weights(tmp_path)
    os.mkfifo(tmp_path / "model.ckpt.index")
    with pytest.raises(ValueError, match=r"model\.ckpt\.index: truncated, or not the index"):
        read_bundle(tmp_path / "model.ckpt.index")
