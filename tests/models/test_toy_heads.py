"""The seam of heads: a linear-chain CRF, concatenated pooling, and an auxiliary language-model loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
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
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.classification import Classification
from bertwright.tasks.tagging import Tagging
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
# The tag of a word is whether its number in the sentence is even: only the tag before it tells.
TAGGED = [TagExample(tuple(text), tuple("even" if n % 2 == 0 else "odd" for n in range(len(text)))) for text in TEXTS]


# A linear-chain CRF


class CrfOutput(NamedTuple):
    emissions: Tensor  # R C
    transitions: Tensor  # C C, from the row's tag to the column's


class CrfHead(TaskHead):
    def __init__(self, spec: HeadSpec, hidden_size: int) -> None:
        super().__init__(spec)
        self.classifier = nn.Linear(hidden_size, spec.outputs)
        self.transitions = nn.Parameter(torch.zeros(spec.outputs, spec.outputs))

    def forward(self, states: Tensor, batch: TaskBatch, drop: Any) -> CrfOutput:
        return CrfOutput(self.classifier(states), self.transitions)

    def scores(self, output: CrfOutput, batch: TaskBatch) -> Tensor:
        """Return 1 for the tags of each sequence's best path and 0 for others: Viterbi's algorithm."""
        paths: list[int] = []
        for emissions in output.emissions.split(batch.position_counts.tolist()):
            best, back = emissions[0], []
            for row in emissions[1:]:
                best, came_from = (best[:, None] + output.transitions).max(0)
                best, back = best + row, [*back, came_from]
            path = [int(best.argmax())]
            for came_from in reversed(back):
                path.insert(0, int(came_from[path[0]]))
            paths += path
        return F.one_hot(torch.tensor(paths), self.spec.outputs).float()


@dataclass(frozen=True)
class CrfTagging(Tagging):
    kind: ClassVar[str] = "crf-tagging"

    @property
    def head_builder(self) -> Callable[[TextEncoder], TaskHead]:
        return lambda encoder: CrfHead(self.head, encoder.config.hidden_size)

    def loss(self, output: CrfOutput, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:  # type: ignore[override]
        """Compute minus the log-probability of all sequences' tags: the forward algorithm."""
        total = torch.zeros(())
        counts = batch.position_counts.tolist()
        for emissions, tags in zip(output.emissions.split(counts), batch.labels.split(counts), strict=True):
            total -= emissions.gather(1, tags[:, None]).sum() + output.transitions[tags[:-1], tags[1:]].sum()
            alpha = emissions[0]
            for row in emissions[1:]:
                alpha = (alpha[:, None] + output.transitions).logsumexp(0) + row
            total += alpha.logsumexp(0)
        return total


# Pooling of all states: the last, the maximum, the mean (ULMFiT, section 3.3)


class ConcatPooling(TaskHead):
    reads_all_tokens: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, hidden_size: int) -> None:
        super().__init__(spec)
        self.classifier = nn.Linear(3 * hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Any) -> Tensor:
        bounds = batch.packing.cu_seqlens.long()
        pooled = [torch.segment_reduce(states, how, offsets=bounds, axis=0) for how in ("max", "mean")]
        logits: Tensor = self.classifier(torch.cat([states[batch.packing.last_positions], *pooled], 1))
        return logits


@dataclass(frozen=True)
class PooledClassification(Classification):
    kind: ClassVar[str] = "pooled"

    @property
    def head_builder(self) -> Callable[[TextEncoder], TaskHead]:
        return lambda encoder: ConcatPooling(self.head, encoder.config.hidden_size)


# An auxiliary language-model loss (GPT, section 3.2)


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


TASKS = {
    "crf": (CrfTagging(labels=("even", "odd"), scheme="none", metric="accuracy"), TAGGED),
    "pooling": (PooledClassification(labels=("no", "yes")), LABELED),
    "auxiliary": (AuxiliaryClassification(labels=("no", "yes")), LABELED),
}


def make_spec(name: str) -> TrainingSpec[TaskBatch]:
    task, examples = TASKS[name]
    encoder = BertEncoder(CONFIG, seed=1)
    model = EncoderForTask(encoder, task.head_builder(encoder), seed=1)
    return task_spec(task, model, task.encode(examples, TOKENIZER))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TASKS)
def test_a_head_trains_resumes_to_the_bit_and_is_read_back_from_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _ = TASKS[name]
    monkeypatch.setitem(TASK_TYPES, task.kind, type(task))
    spec = check_resumes_to_the_bit(partial(make_spec, name), tmp_path)
    model = spec.model.eval()
    assert isinstance(model, EncoderForTask)
    batches = next(spec.batches(0))
    scores = [model.predict_batch(batch) for batch in batches]
    assert np.mean([(s.argmax(1) == b.labels).float().mean() for s, b in zip(scores, batches, strict=True)]) > 0.85
    save_task_folder(tmp_path / "model", TaskModel(model, task), TOKENIZER)
    again = load_task(tmp_path / "model")
    assert again is not None
    assert again.task == task
    assert all(torch.equal(again.model.predict_batch(b), s) for b, s in zip(batches, scores, strict=True))


def test_the_crf_equals_all_paths_by_hand() -> None:
    task, _ = TASKS["crf"]
    head = CrfHead(HeadSpec("token", 2), 4)
    with torch.no_grad():
        head.transitions.copy_(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))
    emissions = torch.tensor([[1.0, 0.5], [0.2, 0.1], [0.0, 0.9], [0.3, 0.4]])
    batch = TaskBatch(None, torch.arange(4), np.array([3, 1]), torch.tensor([0, 1, 1, 0]))  # type: ignore[arg-type]
    output = CrfOutput(emissions, head.transitions)

    def weigh(rows: Tensor, path: tuple[int, ...]) -> float:
        steps = [head.transitions[a, b].item() for a, b in pairwise(path)]
        return sum(rows[n, tag].item() for n, tag in enumerate(path)) + sum(steps)

    expected, best = 0.0, []
    for rows, tags in ((emissions[:3], (0, 1, 1)), (emissions[3:], (0,))):
        weights = {path: weigh(rows, path) for path in product((0, 1), repeat=len(rows))}
        expected += np.log(np.exp([*weights.values()]).sum()) - weights[tags]
        best += max(weights, key=weights.__getitem__)
    assert task.loss(output, batch).item() == pytest.approx(expected, rel=1e-6)  # type: ignore[arg-type]
    assert head.scores(output, batch).argmax(1).tolist() == best
