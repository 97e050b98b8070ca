"""TSDAE (2104.06979): texts without many of their words, and the weights that training alone uses.

N texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.base.ragged import flat_ranges, offsets_from_lengths, positions_from_lengths
from bertwright.tasks.encoded import Encoded, Ints
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from bertwright.models.task_model import EncoderForTask

DELETED = 0.6  # share of the words
WEIGHTS = "decoder.safetensors"  # in a model folder; other programs leave it alone


def encode_denoising(texts: Sequence[str], tokenizer: TextTokenizer, lowercase: bool, max_length: int) -> Encoded:
    """Encode whole texts; labels: their tokens behind [CLS], the place of each, from 0, and the number of its word."""
    content = SegmentTokens.of_typed(texts, tokenizer, lowercase)
    whole = encode_segments([content], NO_LABELS, tokenizer, max_length)
    counts = whole.lengths - 1
    ids = np.delete(whole.input_ids, whole.starts[:-1]).astype(np.int64)
    words = np.cumsum(~tokenizer.is_continuation[ids])
    labels = np.stack([ids, positions_from_lengths(counts), words], axis=1)
    return replace(whole, labels=labels, label_counts=counts)


def delete_words(encoded: Encoded, items: Ints, key: int) -> Encoded:
    """Return some texts of `encode_denoising` without a random share of their words; at least one stays.

    The labels keep the tokens of the whole texts and their places. `key`: of the random numbers.
    """
    lengths = encoded.lengths[items]
    first = offsets_from_lengths(lengths)
    tokens = flat_ranges(encoded.starts[items], lengths)
    labels = encoded.labels[flat_ranges(encoded.label_starts[items], encoded.label_counts[items])]
    is_special = np.zeros(len(tokens), dtype=np.bool_)
    is_special[first[:-1]] = is_special[first[1:] - 1] = True
    draws = uniform(np.insert(labels[:, 2], first[:-1] - np.arange(len(items)), 0), key)  # one per word
    draws[is_special] = -1
    largest = np.repeat(np.maximum.reduceat(draws, first[:-1]), lengths)  # its word stays in any case
    stays = is_special | (draws >= DELETED) | (draws == largest)
    types = encoded.token_type_ids
    return replace(
        encoded,
        input_ids=encoded.input_ids[tokens][stays],
        token_type_ids=None if types is None else types[tokens][stays],
        lengths=np.add.reduceat(stays, first[:-1], dtype=np.int64),
        example_ids=np.arange(len(items)),
        positions=np.zeros(len(items), dtype=np.int32),
        position_counts=np.ones(len(items), dtype=np.int64),
        labels=labels[:, :2],
        label_counts=encoded.label_counts[items],
    )


def add_decoder(model: EncoderForTask, seed: int, folder: Path | None) -> None:
    """Give a model of vectors the head that has a decoder, with its weights in a folder, or else with random ones."""
    from safetensors.torch import load_file

    from bertwright.models.heads import VectorHead
    from bertwright.systems.bert.denoising_head import DenoisingHead

    head = model.head
    assert isinstance(head, VectorHead)
    model.head = DenoisingHead(head.spec, head.modes, head.layers, model.encoder)
    model.initialize_head(seed)
    if folder is not None and (folder / WEIGHTS).is_file():
        model.head.load_state_dict(load_file(folder / WEIGHTS))


def write_decoder(model: EncoderForTask, folder: Path) -> None:
    """Write the weights of a decoder, if the model has one, into its folder, so that its training can go on."""
    from safetensors.torch import save_file

    from bertwright.systems.bert.denoising_head import DenoisingHead

    if isinstance(model.head, DenoisingHead):
        save_file({name: tensor.contiguous() for name, tensor in model.head.state_dict().items()}, folder / WEIGHTS)
