"""Reading TensorFlow checkpoints, written here byte by byte from their specification, whole and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto import tensor_shape_pb2
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

from bertwright.interop.architectures import BERT
from bertwright.interop.google import load_checkpoint
from bertwright.interop.huggingface import to_hf_weights
from bertwright.interop.tf_checkpoint import mask_crc
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining

CONFIG = BertConfig(vocab_size=40, hidden_size=12, num_layers=2, num_heads=3, intermediate_size=20, max_positions=16)


# ---- A writer after leveldb/doc/table_format.md and tensor_bundle.proto


def varint(number: int) -> bytes:
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def block(records: list[tuple[bytes, bytes]]) -> bytes:
    """Write a block whose keys share prefixes, with a restart point every third record."""
    content, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(records):
        shared = 0
        if number % 3 == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(before), len(key)) and before[shared] == key[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return content + b"".join(struct.pack("<I", offset) for offset in restarts) + struct.pack("<I", len(restarts))


def table(records: list[tuple[bytes, bytes]], per_block: int = 7, compression: int = 0) -> bytes:
    data, index = b"", []

    def add(content: bytes) -> bytes:
        nonlocal data
        handle = varint(len(data)) + varint(len(content))
        content += bytes([compression])
        data += content + struct.pack("<I", pywrap_tensorflow.masked_crc32c(content))
        return handle

    for first in range(0, len(records), per_block):
        some = records[first : first + per_block]
        index.append((some[-1][0], add(block(some))))
    footer = (add(block([])) + add(block(index))).ljust(40, b"\0")
    return data + footer + struct.pack("<Q", 0xDB4775248B80FB57)


def entry(array: np.ndarray, offset: int, data: bytes) -> bytes:
    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in array.shape]
    shape = tensor_shape_pb2.TensorShapeProto(dim=dims).SerializeToString()
    kind = {"float32": 1, "int64": 9}[array.dtype.name]
    return (
        b"\x08" + varint(kind) + b"\x12" + varint(len(shape)) + shape + b"\x20" + varint(offset)
        + b"\x28" + varint(len(data)) + b"\x35" + struct.pack("<I", pywrap_tensorflow.masked_crc32c(data))
    )  # fmt: skip


def google_name(name: str) -> str:
    """Return Google's name of a tensor: the inverse of `to_hf`, by other means."""
    name = name.replace("encoder.layer.", "encoder.layer_").replace(".", "/")
    if name.startswith("cls/seq_relationship/") or name == "cls/predictions/bias":
        return name.replace("/weight", "/output_weights").replace("/bias", "/output_bias")
    if "LayerNorm" in name:
        return name.replace("/weight", "/gamma").replace("/bias", "/beta")
    return name.removesuffix("/weight") if "_embeddings/" in name else name.replace("/weight", "/kernel")


def write_release(folder: Path, model: BertForPretraining, **table_options: int) -> None:
    arrays = {"global_step": np.array(7, dtype=np.int64)}
    for name, tensor in to_hf_weights(model).items():
        google = google_name(name)
        arrays[google] = np.ascontiguousarray(tensor.numpy().T if google.endswith("kernel") else tensor.numpy())
        arrays[f"{google}/adam_m"] = np.zeros_like(arrays[google])
    data, records = b"", [(b"", b"\x08\x01\x1a\x02\x08\x01")]  # one shard, version 1
    for name in sorted(arrays):
        raw = arrays[name].tobytes()
        records.append((name.encode(), entry(arrays[name], len(data), raw)))
        data += raw
    fields = BERT.format_config(model.config)
    for absent in ("model_type", "layer_norm_eps", "architectures", "pad_token_id", "is_decoder", "dtype"):
        del fields[absent]  # Google's file has none of these
    (folder / "bert_config.json").write_text(json.dumps(fields))
    (folder / "bert_model.ckpt.index").write_bytes(table(records, **table_options))
    (folder / "bert_model.ckpt.data-00000-of-00001").write_bytes(data)


@pytest.fixture
def model() -> BertForPretraining:
    model = BertForPretraining(CONFIG)
    numbers = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=numbers))
    return model


def test_release_loads_bit_equal(tmp_path, model):
    write_release(tmp_path, model)
    loaded = load_checkpoint(tmp_path)
    assert loaded.missing_heads == loaded.unexpected_keys == ()
    assert loaded.model.config == CONFIG
    for (name, ours), expected in zip(loaded.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, expected), name


def test_flipped_bit_is_noticed(tmp_path, model):
    write_release(tmp_path, model)
    rng = np.random.default_rng(0)
    for name, message in (
        ("bert_model.ckpt.index", r"ckpt\.index: .*damaged|ckpt\.index: truncated"),
        ("bert_model.ckpt.data-00000-of-00001", r"damaged at cls/seq_relationship/output_weights \(checksum"),
    ):
        path = tmp_path / name
        original = path.read_bytes()
        # In the index's footer only the handles matter, in the data only the tensors that the model reads.
        offsets = rng.integers(0, len(original) - 60, 30) if "index" in name else [first_weight(original, model)]
        for offset in offsets:
            damaged = bytearray(original)
            damaged[offset] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=message):
                load_checkpoint(tmp_path)
        path.write_bytes(original)


def first_weight(data: bytes, model: BertForPretraining) -> int:
    return data.index(model.next_sentence.weight.detach().numpy().tobytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "bert_model.ckpt.data-00000-of-00001").unlink(), "data-00000-of-00001: missing"),
        (lambda folder: (folder / "bert_model.ckpt.index").write_bytes(b"no"), "ckpt.index: truncated"),
        (lambda folder: (folder / "bert_model.ckpt.index").write_bytes(table([(b"x", b"")])), "no header record"),
        (lambda folder: (folder / "bert_config.json").unlink(), "bert_config.json and one"),
    ],
)
def test_missing_file_is_named(tmp_path, model, change, message):
    write_release(tmp_path, model)
    change(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path)


def test_truncated_index_or_data_is_rejected(tmp_path, model):
    write_release(tmp_path, model)
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        original = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(original[: len(original) // 2])
        with pytest.raises(ValueError, match=f"{name}: (damaged at|truncated)"):
            load_checkpoint(tmp_path)
        (tmp_path / name).write_bytes(original)


def test_compressed_index_is_rejected(tmp_path, model):
    write_release(tmp_path, model, compression=1)
    with pytest.raises(ValueError, match=r"compressed \(type 1\)"):
        load_checkpoint(tmp_path)


@settings(max_examples=60)
@given(data=st.binary(max_size=200))
def test_masked_checksum_equals_tensorboards(data):
    assert mask_crc(google_crc32c.value(data)) == pywrap_tensorflow.masked_crc32c(data)
