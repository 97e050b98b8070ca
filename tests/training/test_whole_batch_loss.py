"""A loss over all rows of a step: the same gradients for any number of micro-batches and ranks, resumed to the bit."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertwright.base.seeding import make_rng
from bertwright.models.encoder import EncoderModel
from bertwright.models.packing import TokenBatch, pack
from bertwright.models.pooling import pool_states
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.distributed import process_group
from bertwright.training.divided_weights import gather, is_divided, own_part
from bertwright.training.fit import TrainingSpec, train_until_stopped
from bertwright.training.loop import LossOutput, StepResult
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.training.whole_batch_loss import RowOutput, WholeBatchLoss
from harness import run_on_ranks
from helpers import CPU_CONTEXT
from toys import STEPS, check_resumes_to_the_bit

WORDS, PAIRS = 12, 13
SETTINGS = OptimizerSettings(learning_rate=0.005, bias_correction=True)
Gradients = dict[str, Tensor]


class TwoTowers(EncoderModel):
    """A BERT with dropout. One row per pair: the vectors of a text and of its translation, with a learned scale."""

    def __init__(self) -> None:
        super().__init__(BertEncoder(BertConfig(2 * WORDS, 32, 2, 2, 64, 16, initializer_range=0.2), seed=1))
        self.log_scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, batch: TokenBatch) -> Tensor:
        vectors = pool_states(self.encoder(batch), batch.packing, ["mean"])
        return (nn.functional.normalize(vectors) * (self.log_scale / 2).exp()).view(len(vectors) // 2, -1)


def make_micro_batches(step: int, parts: int, rank: int = 0, ranks: int = 1) -> list[tuple[TokenBatch, Tensor]]:
    """Make this rank's pairs of a step. A translation has other words; the last two pairs are the same pair."""
    rng = make_rng(5, step)
    texts = [rng.permutation(WORDS)[: rng.integers(2, 6)] for _ in range(PAIRS - 1)]
    pairs = [(text, text + WORDS) for text in (*texts, texts[-1])]
    starts = np.cumsum([0, *(2 * len(text) for text, _ in pairs)])
    batches = []
    for numbers in np.array_split(np.array_split(np.arange(PAIRS), ranks)[rank], parts):
        batch = pack([text for number in numbers for text in pairs[number]])
        keyed = batch.with_dropout(seed=step + 1, first_token=int(starts[numbers[0]]))
        batches.append((keyed, torch.from_numpy(numbers).clamp(max=PAIRS - 2)[:, None]))
    return batches


def contrast(vectors: Tensor, rows: Tensor) -> LossOutput:
    """Find each text's translation among the translations of all texts; an equal pair is no wrong answer."""
    texts, translations = vectors.chunk(2, dim=1)
    answers = torch.arange(len(rows))
    equal = (rows == rows.T) & ~torch.eye(len(rows), dtype=torch.bool)
    scores = (texts @ translations.T).masked_fill(equal, -torch.inf)  # N N
    loss = nn.functional.cross_entropy(scores, answers)
    return LossOutput(loss, {"loss": loss, "correct": (scores.argmax(1) == answers).sum()})


def make_spec(parts: int = 3, rank: int = 0, ranks: int = 1, divide: bool = False) -> TrainingSpec[Any]:
    """Train two towers; `parts`: micro-batches per rank and step."""
    model, divided = TwoTowers(), TwoTowers() if divide else None
    optimizer = Optimizer(dict((divided or model).named_parameters()), SETTINGS)

    def batches(first_step: int) -> Iterator[list[tuple[TokenBatch, Tensor]]]:
        return (make_micro_batches(step, parts, rank, ranks) for step in range(first_step, STEPS))

    def vectors(batch: tuple[TokenBatch, Tensor]) -> RowOutput:
        texts, rows = batch
        return RowOutput((divided or model)(texts), rows, {"tokens": torch.tensor(float(texts.packing.num_tokens))})

    loss = WholeBatchLoss(vectors, contrast)
    return TrainingSpec(model, optimizer, SETTINGS.make_schedule(STEPS), batches, loss, divided=divided)


def loss_of(spec: TrainingSpec[Any]) -> WholeBatchLoss[Any]:
    assert isinstance(spec.loss, WholeBatchLoss)
    return spec.loss


def take_step(spec: TrainingSpec[Any]) -> tuple[Gradients, StepResult]:
    """Take one step; return the gradients before they are clipped. With divided weights, rank 0 has them."""
    gradients: Gradients = {}
    step = spec.optimizer.step

    def record(learning_rate: float, norm: float | Tensor) -> None:
        for name, parameter in spec.optimizer.parameters.items():
            assert parameter.grad is not None
            whole = gather(own_part(parameter.grad), parameter) if is_divided(parameter) else parameter.grad
            gradients[name] = whole.to_dense().clone() if whole.is_sparse else whole.clone()
        step(learning_rate, norm)

    spec.optimizer.step = record  # type: ignore[method-assign]
    with closing(train_until_stopped(spec, CPU_CONTEXT, ())) as results:
        return gradients, next(results)


SHARES = [((1, 1), False), ((3, 3), False), ((1, 3), False), ((1, 1), True), ((3, 3), True)]
"""Micro-batches of each of two ranks, and whether they divide the weights."""


def take_steps_on_rank() -> list[tuple[Gradients, dict[str, float], float]]:
    """Take a step with each of `SHARES` on one of two ranks."""
    rank, taken = int(os.environ["RANK"]), []
    with process_group(2, CPU_CONTEXT.device):
        for parts, divide in SHARES:
            gradients, result = take_step(make_spec(parts[rank], rank, 2, divide))
            taken.append((gradients, result.sums, result.gradient_norm))
    return taken


@pytest.fixture(scope="module")
def direct() -> tuple[Gradients, dict[str, float]]:
    """The gradients of one batch by a single graph, and its sums."""
    spec = make_spec(parts=1)
    loss, (batch,) = loss_of(spec), make_micro_batches(0, parts=1)
    rows = loss.vectors(batch)
    output = loss.loss(rows.vectors, rows.rows)
    output.loss.backward()
    gradients: Gradients = {}
    for name, parameter in spec.model.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.to_dense()
        assert gradients[name].any(), name
    return gradients, {name: float(value.detach()) for name, value in {**rows.sums, **output.sums}.items()}


def check_gradients(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-6, name


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_micro_batches_give_the_gradients_of_the_whole_batch(
    parts: int, direct: tuple[Gradients, dict[str, float]]
) -> None:
    gradients, result = take_step(make_spec(parts))
    check_gradients(gradients, direct[0])
    assert result.sums == pytest.approx(direct[1], abs=1e-6)
    norm = torch.stack([gradient.norm() for gradient in direct[0].values()]).norm()
    assert result.gradient_norm == pytest.approx(float(norm), abs=1e-6)


def test_two_ranks_give_the_gradients_of_the_whole_batch(direct: tuple[Gradients, dict[str, float]]) -> None:
    """The ranks have 7 and 6 pairs, also if they divide the weights."""
    results = run_on_ranks(2, take_steps_on_rank)
    for number, (_, divide) in enumerate(SHARES):
        for rank, taken in results.items():
            gradients, sums, norm = taken[number]
            assert (sums, norm) == results[0][number][1:]
            assert sums == pytest.approx(direct[1], abs=1e-6)
            if rank == 0 or not divide:
                check_gradients(gradients, direct[0])


def test_killed_training_resumes_to_the_bit_and_finds_translations(tmp_path: Path) -> None:
    spec = check_resumes_to_the_bit(make_spec, tmp_path)
    spec.model.eval()
    (batch,) = make_micro_batches(STEPS, parts=1)
    rows = loss_of(spec).vectors(batch)
    assert contrast(rows.vectors, rows.rows).sums["correct"] > 0.8 * PAIRS


def watch(spec: TrainingSpec[Any], see: Callable[[int, RowOutput], object]) -> TrainingSpec[Any]:
    """Show what `vectors` returns, with the number of the micro-batch's first token."""
    loss = loss_of(spec)

    def vectors(batch: tuple[TokenBatch, Tensor]) -> RowOutput:
        output = loss.vectors(batch)
        see(batch[0].packing.first_token, output)
        return output

    return replace(spec, loss=replace(loss, vectors=vectors))


def test_the_second_pass_has_the_dropout_of_the_first() -> None:
    seen: list[tuple[int, Tensor, bool]] = []
    spec = make_spec(parts=3)
    take_step(
        watch(spec, lambda first, output: seen.append((first, output.vectors.detach(), output.vectors.requires_grad)))
    )
    assert [recorded for _, _, recorded in seen] == [False, False, True, True, True]
    assert [first for first, _, _ in seen[:2]] == [first for first, _, _ in seen[3:]]
    for (_, before, _), (_, again, _) in zip(seen[:2], seen[3:], strict=True):
        assert torch.equal(before, again)
    spec = make_spec()
    spec.model.eval()
    assert not torch.allclose(loss_of(spec).vectors(make_micro_batches(0, 3)[0]).vectors, seen[0][1])


class Saved:
    """A tensor that a graph has saved for its backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def count_saved_tensors(act: Callable[[], object]) -> int:
    """Return the largest number of tensors that graphs have saved at the same time."""
    alive, most = weakref.WeakSet[Saved](), 0

    def save(tensor: Tensor) -> Saved:
        nonlocal most
        saved = Saved(tensor)
        alive.add(saved)
        most = max(most, len(alive))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(save, lambda saved: saved.tensor):
        act()
    return most


def test_memory_holds_the_graph_of_one_micro_batch() -> None:
    def keep_all_graphs() -> None:
        loss = loss_of(make_spec(7))
        rows = [loss.vectors(batch) for batch in make_micro_batches(0, 7)]
        contrast(torch.cat([row.vectors for row in rows]), torch.cat([row.rows for row in rows]))

    one, seven = (count_saved_tensors(lambda parts=parts: take_step(make_spec(parts))) for parts in (1, 7))  # type: ignore[misc]
    assert seven == one
    assert count_saved_tensors(keep_all_graphs) > 5 * one


def test_the_sums_of_earlier_parts_do_not_stay_in_memory() -> None:
    """Small blocks between large freed ones would make the memory of a step grow with the number of its parts."""
    spec, alive = make_spec(7), weakref.WeakSet[Tensor]()
    loss, most = loss_of(spec), 0

    def vectors(batch: Any) -> RowOutput:
        nonlocal most
        output = loss.vectors(batch)
        alive.update(output.sums.values())
        most = max(most, len(alive))
        return output

    take_step(replace(spec, loss=WholeBatchLoss(vectors, contrast)))
    assert most == 2  # those of this part, and of the part before, whose output has not been replaced yet
