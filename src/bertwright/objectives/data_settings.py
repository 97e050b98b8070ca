"""Settings of pre-training examples; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from bertwright.base.settings import MAX_BATCH_SIZE, MAX_SEED, check_limit, check_range, written_docs
from bertwright.systems.registry import DEFAULT, objectives_of, pretrained


@dataclass(frozen=True)
class DataSettings:
    """Settings by which pre-training examples are made from a token store."""

    max_length: int = 128
    """Tokens of an example, with [CLS] and [SEP]. Paper, section A.2: 128 for the first 90 % of the steps, then 512."""
    batch_size: int = 256
    """Examples per step, over all ranks and micro-batches. Paper, section A.2: 256."""
    objective: str = "mlm+nsp"
    """What is predicted. {objectives}. The first one of an --architecture need not be named."""
    segments: Literal["pair", "single"] | None = None
    """pair: two segments as for next-sentence prediction, also without that objective, so that segment B and the second
    [SEP] are trained. single: one segment of consecutive text. Unset: pair for mlm+nsp, else single."""
    short_seq_prob: float = 0.1
    """Share of examples with a random, shorter target length, because inputs in fine-tuning are short. Google's 0.1
    counts passes over a document: it equals about 0.2 here at 128 tokens, and 0.3 at 512 (measured, decision 1)."""
    mlm_probability: float = 0.15
    """Share of tokens that are predicted. Paper, section 3.1: 0.15."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Of the predicted tokens, shares shown as [MASK], unchanged, and as a random token. Paper, section 3.1:
    0.8 0.1 0.1; its table 8 compares others."""
    max_predictions_per_seq: int | None = None
    """Maximum of predicted tokens per example; unset: --mlm-probability times --max-length, rounded up (20 at 128,
    77 at 512, as in Google's code)."""
    whole_word_mask: bool = False
    """Mask all tokens of a word together. Off in the paper; on in Google's later models."""
    seed: int = 0
    """Seed of order, segments, masks, dropout and a new model's initial weights."""

    def __post_init__(self) -> None:
        check_range(self, 0, MAX_SEED, "seed")
        check_range(self, 1, MAX_BATCH_SIZE, "batch_size")
        check_limit(self, "from 0 to 1", "short_seq_prob")
        check_limit(self, "above 0 and up to 1", "mlm_probability")
        if min(self.mask_mix) < 0 or abs(sum(self.mask_mix) - 1) > 1e-6:
            raise ValueError(f"mask_mix is {self.mask_mix}; expected three shares that sum to 1 (paper: 0.8 0.1 0.1)")
        if self.segments not in (None, "pair", "single"):
            raise ValueError(f"segments: expected one of pair, single, got {self.segments!r}")

    def check_world_size(self, world_size: int) -> None:
        """Raise ValueError if a batch has fewer sequences than there are ranks."""
        if self.batch_size < world_size:
            raise ValueError(
                f"batch_size is {self.batch_size}, less than the {world_size} ranks; raise it to at least {world_size}"
            )

    def check_shards(self, shards: int) -> None:
        """Raise ValueError unless the ranks that divide a model have equally many sequences, so equally many passes."""
        if self.batch_size % shards:
            raise ValueError(
                f"shard, batch_size = {self.batch_size}: expected a multiple of the {shards} ranks; change the "
                "number of processes or --batch-size, or use --no-shard"
            )

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the help of each option, with the objectives of each architecture."""
        parts = [
            f"{'' if system == DEFAULT else f'--architecture {system}, '}{objective.name}: {objective.summary}"
            for system in pretrained()
            for objective in objectives_of(system)
        ]
        return written_docs(cls, objectives="; ".join(parts))

    @property
    def max_predictions(self) -> int:
        """`max_predictions_per_seq` with its default filled in."""
        # Rounded first: 0.15 * 20 is 3.0000000000000004 in floating point and must not become 4.
        return self.max_predictions_per_seq or ceil(round(self.mlm_probability * self.max_length, 6))
