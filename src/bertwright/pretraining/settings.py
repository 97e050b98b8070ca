"""How pre-training examples are made from a token store, as settings; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from bertwright.seeding import check_seed


@dataclass(frozen=True)
class DataSettings:
    """How pre-training examples are made from a token store."""

    max_length: int = 128
    """Tokens of an example, with [CLS] and [SEP]. Paper, section A.2: 128 for the first 90 % of the steps, then 512."""
    batch_size: int = 256
    """Examples a step, over all ranks and micro-batches. Paper, section A.2: 256."""
    objective: Literal["mlm+nsp", "mlm", "ltr"] = "mlm+nsp"
    """mlm+nsp: masked tokens and next-sentence prediction (paper, section 3.1). mlm: masked tokens in one segment
    ("No NSP", section 5.1). ltr: every next token, left to right ("LTR & No NSP")."""
    short_seq_prob: float = 0.1
    """Share of examples that aim at a random shorter length, as fine-tuning's inputs do. Google's code: 0.1."""
    mlm_probability: float = 0.15
    """Share of tokens that are predicted. Paper, section 3.1: 0.15."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Of the predicted tokens, shares shown as [MASK], unchanged, and as a random token. Paper, section 3.1:
    0.8 0.1 0.1; its table 8 compares others."""
    max_predictions_per_seq: int | None = None
    """Most tokens predicted in one example; None: mlm_probability of max_length, rounded up (20 at 128, 77 at 512, as in
    Google's code)."""
    whole_word_mask: bool = False
    """Hide all pieces of a word together. Off in the paper; Google's later models have it on."""
    seed: int = 0
    """Seed of order, segments, masks and dropout."""

    def __post_init__(self) -> None:
        least = self.specials + 2
        check_seed(self.seed)
        if self.max_length < least:
            raise ValueError(
                f"max_length is {self.max_length}; {self.objective} needs {least} at least: "
                f"{self.specials} for [CLS] and [SEP], 2 for text (paper: 128 and 512)"
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; a step needs one example at least")
        if not 0 <= self.short_seq_prob <= 1:
            raise ValueError(
                f"short_seq_prob is {self.short_seq_prob}; it is a share, from 0 to 1 (Google's code: 0.1)"
            )
        if not 0 < self.mlm_probability <= 1:
            raise ValueError(
                f"mlm_probability is {self.mlm_probability}; it is a share, above 0 and up to 1 (paper: 0.15)"
            )
        if min(self.mask_mix) < 0 or abs(sum(self.mask_mix) - 1) > 1e-6:
            raise ValueError(f"mask_mix is {self.mask_mix}; three shares that sum to 1 are needed (paper: 0.8 0.1 0.1)")
        if self.max_predictions_per_seq is not None and not 1 <= self.max_predictions_per_seq <= self.room:
            raise ValueError(
                f"max_predictions_per_seq is {self.max_predictions_per_seq}; an example of {self.max_length} tokens has "
                f"1 … {self.room} to predict; lower it, or leave it out"
            )

    @property
    def specials(self) -> int:
        """[CLS] and [SEP] of one example."""
        return 3 if self.objective == "mlm+nsp" else 2

    @property
    def min_sentences(self) -> int:
        """Of a store that examples can be made of."""
        return 2 if self.objective == "mlm+nsp" else 1

    def check_world_size(self, world_size: int) -> None:
        """Raise ValueError where a step of so many ranks would leave one without a sequence."""
        if self.batch_size < world_size:
            raise ValueError(
                f"batch_size is {self.batch_size}, less than the {world_size} ranks; raise it to {world_size} at least"
            )

    @property
    def room(self) -> int:
        """Tokens of text in a full-length example."""
        return self.max_length - self.specials

    @property
    def max_predictions(self) -> int:
        """`max_predictions_per_seq` with its default filled in."""
        # The share is a decimal number: 0.15 * 20 must not become 4 for being 3.0000000000000004 or so.
        return self.max_predictions_per_seq or ceil(round(self.mlm_probability * self.max_length, 6))
