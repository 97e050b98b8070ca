"""ELMo's released files: a model written there computes what the authors' formulas give for the file's arrays."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bertwright.inference.bert import load
from bertwright.inference.convert import ConvertSettings
from bertwright.inference.convert import convert as convert_model
from bertwright.models.packing import Packing, WordBatch
from bertwright.systems.elmo.allennlp import read_elmo, write_elmo
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig
from bertwright.vocabulary.word_bytes import word_byte_rows
from harness import randomize, run_and_capture

h5py = pytest.importorskip("h5py")
CONFIG = ElmoConfig(
    vocab_size=3, filters=((1, 2), (3, 4)), num_highway=1, projection_size=3, cell_size=5, hidden_dropout=0.0
)
Array = npt.NDArray[np.float64]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_elmo(tmp_path, randomize(BidirectionalLM(CONFIG, seed=5)))
    return tmp_path


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def released_states(file: Any, characters: Array) -> list[Array]:
    """Compute the layers of one sentence, N × 50 ids, as bilm-tf does with a file's arrays, number by number."""

    def read(name: str) -> Array:
        return np.asarray(file[name], dtype=float)

    vectors = read("char_embed")[characters]  # N 50 E
    pooled = []
    for number in range(2):
        kernel, width = read(f"CNN/W_cnn_{number}")[0], read(f"CNN/W_cnn_{number}").shape[1]
        windows = np.stack([vectors[:, at : at + width] for at in range(50 - width + 1)], 1)
        pooled.append((np.einsum("npwe,wef->npf", windows, kernel) + read(f"CNN/b_cnn_{number}")).max(1))
    words = np.maximum(np.concatenate(pooled, 1), 0)
    carry = sigmoid(words @ read("CNN_high_0/W_carry") + read("CNN_high_0/b_carry"))
    transform = np.maximum(words @ read("CNN_high_0/W_transform") + read("CNN_high_0/b_transform"), 0)
    words = (carry * transform + (1 - carry) * words) @ read("CNN_proj/W_proj") + read("CNN_proj/b_proj")
    layers = [[words, words]]
    for number in range(2):
        outputs = []
        for direction in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell"
            state, memory, states = np.zeros(3), np.zeros(5), []
            inputs = layers[-1][direction]
            for vector in inputs[::-1] if direction else inputs:
                i, j, f, o = np.split(np.concatenate([vector, state]) @ read(f"{cell}/W_0") + read(f"{cell}/B"), 4)
                memory = np.clip(sigmoid(f + 1) * memory + sigmoid(i) * np.tanh(j), -3, 3)
                state = np.clip((sigmoid(o) * np.tanh(memory)) @ read(f"{cell}/W_P_0"), -3, 3)
                states.append(state)
            output = np.stack(states[::-1] if direction else states)
            outputs.append(output + inputs if number else output)
        layers.append(outputs)
    return [np.concatenate(both, 1) for both in layers]


@torch.no_grad()
def test_written_files_give_the_same_states_by_the_authors_formulas(folder: Path) -> None:
    rows = word_byte_rows(["The", "naïve", "cat"])
    model = read_elmo(folder).eval()
    batch = WordBatch(Packing.of(np.array([3])), torch.from_numpy(np.column_stack([[3, 4, 5], rows])).long())
    with h5py.File(folder / "weights.hdf5") as file:
        expected = released_states(file, rows)
    for ours, theirs in zip(model.encoder.hidden_states(batch), expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_reading_what_was_written_changes_no_weight_beyond_rounding(folder: Path) -> None:
    first = read_elmo(folder)
    write_elmo(folder, first)
    for (name, before), after in zip(
        first.encoder.named_parameters(), read_elmo(folder).encoder.parameters(), strict=True
    ):
        torch.testing.assert_close(after, before, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("char_cnn", "activation"), "tanh", ("char_cnn.activation", "'relu'", "'tanh'")),
        (("lstm", "use_skip_connections"), False, ("lstm.use_skip_connections", "True", "False")),
        (("lstm", "dim"), 6, ("weights.hdf5", "Cell0/LSTMCell/W_0", "(6, 24)", "(6, 20)")),
        (("lstm", "n_layers"), 3, ("weights.hdf5", "Cell2")),
        (("lstm", "n_layers"), 10**12, ("weights.hdf5", "Cell2")),
        (("lstm", "n_layers"), 10**30, ("options.json", "lstm.n_layers", f"{10**30}")),
        (("lstm", "projection_dim"), 2.5, ("options.json", "lstm.projection_dim", "int", "2.5")),
        (("lstm", "projection_dim"), 10**12, ("weights.hdf5", "W_proj", f"(6, {10**12})")),
        (("lstm", "dim"), "5", ("options.json", "lstm.dim", "int", "'5'")),
        (("lstm", "dim"), None, ("options.json", "lstm.dim", "int", "None")),
        (("lstm", "cell_clip"), "3", ("options.json", "lstm.cell_clip", "float")),
        (("char_cnn", "n_highway"), 10**12, ("weights.hdf5", "CNN_high_1")),
        (("char_cnn", "n_highway"), True, ("options.json", "char_cnn.n_highway", "int", "True")),
        (("char_cnn", "filters"), [[1, 10**12]], ("weights.hdf5", "W_cnn_0", f"{10**12}")),
        (("char_cnn", "filters"), [[1, 2], [3, 4], [5, 6]], ("weights.hdf5", "W_cnn_2")),
        (("char_cnn", "filters"), 7, ("options.json", "char_cnn.filters", "7")),
        (("char_cnn", "embedding"), [16], ("options.json", "char_cnn.embedding.dim")),
    ],
)
def test_options_that_do_not_fit_are_named(
    folder: Path, path: tuple[str, str], value: Any, words: tuple[str, ...]
) -> None:
    options = json.loads((folder / "options.json").read_text())
    options[path[0]][path[1]] = value
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(ValueError, match=r"\.json|\.hdf5") as error:
        read_elmo(folder)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("options", [[], {}, {"lstm": 7, "char_cnn": []}, {"n_tokens_vocab": 10**9}, "text"])
def test_options_of_another_form_are_one_message(folder: Path, options: Any) -> None:
    known = json.loads((folder / "options.json").read_text())
    (folder / "options.json").write_text(json.dumps(known | options if "n_tokens_vocab" in options else options))
    with pytest.raises(ValueError, match=r"options\.json: (char_cnn\.activation|n_tokens_vocab): expected"):
        read_elmo(folder)


KEY = "CNN_proj/b_proj"


def put_external(file: Any, secret: Path) -> None:
    del file[KEY]
    file.create_dataset(KEY, (3,), "f4", external=[(str(secret), 0, 12)])


def put_external_link(file: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["b_proj"] = np.ones(3, np.float32)
    del file[KEY]
    file[KEY] = h5py.ExternalLink(str(secret), "/b_proj")


def put_external_group(file: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["b_proj"], other["W_proj"] = np.ones(3, np.float32), file["CNN_proj/W_proj"][()]
    del file["CNN_proj"]
    file["CNN_proj"] = h5py.ExternalLink(str(secret), "/")


def put_virtual(file: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["x"] = np.ones(3, np.float32)
    del file[KEY]
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "x", shape=(3,))
    file.create_virtual_dataset(KEY, layout)


def put_soft_link(file: Any, secret: Path) -> None:
    file["other"] = file[KEY][()]
    del file[KEY]
    file[KEY] = h5py.SoftLink("/other")


def put_values(*arguments: Any, **keywords: Any) -> Callable[[Any, Path], None]:
    def put(file: Any, secret: Path) -> None:
        del file[KEY]
        file.create_dataset(KEY, *arguments, **keywords)

    return put


HOSTILE = {
    "external storage": (put_external, "not in this file"),
    "external link": (put_external_link, "link"),
    "external group": (put_external_group, "link"),
    "virtual": (put_virtual, "not in this file"),
    "soft link": (put_soft_link, "link"),
    "group": (lambda file, _: (file.__delitem__(KEY), file.create_group(KEY)), "folder"),
    "named type": (lambda file, _: (file.__delitem__(KEY), file.__setitem__(KEY, np.dtype("f4"))), "folder"),
    "absent": (lambda file, _: file.__delitem__(KEY), "nothing"),
    "parent absent": (lambda file, _: file.__delitem__("CNN_proj"), "nothing"),
    "texts": (put_values(data=["a", "b", "c"], dtype=h5py.string_dtype()), "object"),
    "whole numbers": (put_values(data=np.ones(3, np.int32)), "int32"),
    "structures": (put_values(data=np.zeros(3, "f4,f4")), "(3,)"),
    "no shape": (put_values(data=h5py.Empty("f4")), "None"),
    "one number": (put_values(data=np.float32(1)), "()"),
    "never written": (put_values((3,), "f4"), "not in this file"),
    "huge": (put_values((10**12,), "f4", chunks=(1000,)), str(10**12)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_arrays_that_are_not_in_the_file_are_refused(folder: Path, tmp_path: Path, case: str) -> None:
    (tmp_path / "secret").write_bytes(b"root:x:0:0:root:/root:/bin/bash")
    put, word = HOSTILE[case]
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        put(file, tmp_path / "secret")
    with pytest.raises(ValueError, match=r"weights\.hdf5: CNN_proj/.*: expected") as error:
        read_elmo(folder)
    assert word in str(error.value).partition("got")[2]


def test_compressed_and_wider_arrays_are_read(folder: Path) -> None:
    expected = read_elmo(folder).encoder.state_dict()
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        for name in ("char_embed", KEY):
            values = file[name][()].astype(">f8")
            del file[name]
            file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
    for name, values in read_elmo(folder).encoder.state_dict().items():
        torch.testing.assert_close(values, expected[name], msg=name)


def test_flipped_bytes_of_weights_give_one_message_or_a_model(folder: Path) -> None:
    """Every fourth block of 16 bytes of the first 4 kB, which hold the structure, is overwritten in turn."""
    path = folder / "weights.hdf5"
    whole = path.read_bytes()
    messages = list[str]()
    for start in range(0, 4096, 64):
        path.write_bytes(whole[:start] + bytes(0xFF ^ byte for byte in whole[start : start + 16]) + whole[start + 16 :])
        try:
            read_elmo(folder)
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 5
    assert all(message.startswith(f"{path}: ") for message in messages)


def test_damaged_weights_are_one_message(folder: Path) -> None:
    (folder / "weights.hdf5").write_bytes((folder / "weights.hdf5").read_bytes()[:500])
    with pytest.raises(ValueError, match=r"weights\.hdf5"):
        read_elmo(folder)


def test_convert_reads_and_writes_the_released_files(folder: Path, tmp_path: Path) -> None:
    """Vectors of a converted folder are the same, also after the way back; the softmax is named as missing."""
    ours, back = tmp_path / "ours", tmp_path / "back"
    printed = run_and_capture(convert_model, ConvertSettings(str(folder), ours), columns=200)
    assert "no softmax head" in printed
    run_and_capture(convert_model, ConvertSettings(str(ours), back, format="allennlp"))
    first, second = read_elmo(folder).encoder, read_elmo(back).encoder
    for before, after in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # ELMo knows no words, and reads all: none is [UNK]
        vectors = load(ours).features(("The", "naïve", "cat"), layers=(0, 1, 2))
    assert vectors.shape == (3, 3, 6)
    assert np.isfinite(vectors).all()
