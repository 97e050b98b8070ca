"""Pre-training of ModernBERT (Warner et al. 2024): masked tokens of long texts, twice as many as BERT's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from bertwright.systems.bert.bert_base import check_memory
from bertwright.systems.bert.masked_lm_objective import MaskedLM

if TYPE_CHECKING:
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
    from bertwright.systems.modernbert.modernbert import ModernBertForMaskedLM


class ModernBertMaskedLM(MaskedLM):
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
    model_name: ClassVar[str] = "a ModernBERT"
    trains_all_parameters: ClassVar[bool] = True

    @property
    def model_class(self) -> type[ModernBertForMaskedLM]:
        from bertwright.systems.modernbert.modernbert import ModernBertForMaskedLM

        return ModernBertForMaskedLM

    def check_settings(self, settings: DataSettings) -> None:
        super().check_settings(settings)
        if settings.segments == "pair":
            raise ValueError(f"segments is 'pair'; --objective {self.name} reads single texts; omit it")

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> ModernBertForMaskedLM:
        from bertwright.systems.modernbert.modernbert import ModernBertConfig

        config = settings.config_of(ModernBertConfig, vocab_size)
        check_memory(config)
        return self.model_class(config, seed)

    def describe_initialization(self, settings: ModelSettings, model: MaskedLanguageModel) -> str:
        return f"random, deviation {model.config.initializer_range:.3g}"

    def suggest_command(self, model: str) -> str:
        return f'bertwright fill-mask {model} "Some text with a [MASK] in it."'
