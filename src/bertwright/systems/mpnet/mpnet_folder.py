"""MPNet's model folders, as `transformers` reads and writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from bertwright.interop.weight_names import WeightNames
from bertwright.systems.bert.bert_folder import BertArchitecture
from bertwright.systems.mpnet.mpnet import NUM_BUCKETS, MpnetConfig, MpnetEncoder, MpnetForMaskedLM
from bertwright.systems.roberta.roberta_folder import RobertaArchitecture

UNUSED = ("segment_vectors",)
DEFAULTS = {"vocab_size": 30_527}


class MpnetArchitecture(RobertaArchitecture):
    """MPNet in the format of `transformers`."""

    NAMES: ClassVar[WeightNames] = replace(
        RobertaArchitecture.NAMES,
        prefix="mpnet.",
        encoder={
            **{name: theirs for name, theirs in BertArchitecture.NAMES.encoder.items() if "token_type" not in name},
            "embeddings.relative": "encoder.relative_attention_bias",
        },
        layers={
            "qkv": "attention.attn.q attention.attn.k attention.attn.v",
            "attention_output": "attention.attn.o",
            "attention_norm": "attention.LayerNorm",
            "intermediate": "intermediate.dense",
            "output": "output.dense",
            "output_norm": "output.LayerNorm",
        },
        heads={**RobertaArchitecture.NAMES.heads, "pooler.dense": "mpnet.pooler.dense"},
    )
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = tuple(
        (field, ours, DEFAULTS.get(field, default))
        for field, ours, default in RobertaArchitecture.CONFIG_FIELDS
        if ours not in UNUSED
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (("relative_attention_num_buckets", NUM_BUCKETS),)
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = tuple(
        size for size in RobertaArchitecture.SIZES if size[0] not in UNUSED
    )


MPNET = MpnetArchitecture(MpnetEncoder, MpnetConfig, "MPNet", MpnetForMaskedLM, in_transformers=True)
