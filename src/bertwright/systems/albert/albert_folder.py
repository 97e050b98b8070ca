"""ALBERT's model folders, as `transformers` reads and writes them."""

from __future__ import annotations

from typing import Any, ClassVar

from bertwright.interop.weight_names import WeightNames
from bertwright.systems.albert.albert import AlbertConfig, AlbertEncoder, AlbertForPretraining
from bertwright.systems.bert.bert_folder import BertArchitecture

DEFAULTS = {  # of `transformers`, for files without the field: the sizes of ALBERT-xxlarge
    "vocab_size": 30_000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16_384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class AlbertArchitecture(BertArchitecture):
    """ALBERT in the format of `transformers`."""

    NAMES: ClassVar[WeightNames] = WeightNames(
        prefix="albert.",
        encoder={
            **BertArchitecture.NAMES.encoder,
            "embeddings.projection": "encoder.embedding_hidden_mapping_in",
        },
        layer="encoder.albert_layer_groups.N.albert_layers.0.",
        layers={
            "qkv": "attention.query attention.key attention.value",
            "attention_output": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "intermediate": "ffn",
            "output": "ffn_output",
            "output_norm": "full_layer_layer_norm",
        },
        heads={
            "pooler.dense": "albert.pooler",
            "masked_token.dense": "predictions.dense",
            "masked_token.norm": "predictions.LayerNorm",
            "masked_token": "predictions",
            "sentence_order": "sop_classifier.classifier",
        },
        decoder="predictions.decoder",
    )
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("embedding_size", "embedding_size", 128),
        ("num_hidden_groups", "num_groups", 1),
        ("classifier_dropout_prob", "head_dropout", 0.1),
        *(
            (field, ours, DEFAULTS.get(field, default))
            for field, ours, default in BertArchitecture.CONFIG_FIELDS
            if ours not in ("is_causal", "sinusoidal_positions")
        ),
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (
        ("position_embedding_type", "absolute"),
        ("inner_group_num", 1),
    )
    NUM_LAYERS = "num_groups"


ALBERT = AlbertArchitecture(AlbertEncoder, AlbertConfig, "Albert", AlbertForPretraining, in_transformers=True)
