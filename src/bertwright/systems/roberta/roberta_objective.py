"""Pre-training of RoBERTa (Liu et al. 2019, section 4): masked tokens of long texts, with new masks each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertwright.systems.bert.masked_lm_objective import FamilyMaskedLM

if TYPE_CHECKING:
    from bertwright.objectives.data import StoreExamples
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.objectives.language_model_objective import LanguageModelBatch
    from bertwright.vocabulary.tokenizer import TextTokenizer

PAD_TOKEN_ID = 1  # of a new model


class RobertaMaskedLM(FamilyMaskedLM):
    """Masked tokens of consecutive sentences of one document, as many as fit (table 2: DOC-SENTENCES)."""

    name: ClassVar[str] = "roberta-mlm"
    summary: ClassVar[str] = "masked tokens of full-length texts"
    # Table 3, first row: BERT's batch, rate and number of steps; section 3.1: Adam's ε, and texts of 512 tokens only.
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 512, "short_seq_prob": 0.0},
        "long": {"long_ratio": 0.0},
        "optimizer": {"beta2": 0.98, "eps": 1e-6},
    }
    model_type: ClassVar[str] = "roberta"
    model_name: ClassVar[str] = "a RoBERTa"

    def open_examples(
        self, folder: Path, tokenizer: TextTokenizer, phases: Sequence[DataSettings], verify: bool = False
    ) -> list[StoreExamples[LanguageModelBatch]]:
        if PAD_TOKEN_ID not in (tokenizer.id("<pad>"), tokenizer.id("[PAD]")):
            raise ValueError(
                f"{folder}: expected a vocabulary whose token {PAD_TOKEN_ID} is <pad>, from which RoBERTa counts "
                f"positions, got {tokenizer.token(PAD_TOKEN_ID)}; learn one (bertwright vocabulary --algorithm "
                "bpe-bytes)"
            )
        return super().open_examples(folder, tokenizer, phases, verify)

    def suggest_command(self, model: str) -> str:
        return f'bertwright fill-mask {model} "Some text with a <mask> in it."'
