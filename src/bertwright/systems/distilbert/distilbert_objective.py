"""Pre-training of DistilBERT (Sanh et al. 2019) on text alone: masked tokens, without a teacher."""

from __future__ import annotations

from typing import ClassVar

from bertwright.systems.bert.masked_lm_objective import FamilyMaskedLM


class DistilBertMaskedLM(FamilyMaskedLM):
    """Masked tokens alone (section 3: dynamic masks, no next-sentence prediction); a teacher's losses are not added."""

    name: ClassVar[str] = "distilbert-mlm"
    summary: ClassVar[str] = "masked tokens, without a teacher"
    model_type: ClassVar[str] = "distilbert"
    model_name: ClassVar[str] = "a DistilBERT"
