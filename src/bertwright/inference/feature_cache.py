"""Feature-based use of BERT (section 5.3): states of a frozen encoder, computed once and kept on disk.

R states that a task reads (of a word its first token's, of a text [CLS]'s), K layers of each, H hidden size.
Layer 0 is the embeddings' output, layer L the last.

A cache folder holds header.json, blocks.json and, for each layer, layer-NN.npy, R × H float16, memory-mapped when it
is read. The header's digests are of all that decides the numbers: the weights, and the ids and rows that the encoder is
given. So a cache is never taken for another's, and changes of what does not matter (a file's name, a label) leave it in
force. The digests of blocks.json are of the numbers themselves, and tell what a killed process or a bad disk has left.
"""

from __future__ import annotations

import io
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.batching.batch import Batch, offsets_from_lengths
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
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import EncoderForTask, EncoderModel
from bertwright.models.text_encoder import TextEncoder
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.task import Encoded, Ints
from bertwright.training.loop import DivergedError

Vectors = npt.NDArray[np.float32]

BLOCK_ROWS = 8_192  # computed between two writes: bounds memory, and what a kill costs
HEADER, BLOCKS = "header.json", "blocks.json"


class LayerStates(EncoderModel):
    """An encoder whose output concatenates the states of some layers; `predict_logits` runs it like a task model."""

    def __init__(self, encoder: TextEncoder, layers: Sequence[int], pooled: bool = False) -> None:
        """Read K `layers`, ascending; `pooled`: one state per sequence. Raises ValueError for an unknown layer."""
        super().__init__(encoder)
        last = encoder.config.num_layers
        if not layers or sorted({*layers}) != [*layers] or not 0 <= layers[0] <= layers[-1] <= last:
            raise ValueError(f"layers {[*layers]}: ascending numbers from 0 (embeddings) to {last} are needed")
        self.layers = tuple(layers)
        self.pooled = pooled
        self.head = HeadSpec("token", len(layers) * encoder.config.hidden_size)
        self.train(encoder.training)  # and so it is left: a new module would say that it is being trained

    def forward(self, batch: Batch, positions: Tensor) -> Tensor:
        """Compute R × K·H float32 of the tokens at `positions` (R int64); if `pooled`, as `EncoderForTask` does."""
        if self.pooled and self.config.is_causal:
            positions = self.encoder.sentence_positions(batch)
        return torch.cat(self.encoder.hidden_states(batch, self.layers, positions), dim=1).float()


def word_features(encoder: TextEncoder, encoded: Encoded, examples: int, layers: Sequence[int]) -> list[Vectors]:
    """The states of each example's rows, W × K × H float32: of a tagging task, one row a word. Nothing is kept.

    `examples`: how many there are; one without words has no sequence that would tell.
    """
    shape = (-1, len(layers), encoder.config.hidden_size)
    found = predict_logits(cast(EncoderForTask, LayerStates(encoder, layers)), encoded).reshape(shape)
    return np.split(found, example_rows(encoded, examples)[1:-1])


def example_rows(encoded: Encoded, examples: int) -> Ints:
    """Examples + 1, where each one's rows start: those of all its sequences, end to end."""
    counts = np.zeros(examples, dtype=np.int64)
    np.add.at(counts, encoded.example_ids, encoded.position_counts)
    return offsets_from_lengths(counts)


@dataclass(frozen=True)
class Header:
    """What a cache holds."""

    model: str
    """Digest of the encoder: its weights, its number type, and the constants of its arithmetic."""
    data: str
    """Digest of what it is given: tokens, where sequences begin, and which states are asked for."""
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Features:
    """The states of all rows, on disk."""

    header: Header
    stored: tuple[npt.NDArray[np.float16], ...]
    """For each layer of the header R × H, memory-mapped."""

    def take(self, rows: Ints, layers: Sequence[int]) -> Tensor:
        """The states of these rows, R × K × H float32."""
        chosen = [self.stored[self.header.layers.index(layer)][rows] for layer in layers]
        return torch.from_numpy(np.stack(chosen, axis=1).astype(np.float32))


def cached_features(
    encoder: TextEncoder,
    encoded: Encoded,
    layers: Sequence[int],
    folder: Path,
    advance: Callable[[int], None] | None = None,
    pooled: bool = False,
) -> Features:
    """The features that `folder` holds; computed first where it does not, or not for all of these layers.

    A killed computation goes on where it was. float16 keeps 11 bits of each number: an error of 0.05 % at most, well
    below what other seeds of a head change. `advance` is told of items done. Raises ValueError where the
    folder holds another model's or other data's features, for damaged ones, and for a layer that is not there.
    """
    states = LayerStates(encoder, layers, pooled)
    header = Header(encoder_digest(encoder), rows_digest(encoded), states.layers)
    shape = len(encoded.positions), encoder.config.hidden_size
    with lock_folder(folder.parent):
        remove_stale_parts(folder.parent)
        if (kept := check_cache_key(folder, header.model, header.data)) is not None:
            if {*layers} <= {*kept.layers}:
                return _open(folder, kept, shape, encoded)
            header = replace(header, layers=tuple(sorted({*kept.layers, *layers})))
            states = LayerStates(encoder, header.layers, pooled)
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        _compute(unfinished, header, shape, states, encoded, advance or (lambda _: None))
        if folder.exists():
            remove_folder(folder)
        unfinished.rename(folder)
        sync(folder.parent)
    return Features(header, _files(folder, header, shape, "r"))


def cache_info(folder: Path) -> tuple[Header, tuple[int, int]]:
    """What a cache says that it holds, and (R, H); its numbers are not compared with their digests.

    Raises ValueError for a folder that is no cache, and for files that are not as the header has them.
    """
    header = _read_header(folder)
    first = _layer_file(folder, header.layers[0])
    try:
        rows, size = np.load(first, mmap_mode="r").shape
    except (OSError, EOFError, ValueError):
        raise ValueError(f"{first}: damaged; delete {folder}, and it is computed again") from None
    _files(folder, header, (rows, size), "r")
    return header, (rows, size)


def check_cache_key(folder: Path, model: str, data: str) -> Header | None:
    """The header of what `folder` holds, None where it is not there.

    Raises ValueError where that is another model's or of other data, going by their digests.
    """
    if not folder.exists():
        return None
    kept = _read_header(folder)
    if kept.model != model:
        other = "another model or number type"
    elif kept.data != data:
        other = "other data, or otherwise read"
    else:
        return kept
    raise ValueError(f"{folder}: holds features of {other}; delete it, or name another folder")


def encoder_digest(encoder: TextEncoder) -> str:
    """Digest of all that decides an encoder's numbers for given tokens (dropout off, one device)."""
    constants = (encoder.config, encoder.compute_dtype)
    weights = (f"{name} {_digest(tensor.cpu().numpy())}" for name, tensor in encoder.state_dict().items())
    return digest_bytes(repr(constants).encode(), *(weight.encode() for weight in weights))


def rows_digest(encoded: Encoded) -> str:
    """Digest of the tokens that an encoder is given and of the rows asked for."""
    given = (encoded.input_ids, encoded.token_type_ids, encoded.lengths, encoded.positions, encoded.position_counts)
    return digest_bytes(*(_digest(array).encode() for array in given))


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
    """All layers of the header into `folder`, block by block; what a killed process left whole is gone on with."""
    digests = _completed_blocks(folder, header, shape, encoded)
    if not digests:
        _begin(folder, header, shape)
    files = _files(folder, header, shape, "r+")
    bounds = _blocks(encoded)
    advance(bounds[len(digests)])
    for first, last in pairwise(bounds[len(digests) :]):
        part = _part(encoded, first * encoded.sequences_per_item, last * encoded.sequences_per_item)
        try:
            found = predict_logits(cast(EncoderForTask, states), part, advance).reshape(
                len(part.positions), len(files), -1
            )
            if not np.abs(found).max(initial=0) <= np.finfo(np.float16).max:
                raise ValueError(f"{folder}: the encoder gives states beyond float16's range: are its weights whole?")
        except (DivergedError, ValueError):  # which nobody could go on with
            shutil.rmtree(folder)
            raise
        rows = _block_rows(encoded, first, last)
        for place, file in enumerate(files):
            file[rows] = found[:, place]
            file.flush()
        digests.append(_block_digest(files, rows))
        write_json(folder / BLOCKS, digests)


def _completed_blocks(folder: Path, header: Header, shape: tuple[int, int], encoded: Encoded) -> list[str]:
    """Digests of the first blocks, as far as a killed computation of the same has written them whole."""
    try:
        kept = read_json(folder / BLOCKS)
        if _read_header(folder) != header or not isinstance(kept, list):
            return []
        files = _files(folder, header, shape, "r")
    except (FileNotFoundError, ValueError):  # nothing there, or nothing that could be gone on with
        return []
    pairs = zip(kept, _block_digests(files, encoded), strict=False)
    return [digest for _, digest in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _begin(folder: Path, header: Header, shape: tuple[int, int]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    head, size = _npy(shape)
    try:
        for layer in header.layers:
            path = _layer_file(folder, layer)
            with attach_filename(path), path.open("wb") as file:
                file.write(head)
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # else a full disk kills the process that writes to the mapping
                    os.posix_fallocate(file.fileno(), 0, size)
        write_json(folder / HEADER, asdict(header))
        write_json(folder / BLOCKS, [])  # last: it says that all else is there
    except OSError:
        shutil.rmtree(folder)
        raise


def _npy(shape: tuple[int, int]) -> tuple[bytes, int]:
    """What stands before the numbers in a .npy file of float16, and how many bytes it has in all."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f2", "fortran_order": False, "shape": shape})
    return head.getvalue(), len(head.getvalue()) + 2 * math.prod(shape)


def _block_rows(encoded: Encoded, first: int, last: int) -> slice:
    """The rows of the items from `first` to before `last`."""
    return slice(
        encoded.position_starts[first * encoded.sequences_per_item],
        encoded.position_starts[last * encoded.sequences_per_item],
    )


def _block_digests(files: Sequence[npt.NDArray[np.float16]], encoded: Encoded) -> Iterator[str]:
    for first, last in pairwise(_blocks(encoded)):
        yield _block_digest(files, _block_rows(encoded, first, last))


def _block_digest(files: Sequence[npt.NDArray[np.float16]], rows: slice) -> str:
    """Of these rows in all layers."""
    return digest_bytes(*(file[rows].tobytes() for file in files))


def _blocks(encoded: Encoded) -> list[int]:
    """The items at which blocks of about BLOCK_ROWS rows begin, and where the last one ends.

    They depend on the data alone: a resumed computation must meet the same ones.
    """
    of_items = encoded.position_starts[:: encoded.sequences_per_item]
    begin = np.searchsorted(of_items, np.arange(BLOCK_ROWS, len(encoded.positions), BLOCK_ROWS))
    return [int(item) for item in np.unique([0, *begin, encoded.num_items])]


def _part(encoded: Encoded, first: int, last: int) -> Encoded:
    """The sequences from `first` to before `last`, without targets."""
    tokens, rows = (slice(bounds[first], bounds[last]) for bounds in (encoded.starts, encoded.position_starts))
    sequences = slice(first, last)
    return replace(
        encoded,
        input_ids=encoded.input_ids[tokens],
        token_type_ids=encoded.token_type_ids[tokens],
        lengths=encoded.lengths[sequences],
        example_ids=encoded.example_ids[sequences],
        positions=encoded.positions[rows],
        position_counts=encoded.position_counts[sequences],
        labels=encoded.labels[:0],
        label_counts=np.zeros((last - first) // encoded.sequences_per_item, dtype=np.int64),
    )


def _read_header(folder: Path) -> Header:
    try:
        fields: dict[str, Any] = read_json(folder / HEADER)
        layers = tuple(map(int, fields["layers"]))
        layers[0]  # a folder without any is none
        return Header(str(fields["model"]), str(fields["data"]), layers)
    except (FileNotFoundError, LookupError, TypeError, ValueError):
        raise ValueError(
            f"{folder}: no folder of features ({HEADER} is missing or damaged); delete it, or name another"
        ) from None


def _open(folder: Path, header: Header, shape: tuple[int, int], encoded: Encoded) -> Features:
    """What the folder holds, once every number has been compared with its digest."""
    stored = _files(folder, header, shape, "r")
    again = "delete the folder, and they are computed again"
    try:
        kept = read_json(folder / BLOCKS)
    except FileNotFoundError:
        raise ValueError(f"{folder}: no {BLOCKS} with the digests of its numbers; {again}") from None
    if kept != [*_block_digests(stored, encoded)]:
        raise ValueError(f"{folder}: not the numbers that were written; {again}")
    return Features(header, stored)


def _files(
    folder: Path, header: Header, shape: tuple[int, int], mode: Literal["r", "r+"]
) -> tuple[np.memmap[Any, np.dtype[np.float16]], ...]:
    """The layers' files, mapped into memory. Raises ValueError for one that is not as it should be."""
    head, _ = _npy(shape)
    paths = [_layer_file(folder, layer) for layer in header.layers]
    for path in paths:
        if fault := _fault(path, shape):
            raise ValueError(f"{path}: damaged ({fault}); delete {folder}, and it is computed again")
    return tuple([np.memmap(path, np.float16, mode, offset=len(head), shape=shape) for path in paths])


def _fault(path: Path, shape: tuple[int, int]) -> str | None:
    """What is wrong with a layer's file, its numbers apart; None for nothing."""
    head, size = _npy(shape)
    if not path.is_file():
        return "not there"
    if path.stat().st_size != size:  # one that is too short would be filled up in silence
        return f"{path.stat().st_size:,} bytes, {size:,} expected"
    with path.open("rb") as file:
        return None if file.read(len(head)) == head else f"float16 [{shape[0]}, {shape[1]}] expected"


def _layer_file(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:02d}.npy"
