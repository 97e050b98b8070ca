"""The seam of pairs: a decoder attends to itself and to a source of another length, and resumes to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.seeding import make_rng
from bertwright.kernels.attention import attention, cross_attention
from bertwright.models.packing import PairBatch, pack
from bertwright.training.fit import TrainingSpec
from bertwright.training.loop import LossOutput
from bertwright.training.optimizer import Optimizer
from toys import SETTINGS, STEPS, check_resumes_to_the_bit

WORDS, SIZE, HEADS, START = 8, 32, 2, 8


class CopyingDecoder(nn.Module):
    """One layer of a decoder: masked self-attention, then attention to the source."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, SIZE)
        self.positions = nn.Embedding(16, SIZE)
        self.qkv, self.q = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.kv, self.output = nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, WORDS)

    def forward(self, batch: PairBatch) -> Tensor:
        source, target = batch.source, batch.target
        states = self.words(target.input_ids) + self.positions(target.packing.position_ids)  # T H
        qkv = self.qkv(states).view(-1, 3, HEADS, SIZE // HEADS)
        states = states + attention(qkv, target.packing.cu_seqlens, target.packing.max_seqlen, None, 0, True).flatten(1)
        memory = self.words(source.input_ids) + self.positions(source.packing.position_ids)  # S H
        read = cross_attention(
            self.q(states).view(-1, HEADS, SIZE // HEADS),
            self.kv(memory).view(-1, 2, HEADS, SIZE // HEADS),
            target.packing.cu_seqlens,
            source.packing.cu_seqlens,
            target.packing.max_seqlen,
            source.packing.max_seqlen,
        )
        logits: Tensor = self.output(states + read.flatten(1))
        return logits


def make_batch(step: int) -> tuple[PairBatch, Tensor]:
    """Return sources, targets that copy all of a source but its first word, shifted right, and the words to predict."""
    rng = make_rng(3, step)
    sources = [rng.integers(0, WORDS, rng.integers(2, 7)) for _ in range(32)]
    shifted = [[START, *source[1:-1]] for source in sources]
    targets = torch.cat([torch.from_numpy(source[1:]) for source in sources])
    return PairBatch(pack(sources), pack([torch.tensor(ids).numpy() for ids in shifted])), targets


def make_spec() -> TrainingSpec[tuple[PairBatch, Tensor]]:
    torch.manual_seed(0)
    model = CopyingDecoder()
    optimizer = Optimizer(dict(model.named_parameters()), SETTINGS)

    def batches(first_step: int) -> Iterator[list[tuple[PairBatch, Tensor]]]:
        for step in range(first_step, STEPS):
            yield [make_batch(step)]

    def loss(batch: tuple[PairBatch, Tensor]) -> LossOutput:
        value = F.cross_entropy(model(batch[0]), batch[1])
        return LossOutput(value, {"loss": value.detach()})

    return TrainingSpec(model, optimizer, SETTINGS.make_schedule(STEPS), batches, loss)


def test_a_decoder_learns_to_copy_its_source_and_resumes_to_the_bit(tmp_path: Path) -> None:
    model = check_resumes_to_the_bit(make_spec, tmp_path).model
    pairs, words = make_batch(STEPS + 1)
    assert (model(pairs).argmax(1) == words).float().mean() > 0.9
    lengths = (side.packing.lengths[0] for side in (pairs.source, pairs.target))
    first = [side.input_ids[:n].numpy() for side, n in zip((pairs.source, pairs.target), lengths, strict=True)]
    alone = PairBatch(pack(first[:1]), pack(first[1:]))
    assert torch.allclose(model(alone), model(pairs)[: alone.packing.num_tokens], atol=1e-6)
