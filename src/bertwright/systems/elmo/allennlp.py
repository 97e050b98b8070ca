"""ELMo in the format of its authors and of AllenNLP: `options.json`, and weights in hdf5 (read and written by h5py).

Their LSTM has its gates in the order input, cell, forget, output, adds 1 to the forget gate outside the bias, and
multiplies rows by matrices from the right. P projection size, C cell size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.base.files import atomic_file, read_json, write_json
from bertwright.base.settings import convert
from bertwright.interop.model_files import new_folder
from bertwright.models.heads import EncoderModel
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig, ElmoEncoder

Array = npt.NDArray[np.float32]
OPTIONS = "options.json"
MAX_CHARACTERS = 50
NUM_CHARACTERS = 262  # the 261 of the weights, and one for padding beyond sentences
FORGET_BIAS = 1.0
GATES = (0, 2, 1, 3)  # place there of each of our gates, and the reverse


def find_elmo(folder: Path) -> Path | None:
    """Return the weights of a folder with ELMo's released files, None for other folders."""
    weights = sorted(folder.glob("*.hdf5"))
    options = [folder / OPTIONS, *folder.glob("*options.json")]
    return weights[0] if len(weights) == 1 and any(path.is_file() for path in options) else None


def read_elmo(folder: Path) -> BidirectionalLM:
    """Read released files; the softmax, which they lack, has random weights.

    Raises ValueError, naming the file, for unsupported options, and for weights that are missing or of other sizes.
    """
    path = next(path for path in (folder / OPTIONS, *sorted(folder.glob("*options.json"))) if path.is_file())
    config = parse_options(read_json(path), path)
    weights = find_elmo(folder)
    if weights is None:
        raise ValueError(f"{folder}: expected one file of weights (*.hdf5) beside {path.name}; copy it there")
    model = BidirectionalLM(config)
    tensors = dict(model.encoder.named_parameters())
    try:
        with _h5py().File(weights, "r") as file, torch.no_grad():

            def read(name: str) -> Array:
                if name not in file:
                    raise ValueError(f"{weights}: {name} is missing, which a model by {path.name} has")
                return np.asarray(file[name], dtype=np.float32)

            for name, values in _import_weights(model.encoder, read):
                if tensors[name].shape != values.shape:
                    expected = tuple(tensors[name].shape)
                    raise ValueError(f"{weights}: {name}: expected {expected} by {path.name}, got {values.shape}")
                tensors[name].copy_(torch.from_numpy(values))
    except OSError as error:
        raise ValueError(f"{weights}: not a whole hdf5 file ({error}); copy it again") from None
    return model


def write_elmo(folder: Path, model: BidirectionalLM) -> None:
    """Write options.json and weights.hdf5 into an existing folder; the softmax has no place there."""
    write_json(folder / OPTIONS, format_options(model.config))
    with atomic_file(folder / "weights.hdf5") as path, _h5py().File(path, "w") as file:
        for key, values in _export_weights(model.encoder):
            file.create_dataset(key, data=values)


def save_elmo(folder: Path, model: EncoderModel) -> None:
    """Write a new folder with ELMo's released files, atomically. Raises ValueError for another architecture."""
    if not isinstance(model, BidirectionalLM):
        raise ValueError(f"--format allennlp: expected an ELMo, got {model.encoder.model_type}; omit it")
    with new_folder(folder) as temporary:
        write_elmo(temporary, model)


def parse_options(values: Any, path: Path) -> ElmoConfig:
    """Read the options. Raises ValueError, naming the option, for those that are not supported."""
    try:
        lstm, characters = values["lstm"], values["char_cnn"]
        required: list[tuple[str, Any, Any]] = [
            ("char_cnn.activation", characters["activation"], "relu"),
            ("char_cnn.max_characters_per_token", characters["max_characters_per_token"], MAX_CHARACTERS),
            ("lstm.use_skip_connections", lstm["use_skip_connections"], True),
        ]
        for name, value, expected in required:
            if value != expected:
                raise ValueError(f"{name}: expected {expected!r}, got {value!r}")
        return ElmoConfig(
            vocab_size=int(values.get("n_tokens_vocab", 3)),
            char_size=characters["embedding"]["dim"],
            filters=convert(characters["filters"], tuple[tuple[int, int], ...], "char_cnn.filters"),
            num_highway=characters["n_highway"],
            projection_size=lstm["projection_dim"],
            cell_size=lstm["dim"],
            num_layers=lstm["n_layers"],
            cell_clip=float(lstm.get("cell_clip") or 0),
            projection_clip=float(lstm.get("proj_clip") or 0),
        )
    except KeyError as error:
        raise ValueError(f"{path}: expected the options of an ELMo, but {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def format_options(config: ElmoConfig) -> dict[str, Any]:
    """Return the options that AllenNLP reads."""
    lstm = {
        "use_skip_connections": True,
        "projection_dim": config.projection_size,
        "cell_clip": config.cell_clip,
        "proj_clip": config.projection_clip,
        "dim": config.cell_size,
        "n_layers": config.num_layers,
    }
    characters = {
        "activation": "relu",
        "filters": [[*pair] for pair in config.filters],
        "n_highway": config.num_highway,
        "embedding": {"dim": config.char_size},
        "n_characters": NUM_CHARACTERS,
        "max_characters_per_token": MAX_CHARACTERS,
    }
    return {"lstm": lstm, "char_cnn": characters}


def _file_names(encoder: ElmoEncoder) -> Mapping[str, str]:
    """Return the names in files of parameters outside the LSTMs, by our names."""
    characters = "embeddings.characters"
    names = {f"{characters}.embedding.weight": "char_embed"}
    for number in range(len(encoder.config.filters)):
        for ours, theirs in (("weight", "W"), ("bias", "b")):
            names[f"{characters}.convolutions.{number}.{ours}"] = f"CNN/{theirs}_cnn_{number}"
    for number in range(encoder.config.num_highway):
        for part, name in (("transform", "transform"), ("gate", "carry")):
            for ours, theirs in (("weight", "W"), ("bias", "b")):
                names[f"{characters}.highways.{number}.{part}.{ours}"] = f"CNN_high_{number}/{theirs}_{name}"
    for ours, theirs in (("weight", "W"), ("bias", "b")):
        names[f"{characters}.projection.{ours}"] = f"CNN_proj/{theirs}_proj"
    return names


def _cell_name(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def _reorder_gates(values: Array) -> Array:
    """Reorder the gates of 4 C rows from their order to ours, or back."""
    return values.reshape(4, -1, *values.shape[1:])[list(GATES)].reshape(values.shape)


def _import_weights(encoder: ElmoEncoder, read: Callable[[str], Array]) -> Iterator[tuple[str, Array]]:
    """Yield our parameters by name; `read` returns an array by its name in the file."""
    for ours, theirs in _file_names(encoder).items():
        values = read(theirs)
        if "convolutions" in ours and values.ndim == 4:
            values = values[0].transpose(2, 1, 0)  # 1 width char_size count -> count char_size width
        elif values.ndim == 2 and "embedding.weight" not in ours:
            values = values.T
        yield ours, values
    size, cell_size = encoder.config.projection_size, encoder.config.cell_size
    for number in range(encoder.config.num_layers):
        both: dict[str, list[Array]] = {"weight_ih": [], "weight_hh": [], "bias": [], "weight_hr": []}
        for direction in range(2):
            cell = _cell_name(direction, number)
            kernel, bias = _reorder_gates(read(f"{cell}/W_0").T), _reorder_gates(read(f"{cell}/B"))
            bias[cell_size : 2 * cell_size] += FORGET_BIAS
            parts = kernel[:, :-size], kernel[:, -size:], bias, read(f"{cell}/W_P_0").T
            for directions, part in zip(both.values(), parts, strict=True):
                directions.append(part)
        for name, directions in both.items():
            yield f"layers.{number}.{name}", np.stack(directions)


def _export_weights(encoder: ElmoEncoder) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a file by name."""
    tensors: dict[str, Tensor] = dict(encoder.named_parameters())
    for ours, theirs in _file_names(encoder).items():
        values = tensors[ours].detach().numpy()
        if values.ndim == 3:
            values = values.transpose(2, 1, 0)[None]
        elif values.ndim == 2 and "embedding.weight" not in ours:
            values = values.T
        yield theirs, values
    cell_size = encoder.config.cell_size
    for number, layer in enumerate(encoder.layers):
        parts = (tensors[f"layers.{number}.{name}"].detach().numpy() for name, _ in layer.named_parameters())
        for direction, (inputs, hidden, bias, project) in enumerate(zip(*parts, strict=True)):
            shifted = bias.copy()
            shifted[cell_size : 2 * cell_size] -= FORGET_BIAS
            cell = _cell_name(direction, number)
            yield f"{cell}/W_0", _reorder_gates(np.concatenate([inputs, hidden], 1)).T
            yield f"{cell}/B", _reorder_gates(shifted)
            yield f"{cell}/W_P_0", project.T


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ValueError("h5py: needed for ELMo's weights in hdf5, and not installed; pip install h5py") from None
    return h5py
