"""GPT (Radford et al. 2018, "Improving language understanding by generative pre-training"), over packed sequences.

A causal Transformer: BERT's layers, whose tokens attend to themselves and earlier tokens only, on word and position
vectors alone. The same word vectors, transposed, predict the next token (section 3.1).

T tokens, R states that are read, N rows of a generation step, H hidden size, A heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.ragged import Ints, flat_ranges, offsets_from_lengths, positions_from_lengths
from bertwright.kernels.attention import cross_attention
from bertwright.kernels.fused_ops import dropout, linear
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.models.encoder import EncoderModel
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import LinearHead, TaskHead
from bertwright.models.linear import make_dropout
from bertwright.models.packing import Packing, TokenBatch
from bertwright.models.token_scores import score_next_tokens
from bertwright.systems.bert.bert_config import Activation, BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Layer


@dataclass(frozen=True)
class GptConfig(BertConfig):
    """Sizes and constants of a GPT; the defaults are the paper's (section 4.1)."""

    type_vocab_size: int = 1
    activation: Activation = "gelu_tanh"
    layer_norm_eps: float = 1e-5
    is_causal: bool = True

    @property
    def num_encoder_parameters(self) -> int:
        """Number of parameters; the softmax shares the word vectors.

        >>> GptConfig(vocab_size=40_478).num_parameters
        116534784
        """
        return (self.vocab_size + self.max_positions) * self.hidden_size + self.num_layer_parameters

    @property
    def num_parameters(self) -> int:
        return self.num_encoder_parameters

    def count_forward_flops(
        self,
        lengths: Sequence[int] | npt.NDArray[np.integer],
        num_predictions: int,
        pooled: bool = False,
        num_states: int | None = None,
    ) -> int:
        """Count operations as `BertConfig` does, without the dense layer of BERT's masked-LM head."""
        flops = super().count_forward_flops(lengths, num_predictions, False, num_states)
        return flops - num_predictions * 2 * self.hidden_size**2


class GptEmbeddings(nn.Module):
    """Word + position embeddings, then dropout; without LayerNorm, and without segments."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_positions, config.hidden_size)

    def forward(self, batch: TokenBatch, sparse: bool = False) -> Tensor:
        """Embed tokens → T × H; with `sparse`, the word table's gradient is a sparse tensor."""
        words = F.embedding(batch.input_ids, self.word.weight, sparse=sparse)
        embedded = words + F.embedding(batch.packing.position_ids, self.position.weight)
        return dropout(embedded, make_dropout(self, self.config.hidden_dropout, batch.packing), 0)


class BiasedHead(LinearHead):
    """A linear layer with a bias, which the GPT classes of `transformers` lack."""

    has_standard_class: ClassVar[bool] = False


class GptEncoder(BertEncoder):
    """GPT's embeddings and Transformer layers; its initial weights are a function of the seed."""

    model_type: ClassVar[str] = "openai-gpt"
    has_int8_layers: ClassVar[bool] = False
    fits_new_heads: ClassVar[bool] = False
    has_pooler: ClassVar[bool] = False
    embeddings_type: ClassVar[type[nn.Module]] = GptEmbeddings

    def own_head(self, spec: HeadSpec) -> TaskHead:
        """Return a linear layer on the extract token's state (section 3.2); classifications have no bias."""
        if spec.kind == "sequence" and spec.outputs > 1:
            return LinearHead(spec, self.config.hidden_size, has_pooler=False, has_bias=False)
        return BiasedHead(spec, self.config.hidden_size, has_pooler=False)

    def next_token_loss(self, states: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Compute the cross entropy of the next tokens: states R × H, labels R → (scale × sum in nats, number right).

        The word vectors are the weights of the softmax (section 3.1, W_e); it has no bias.
        """
        words = self.embeddings.word.weight
        no_bias = torch.zeros(len(words), device=words.device)
        return linear_cross_entropy(states, words, no_bias, labels, scale)

    def language_model_loss(self, batch: TokenBatch, states: Tensor) -> Tensor:
        follows = (batch.packing.position_ids[1:] > 0).nonzero()[:, 0]  # tokens before another one of their sequence
        return self.next_token_loss(states[follows], batch.input_ids[1:][follows], 1.0)[0]

    def logits(self, states: Tensor) -> Tensor:
        """Compute the logits of the next token, R × H → R × V float32."""
        return linear(states, self.embeddings.word.weight).float()


class GptLanguageModel(EncoderModel):
    """The model of pre-training: an encoder, whose word vectors are its head."""

    reads_marks: ClassVar[bool] = False
    encoder: GptEncoder

    def __init__(self, config: GptConfig, seed: int = 0) -> None:
        super().__init__(GptEncoder(config, seed=seed))

    @property
    def config(self) -> GptConfig:
        return cast(GptConfig, self.encoder.config)

    def cross_entropy(self, states: Tensor, labels: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return self.encoder.next_token_loss(states, labels, scale)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Compute the logits of the token after each token, T × V float32."""
        return self.encoder.logits(self.encoder(batch))

    def score_tokens(self, batch: TokenBatch) -> Tensor:
        return score_next_tokens(batch.packing, batch.input_ids, self.encoder(batch), self.encoder.logits)


class CachedGpt:
    """A GPT that reads sequences in parts: keys and values of all earlier tokens are kept.

    A step costs what its new tokens cost, however long the sequences are, besides a copy of the keys and values.
    """

    def __init__(self, encoder: GptEncoder) -> None:
        """Start without sequences; the first call of `extend` adds them."""
        config = encoder.config
        self.encoder = encoder
        self.layers = cast(list[Layer], list(encoder.layers))
        self.lengths: Ints = np.zeros(0, dtype=np.int64)
        empty = encoder.embeddings.word.weight.new_empty(0, 2, config.num_heads, config.head_size)
        self.past = [empty.to(encoder.compute_dtype)] * config.num_layers  # tokens 2 A D each, sequence by sequence

    def extend(self, ids: Sequence[Sequence[int]], parents: Sequence[int] | None = None) -> Tensor:
        """Append tokens, at least one, to N sequences; return the state of the last token of each, N × H.

        `parents`: N, the sequence of the last call that each row continues; None: new sequences.
        Raises ValueError for sequences that are longer than the model's positions.
        """
        new: Ints = np.array([len(row) for row in ids], dtype=np.int64)
        starts = offsets_from_lengths(self.lengths)
        chosen = np.asarray([] if parents is None else parents, dtype=np.int64)
        before = np.zeros(len(new), dtype=np.int64) if parents is None else self.lengths[chosen]
        rows = _interleave(starts[chosen] if parents is not None else before, before, int(starts[-1]), new)
        self.lengths = before + new
        device = self.encoder.embeddings.word.weight.device
        queries, keys = Packing.of(new), Packing.of(self.lengths)
        offsets = torch.from_numpy(np.repeat(before, new) + positions_from_lengths(new)).to(device)
        self.encoder.check_length(keys)
        flat = torch.tensor([token for row in ids for token in row], device=device)
        table = self.encoder.embeddings
        hidden = (F.embedding(flat, table.word.weight) + F.embedding(offsets, table.position.weight)).to(
            self.encoder.compute_dtype
        )
        index = torch.from_numpy(rows).to(device)
        bounds = queries.cu_seqlens.to(device), keys.cu_seqlens.to(device), queries.max_seqlen, keys.max_seqlen
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(hidden).unflatten(-1, (3, self.encoder.config.num_heads, -1))  # new tokens 3 A D
            self.past[number] = torch.cat([self.past[number], qkv[:, 1:]])[index]
            context = cross_attention(qkv[:, 0], self.past[number], *bounds, causal=True).flatten(1)
            hidden = layer.transform(context, hidden, queries, None)
        return hidden[queries.last_positions.to(device)]


def _interleave(starts: Ints, counts: Ints, offset: int, new: Ints) -> Ints:
    """Return the rows of old tokens (`counts` from `starts`) and new ones (from `offset` on), sequence by sequence."""
    firsts = np.stack([starts, offset + offsets_from_lengths(new)[:-1]], axis=1).reshape(-1)
    return flat_ranges(firsts, np.stack([counts, new], axis=1).reshape(-1))
