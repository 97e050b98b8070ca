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
from bertwright.base.ragged import positions_from_lengths
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from bertwright.models.task_model import EncoderForTask

DELETED = 0.6  # share of the words
WEIGHTS = "decoder.safetensors"  # in a model folder; other programs leave it alone


def delete_words(text: str, number: int) -> str:
    """Return a text without a random share of its words; at least one stays. `number`: of the text.

    >>> delete_words("the bear sees the wolf in the forest", 1), delete_words("bear", 1)
    ('bear sees the the', 'bear')
    """
    words = text.split()
    draws = uniform(np.arange(len(words)), derive_key(0, TaskStream.WORDS, number))
    remaining = [word for word, draw in zip(words, draws, strict=True) if draw >= DELETED]
    return " ".join(remaining or [words[int(draws.argmax())]] if words else [])


def encode_denoising(texts: Sequence[str], tokenizer: TextTokenizer, lowercase: bool, max_length: int) -> Encoded:
    """Encode damaged texts; labels: the tokens of the whole texts behind [CLS], and the place of each, from 0."""
    damaged = [delete_words(text, number) for number, text in enumerate(texts)]
    read, whole = (
        encode_segments([SegmentTokens.of_typed(given, tokenizer, lowercase)], NO_LABELS, tokenizer, max_length)
        for given in (damaged, texts)
    )
    counts = whole.lengths - 1
    ids = np.delete(whole.input_ids, whole.starts[:-1]).astype(np.int64)
    labels = np.stack([ids, positions_from_lengths(counts)], axis=1)
    return replace(read, labels=labels, label_counts=counts, truncated=whole.truncated)


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
