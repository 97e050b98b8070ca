"""ELECTRA (Clark et al. 2020, arXiv 2003.10555): BERT's layers on embeddings that may have another size.

Its discriminator tells for each token whether it was replaced; its generator is a small masked LM.

R tokens that are read, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.settings import check_limit
from bertwright.kernels.fused_ops import bias_activation
from bertwright.models.encoder import EncoderModel
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import DenseHead, TaskHead
from bertwright.models.initialization import initialize
from bertwright.models.linear import Linear
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
from bertwright.systems.bert.other_embeddings import ProjectedConfig, ProjectedEncoder


@dataclass(frozen=True)
class ElectraConfig(ProjectedConfig):
    """Sizes and constants of an ELECTRA; the defaults describe ELECTRA-Small (table 6 of the paper)."""

    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    choice_dropout: float = 0.1
    """Dropout before the score of a choice (`summary_last_dropout` of `transformers`)."""
    is_generator: bool = False
    """True for the masked LM, False for the discriminator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limit(self, "from 0 to below 1", "choice_dropout")

    def with_dropout(self, rate: float) -> Self:
        return replace(super().with_dropout(rate), choice_dropout=rate)

    @property
    def has_projection(self) -> bool:
        return self.embedding_size != self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters with the head of the generator, or of the discriminator.

        >>> ElectraConfig(vocab_size=30_522).num_parameters
        13549057
        """
        discriminator = self.hidden_size * (self.hidden_size + 1) + self.hidden_size + 1
        return self.num_encoder_parameters + (self.num_masked_lm_parameters if self.is_generator else discriminator)


class ElectraEncoder(ProjectedEncoder):
    """ELECTRA's embeddings and layers; its initial weights are a function of the seed."""

    model_type: ClassVar[str] = "electra"
    has_pooler: ClassVar[bool] = False
    config: ElectraConfig

    def own_head(self, spec: HeadSpec) -> TaskHead | None:
        """Return a linear layer behind a dense layer with GELU for whole texts; None for tags and answers."""
        if spec.kind == "sequence":
            return DenseHead(spec, self.config.hidden_size, F.gelu, drops_input=True)
        if spec.kind == "choice":
            return DenseHead(spec, self.config.hidden_size, F.gelu, self.config.choice_dropout)
        return None


class ReplacedTokenHead(nn.Module):
    """A dense layer with an activation, then one logit per token: positive if it was replaced."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.prediction = Linear(config.hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """Compute R float32 logits of states R × H."""
        hidden = bias_activation(self.dense.matmul(states), self.dense.bias, self.activation)
        logits: Tensor = self.prediction(hidden.float())
        return logits[:, 0]


class ElectraDiscriminator(EncoderModel):
    """The model that pre-training keeps: an encoder and the head that finds replaced tokens."""

    encoder: ElectraEncoder
    config: ElectraConfig

    def __init__(self, config: ElectraConfig, seed: int = 0) -> None:
        super().__init__(ElectraEncoder(config, seed=seed))
        self.replaced_token = ReplacedTokenHead(config)
        initialize(self, self.encoder.draw, seed, only=("replaced_token",))


class ElectraGenerator(MaskedLanguageModel):
    """The masked LM that replaces tokens; the activation of its head is always the exact GELU."""

    encoder_type: ClassVar[type[BertEncoder]] = ElectraEncoder

    def add_heads(self, config: BertConfig) -> None:
        super().add_heads(replace(config, activation="gelu"))


def build_electra(config: ElectraConfig) -> ElectraDiscriminator | ElectraGenerator:
    """Build the model that a configuration describes."""
    return ElectraGenerator(config) if config.is_generator else ElectraDiscriminator(config)
