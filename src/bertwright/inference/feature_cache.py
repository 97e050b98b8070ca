"""Feature-based use of BERT (section 5.3): the states of a frozen encoder, computed once and saved on disk.

R states that a task reads (a word's first token, a text's [CLS]), K layers, H hidden size. Layer 0 is the output of the
embeddings, layer L the output of the last layer.

A cache is a folder with features.json and, for each layer, layer-NN.npy: R × H float16, memory-mapped. features.json
has digests of everything that determines the states: the weights, the token ids and the positions. A cache is therefore
never used for another model or other data, but stays valid after other changes (a file's name, a label). It also has
the digest of the states, which shows damage. The folder appears when all states have been computed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.base.description import Description
from bertwright.base.files import (
    atomic_folder,
    attach_filename,
    digest_bytes,
    digest_file,
    lock_folder,
    read_json,
    remove_stale_parts,
    write_json,
)
from bertwright.base.npy import allocate_npy
from bertwright.base.ragged import offsets_from_lengths
from bertwright.models.encoder import TextEncoder
from bertwright.models.heads import TaskBatch
from bertwright.models.pooling import Vectors, pool_states
from bertwright.models.task_model import BatchPredictor
from bertwright.tasks.encoded import Encoded, Ints
from bertwright.tasks.prediction import predict_logits, prediction_batches
from bertwright.tasks.presets import SPLITS
from bertwright.training.loop import check_finite_outputs

HEADER = "features.json"


class LayerStates(BatchPredictor):
    """An encoder that outputs the states of several layers, concatenated, in a model that `predict_logits` can run."""

    def __init__(
        self, encoder: TextEncoder, layers: Sequence[int], pooled: bool = False, modes: Sequence[str] = ()
    ) -> None:
        """Select K `layers`, in ascending order. `pooled`: one state per sequence.

        `modes`: how that state is pooled in each layer (`pool_states`); none: at the encoder's pooled positions.

        Raises ValueError for a layer that the encoder does not have.
        """
        super().__init__(encoder)
        last = encoder.config.num_layers
        if not layers or sorted({*layers}) != [*layers] or not 0 <= layers[0] <= layers[-1] <= last:
            raise ValueError(f"layers: expected ascending numbers from 0 (embeddings) to {last}, got {[*layers]}")
        self.layers = tuple(layers)
        self.pooled = pooled
        self.modes = tuple(modes) if pooled else ()
        self.training = encoder.training  # its own flag alone: the encoder's mode stays

    @property
    def num_outputs(self) -> int:
        """Numbers per position, K · H."""
        return len(self.layers) * self.state_size

    @property
    def state_size(self) -> int:
        """Numbers per position and layer: H, or H for each pooling mode."""
        return max(1, len(self.modes)) * self.config.hidden_size

    def predict_batch(self, batch: TaskBatch) -> Tensor:
        """Compute the states R × K·H float32 at the positions of a batch; if `pooled`, at the pooled positions."""
        if self.modes:
            states = self.encoder.hidden_states(batch.input, self.layers)
            return torch.cat([pool_states(state, batch.packing, self.modes) for state in states], dim=1)
        positions = batch.positions
        if self.pooled and self.config.is_causal:
            positions = self.encoder.pooled_positions(batch.packing)
        return torch.cat(self.encoder.hidden_states(batch.input, self.layers, positions), dim=1).float()


def compute_word_features(
    encoder: TextEncoder, encoded: Encoded, examples: int, layers: Sequence[int]
) -> list[Vectors]:
    """Compute the states of the W words of each example of a tagging task, W × K × H float32, without a cache.

    `examples`: the number of examples, because examples without words have no sequence in `encoded`.
    """
    shape = (-1, len(layers), encoder.config.hidden_size)
    states = predict_logits(LayerStates(encoder, layers), encoded).reshape(shape)
    return np.split(states, example_state_starts(encoded, examples)[1:-1])


def example_state_starts(encoded: Encoded, examples: int) -> Ints:
    """Return the index of each example's first state and, as the last element, the number of states."""
    counts = np.zeros(examples, dtype=np.int64)
    np.add.at(counts, encoded.example_ids, encoded.position_counts)
    return offsets_from_lengths(counts)


@dataclass(frozen=True)
class Header:
    """The description of a cache."""

    model: str
    """Digest of the encoder: its weights, dtype and configuration."""
    data: str
    """Digest of the encoder's input: token ids, lengths of sequences, and positions of the states."""
    layers: tuple[int, ...]
    states: str
    """Digest of the layers' files."""


@dataclass(frozen=True)
class Features:
    """States on disk."""

    header: Header
    stored: tuple[npt.NDArray[np.float16], ...]
    """For each layer of the header, R × H, memory-mapped."""

    def take(self, indices: Ints, layers: Sequence[int]) -> Tensor:
        """Read the states with these R indices, R × K × H float32."""
        read = [self.stored[self.header.layers.index(layer)][indices] for layer in layers]
        return torch.from_numpy(np.stack(read, axis=1).astype(np.float32))


def load_or_compute_features(
    states: LayerStates, encoded: Encoded, folder: Path, advance: Callable[[int], None] | None = None
) -> Features:
    """Open the features in `folder`; compute them first if the folder is absent or lacks one of the layers.

    float16 rounds each number by at most 0.05 %, which changes a head's score far less than another seed does.
    `advance` is called with a number of items when they are done. Raises ValueError if the folder has features of
    another model or other data, or if they are damaged; OSError if the disk is full.
    """
    model, data = encoder_digest(states.encoder, states.modes), input_digest(encoded)
    with lock_folder(folder.parent):
        remove_stale_parts(folder.parent)
        header = check_cache_key(folder, model, data)
        cached = header.layers if header else ()
        if not {*states.layers} <= {*cached}:
            states = LayerStates(states.encoder, sorted({*states.layers, *cached}), states.pooled, states.modes)
            with atomic_folder(folder) as temporary, attach_filename(folder):
                _write_states(temporary, states, encoded, advance)
                digest = _digest_layers(temporary, states.layers)
                write_json(temporary / HEADER, asdict(Header(model, data, states.layers, digest)))
                shutil.rmtree(folder, ignore_errors=True)
    features = open_features(folder)
    if _digest_layers(folder, features.header.layers) != features.header.states:
        raise ValueError(_damaged(folder))
    return features


@torch.inference_mode()
def _write_states(folder: Path, states: LayerStates, encoded: Encoded, advance: Callable[[int], None] | None) -> None:
    """Compute all states, batch by batch, and write them into the files of their layers."""
    shape = len(encoded.positions), states.state_size
    files = [allocate_npy(_layer_file(folder, layer), np.float16, shape) for layer in states.layers]
    for items, batch in prediction_batches(states, states.config, encoded):
        computed = states.predict_batch(batch).cpu().numpy()
        check_finite_outputs(bool(np.isfinite(computed).all()))
        if np.abs(computed).max(initial=0) > np.finfo(np.float16).max:
            raise ValueError("the encoder's states exceed float16's range; are its weights damaged?")
        for file, layer in zip(files, np.split(computed, len(files), axis=1), strict=True):
            file[encoded.rows(items)] = layer
        if advance is not None:
            advance(len(items))
    for file in files:
        file.flush()


def open_features(folder: Path) -> Features:
    """Map a cache into memory. The states are not compared with their digest.

    Raises ValueError for a folder that is not a cache, and for files that are missing, truncated or of another shape.
    """
    header = _read_header(folder)
    try:
        stored = tuple([np.load(_layer_file(folder, layer), mmap_mode="r") for layer in header.layers])
    except (OSError, EOFError, ValueError):
        raise ValueError(_damaged(folder)) from None
    if any(array.ndim != 2 or array.shape != stored[0].shape or array.dtype != np.float16 for array in stored):
        raise ValueError(_damaged(folder))
    return Features(header, stored)


def check_cache_key(folder: Path, model: str, data: str) -> Header | None:
    """Read the header of a cache; None if it does not exist.

    Raises ValueError if it belongs to another model or other data, judged by their digests.
    """
    if not folder.exists():
        return None
    header = _read_header(folder)
    if header.model != model:
        difference = "another model or dtype (--dtype)"
    elif header.data != data:
        difference = "other data, or of the same data encoded differently"
    else:
        return header
    raise ValueError(f"{folder}: holds features of {difference}; delete it, or choose another folder")


def encoder_digest(encoder: TextEncoder, modes: Sequence[str] = ()) -> str:
    """Digest everything that determines the encoder's states for given tokens on one device, without dropout."""
    constants = (encoder.config, encoder.compute_dtype, *modes)
    weights = (f"{name} {_digest(tensor.cpu().numpy())}" for name, tensor in encoder.state_dict().items())
    return digest_bytes(repr(constants).encode(), *(weight.encode() for weight in weights))


def input_digest(encoded: Encoded) -> str:
    """Digest the encoder's input: the tokens, and the positions of the states."""
    arrays = (encoded.input_ids, encoded.token_type_ids, encoded.lengths, encoded.positions, encoded.position_counts)
    return digest_bytes(*(_digest(array).encode() for array in arrays if array is not None))


def _digest(array: npt.NDArray[Any]) -> str:
    return digest_bytes(f"{array.dtype} {array.shape}".encode(), array.tobytes())


def _digest_layers(folder: Path, layers: Sequence[int]) -> str:
    return digest_bytes(*(digest_file(_layer_file(folder, layer)).encode() for layer in layers))


def _read_header(folder: Path) -> Header:
    try:
        header = Header(**read_json(folder / HEADER))
        if not header.layers:
            raise ValueError("no layers")
        return replace(header, layers=tuple(map(int, header.layers)))
    except (FileNotFoundError, TypeError, ValueError):
        raise ValueError(
            f"{folder}: not a folder of features ({HEADER} is missing or damaged); delete it, or choose another folder"
        ) from None


def _layer_file(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:02d}.npy"


def _damaged(folder: Path) -> str:
    return f"{folder}: the features were damaged after they were written; delete the folder to compute them again"


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the caches of a task's splits; None for another folder."""
    fields = {}
    for split in SPLITS:
        if (folder / split / HEADER).is_file():
            features = open_features(folder / split)
            states, size = features.stored[0].shape
            layers = ", ".join(map(str, features.header.layers))
            fields[split] = f"{states:,} states of {size} numbers, of layer {layers}"
    if not fields:
        return None
    fields["checked"] = "sizes (a probe that reads them compares every byte)"
    return Description("states of a frozen encoder", fields)
