"""RoBERTa (Liu et al. 2019) over packed sequences: BERT's layers on word and position vectors, without segments.

T tokens, B sequences, H hidden size, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import DenseHead, LinearHead, TaskHead
from bertwright.models.packing import TokenBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Embeddings
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """Sizes and constants of a RoBERTa."""

    segment_vectors: int = 1
    """Rows of the table of segments. With one row, the separators alone tell the segments apart."""
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    """Id of the padding token, which decides the row of the first position (`position_offset`)."""

    def __str__(self) -> str:
        return f"RoBERTa {super().__str__()}"

    @property
    def position_offset(self) -> int:
        """Row of the first position in the table: fairseq numbers positions from that of padding on."""
        return self.pad_token_id + 1

    @property
    def num_embedding_parameters(self) -> int:
        more = self.position_offset + self.segment_vectors - self.type_vocab_size
        return super().num_embedding_parameters + more * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters with the masked-LM head.

        >>> RobertaConfig(vocab_size=50_265).num_parameters
        124697433
        """
        return self.num_encoder_parameters + self.num_masked_lm_parameters


class RobertaEmbeddings(Embeddings):
    """BERT's embeddings with positions from `position_offset` on, and usually one vector for all segments."""

    config: RobertaConfig

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)
        self.position = nn.Embedding(config.position_offset + config.max_positions, config.hidden_size)
        self.token_type = nn.Embedding(config.segment_vectors, config.hidden_size)

    def forward(self, batch: TokenBatch, sparse: bool = False) -> Tensor:
        positions = batch.packing.position_ids + self.config.position_offset
        types = batch.token_type_ids if self.config.segment_vectors > 1 else None
        packing = replace(batch.packing, position_ids=positions)
        return super().forward(TokenBatch(packing, batch.input_ids, types), sparse)

    def position_vectors(self) -> Tensor:
        return self.position.weight[self.config.position_offset :]


class RobertaEncoder(BertEncoder):
    """RoBERTa's embeddings and BERT's layers; its initial weights are a function of the seed."""

    model_type: ClassVar[str] = "roberta"
    has_pooler: ClassVar[bool] = False
    embeddings_type: ClassVar[type[nn.Module]] = RobertaEmbeddings
    config: RobertaConfig

    def own_head(self, spec: HeadSpec) -> TaskHead:
        """Return the head of the class in `transformers`; a choice has BERT's, with a pooler."""
        if spec.kind == "sequence":
            return DenseHead(spec, self.config.hidden_size, torch.tanh, drops_input=True)
        return LinearHead(spec, self.config.hidden_size, has_pooler=True)


class XlmRobertaEncoder(RobertaEncoder):
    """XLM-R's (Conneau et al. 2020): RoBERTa's with another name in `transformers`."""

    model_type: ClassVar[str] = "xlm-roberta"


class CamembertEncoder(RobertaEncoder):
    """CamemBERT's (Martin et al. 2020): RoBERTa's with another name in `transformers`."""

    model_type: ClassVar[str] = "camembert"


class RobertaForMaskedLM(MaskedLanguageModel):
    """RoBERTa with its head of pre-training, whose activation is always the exact GELU."""

    encoder_type: ClassVar[type[BertEncoder]] = RobertaEncoder

    def add_heads(self, config: BertConfig) -> None:
        super().add_heads(replace(config, activation="gelu"))


class XlmRobertaForMaskedLM(RobertaForMaskedLM):
    """XLM-R with its head of pre-training."""

    encoder_type: ClassVar[type[BertEncoder]] = XlmRobertaEncoder


class CamembertForMaskedLM(RobertaForMaskedLM):
    """CamemBERT with its head of pre-training."""

    encoder_type: ClassVar[type[BertEncoder]] = CamembertEncoder
