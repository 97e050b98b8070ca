"""DistilBERT's model folders, as `transformers` reads and writes them."""

from __future__ import annotations

from typing import Any, ClassVar

from bertwright.interop.weight_names import WeightNames
from bertwright.systems.bert.bert_folder import BertArchitecture
from bertwright.systems.distilbert.distilbert import DistilBertConfig, DistilBertEncoder, DistilBertForMaskedLM


class DistilBertArchitecture(BertArchitecture):
    """DistilBERT in the format of `transformers`."""

    NAMES: ClassVar[WeightNames] = WeightNames(
        prefix="distilbert.",
        encoder={
            "embeddings.word": "embeddings.word_embeddings",
            "embeddings.position": "embeddings.position_embeddings",
            "embeddings.norm": "embeddings.LayerNorm",
        },
        layer="transformer.layer.N.",
        layers={
            "qkv": "attention.q_lin attention.k_lin attention.v_lin",
            "attention_output": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "intermediate": "ffn.lin1",
            "output": "ffn.lin2",
            "output_norm": "output_layer_norm",
        },
        heads={
            "pooler.dense": "pre_classifier",
            "masked_token.dense": "vocab_transform",
            "masked_token.norm": "vocab_layer_norm",
            "masked_token": "vocab_projector",
        },
        decoder="vocab_projector",
    )
    PRETRAINED: ClassVar[str] = "ForMaskedLM"
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("vocab_size", "vocab_size", 30_522),
        ("dim", "hidden_size", 768),
        ("n_layers", "num_layers", 6),
        ("n_heads", "num_heads", 12),
        ("hidden_dim", "intermediate_size", 3072),
        ("activation", "activation", "gelu"),
        ("dropout", "hidden_dropout", 0.1),
        ("attention_dropout", "attention_dropout", 0.1),
        ("seq_classif_dropout", "text_dropout", 0.2),
        ("qa_dropout", "answer_dropout", 0.1),
        ("max_position_embeddings", "max_positions", 512),
        ("sinusoidal_pos_embds", "sinusoidal_positions", False),
        ("initializer_range", "initializer_range", 0.02),
        ("pad_token_id", "pad_token_id", 0),
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = ()
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = tuple(
        size for size in BertArchitecture.SIZES if size[0] != "type_vocab_size"
    )


DISTILBERT = DistilBertArchitecture(
    DistilBertEncoder, DistilBertConfig, "DistilBert", DistilBertForMaskedLM, in_transformers=True
)
