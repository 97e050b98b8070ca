"""ELMo in the format of its authors and of AllenNLP: `options.json`, and weights in hdf5 (read and written by h5py).

Their LSTM has its gates in the order input, cell, forget, output, adds 1 to the forget gate outside the bias, and
multiplies rows by matrices from the right. P projection size, C cell size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.base.files import atomic_file, read_json, write_json
from bertwright.base.foreign import check_links
from bertwright.base.optional import needs
from bertwright.base.settings import convert
from bertwright.interop.model_files import new_folder
from bertwright.models.encoder import EncoderModel
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig, ElmoEncoder
from bertwright.vocabulary.word_bytes import NUM_BYTES

Array = npt.NDArray[np.float32]
OPTIONS = "options.json"
MAX_CHARACTERS = 50
NUM_CHARACTERS = 262  # the 261 of the weights, and one for padding beyond sentences
FORGET_BIAS = 1.0
MAX_WORDS = 1 << 20  # of the softmax; the released models have 793,471
MAX_RATIO = 1032  # of deflate: numbers per byte that hdf5's compression can store
GATES = (0, 2, 1, 3)  # place there of each of our gates, and the reverse


def find_elmo(folder: Path) -> Path | None:
    """Return the weights of a folder with ELMo's released files, None for other folders."""
    weights = sorted(path for path in folder.glob("*.hdf5") if path.is_file())
    options = [folder / OPTIONS, *folder.glob("*options.json")]
    return weights[0] if len(weights) == 1 and any(path.is_file() for path in options) else None


def read_elmo(folder: Path) -> BidirectionalLM:
    """Read released files; the softmax, which they lack, has random weights.

    Raises ValueError, naming the file, for unsupported options, and for weights that are missing or of other sizes.
    """
    check_links(folder)
    path = next(path for path in (folder / OPTIONS, *sorted(folder.glob("*options.json"))) if path.is_file())
    config = parse_options(read_json(path), path)
    weights = find_elmo(folder)
    if weights is None:
        raise ValueError(f"{folder}: expected one file of weights (*.hdf5) beside {path.name}; copy it there")
    with _explain_damage(weights):
        file = _h5py().File(weights, "r")
    with file, torch.no_grad():
        arrays = {
            name: _find_array(file, name, shape, f"{weights}: {name}: expected {shape} numbers by {path.name}")
            for name, shape in _list_shapes(config)
        }
        model = BidirectionalLM(config)
        tensors = dict(model.encoder.named_parameters())

        def read(name: str) -> Array:
            with _explain_damage(weights):
                return np.asarray(arrays[name][()], dtype=np.float32)

        for name, values in _import_weights(model.encoder, read):
            tensors[name].copy_(torch.from_numpy(values))
    return model


@contextmanager
def _explain_damage(weights: Path) -> Iterator[None]:
    """Turn the errors of h5py for a damaged file, which are of many types, into a ValueError with the file's name."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{weights}: not a whole hdf5 file ({error}); copy it again") from None


def _find_array(file: Any, name: str, shape: tuple[int, ...], expected: str) -> Any:
    """Return an array of an open file without reading its numbers.

    Raises ValueError, which begins with `expected`, for an array of another shape or type and for one that is not in
    this file: links, external storage and virtual arrays would copy other files of this machine into the model.
    """
    h5py, node = _h5py(), file
    for part in name.split("/"):
        with _explain_damage(Path(file.filename)):
            link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
            if isinstance(link, h5py.HardLink):
                node = node[part]
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{expected}, got {'nothing' if link is None else 'a link'}; copy the file again")
    with _explain_damage(Path(file.filename)):
        is_array = isinstance(node, h5py.Dataset)
        kind, actual = (node.dtype.kind, node.shape) if is_array else ("", None)
        is_elsewhere = is_array and bool(node.external or node.is_virtual)
        stored = node.id.get_storage_size() if is_array and not is_elsewhere else 0
    if kind != "f" or actual != shape:
        raise ValueError(f"{expected}, got {f'{actual} of type {node.dtype}' if is_array else 'a folder'}")
    if is_elsewhere or stored * MAX_RATIO < node.nbytes:
        raise ValueError(f"{expected}, got an array whose numbers are not in this file; copy them into it")
    return node


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

    def option(name: str, kind: Any, default: Any = None) -> Any:
        found = values
        for key in name.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return convert(default if found is None and default is not None else found, kind, name)

    try:
        for name, expected in (
            ("char_cnn.activation", "relu"),
            ("char_cnn.max_characters_per_token", MAX_CHARACTERS),
            ("lstm.use_skip_connections", True),
        ):
            if (value := option(name, type(expected))) != expected:
                raise ValueError(f"{name}: expected {expected!r}, got {value!r}")
        words = option("n_tokens_vocab", int, 3)
        if not 1 <= words <= MAX_WORDS:
            raise ValueError(f"n_tokens_vocab: expected 1 to {MAX_WORDS:,} words, got {words}")
        return ElmoConfig(
            vocab_size=words,
            char_size=option("char_cnn.embedding.dim", int),
            filters=option("char_cnn.filters", tuple[tuple[int, int], ...]),
            num_highway=option("char_cnn.n_highway", int),
            projection_size=option("lstm.projection_dim", int),
            cell_size=option("lstm.dim", int),
            num_layers=option("lstm.n_layers", int),
            cell_clip=option("lstm.cell_clip", float, 0.0),
            projection_clip=option("lstm.proj_clip", float, 0.0),
        )
    except ValueError as error:
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


def _list_shapes(config: ElmoConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of a file's arrays, lazily: the numbers of layers are not yet known to be true."""
    size, cells, filters = config.projection_size, config.cell_size, config.num_filters
    yield "char_embed", (NUM_BYTES, config.char_size)
    for number, (width, count) in enumerate(config.filters):
        yield f"CNN/W_cnn_{number}", (1, width, config.char_size, count)
        yield f"CNN/b_cnn_{number}", (count,)
    for number in range(config.num_highway):
        for name in ("transform", "carry"):
            yield f"CNN_high_{number}/W_{name}", (filters, filters)
            yield f"CNN_high_{number}/b_{name}", (filters,)
    yield "CNN_proj/W_proj", (filters, size)
    yield "CNN_proj/b_proj", (size,)
    for number in range(config.num_layers):
        for direction in range(2):
            cell = _cell_name(direction, number)
            yield f"{cell}/W_0", (2 * size, 4 * cells)
            yield f"{cell}/B", (4 * cells,)
            yield f"{cell}/W_P_0", (cells, size)


def _cell_name(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def _reorder_gates(values: Array) -> Array:
    """Reorder the gates of 4 C rows from their order to ours, or back."""
    return values.reshape(4, -1, *values.shape[1:])[list(GATES)].reshape(values.shape)


def _import_weights(encoder: ElmoEncoder, read: Callable[[str], Array]) -> Iterator[tuple[str, Array]]:
    """Yield our parameters by name; `read` returns an array by its name in the file."""
    for ours, theirs in _file_names(encoder).items():
        values = read(theirs)
        if values.ndim == 4:
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
    with needs("elmo", "weights.hdf5"):
        import h5py
    return h5py
