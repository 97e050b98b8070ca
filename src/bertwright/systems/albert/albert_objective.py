"""Pre-training of ALBERT (Lan et al. 2020) by masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bertwright.systems.bert.masked_lm_objective import FamilyMaskedLM


class AlbertMaskedLM(FamilyMaskedLM):
    """Masked tokens alone; the head for the order of two segments (section 3.1) keeps its weights."""

    name: ClassVar[str] = "albert-mlm"
    summary: ClassVar[str] = "masked tokens, without the order of sentences"
    # Section 4.1: up to 512 tokens, one text in ten shorter.
    defaults: ClassVar[Mapping[str, Any]] = {"data": {"max_length": 512}, "long": {"long_ratio": 0.0}}
    model_options: ClassVar[tuple[str, ...] | None] = (
        "size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "hidden_dropout",
        "attention_dropout", "activation", "initializer_range",
    )  # fmt: skip
    model_type: ClassVar[str] = "albert"
    model_name: ClassVar[str] = "an ALBERT"
    trains_all_parameters: ClassVar[bool] = False
