"""One-sided language models: every token predicts the next one ("LTR", section 5.1), or right to left the one before.

The model is a BERT whose tokens attend to one side only; its loss is the masked-LM loss with these targets.
"""

from __future__ import annotations

from typing import ClassVar

from bertwright.objectives.language_model_objective import language_model_columns
from bertwright.systems.bert.bert_base import BertObjective


class LeftToRightLM(BertObjective):
    """Every token but the last predicts the next token ("LTR & No NSP")."""

    name: ClassVar[str] = "ltr"
    summary: ClassVar[str] = "every next token, left to right (LTR & No NSP)"
    direction: ClassVar[str] = "left-to-right"
    columns = language_model_columns("left-to-right LM")


class RightToLeftLM(LeftToRightLM):
    """Every token but the first predicts the previous token."""

    name: ClassVar[str] = "rtl"
    summary: ClassVar[str] = "every previous token, right to left"
    direction: ClassVar[str] = "right-to-left"
    columns = language_model_columns("right-to-left LM")
