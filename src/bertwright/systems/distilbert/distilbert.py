"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT's layers on embeddings without segments, and no pooler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from torch import nn

from bertwright.base.settings import check_limit
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import DenseHead, TaskHead
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
from bertwright.systems.bert.other_embeddings import SegmentlessEmbeddings
from bertwright.systems.distilbert.defaults import SIZES


@dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """Sizes and constants of a DistilBERT; the defaults are the paper's (section 3)."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = SIZES
    num_layers: int = 6
    text_dropout: float = 0.2
    """Dropout before the classifier of a text or of a choice (`transformers`)."""
    answer_dropout: float = 0.1
    """Dropout before the layer that scores the start and the end of an answer (`transformers`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limit(self, "from 0 to below 1", "text_dropout", "answer_dropout")

    def with_dropout(self, rate: float) -> Self:
        return replace(super().with_dropout(rate), text_dropout=rate, answer_dropout=rate)

    @property
    def num_embedding_parameters(self) -> int:
        return super().num_embedding_parameters - self.type_vocab_size * self.embedding_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters with the masked-LM head.

        >>> DistilBertConfig(vocab_size=30_522).num_parameters
        66985530
        """
        return self.num_encoder_parameters + self.num_masked_lm_parameters


class DistilBertEncoder(BertEncoder):
    """DistilBERT's embeddings and layers. Its tokenizer marks segments, which the model does not read."""

    model_type: ClassVar[str] = "distilbert"
    has_pooler: ClassVar[bool] = False
    embeddings_type: ClassVar[type[nn.Module]] = SegmentlessEmbeddings
    config: DistilBertConfig

    def own_head(self, spec: HeadSpec) -> TaskHead:
        """Return a linear layer, for whole texts behind a dense layer with ReLU (`pre_classifier`)."""
        rates = {"token": None, "span": self.config.answer_dropout}
        return DenseHead(spec, self.config.hidden_size, F.relu, rates.get(spec.kind, self.config.text_dropout))


class DistilBertForMaskedLM(MaskedLanguageModel):
    """DistilBERT with its masked-LM head."""

    encoder_type: ClassVar[type[BertEncoder]] = DistilBertEncoder
