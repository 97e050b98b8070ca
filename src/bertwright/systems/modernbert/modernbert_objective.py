"""Pre-training of ModernBERT (Warner et al. 2024): masked tokens of long texts, twice as many as BERT's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bertwright.systems.bert.masked_lm_objective import FamilyMaskedLM


class ModernBertMaskedLM(FamilyMaskedLM):
    """Masked tokens of consecutive sentences of one document, as many as fit."""

    name: ClassVar[str] = "modernbert-mlm"
    summary: ClassVar[str] = "30 % masked tokens of long texts"
    # Section 2.2: 30 % masks, 1,024 tokens, a trapezoidal schedule. Appendix A, table 3: constants of Adam, the decay.
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 1024, "short_seq_prob": 0.0, "mlm_probability": 0.3},
        "long": {"long_ratio": 0.0, "long_length": 8192},
        "optimizer": {"beta2": 0.98, "eps": 1e-6, "weight_decay": 1e-5, "schedule": "warmup-stable-decay"},
    }
    model_options: ClassVar[tuple[str, ...] | None] = (
        "size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "hidden_dropout",
        "attention_dropout", "initializer_range",
    )  # fmt: skip
    model_type: ClassVar[str] = "modernbert"
    model_name: ClassVar[str] = "a ModernBERT"
