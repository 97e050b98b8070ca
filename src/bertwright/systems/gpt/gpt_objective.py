"""Pre-training of GPT (Radford et al. 2018, section 3.1): every token of a running text predicts the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from bertwright.objectives.language_model_objective import (
    LanguageModelBatch,
    LanguageModelObjective,
    language_model_columns,
)
from bertwright.systems.bert.bert_base import check_memory

if TYPE_CHECKING:
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.gpt.gpt import GptLanguageModel
    from bertwright.training.loop import LossOutput


class GptObjective(LanguageModelObjective["GptLanguageModel"]):
    """A causal language model whose softmax shares the word vectors, on contiguous text without special tokens."""

    name: ClassVar[str] = "causal"
    summary: ClassVar[str] = "every next token of running text"
    model_options = (
        "size", "hidden_size", "num_layers", "num_heads", "max_positions", "hidden_dropout", "attention_dropout",
        "initializer_range", "init_scheme",
    )  # fmt: skip
    # Section 4.1; Adam's ε and the norm of gradients: OpenAI's code.
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 512, "batch_size": 64, "short_seq_prob": 0.0},
        "long": {"long_ratio": 0.0},
        "optimizer": {
            "learning_rate": 2.5e-4, "schedule": "cosine", "warmup_ratio": 0.002, "eps": 1e-8, "bias_correction": True,
        },
    }  # fmt: skip
    columns = language_model_columns("causal LM")
    direction: ClassVar[str] = "left-to-right"
    model_name: ClassVar[str] = "a GPT"
    has_specials: ClassVar[bool] = False

    @property
    def model_class(self) -> type[GptLanguageModel]:
        from bertwright.systems.gpt.gpt import GptLanguageModel

        return GptLanguageModel

    def check_settings(self, settings: DataSettings) -> None:
        super().check_settings(settings)
        if settings.segments == "pair":
            raise ValueError(f"segments is 'pair'; --objective {self.name} reads running text; omit it")

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> GptLanguageModel:
        from bertwright.systems.bert.mimetic_init import mimetic_init_
        from bertwright.systems.gpt.gpt import GptConfig, GptLanguageModel

        config = settings.config_of(GptConfig, vocab_size)
        check_memory(config)
        model = GptLanguageModel(config, seed)
        if self.initialization(settings) == "mimetic":
            mimetic_init_(model.encoder)
        return model

    def initialization(self, settings: ModelSettings) -> str:
        """Return how a new model's weights are drawn: by default independently, N(0, 0.02) at the size of the paper."""
        return settings.init_scheme or "normal"

    def describe_initialization(self, settings: ModelSettings, model: GptLanguageModel) -> str:
        scheme = self.initialization(settings)
        return f"random, initialization {scheme}, deviation {model.config.initializer_range:.3g}"

    def loss(self, model: GptLanguageModel, batch: LanguageModelBatch) -> LossOutput:
        """Compute the mean cross entropy of the next tokens, in nats (section 3.1, L1)."""
        from bertwright.training.loop import LossOutput

        states = model.encoder(batch.input, batch.mlm_positions)
        count = max(batch.lm_count, 1)
        loss, correct = model.encoder.next_token_loss(states, batch.mlm_labels, 1 / count)
        lengths = batch.packing.lengths[: batch.num_sequences]
        counts = {
            "lm_count": batch.num_predictions,
            "tokens": int(lengths.sum()),
            "flops": model.config.count_training_flops(lengths, batch.num_predictions, pooled=False),
        }
        sums = {"lm_sum": loss.detach() * count, "lm_correct": correct}
        return LossOutput.of(loss, sums, counts)

    def suggest_command(self, model: str) -> str:
        return f'bertwright generate {model} "It was a dark night, and"'
