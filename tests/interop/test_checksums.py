"""Checksums of model folders: every flipped bit is noticed, and the message says what to do."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import transformers

from bertwright.inference.bert import load
from bertwright.interop.checksums import compute_checksum
from bertwright.interop.huggingface import load_config, save_model
from bertwright.interop.model_files import CARD, CHECKSUMS, DOWNLOADED
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.classification import Classification
from bertwright.tasks.task_folder import TaskModel, save_task_folder
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefghij"], lowercase=True)
CONFIG = BertConfig(TOKENIZER.vocab_size, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8)


@pytest.fixture
def folder(tmp_path) -> Path:
    save_model(tmp_path / "m", BertForPretraining(CONFIG), TOKENIZER)
    return tmp_path / "m"


@pytest.fixture
def task_folder(tmp_path) -> Path:
    task = Classification(labels=("bad", "good"))
    model = EncoderForTask(BertEncoder(CONFIG), task.head)
    found = TaskModel(model, task, classes={"classes": ["bad", "good"], "dtype": "U"})
    save_task_folder(tmp_path / "t", found, TOKENIZER)
    return tmp_path / "t"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_published_checksum(tmp_path):
    (tmp_path / "x").write_bytes(b"123456789")
    assert compute_checksum(tmp_path / "x") == "e3069283"  # check value of CRC-32/ISCSI in the catalogue of CRCs
    content = bytes(range(256)) * 10_000  # more than one read
    (tmp_path / "x").write_bytes(content)
    assert compute_checksum(tmp_path / "x") == f"{google_crc32c.value(content):08x}"


@pytest.mark.parametrize("kind", ["folder", "task_folder"])
def test_every_file_is_listed_and_downloaded(request, kind):
    folder = request.getfixturevalue(kind)
    files = {path.name for path in folder.iterdir()} - {CARD}  # its owner may edit it
    assert {*json.loads((folder / "checksums.json").read_text())["crc32c"]} == files - {"checksums.json"}
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in DOWNLOADED) for name in files)
    assert load(folder, "cpu").config == CONFIG


@pytest.mark.parametrize("kind", ["folder", "task_folder"])
def test_flipped_bit_in_any_file_is_noticed(request, kind):
    folder = request.getfixturevalue(kind)
    rng = np.random.default_rng(5)
    for path in sorted(path for path in folder.iterdir() if path.name != CARD):
        for bit in rng.integers(0, 8 * path.stat().st_size, 16).tolist():
            flip(path, bit)
            name = "" if path.name == CHECKSUMS else f"{path.name}:"
            with pytest.raises(ValueError, match=f"{folder}/{name}.*") as caught:
                load(folder, "cpu")
            assert CHECKSUMS in str(caught.value)
            flip(path, bit)
    load(folder, "cpu")


def test_message_names_file_checksums_and_fix(folder):
    flip(folder / "model.safetensors", 5_000)
    listed = json.loads((folder / "checksums.json").read_text())["crc32c"]["model.safetensors"]
    found = compute_checksum(folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=rf"model\.safetensors: expected crc32c {listed} .*got {found}.*delete .*m/check"
    ):
        load(folder, "cpu")


def test_missing_file_is_named(task_folder):
    (task_folder / "task.json").unlink()  # without it the task would be inferred
    with pytest.raises(ValueError, match=r"task\.json: missing, .*delete .*checksums\.json"):
        load(task_folder, "cpu")


@pytest.mark.parametrize("text", ["[]", "{}", '{"crc32c": {}}', '{"crc32c": 5}', "{"])
def test_invalid_list_of_checksums_is_rejected(folder, text):
    (folder / "checksums.json").write_text(text)
    with pytest.raises(ValueError, match=r"checksums\.json"):
        load_config(folder)


def test_folder_rewritten_by_transformers_loads_without_checksums(folder):
    model = transformers.BertForPreTraining.from_pretrained(folder)
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"config\.json: expected crc32c .*transformers.*delete .*checksums\.json"):
        load(folder, "cpu")
    (folder / "checksums.json").unlink()
    load(folder, "cpu")
