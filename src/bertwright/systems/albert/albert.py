"""ALBERT (Lan et al. 2020, arXiv 1909.11942): factorized embeddings, and layers that share their weights."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

from bertwright.base.settings import check_limit, check_minimum
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import LinearHead, Pooler, TaskHead
from bertwright.models.linear import Linear
from bertwright.systems.bert.bert_config import Activation, BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Layer
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
from bertwright.systems.bert.other_embeddings import ProjectedConfig, ProjectedEncoder


@dataclass(frozen=True)
class AlbertConfig(ProjectedConfig):
    """Sizes and constants of an ALBERT; the defaults describe ALBERT-base, version 2."""

    num_groups: int = 1
    """Number of groups of consecutive layers; the layers of a group share their weights."""
    activation: Activation = "gelu_tanh"
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.1
    """Dropout before the layer of a task (`classifier_dropout_prob` of `transformers`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(self, 1, "num_groups")
        check_limit(self, "from 0 to below 1", "head_dropout")
        if self.num_groups > self.num_layers:
            raise ValueError(f"num_groups = {self.num_groups}: expected at most num_layers = {self.num_layers}")

    def with_dropout(self, rate: float) -> Self:
        return replace(super().with_dropout(rate), head_dropout=rate)

    def group(self, layer: int) -> int:
        """Return the number of the group of a layer; both count from 0."""
        return layer * self.num_groups // self.num_layers

    @property
    def num_layer_parameters(self) -> int:
        """Number of parameters of the layers; a group counts once.

        >>> AlbertConfig(vocab_size=30_000).num_layer_parameters
        7087872
        """
        return super().num_layer_parameters // self.num_layers * self.num_groups


class AlbertEncoder(ProjectedEncoder):
    """ALBERT's embeddings and groups of layers; `layers` has the weights of each group once."""

    model_type: ClassVar[str] = "albert"
    config: AlbertConfig

    @property
    def num_distinct_layers(self) -> int:
        return self.config.num_groups

    def stack(self) -> list[Layer]:
        """Return one layer per number; each has its own dropout masks and its group's weights."""
        layers = []
        for number in range(self.config.num_layers):
            layer = copy(cast(Layer, self.layers[self.config.group(number)]))  # shares all modules
            layer.number_sites(number)
            layers.append(layer)
        return layers

    def depth_of(self, parameter: str) -> int:
        """Return the depth of a parameter by its name; a group's is that of its highest layer."""
        depth = super().depth_of(parameter)
        if not parameter.startswith("layers."):
            return depth
        return max(number + 1 for number in range(self.config.num_layers) if self.config.group(number) == depth - 1)

    def own_head(self, spec: HeadSpec) -> TaskHead:
        """Return BERT's head with another dropout."""
        head = LinearHead(spec, self.config.hidden_size, has_pooler=True)
        head.dropout_rate = self.config.head_dropout
        return head


class AlbertForPretraining(MaskedLanguageModel):
    """ALBERT with its heads of pre-training: masked tokens, and the order of two segments (section 3.1)."""

    encoder_type: ClassVar[type[BertEncoder]] = AlbertEncoder

    def add_heads(self, config: BertConfig) -> None:
        self.pooler = Pooler(config.hidden_size)
        super().add_heads(config)
        self.sentence_order = Linear(config.hidden_size, 2)
