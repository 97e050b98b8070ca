"""Pre-training of MPNet (Song et al. 2020) by masked tokens."""

from __future__ import annotations

from typing import ClassVar

from bertwright.systems.roberta.roberta_objective import RobertaMaskedLM


class MpnetMaskedLM(RobertaMaskedLM):
    """RoBERTa's objective; the paper's also permutes the masked tokens and predicts them one after another."""

    name: ClassVar[str] = "mpnet-mlm"
    summary: ClassVar[str] = "masked tokens of full-length texts, not permuted"
    model_type: ClassVar[str] = "mpnet"
    model_name: ClassVar[str] = "an MPNet"
