"""The seam of heads: a toy with an auxiliary language-model loss (GPT, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.models.encoder import TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.packing import TokenBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.classification import Classification
from bertwright.tasks.task import sum_cross_entropy
from bertwright.tasks.task_folder import TaskModel, load_task, save_task_folder
from bertwright.tasks.task_types import TASK_TYPES
from bertwright.tasks.text_task import TextExample
from bertwright.training.fit import TrainingSpec
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from toys import check_resumes_to_the_bit, task_spec

WORDS = "cat dog sees hears a the red big".split()
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *WORDS], lowercase=True)
CONFIG = BertConfig(TOKENIZER.vocab_size, 16, 1, 2, 32, 16, hidden_dropout=0.1)
RNG = np.random.default_rng(0)
TEXTS = [RNG.choice(WORDS, RNG.integers(1, 6)).tolist() for _ in range(48)]
LABELED = [TextExample(" ".join(text), None, "yes" if "cat" in text else "no", "toy") for text in TEXTS]


class WithLanguageModel(NamedTuple):
    logits: Tensor
    next_tokens: Tensor  # T V


class AuxiliaryHead(TaskHead):
    reads_all_tokens: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, hidden_size: int) -> None:
        super().__init__(spec)
        self.classifier = nn.Linear(hidden_size, spec.outputs)
        self.decoder = nn.Linear(hidden_size, TOKENIZER.vocab_size)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Any) -> WithLanguageModel:
        return WithLanguageModel(self.classifier(states[batch.packing.first_positions]), self.decoder(states))

    def scores(self, output: WithLanguageModel, batch: TaskBatch) -> Tensor:
        return output.logits


@dataclass(frozen=True)
class AuxiliaryClassification(Classification):
    kind: ClassVar[str] = "auxiliary"

    @property
    def head_builder(self) -> Callable[[TextEncoder], TaskHead]:
        return lambda encoder: AuxiliaryHead(self.head, encoder.config.hidden_size)

    def loss(self, output: WithLanguageModel, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:  # type: ignore[override]
        assert isinstance(batch.input, TokenBatch)
        follows = (batch.packing.position_ids[1:] > 0).nonzero()[:, 0]  # tokens that another one of their text follows
        language = F.cross_entropy(output.next_tokens[follows], batch.input.input_ids[1:][follows])
        return sum_cross_entropy(output.logits, batch.labels, smoothing) + 0.5 * len(batch.labels) * language


TASK = AuxiliaryClassification(labels=("no", "yes"))


def make_spec() -> TrainingSpec[TaskBatch]:
    encoder = BertEncoder(CONFIG, seed=1)
    model = EncoderForTask(encoder, TASK.head_builder(encoder), seed=1)
    return task_spec(TASK, model, TASK.encode(LABELED, TOKENIZER))


def test_a_head_trains_resumes_to_the_bit_and_is_read_back_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASK_TYPES, TASK.kind, AuxiliaryClassification)
    spec = check_resumes_to_the_bit(make_spec, tmp_path)
    model = spec.model.eval()
    assert isinstance(model, EncoderForTask)
    batches = next(spec.batches(0))
    scores = [model.predict_batch(batch) for batch in batches]
    assert np.mean([(s.argmax(1) == b.labels).float().mean() for s, b in zip(scores, batches, strict=True)]) > 0.85
    save_task_folder(tmp_path / "model", TaskModel(model, TASK), TOKENIZER)
    again = load_task(tmp_path / "model")
    assert again is not None
    assert again.task == TASK
    assert all(torch.equal(again.model.predict_batch(b), s) for b, s in zip(batches, scores, strict=True))
