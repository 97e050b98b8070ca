"""ELECTRA's model folders, as `transformers` reads and writes them: a discriminator's, or a generator's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from bertwright.interop.weight_names import WeightNames
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.bert.bert_folder import BertArchitecture
from bertwright.systems.electra.electra import ElectraConfig, ElectraEncoder, build_electra

GENERATOR = "ElectraForMaskedLM"


class ElectraArchitecture(BertArchitecture):
    """ELECTRA in the format of `transformers`."""

    NAMES: ClassVar[WeightNames] = replace(
        BertArchitecture.NAMES,
        prefix="electra.",
        encoder={**BertArchitecture.NAMES.encoder, "embeddings.projection": "embeddings_project"},
        heads={
            "replaced_token.dense": "discriminator_predictions.dense",
            "replaced_token.prediction": "discriminator_predictions.dense_prediction",
            "masked_token.dense": "generator_predictions.dense",
            "masked_token.norm": "generator_predictions.LayerNorm",
            "masked_token": "generator_lm_head",
        },
        decoder="generator_lm_head",
        tasks={
            "sequence": {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"},
            "choice": {"pooler.dense": "sequence_summary.summary"},
        },
        inside=(),
    )
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("embedding_size", "embedding_size", 128),
        *(field for field in BertArchitecture.CONFIG_FIELDS if field[1] not in ("is_causal", "sinusoidal_positions")),
        ("summary_last_dropout", "choice_dropout", 0.1),
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (
        *BertArchitecture.REQUIRED_VALUES,
        ("is_decoder", False),
        ("summary_type", "first"),
        ("summary_use_proj", True),
        ("summary_activation", "gelu"),
    )

    def parse_config(self, values: Mapping[str, Any], path: Path) -> Any:
        """Read a configuration; the class of the model says whether it is a generator."""
        small = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        config, names = super().parse_config(small | dict(values), path), values.get("architectures")
        return replace(config, is_generator=isinstance(names, list) and GENERATOR in names)

    def format_config(self, config: ElectraConfig, head: HeadSpec | None = None) -> dict[str, Any]:
        values = super().format_config(config, head)
        return values | ({"architectures": [GENERATOR]} if config.is_generator else {})


ELECTRA = ElectraArchitecture(ElectraEncoder, ElectraConfig, "Electra", build_electra, in_transformers=True)
