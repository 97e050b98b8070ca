"""The seam between packing and input: an encoder of characters trains, is killed, and resumes to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.models.encoder import TextEncoder
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import WordBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.tagging import Tagging
from bertwright.training.fit import TrainingSpec
from toys import check_resumes_to_the_bit, task_spec

WIDTH = 12  # characters of a word; 0 fills up


@dataclass(frozen=True)
class CharacterConfig:
    hidden_size: int = 24
    num_layers: int = 1
    vocab_size: int = 128
    max_positions: int = 99
    type_vocab_size: int = 1
    is_causal: bool = False
    hidden_dropout: float = 0.1
    initializer_range: float = 0.3
    num_parameters: int = 0

    def with_dropout(self, rate: float) -> CharacterConfig:
        return replace(self, hidden_dropout=rate)


class CharacterEncoder(TextEncoder):
    """A convolution over the characters of each word, and its maximum."""

    model_type: ClassVar[str] = "toy-characters"

    def __init__(self, config: CharacterConfig) -> None:
        super().__init__(config)
        torch.manual_seed(0)
        self.embeddings = nn.Embedding(config.vocab_size, 8)
        self.layers = nn.ModuleList([nn.Conv1d(8, config.hidden_size, 3, padding=1)])

    def forward(self, batch: WordBatch, positions: Tensor | None = None) -> Tensor:
        letters = self.embeddings(batch.rows)  # T W E
        states = self.layers[0](letters.transpose(1, 2)).relu().amax(2)  # T H
        return states if positions is None else states[positions]

    def hidden_states(self, batch: Any, layers: Sequence[int] | None = None, positions: Any = None) -> list[Tensor]:
        raise NotImplementedError


SENTENCES = ["The cats saw Two Dogs", "they run", "A Bird sings for Old men", "Rain falls on the Hill"] * 4
TASK = Tagging(labels=("lower", "Title"), scheme="none")


def encode(sentences: Sequence[str]) -> Encoded:
    words = [word for sentence in sentences for word in sentence.split()]
    lengths = np.array([len(sentence.split()) for sentence in sentences])
    return Encoded(
        input_ids=np.array([[*map(ord, word.ljust(WIDTH, "\0"))] for word in words], dtype=np.int32),
        token_type_ids=None,
        lengths=lengths,
        example_ids=np.arange(len(sentences)),
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        position_counts=lengths,
        labels=np.array([word[0].isupper() for word in words], dtype=np.int64),
        label_counts=lengths,
    )


def make_spec() -> TrainingSpec[TaskBatch]:
    return task_spec(TASK, EncoderForTask(CharacterEncoder(CharacterConfig()), TASK.head, seed=1), encode(SENTENCES))


def test_an_encoder_of_characters_trains_and_resumes_to_the_bit(tmp_path: Path) -> None:
    model = check_resumes_to_the_bit(make_spec, tmp_path).model.eval()
    (batch,) = next(task_spec(TASK, model, encode(["The Bird saw Old cats"])).batches(0))[:1]
    assert model.eval().predict_batch(batch).argmax(1).tolist() == batch.labels.tolist()
