"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) over packed sequences: a BERT for long texts.

Norms stand before the sublayers, no layer has biases, the feed-forward part is a GeGLU, and positions are rotations of
queries and keys. In most layers a token attends to a window around it; in the others to all tokens.

T tokens, B sequences, R positions whose states are read, H hidden size, A heads, D head size, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.settings import check_choice, check_limit, check_minimum
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout, embed_norm
from bertwright.kernels.reference import EmbeddingTables, LayerNormParams, activate
from bertwright.kernels.rotary import rotate
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.initialization import Weight, truncated_normal
from bertwright.models.linear import Linear, make_dropout
from bertwright.models.packing import Packing, TokenBatch
from bertwright.models.pooling import pool_states
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Layer
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel, MaskedLMHead
from bertwright.systems.modernbert.defaults import RATIO, SIZES


@dataclass(frozen=True)
class ModernBertConfig(BertConfig):
    """Sizes and constants of a ModernBERT; the defaults describe base (table 4)."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = SIZES
    RATIO: ClassVar[float] = RATIO
    FEED_FORWARD_MATRICES: ClassVar[int] = 3
    num_layers: int = 22
    intermediate_size: int = 1152
    max_positions: int = 8192
    """Length of the longest sequence in tokens; positions have no parameters."""
    hidden_dropout: float = 0.0
    """Dropout after the embeddings."""
    attention_dropout: float = 0.0
    """Dropout of attention probabilities and of attention's output."""
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = None
    mlp_dropout: float = 0.0
    """Dropout between the two products of the feed-forward part."""
    head_dropout: float = 0.0
    """Dropout before the layer of a task."""
    global_every: int = 3
    """Layers 1, 1 + n, 1 + 2n … attend to all tokens (section 2.1.2: every third layer)."""
    local_attention: int = 128
    """Tokens in the window of the other layers: half of them before a token, half behind it."""
    global_base: float = 160_000.0
    """Base of the rotations in layers that attend to all tokens."""
    local_base: float = 10_000.0
    """Base of the rotations in layers with windows."""
    classifier_pooling: Literal["cls", "mean"] = "cls"
    """What the head of a text reads: the state of the first token, or the mean of all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limit(self, "from 0 to below 1", "mlp_dropout", "head_dropout")
        check_limit(self, "above 0", "global_base", "local_base")
        check_minimum(self, 1, "global_every")
        check_minimum(self, 2, "local_attention")
        check_choice(self, "classifier_pooling")
        if self.head_size % 2:
            raise ValueError(
                f"hidden_size / num_heads = {self.head_size}: expected an even number, whose halves rotate"
            )
        if self.is_causal or self.sinusoidal_positions or self.activation == "relu":
            raise ValueError("is_causal, sinusoidal_positions, activation relu: a ModernBERT has none of them")

    def __str__(self) -> str:
        return f"ModernBERT {super().__str__()}"

    def with_dropout(self, rate: float) -> Self:
        return replace(super().with_dropout(rate), mlp_dropout=rate, head_dropout=rate)

    def window(self, layer: int) -> int | None:
        """Return the distance up to which tokens attend to each other in a layer, counted from 0; None: any."""
        return self.local_attention // 2 if layer % self.global_every else None

    @property
    def num_embedding_parameters(self) -> int:
        return (self.vocab_size + 1) * self.hidden_size

    @property
    def num_layer_parameters(self) -> int:
        """Number of parameters of the layers and of the last norm; the first layer lacks a norm.

        >>> ModernBertConfig(vocab_size=50_368).num_layer_parameters
        110330880
        """
        hidden = self.hidden_size
        return self.num_layers * hidden * (4 * hidden + 3 * self.intermediate_size + 2)

    @property
    def num_parameters(self) -> int:
        """Number of parameters with the masked-LM head.

        >>> ModernBertConfig(vocab_size=50_368).num_parameters
        149655232
        """
        return self.num_encoder_parameters + self.hidden_size * (self.hidden_size + 1) + self.vocab_size

    def count_pairs(self, tokens: npt.NDArray[np.int64]) -> int:
        """Count the pairs as BERT's configuration does; a window has the keys in it."""
        pairs = 0
        for layer in range(self.num_layers):
            window = self.window(layer)
            reach = tokens - 1 if window is None else np.minimum(window, tokens - 1)
            pairs += int((tokens * (2 * reach + 1) - reach * (reach + 1)).sum())
        return pairs


def normalize(norm: nn.LayerNorm, states: Tensor) -> Tensor:
    """Apply a LayerNorm in float32, and return the dtype of the states."""
    normalized: Tensor = norm(states.float())
    return normalized.to(states.dtype)


def make_norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)


class ModernBertEmbeddings(nn.Module):
    """Word embeddings, then LayerNorm and dropout."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = make_norm(config)

    def forward(self, batch: TokenBatch, sparse: bool = False) -> Tensor:
        """Embed tokens → T × H; `sparse`: as BERT's embeddings have it."""
        none, zeros = self.word.weight.new_zeros(1, self.config.hidden_size), torch.zeros_like(batch.input_ids)
        norm = LayerNormParams(self.norm.weight, none[0], self.norm.eps)
        drop = make_dropout(self, self.config.hidden_dropout, batch.packing)
        ids, tables = (batch.input_ids, zeros, zeros), EmbeddingTables(self.word.weight, none, none)
        return embed_norm(ids, tables, norm, drop, site=0, sparse=sparse)


class ModernBertLayer(Layer):
    """Self-attention, then a GeGLU; each on the normalized input, and added to it (pre-LN)."""

    config: ModernBertConfig

    def __init__(self, config: ModernBertConfig, number: int) -> None:
        nn.Module.__init__(self)
        self.config, self.window = config, config.window(number)
        self.base = config.global_base if self.window is None else config.local_base
        self.number_sites(number)
        hidden, intermediate = config.hidden_size, config.intermediate_size
        if number:  # the embeddings are normalized already
            self.attention_norm = make_norm(config)
        self.qkv = Linear(hidden, 3 * hidden, bias=False)
        self.attention_output = Linear(hidden, hidden, bias=False)
        self.feed_forward_norm = make_norm(config)
        self.intermediate = Linear(hidden, 2 * intermediate, bias=False)
        self.output = Linear(intermediate, hidden, bias=False)

    def transform(self, context: Tensor, hidden: Tensor, packing: Packing, positions: Tensor | None) -> Tensor:
        config, site = self.config, self.first_site
        drop = make_dropout(self, config.attention_dropout, packing, positions)
        hidden = hidden + dropout(self.attention_output(context), drop, site + 1)
        activated, gate = self.intermediate(normalize(self.feed_forward_norm, hidden)).float().chunk(2, -1)  # T F
        gated = (activate(activated, config.activation) * gate).to(hidden.dtype)
        drop = make_dropout(self, config.mlp_dropout, packing, positions)
        output: Tensor = self.output(dropout(gated, drop, site + 2))
        return hidden + output

    def project(self, hidden: Tensor, packing: Packing) -> Tensor:
        """Compute queries, keys and values, T 3 A D; queries and keys are turned by their positions."""
        if hasattr(self, "attention_norm"):
            hidden = normalize(self.attention_norm, hidden)
        return rotate(super().project(hidden, packing), packing.position_ids, self.config.max_positions, self.base)


class ModernBertEncoder(BertEncoder):
    """ModernBERT's embeddings and layers, and the norm of the last states."""

    model_type: ClassVar[str] = "modernbert"
    has_pooler: ClassVar[bool] = False
    embeddings_type: ClassVar[type[nn.Module]] = ModernBertEmbeddings
    layer_type: ClassVar[type[Layer]] = ModernBertLayer
    padded_type: ClassVar[str] = "bertwright.systems.modernbert.padded_modernbert:PaddedModernBert"
    config: ModernBertConfig

    def __init__(self, config: ModernBertConfig, compute_dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__(config, compute_dtype, seed)
        self.final_norm = make_norm(config)

    def forward(self, batch: TokenBatch, positions: Tensor | None = None) -> Tensor:
        return normalize(self.final_norm, super().forward(batch, positions))

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers`, as BERT's; the last layer's are normalized."""
        states = super().hidden_states(batch, layers, positions)
        if layers is None or layers[-1] == self.config.num_layers:
            states[-1] = normalize(self.final_norm, states[-1])
        return states

    def draw(self, weight: Weight) -> None:
        """Give a parameter its first numbers: matrices that write into the states have smaller ones (appendix A.2)."""
        is_output = weight.name.endswith(("output.weight", "dense.weight"))
        scale = (2.0 * self.config.num_layers) ** -0.5 if is_output else 1.0
        truncated_normal(self.config.initializer_range * scale)(weight)

    def own_head(self, spec: HeadSpec) -> TaskHead:
        pools = self.config.classifier_pooling == "mean" and spec.reads_sequence_state
        return (MeanHead if pools else PredictionHead)(spec, self.config)


class Prediction(nn.Module):
    """What every head has before its linear layer: a dense layer, GELU and LayerNorm, R × H → R × H."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, bias=False)
        self.norm = make_norm(config)

    def forward(self, states: Tensor) -> Tensor:
        return normalize(self.norm, F.gelu(self.dense(states).float()).to(states.dtype))


class PredictionHead(TaskHead):
    """A linear layer on the transformed states; a pre-trained masked LM's transformation is reused."""

    has_standard_class: ClassVar[bool] = True
    has_graph: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, config: ModernBertConfig) -> None:
        super().__init__(spec)
        self.dropout_rate = config.head_dropout
        self.pooler = Prediction(config)
        self.classifier = Linear(config.hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits R × C float32 of states R × H."""
        return self.classify(states, drop)

    def classify(self, states: Tensor, drop: Dropout | None = None) -> Tensor:
        logits: Tensor = self.classifier(dropout(self.pooler(states), drop, 0).float())
        return logits


class MeanHead(PredictionHead):
    """The same on the mean of the states of all tokens of each sequence."""

    reads_all_tokens: ClassVar[bool] = True
    modes: ClassVar[tuple[str, ...]] = ("mean",)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits B × C float32 of states T × H."""
        first = drop and drop.select(batch.packing.first_positions)
        return self.classify(pool_states(states, batch.packing, self.modes), first)


class MaskedTokenHead(MaskedLMHead):
    """BERT's head of pre-training without the biases of its dense layer and norm, always with the exact GELU."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(replace(config, activation="gelu"))
        self.dense, self.norm = Linear(config.hidden_size, config.hidden_size, bias=False), make_norm(config)

    forward = Prediction.forward  # type: ignore[assignment]


class ModernBertForMaskedLM(MaskedLanguageModel):
    """ModernBERT with its head of pre-training."""

    encoder_type: ClassVar[type[BertEncoder]] = ModernBertEncoder

    def add_heads(self, config: BertConfig) -> None:
        self.masked_token = MaskedTokenHead(config)
