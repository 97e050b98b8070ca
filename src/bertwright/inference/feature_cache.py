"""Feature-based use of BERT (section 5.3): the states of a frozen encoder, computed once and saved on disk.

R states that a task reads (a word's first token, a text's [CLS]), K layers, H hidden size. Layer 0 is the output of the
embeddings, layer L that of the last layer.

A cache folder contains header.json, blocks.json and, for each layer, layer-NN.npy: R × H float16, memory-mapped. The
header has digests of everything that determines the states: the weights, the token ids and the positions. A cache is
therefore never used for another model or other data, but stays valid after other changes (a file's name, a label).
blocks.json has digests of the states, to detect damage by a killed process or a bad disk.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.files import (
    attach_filename,
    digest_bytes,
    lock_folder,
    read_json,
    remove_folder,
    remove_stale_parts,
    sync,
    write_json,
)
from bertwright.io.npy import npy_header
from bertwright.models.heads import BatchPredictor, TaskBatch
from bertwright.models.text_encoder import TextEncoder
from bertwright.ragged import offsets_from_lengths
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.task import Encoded, Ints
from bertwright.training.loop import DivergedError

Vectors = npt.NDArray[np.float32]

DTYPE = np.dtype("<f2")
BLOCK_STATES = 8_192  # per write; bounds memory, and the work lost if the process is killed
HEADER, BLOCKS = "header.json", "blocks.json"


class LayerStates(BatchPredictor):
    """An encoder that outputs the states of several layers, concatenated, in a model that `predict_logits` can run."""

    def __init__(self, encoder: TextEncoder, layers: Sequence[int], pooled: bool = False) -> None:
        """Select K `layers`, in ascending order. `pooled`: one state per sequence.

        Raises ValueError for a layer that the encoder does not have.
        """
        super().__init__(encoder)
        last = encoder.config.num_layers
        if not layers or sorted({*layers}) != [*layers] or not 0 <= layers[0] <= layers[-1] <= last:
            raise ValueError(f"layers: expected ascending numbers from 0 (embeddings) to {last}, got {[*layers]}")
        self.layers = tuple(layers)
        self.pooled = pooled
        self.training = encoder.training  # its own flag alone: the encoder's mode stays

    @property
    def num_outputs(self) -> int:
        """Numbers per position, K · H."""
        return len(self.layers) * self.config.hidden_size

    def predict_batch(self, batch: TaskBatch) -> Tensor:
        """Compute the states R × K·H float32 at the positions of a batch; if `pooled`, at the pooled positions."""
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
    encoder: TextEncoder,
    encoded: Encoded,
    layers: Sequence[int],
    folder: Path,
    advance: Callable[[int], None] | None = None,
    pooled: bool = False,
) -> Features:
    """Open the features in `folder`; compute them first if the folder is absent or lacks one of these layers.

    A computation that was killed is resumed. float16 rounds each number by at most 0.05 %, which changes a head's score
    far less than another seed does. `advance` is called with a number of items when they are done. Raises ValueError if
    the folder has features of another model or other data, if they are damaged, or if the encoder lacks a layer.
    """
    states = LayerStates(encoder, layers, pooled)
    header = Header(encoder_digest(encoder), input_digest(encoded), states.layers)
    shape = len(encoded.positions), encoder.config.hidden_size
    with lock_folder(folder.parent):
        remove_stale_parts(folder.parent)
        if (saved := check_cache_key(folder, header.model, header.data)) is not None:
            if {*layers} <= {*saved.layers}:
                return _open(folder, saved, shape, encoded)
            header = replace(header, layers=tuple(sorted({*saved.layers, *layers})))
            states = LayerStates(encoder, header.layers, pooled)
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        _compute(unfinished, header, shape, states, encoded, advance or (lambda _: None))
        if folder.exists():
            remove_folder(folder)
        unfinished.rename(folder)
        sync(folder.parent)
    return Features(header, _map_files(folder, header, shape, "r"))


def cache_info(folder: Path) -> tuple[Header, tuple[int, int]]:
    """Read the header of a cache, and (R, H). The states are not compared with their digests.

    Raises ValueError for a folder that is not a cache, and for missing or damaged files.
    """
    header = _read_header(folder)
    first = _layer_file(folder, header.layers[0])
    try:
        count, size = np.load(first, mmap_mode="r").shape
    except (OSError, EOFError, ValueError):
        raise ValueError(f"{first}: damaged; delete {folder} to compute it again") from None
    _map_files(folder, header, (count, size), "r")
    return header, (count, size)


def check_cache_key(folder: Path, model: str, data: str) -> Header | None:
    """Read the header of a cache; None if it does not exist.

    Raises ValueError if it belongs to another model or other data, judged by their digests.
    """
    if not folder.exists():
        return None
    saved = _read_header(folder)
    if saved.model != model:
        other = "another model or dtype (--dtype)"
    elif saved.data != data:
        other = "other data, or of the same data encoded differently"
    else:
        return saved
    raise ValueError(f"{folder}: holds features of {other}; delete it, or choose another folder")


def encoder_digest(encoder: TextEncoder) -> str:
    """Digest everything that determines the encoder's states for given tokens on one device, without dropout."""
    constants = (encoder.config, encoder.compute_dtype)
    weights = (f"{name} {_digest(tensor.cpu().numpy())}" for name, tensor in encoder.state_dict().items())
    return digest_bytes(repr(constants).encode(), *(weight.encode() for weight in weights))


def input_digest(encoded: Encoded) -> str:
    """Digest the encoder's input: the tokens, and the positions of the states."""
    arrays = (encoded.input_ids, encoded.token_type_ids, encoded.lengths, encoded.positions, encoded.position_counts)
    return digest_bytes(*(_digest(array).encode() for array in arrays if array is not None))


def _digest(array: npt.NDArray[Any]) -> str:
    return digest_bytes(f"{array.dtype} {array.shape}".encode(), array.tobytes())


def _compute(
    folder: Path,
    header: Header,
    shape: tuple[int, int],
    states: LayerStates,
    encoded: Encoded,
    advance: Callable[[int], None],
) -> None:
    """Write all layers of the header into `folder`, block by block; skip the blocks that a killed process completed."""
    digests = _completed_blocks(folder, header, shape, encoded)
    if not digests:
        _begin(folder, header, shape)
    files = _map_files(folder, header, shape, "r+")
    bounds = _block_bounds(encoded)
    advance(bounds[len(digests)])
    for first, last in pairwise(bounds[len(digests) :]):
        chunk = _slice_sequences(encoded, first * encoded.sequences_per_item, last * encoded.sequences_per_item)
        try:
            computed = predict_logits(states, chunk, advance)
            if not np.abs(computed).max(initial=0) <= np.finfo(np.float16).max:
                raise ValueError(f"{folder}: the encoder's states exceed float16's range; are its weights damaged?")
        except (DivergedError, ValueError):  # a second attempt would fail the same way
            shutil.rmtree(folder)
            raise
        block = _block_states(encoded, first, last)
        for file, layer in zip(files, np.split(computed, len(files), axis=1), strict=True):
            file[block] = layer
            file.flush()
        digests.append(_block_digest(files, block))
        write_json(folder / BLOCKS, digests)


def _completed_blocks(folder: Path, header: Header, shape: tuple[int, int], encoded: Encoded) -> list[str]:
    """Return the digests of the leading blocks that a killed computation with this header has completed."""
    try:
        saved = read_json(folder / BLOCKS)
        if _read_header(folder) != header or not isinstance(saved, list):
            return []
        files = _map_files(folder, header, shape, "r")
    except (FileNotFoundError, ValueError):  # absent or damaged
        return []
    pairs = zip(saved, _block_digests(files, encoded), strict=False)
    return [digest for _, digest in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _begin(folder: Path, header: Header, shape: tuple[int, int]) -> None:
    """Create a cache folder whose files have their final size but no states yet."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start, size = _start_and_size(shape)
    try:
        for layer in header.layers:
            path = _layer_file(folder, layer)
            with attach_filename(path), path.open("wb") as file:
                file.write(start)
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process on a write
                    os.posix_fallocate(file.fileno(), 0, size)
        write_json(folder / HEADER, asdict(header))
        write_json(folder / BLOCKS, [])  # last: without it, the folder counts as incomplete
    except OSError:
        shutil.rmtree(folder)
        raise


def _start_and_size(shape: tuple[int, int]) -> tuple[bytes, int]:
    """Return the bytes of a layer's file before its states, and the size of the whole file in bytes."""
    start = npy_header(DTYPE, shape)
    return start, len(start) + DTYPE.itemsize * math.prod(shape)


def _block_states(encoded: Encoded, first: int, last: int) -> slice:
    """Return the indices of the states of the items `first` to `last` - 1."""
    return slice(
        encoded.position_starts[first * encoded.sequences_per_item],
        encoded.position_starts[last * encoded.sequences_per_item],
    )


def _block_digests(files: Sequence[npt.NDArray[np.float16]], encoded: Encoded) -> Iterator[str]:
    """Yield the digest of each block."""
    for first, last in pairwise(_block_bounds(encoded)):
        yield _block_digest(files, _block_states(encoded, first, last))


def _block_digest(files: Sequence[npt.NDArray[np.float16]], states: slice) -> str:
    """Digest a block of states of all layers."""
    return digest_bytes(*(file[states].tobytes() for file in files))


def _block_bounds(encoded: Encoded) -> list[int]:
    """Return the first item of each block of about BLOCK_STATES states and, as the last element, the number of items.

    The bounds depend only on the data, so a resumed computation has the same blocks.
    """
    of_items = encoded.position_starts[:: encoded.sequences_per_item]
    begin = np.searchsorted(of_items, np.arange(BLOCK_STATES, len(encoded.positions), BLOCK_STATES))
    return [int(item) for item in np.unique([0, *begin, encoded.num_items])]


def _slice_sequences(encoded: Encoded, first: int, last: int) -> Encoded:
    """Return the sequences `first` to `last` - 1, without labels."""
    tokens, states = (slice(bounds[first], bounds[last]) for bounds in (encoded.starts, encoded.position_starts))
    sequences = slice(first, last)
    return replace(
        encoded,
        input_ids=encoded.input_ids[tokens],
        token_type_ids=None if encoded.token_type_ids is None else encoded.token_type_ids[tokens],
        lengths=encoded.lengths[sequences],
        example_ids=encoded.example_ids[sequences],
        positions=encoded.positions[states],
        position_counts=encoded.position_counts[sequences],
        labels=encoded.labels[:0],
        label_counts=np.zeros((last - first) // encoded.sequences_per_item, dtype=np.int64),
    )


def _read_header(folder: Path) -> Header:
    """Read header.json. Raises ValueError if it is missing or damaged."""
    try:
        fields: dict[str, Any] = read_json(folder / HEADER)
        layers = tuple(map(int, fields["layers"]))
        if not layers:
            raise ValueError("no layers")
        return Header(str(fields["model"]), str(fields["data"]), layers)
    except (FileNotFoundError, LookupError, TypeError, ValueError):
        raise ValueError(
            f"{folder}: not a folder of features ({HEADER} is missing or damaged); delete it, or choose another folder"
        ) from None


def _open(folder: Path, header: Header, shape: tuple[int, int], encoded: Encoded) -> Features:
    """Open a complete cache, and compare all its states with their digests."""
    stored = _map_files(folder, header, shape, "r")
    fix = "delete the folder to compute them again"
    try:
        saved = read_json(folder / BLOCKS)
    except FileNotFoundError:
        raise ValueError(f"{folder}: {BLOCKS}, with the digests of the features, is missing; {fix}") from None
    if saved != [*_block_digests(stored, encoded)]:
        raise ValueError(f"{folder}: the features were damaged after they were written; {fix}")
    return Features(header, stored)


def _map_files(
    folder: Path, header: Header, shape: tuple[int, int], mode: Literal["r", "r+"]
) -> tuple[np.memmap[Any, np.dtype[np.float16]], ...]:
    """Map the files of the layers into memory. Raises ValueError if one is missing or has another size or type."""
    start, size = _start_and_size(shape)
    paths = [_layer_file(folder, layer) for layer in header.layers]
    for path in paths:
        found = path.stat().st_size if path.is_file() else 0
        if found != size:  # np.memmap would extend a file that is too short
            problem = f"expected {size:,} bytes, got {found:,}"
        else:
            with path.open("rb") as file:
                if file.read(len(start)) == start:
                    continue
            problem = f"expected float16 [{shape[0]}, {shape[1]}]"
        raise ValueError(f"{path}: damaged ({problem}); delete {folder} to compute it again")
    return tuple([np.memmap(path, np.float16, mode, offset=len(start), shape=shape) for path in paths])


def _layer_file(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:02d}.npy"
