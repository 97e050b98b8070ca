"""RoBERTa (Liu et al. 2019) over packed sequences: BERT's layers on word and position vectors, without segments.

T tokens, B sequences, H hidden size, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import LinearHead, TaskBatch, TaskHead
from bertwright.models.initialization import initialize
from bertwright.models.linear import Linear
from bertwright.models.packing import TokenBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Embeddings
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel, MaskedLMHead


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """Sizes and constants of a RoBERTa."""

    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    """Id of the padding token, which decides the row of the first position (`position_offset`)."""

    @property
    def position_offset(self) -> int:
        """Row of the first position in the table: fairseq numbers positions from that of padding on."""
        return self.pad_token_id + 1

    @property
    def reads_segments(self) -> bool:
        """True if the model has a vector for each segment; other models tell segments apart by the separators."""
        return self.type_vocab_size > 1

    @property
    def num_encoder_parameters(self) -> int:
        return super().num_encoder_parameters + self.position_offset * self.hidden_size

    @property
    def num_pooler_parameters(self) -> int:
        return 0

    @property
    def num_head_parameters(self) -> int:
        """Number of parameters of the masked-LM head.

        >>> RobertaConfig(vocab_size=50_265).num_parameters
        124697433
        """
        return super().num_head_parameters - 2 * (self.hidden_size + 1)


class RobertaEmbeddings(Embeddings):
    """BERT's embeddings with positions from `position_offset` on; without segments if the model has one type."""

    config: RobertaConfig

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)
        self.position = nn.Embedding(config.position_offset + config.max_positions, config.hidden_size)

    def forward(self, batch: TokenBatch, sparse: bool = False) -> Tensor:
        positions = batch.packing.position_ids + self.config.position_offset
        types = batch.token_type_ids if self.config.reads_segments else None
        packing = replace(batch.packing, position_ids=positions)
        return super().forward(TokenBatch(packing, batch.input_ids, types), sparse)


class DenseHead(nn.Module):
    """Two dense layers with tanh between them, each with dropout of its input."""

    def __init__(self, hidden_size: int, outputs: int) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        self.out_proj = Linear(hidden_size, outputs)

    def forward(self, states: Tensor, drop: Dropout | None) -> Tensor:
        """Compute logits B × C float32 of states B × H."""
        hidden = torch.tanh(self.dense(dropout(states, drop, 0)))
        logits: Tensor = self.out_proj(dropout(hidden, drop, 1).float())
        return logits


class RobertaHead(TaskHead):
    """RoBERTa's head for texts, on the state of the first token."""

    has_standard_class: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, hidden_size: int) -> None:
        super().__init__(spec)
        self.classifier = DenseHead(hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        logits: Tensor = self.classifier(states, drop)
        return logits


class RobertaEncoder(BertEncoder):
    """RoBERTa's embeddings and BERT's layers; its initial weights are a function of the seed."""

    model_type: ClassVar[str] = "roberta"
    has_pooler: ClassVar[bool] = False
    embeddings_type: ClassVar[type[nn.Module]] = RobertaEmbeddings
    config: RobertaConfig

    def own_head(self, spec: HeadSpec) -> TaskHead:
        """Return the head of the class in `transformers`; a choice has BERT's, with a pooler."""
        if spec.kind == "sequence":
            return RobertaHead(spec, self.config.hidden_size)
        return LinearHead(spec, self.config.hidden_size, has_pooler=True)


class XlmRobertaEncoder(RobertaEncoder):
    """XLM-R's (Conneau et al. 2020): RoBERTa's with another name in `transformers`."""

    model_type: ClassVar[str] = "xlm-roberta"


class CamembertEncoder(RobertaEncoder):
    """CamemBERT's (Martin et al. 2020): RoBERTa's with another name in `transformers`."""

    model_type: ClassVar[str] = "camembert"


class RobertaForMaskedLM(MaskedLanguageModel):
    """RoBERTa with its head of pre-training, whose activation is always the exact GELU."""

    encoder_type: ClassVar[type[RobertaEncoder]] = RobertaEncoder

    def __init__(self, config: RobertaConfig, seed: int = 0) -> None:
        super().__init__(self.encoder_type(config, seed=seed))
        self.masked_token = MaskedLMHead(replace(config, activation="gelu"))
        initialize(self, self.encoder.draw, seed, only=("masked_token",))


class XlmRobertaForMaskedLM(RobertaForMaskedLM):
    """XLM-R with its head of pre-training."""

    encoder_type: ClassVar[type[RobertaEncoder]] = XlmRobertaEncoder


class CamembertForMaskedLM(RobertaForMaskedLM):
    """CamemBERT with its head of pre-training."""

    encoder_type: ClassVar[type[RobertaEncoder]] = CamembertEncoder
