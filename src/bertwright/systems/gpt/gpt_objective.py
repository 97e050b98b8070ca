"""Pre-training of GPT (Radford et al. 2018, section 3.1): every token of a running text predicts the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from bertwright.objectives.language_model_objective import language_model_columns
from bertwright.objectives.objective import Objective
from bertwright.systems.bert.bert_objective import BertObjective

if TYPE_CHECKING:
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.bert.bert_config import BertConfig


class GptObjective(BertObjective[Any]):
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
    model_type: ClassVar[str] = "openai-gpt"
    trains_all_parameters: ClassVar[bool] = True
    has_specials: ClassVar[bool] = False
    single_reads: ClassVar[str] = "running text"

    def scheme(self, settings: ModelSettings, config: BertConfig) -> str:
        """Return how a new model's weights are drawn: by default independently, N(0, 0.02) at the size of the paper."""
        return settings.init_scheme or "normal"

    def compute_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        return Objective.compute_scores(self, sums)  # without BERT's next sentences

    def suggest_command(self, model: str) -> str:
        return f'bertwright generate {model} "It was a dark night, and"'
