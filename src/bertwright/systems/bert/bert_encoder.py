"""The Transformer encoder of BERT (section 3; Vaswani et al. 2017) over packed sequences.

T tokens of the whole batch, R positions whose states are read, H hidden size, A heads, D head size (H = A · D),
F feed-forward size, E size of the embeddings, which is H except in systems that project them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.base.ragged import offsets_from_lengths
from bertwright.kernels.attention import attention, biased_attention, head_size_vectorizable, windowed_attention
from bertwright.kernels.dropout import Dropout, MaskKey, mask_key
from bertwright.kernels.ffi import int8_isa
from bertwright.kernels.fused_encoder import EncoderShape, can_fuse, encoder_args, fused_encoder, layer_parameters
from bertwright.kernels.fused_ops import add_dropout_norm, bias_activation, embed_norm
from bertwright.kernels.int8_linear import (
    LINEAR_NAMES,
    Int8Stack,
    Int8Weight,
    int8_encoder,
    make_stack,
)
from bertwright.kernels.reference import EmbeddingTables, LayerNormParams
from bertwright.models.encoder import PaddedEncoder, TextEncoder
from bertwright.models.initialization import sinusoidal_positions
from bertwright.models.linear import Int8Linear, Linear, make_dropout
from bertwright.models.packing import Packing, TokenBatch
from bertwright.systems.bert.bert_config import BertConfig

_STACKS: WeakKeyDictionary[nn.Module, Int8Stack] = WeakKeyDictionary()  # apart: a copied model has other addresses
SITES_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output; the embeddings are site 0


class Embeddings(nn.Module):
    """Word + segment + position embeddings, then LayerNorm and dropout (figure 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position = nn.Embedding(config.max_positions, config.embedding_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, batch: TokenBatch, sparse: bool = False) -> Tensor:
        """Embed tokens → T × E; with `sparse`, native kernels return the word table's gradient as a sparse tensor."""
        tables = EmbeddingTables(self.word.weight, self.position.weight, self.segment_vectors())
        output_dropout = make_dropout(self, self.config.hidden_dropout, batch.packing)
        types = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        ids = (batch.input_ids, batch.packing.position_ids, types)
        return embed_norm(ids, tables, layer_norm_params(self.norm), output_dropout, site=0, sparse=sparse)

    def segment_vectors(self) -> Tensor:
        """Return the vectors of the segments, S × E."""
        return self.token_type.weight

    def position_vectors(self) -> Tensor:
        """Return the vectors of a sequence's positions from the first one on, max_positions × E."""
        return self.position.weight


class Layer(nn.Module):
    """Self-attention, then feed-forward; each followed by dropout, the residual and LayerNorm (post-LN)."""

    window: int | None = None
    """Distance in tokens up to which tokens attend to each other; None: any."""

    def __init__(self, config: BertConfig, number: int) -> None:
        super().__init__()
        self.config = config
        self.number_sites(number)
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.qkv = Linear(hidden, 3 * hidden)
        self.attention_output = Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.intermediate = Linear(hidden, intermediate)
        self.output = Linear(intermediate, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def number_sites(self, number: int) -> None:
        """Give the layer the dropout sites of its number, counted from 0."""
        self.first_site = 1 + SITES_PER_LAYER * number

    def forward(self, hidden: Tensor, packing: Packing, positions: Tensor | None = None) -> Tensor:
        """Compute the layer's output: T × H → T × H or, with `positions` (R int64), R × H, the states of these tokens.

        The tokens at `positions` still attend to all tokens of their sequence.
        """
        drop, site = make_dropout(self, self.config.attention_dropout, packing), self.first_site
        qkv = self.project(hidden, packing)  # T 3 A D
        bounds, bias = (packing.cu_seqlens, packing.max_seqlen), self.position_bias(packing.max_seqlen)
        if self.window is not None:
            context = windowed_attention(qkv, *bounds, self.window, drop, site)  # T A D
        elif bias is not None:
            context = biased_attention(qkv, *bounds, bias, drop, site)
        else:
            context = attention(qkv, *bounds, drop, site, self.config.is_causal)
        context = context.flatten(1)  # T A D -> T H
        if positions is not None:  # from here on tokens do not interact: T becomes R
            context, hidden = context[positions], hidden[positions]
        return self.transform(context, hidden, packing, positions)

    def project(self, hidden: Tensor, packing: Packing) -> Tensor:
        """Compute queries, keys and values from the layer's input, T × H → T 3 A D."""
        qkv: Tensor = self.qkv(hidden).unflatten(-1, (3, self.config.num_heads, self.config.head_size))
        return qkv

    def position_bias(self, length: int) -> Tensor | None:
        """Return the bias of `biased_attention` for sequences of this length, A × (2 length - 1); None: no bias."""
        return None

    def transform(self, context: Tensor, hidden: Tensor, packing: Packing, positions: Tensor | None) -> Tensor:
        """Compute all of the layer behind attention, token by token, from its context and the layer's input: R × H."""
        output_dropout = make_dropout(self, self.config.hidden_dropout, packing, positions)
        return self.feed_forward(self.attend(context, hidden, output_dropout), output_dropout)

    def attend(self, context: Tensor, hidden: Tensor, output_dropout: Dropout | None) -> Tensor:
        """Compute the output of the first sublayer, R × H, from the context of attention and the layer's input."""
        projected, norm = self.attention_output.matmul(context), layer_norm_params(self.attention_norm)
        site = self.first_site + 1
        return add_dropout_norm(projected, self.attention_output.bias, hidden, norm, output_dropout, site)

    def feed_forward(self, attended: Tensor, output_dropout: Dropout | None) -> Tensor:
        """Compute the second sublayer, R × H, from the output of the first one."""
        intermediate = self.intermediate.matmul(attended)  # T F
        intermediate = bias_activation(intermediate, self.intermediate.bias, self.config.activation)
        output = self.output.matmul(intermediate)  # T H
        norm = layer_norm_params(self.output_norm)
        return add_dropout_norm(output, self.output.bias, attended, norm, output_dropout, self.first_site + 2)

    def mask_keys(self, packing: Packing, positions: Tensor | None) -> list[MaskKey]:
        """Return the dropout mask keys of this layer's three sites, for `fused_encoder`."""
        output_dropout = make_dropout(self, self.config.hidden_dropout, packing, positions)
        sites = (make_dropout(self, self.config.attention_dropout, packing), output_dropout, output_dropout)
        return [mask_key(drop, self.first_site + n) for n, drop in enumerate(sites)]


class BertEncoder(TextEncoder):
    """BERT's embeddings and Transformer layers; its initial weights are a function of the seed."""

    model_type: ClassVar[str] = "bert"
    has_pooler: ClassVar[bool] = True
    fits_new_heads: ClassVar[bool] = True
    has_int8_layers: ClassVar[bool] = True
    embeddings_type: ClassVar[type[nn.Module]] = Embeddings
    layer_type: ClassVar[type[Layer]] = Layer
    padded_type: ClassVar[str] = "bertwright.systems.bert.padded_bert:PaddedBert"
    """Class of the same encoder over padded sequences, by name because its module imports this one."""
    config: BertConfig
    embeddings: Any

    def __init__(self, config: BertConfig, compute_dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__(config, compute_dtype)
        self.embeddings = self.embeddings_type(config)
        self.layers = nn.ModuleList(self.layer_type(config, number) for number in range(self.num_distinct_layers))
        self.shape = EncoderShape(
            config.num_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.is_causal,
            config.activation,
            config.layer_norm_eps,
        )
        self.initialize(seed)
        if config.sinusoidal_positions:
            positions = self.embeddings.position.weight.requires_grad_(False)
            if not positions.is_meta:
                encodings = sinusoidal_positions(*positions.shape)
                positions.copy_(config.initializer_range * encodings)  # the Transformer enlarges the words instead

    @property
    def num_distinct_layers(self) -> int:
        """Number of layers with weights of their own."""
        return self.config.num_layers

    @property
    def num_dropout_sites(self) -> int:
        """Number of dropout sites: one in the embeddings, SITES_PER_LAYER per layer."""
        return 1 + SITES_PER_LAYER * self.config.num_layers

    def forward(self, batch: TokenBatch, positions: Tensor | None = None) -> Tensor:
        """Compute the last layer's states, T × H; with `positions` (R distinct int64), compute these R states only.

        In bfloat16, on a GPU and on a CPU with instructions for it, one call computes all layers instead of
        `Layer.forward`.
        Pre-training reads one state in six, and skipping the others saves most of the last layer.
        """
        batch, positions = self.to_reading_order(batch, positions)
        hidden, packing = self.embed(batch), batch.packing
        *layers, last = stack = self.stack()
        if (tensors := self.int8_tensors(stack)) is not None:
            bias = stack[0].position_bias(packing.max_seqlen)
            return self.run_int8(hidden, tensors, bias, packing, positions)
        if self.layer_type is Layer and can_fuse(hidden, self.shape):
            parameters = [parameter for layer in (*layers, last) for parameter in layer_parameters(layer)]
            mask_keys = [key for layer in layers for key in layer.mask_keys(packing, None)]
            mask_keys += last.mask_keys(packing, positions)
            sequences = packing.cu_seqlens, packing.max_seqlen
            states = fused_encoder(hidden, *sequences, positions, self.shape, mask_keys, parameters)
            if states is not None:
                return states
        for layer in layers:
            hidden = layer(hidden, packing)
        return cast(Tensor, last(hidden, packing, positions))

    def int8_tensors(self, layers: Sequence[Layer]) -> tuple[list[Int8Weight], list[Tensor]] | None:
        """Return the layers' weights and vectors for `make_stack`; None unless one native call can compute them all.

        Reads the modules' dictionaries, because attributes of modules are slow to read.
        """
        if self.training or int8_isa() is None or not head_size_vectorizable(self.config.head_size):
            return None
        weights: list[Int8Weight] = []
        biases: list[Tensor] = []
        norms: list[Tensor] = []
        for layer in layers:
            parts = cast(dict[str, nn.Module], layer._modules)
            for name in LINEAR_NAMES:
                linear = parts[name]
                if not isinstance(linear, Int8Linear):
                    return None
                weights.append(linear.weight)
                biases.append(cast(Tensor, linear._parameters["bias"]))
            for name in ("attention_norm", "output_norm"):
                norms += cast(dict[str, Tensor], parts[name]._parameters).values()
        return weights, biases + norms

    def run_int8(
        self,
        hidden: Tensor,
        tensors: tuple[list[Int8Weight], list[Tensor]],
        bias: Tensor | None,
        packing: Packing,
        positions: Tensor | None,
    ) -> Tensor:
        """Compute all layers in int8 by one native call; the bits are as in `Layer.forward` but for GELU's.

        `tensors`: of `int8_tensors`; `bias`: of `Layer.position_bias`.
        """
        (weights, vectors), config = tensors, self.config
        positions = None if positions is None else positions.contiguous()
        bias = None if bias is None else bias.float().contiguous()
        args = encoder_args(self.shape, packing.cu_seqlens, positions, len(hidden), config.num_layers, bias)
        addresses = [tensor.data_ptr() for tensor in (*vectors, *(weight.values for weight in weights))]
        stack = _STACKS.get(self)
        if stack is None or stack.addresses != addresses:
            stack = _STACKS[self] = make_stack(weights, vectors, config.num_layers, addresses)
        return int8_encoder(hidden, stack, args)

    def stack(self) -> list[Layer]:
        """Return the layers in the order in which they are computed; some systems use one several times."""
        return cast(list[Layer], list(self.layers))

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers` (ascending; None: all), T × H or, with `positions`, R × H.

        Layers above the last of `layers` are not computed.
        """
        layers = range(self.config.num_layers + 1) if layers is None else layers
        batch, positions = self.to_reading_order(batch, positions)
        hidden, last = self.embed(batch), layers[-1]
        states = [hidden if positions is None else hidden[positions]] if 0 in layers else []
        for number, layer in enumerate(self.stack()[:last], 1):
            hidden = layer(hidden, batch.packing, positions if number == last else None)
            if number in layers:
                states.append(hidden if number == last or positions is None else hidden[positions])
        return states

    def to_reading_order(self, batch: TokenBatch, positions: Tensor | None) -> tuple[TokenBatch, Tensor | None]:
        """Return the batch in the order of the layers, and the positions in it of the states that the caller reads."""
        if not self.config.is_reversed:
            return batch, positions
        mirrored = mirror_tokens(batch.packing)
        types = batch.token_type_ids
        read = TokenBatch(batch.packing, batch.input_ids[mirrored], None if types is None else types[mirrored])
        return read, mirrored if positions is None else mirrored[positions]

    def padded(self) -> PaddedEncoder:
        if self.config.is_causal:
            return super().padded()
        padded: PaddedEncoder = resolve_name(self.padded_type)(self)
        return padded

    def embed(self, batch: TokenBatch) -> Tensor:
        """Compute the first layer's input, T × H. Raises ValueError for a sequence longer than the positions."""
        self.check_length(batch.packing)
        embedded: Tensor = self.embeddings(batch, self.sparse_gradients)
        return embedded.to(self.compute_dtype)


def mirror_tokens(packing: Packing) -> Tensor:
    """Return the position of each token's mirror image in its own sequence, T int64.

    >>> mirror_tokens(Packing.of(np.array([4, 2]))).tolist()
    [3, 2, 1, 0, 5, 4]
    """
    starts = offsets_from_lengths(packing.lengths)
    mirrored = np.repeat(starts[:-1] + starts[1:] - 1, packing.lengths) - np.arange(starts[-1])
    return torch.from_numpy(mirrored).to(packing.cu_seqlens.device)


def layer_norm_params(norm: nn.LayerNorm) -> LayerNormParams:
    """Return the parameters of a LayerNorm for kernels."""
    return LayerNormParams(norm.weight, norm.bias, norm.eps)
