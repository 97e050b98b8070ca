"""Google's checkpoints: read as written here byte by byte from the specification, whole and damaged; written as
TensorFlow writes them."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto import tensor_shape_pb2
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

from bertwright.base.files import masked_crc32c
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import LoadResult, build_model, build_task_model, to_hf_weights
from bertwright.interop.tf_checkpoint import read_bundle, read_table, write_bundle
from bertwright.models.encoder import EncoderModel
from bertwright.models.head_spec import HeadSpec
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_folder import BERT
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.google import read_checkpoint, save_checkpoint, to_google_name, to_hf_name
from bertwright.trials.composed_model import CompositeConfig, CompositeEncoder
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import randomize

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefghij"], lowercase=True)
CLASSIFIER = HeadRecord(HeadSpec("sequence", 3), ("bad", "so-so", "gut"), regression=False)
SPAN = HeadRecord(HeadSpec("span", 2), (), regression=False)
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
    """Return Google's name of a tensor: the inverse of `to_hf_name`, by other means than `to_google_name`."""
    name = name.replace("encoder.layer.", "encoder.layer_").replace(".", "/")
    name = name.replace("qa_outputs/", "cls/squad/").replace("classifier/", "")
    if name.startswith(("cls/seq_relationship/", "cls/squad/")) or name in ("cls/predictions/bias", "weight", "bias"):
        return name.replace("weight", "output_weights").replace("bias", "output_bias")
    if "LayerNorm" in name:
        return name.replace("/weight", "/gamma").replace("/bias", "/beta")
    return name.removesuffix("/weight") if "_embeddings/" in name else name.replace("/weight", "/kernel")


def write_release(folder: Path, model: EncoderModel, **table_options: int) -> None:
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


def make_task_model(head: HeadRecord, config: BertConfig = CONFIG) -> EncoderForTask:
    return randomize(EncoderForTask(BertEncoder(config), head.head))


@pytest.fixture
def model() -> BertForPretraining:
    return randomize(BertForPretraining(CONFIG))


def load_checkpoint(folder: Path) -> LoadResult:
    return build_model(read_checkpoint(folder).source)


def read_tensors(index: Path) -> dict[str, np.ndarray]:
    bundle = read_bundle(index)
    return dict(bundle.read(bundle.entries))


def assert_same(model: EncoderModel, expected: EncoderModel) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


# ---- Read


def test_release_loads_bit_equal(tmp_path, model):
    write_release(tmp_path, model)
    loaded = load_checkpoint(tmp_path)
    assert loaded.missing_heads == loaded.unexpected_keys == ()
    assert loaded.model.config == CONFIG
    assert_same(loaded.model, model)


def test_classifier_of_run_classifier_loads_with_labels(tmp_path):
    model = make_task_model(CLASSIFIER)
    write_release(tmp_path, model)
    source, head, _ = read_checkpoint(tmp_path, CLASSIFIER.labels)
    assert head == CLASSIFIER
    assert_same(build_task_model(source, head.head), model)


@pytest.mark.parametrize("labels", [(), ("good", "bad")])
def test_classifier_without_a_label_per_output_is_rejected(tmp_path, labels):
    write_release(tmp_path, make_task_model(CLASSIFIER))
    with pytest.raises(ValueError, match=rf"ckpt\.index: expected 3 labels.*got {len(labels)}.*--labels"):
        read_checkpoint(tmp_path, labels)


def test_labels_without_a_classifier_are_rejected(tmp_path, model):
    write_release(tmp_path, model)
    with pytest.raises(ValueError, match=r"ckpt\.index: has no classifier.*omit --labels"):
        read_checkpoint(tmp_path, ("good", "bad"))


def test_span_head_of_run_squad_loads(tmp_path):
    model = make_task_model(SPAN)
    write_release(tmp_path, model)
    source, head, _ = read_checkpoint(tmp_path)
    assert head == SPAN
    assert_same(build_task_model(source, head.head), model)


def test_single_output_is_a_regression(tmp_path):
    write_release(tmp_path, make_task_model(HeadRecord(HeadSpec("sequence", 1), (), regression=True)))
    assert read_checkpoint(tmp_path).head == HeadRecord(HeadSpec("sequence", 1), (), regression=True)


def test_several_checkpoints_are_rejected(tmp_path, model):
    write_release(tmp_path, model)
    (tmp_path / "model.ckpt-7.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"one .*got bert_config\.json, bert_model\.ckpt\.index, model\.ckpt-7\.index"):
        read_checkpoint(tmp_path)


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


SLOTS = ("{}/BERTAdam", "{}/BERTAdam_1", "{}/LAMB/m", "training/Lion/{}/momentum")


def test_slots_of_any_optimizer_and_counters_are_ignored_and_listed(tmp_path, model):
    write_release(tmp_path, model)
    index = tmp_path / "bert_model.ckpt.index"
    arrays = {name: array for name, array in read_tensors_without(index, "global_step").items() if "adam_m" not in name}
    weights = [*arrays]
    for slot in SLOTS:
        arrays |= {slot.format(name): np.ones_like(arrays[name]) for name in weights if name.startswith("bert/")}
    arrays |= {
        "optimizer/learning_rate": np.float32(1),
        "cls/seq_relationship/output_bias/Adafactor_vr": np.ones(2, "f4"),
    }
    write_bundle(index, arrays)
    source, _, ignored = read_checkpoint(tmp_path)
    assert {*ignored} == arrays.keys() - {*weights}
    assert_same(build_model(source).model, model)


def read_tensors_without(index: Path, absent: str) -> dict[str, np.ndarray]:
    bundle = read_bundle(index)
    return dict(bundle.read(name for name in bundle.entries if name != absent))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["_CHECKPOINTABLE_OBJECT_GRAPH", "model/a/.ATTRIBUTES/VARIABLE_VALUE"], "a TensorFlow 2 .object-based."),
        (["electra/embeddings/word_embeddings"], "an ELECTRA model"),
        (["bert/embeddings/word_embeddings", "bert/encoder/transformer/group_0/inner_group_0/x"], "an ALBERT model"),
        (["wav2vec/a", "head/b"], "got head, wav2vec"),
    ],
)
def test_other_checkpoints_are_named_with_or_without_a_configuration(tmp_path, model, names, message):
    for folder in (tmp_path / "with", tmp_path / "without"):
        folder.mkdir()
        write_release(folder, model)
        write_bundle(folder / "bert_model.ckpt.index", {name: np.ones(2, "f4") for name in names})
        if folder.name == "without":
            (folder / "bert_config.json").unlink()
        with pytest.raises(ValueError, match=rf"bert_model\.ckpt\.index: .*{message}"):
            read_checkpoint(folder)


@pytest.mark.parametrize(
    "record",
    [
        b"\x0b\x00", b"\xff" * 50, b"\x09\x00", b"\x80" * 100_000, b"\x12\xff", b"\x0f\x01",
        b"\x12\x0c\x12\x0a\x08" + varint(2**62) + b"\x28\x04", b"\x08\x01\x28" + varint(2**62),
        b"\x08\x01\x12\x0b\x12\x09\x08" + varint(2**40) + b"\x28" + varint(2**42),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", [b"", b"bert/x", b"bert/\xff"])
def test_malformed_records_with_right_checksums_are_one_message(tmp_path, model, record, key):
    write_release(tmp_path, model)
    header = [] if key == b"" else [(b"", b"\x08\x01\x1a\x02\x08\x01")]
    (tmp_path / "bert_model.ckpt.index").write_bytes(table([*header, (key, record), (b"bert/y", b"")]))
    with pytest.raises(ValueError, match=r"bert_model\.ckpt\.(index|data-00000-of-00001): "):
        read_tensors(tmp_path / "bert_model.ckpt.index")


# ---- Write

TENSORS = {
    "bert/pooler/dense/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bert/embeddings/word_embeddings": np.arange(600, dtype=np.float32).reshape(300, 2) / 7,
    "output_bias": np.float32([-1.5]),
}
# The index that tf.raw_ops.SaveV2 of TensorFlow 2.21 wrote for these tensors.
TENSORFLOW_INDEX = base64.b64decode(
    "AAAGCAEaAggBAB8VYmVydC9lbWJlZGRpbmdzL3dvcmRfZW1iZWRkaW5ncwgBEgkSAwisAhICCAIo4BI1AOwTwQUTFnBvb2xlci9kZW5zZS9rZXJu"
    "ZWwIARIIEgIIAxICCAQg4BIoMDXXplXcAAsSb3V0cHV0X2JpYXMIARIEEgIIASCQEygENUIsMhYAAAAAAQAAAABZM+qvAAAAAAEAAAAAwPKhsAAB"
    "A3AAlAEAAAAAAQAAAADmiAxSmQEIpgEPAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAFf7gIskdUfb"
)


def test_written_records_equal_those_of_tensorflow(tmp_path):
    (tmp_path / "theirs.index").write_bytes(TENSORFLOW_INDEX)
    write_bundle(tmp_path / "ours.index", TENSORS)
    assert [*read_table(tmp_path / "ours.index")] == [*read_table(tmp_path / "theirs.index")]
    (tmp_path / "ours.data-00000-of-00001").rename(tmp_path / "theirs.data-00000-of-00001")
    found = read_tensors(tmp_path / "theirs.index")
    assert found.keys() == TENSORS.keys()
    assert all(np.array_equal(found[name], TENSORS[name]) for name in TENSORS)


@settings(max_examples=60)
@given(
    shapes=st.dictionaries(
        st.text(min_size=1, max_size=200), st.lists(st.integers(1, 20), max_size=3).map(tuple), max_size=20
    )
)
def test_written_tensors_are_read_back(tmp_path_factory, shapes):
    index = tmp_path_factory.mktemp("bundle") / "x.ckpt.index"
    arrays = {name: np.full(shape, number, dtype=np.float32) for number, (name, shape) in enumerate(shapes.items())}
    write_bundle(index, arrays)
    found = read_tensors(index)
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("head", [None, CLASSIFIER, SPAN], ids=["pre-training", "classifier", "span"])
def test_written_checkpoint_loads_bit_equal_and_with_its_labels(tmp_path, model, head):
    changed = replace(CONFIG, activation="gelu_tanh", hidden_dropout=0.2)
    model = make_task_model(head, changed) if head else randomize(BertForPretraining(changed))
    save_checkpoint(tmp_path / "new", model, TOKENIZER, head)
    source, found, _ = read_checkpoint(tmp_path / "new")
    assert found == head
    again = build_task_model(source, head.head) if head else build_model(source).model
    assert_same(again, model)
    assert again.config == changed
    assert Tokenizer.load(tmp_path / "new/vocab.txt").digest == TOKENIZER.digest


def test_written_names_and_layouts_are_googles(tmp_path, model):
    save_checkpoint(tmp_path / "new", model, TOKENIZER, None)
    found = read_tensors(tmp_path / "new/bert_model.ckpt.index")
    weights = to_hf_weights(model)
    assert found.keys() == {google_name(name) for name in weights}
    for name, tensor in weights.items():
        google = google_name(name)
        assert (to_google_name(name), to_hf_name(google)) == (google, name)
        assert np.array_equal(found[google], tensor.numpy().T if google.endswith("/kernel") else tensor.numpy())
    values = json.loads((tmp_path / "new/bert_config.json").read_text())
    assert (values["hidden_act"], values["num_hidden_layers"], values["type_vocab_size"]) == ("gelu", 2, 2)


@pytest.mark.parametrize(
    ("changes", "head", "message"),
    [
        ({"layer_norm_eps": 1e-6}, None, r"layer_norm_eps: expected 1e-12 .*got 1e-06"),
        ({"is_causal": True}, None, "is_causal: expected False"),
        ({}, HeadRecord(HeadSpec("token", 2), ("O", "B"), False), "got a token head"),
        ({}, HeadRecord(HeadSpec("choice", 1), (), False), "got a choice head"),
        ({}, HeadRecord(HeadSpec("sequence", 1), (), True), "got a regression"),
    ],
)
def test_model_that_google_s_code_does_not_have_is_not_written(tmp_path, changes, head, message):
    config = replace(CONFIG, **changes)
    model = make_task_model(head, config) if head else BertForPretraining(config)
    with pytest.raises(ValueError, match=rf"new: .*{message}.*Hugging Face folder"):
        save_checkpoint(tmp_path / "new", model, TOKENIZER, head)
    assert not list(tmp_path.iterdir())


def test_other_architecture_is_not_written(tmp_path):
    model = EncoderModel(CompositeEncoder(CompositeConfig((CONFIG, CONFIG))))
    with pytest.raises(ValueError, match=r"new: expected a BERT.*got bert-composite"):
        save_checkpoint(tmp_path / "new", model, TOKENIZER, None)


def test_tokenizer_with_other_rules_is_not_written(tmp_path, model):
    other = Tokenizer.from_tokens(TOKENIZER.tokens, lowercase=True, strip_accents=False)
    with pytest.raises(ValueError, match=r"new: .*tokenizer"):
        save_checkpoint(tmp_path / "new", model, other, None)
    assert not list(tmp_path.iterdir())


@settings(max_examples=60)
@given(data=st.binary(max_size=200))
def test_masked_checksum_equals_tensorboards(data):
    assert masked_crc32c(data) == pywrap_tensorflow.masked_crc32c(data)
