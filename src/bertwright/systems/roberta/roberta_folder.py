"""The model folders of RoBERTa, XLM-R and CamemBERT, as `transformers` reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from bertwright.interop.weight_names import WeightNames
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.bert.bert_folder import BertArchitecture
from bertwright.systems.roberta.roberta import (
    CamembertEncoder,
    CamembertForMaskedLM,
    RobertaConfig,
    RobertaEncoder,
    RobertaForMaskedLM,
    XlmRobertaEncoder,
    XlmRobertaForMaskedLM,
)

POSITIONS = "max_position_embeddings"
OTHER_FIELDS = ("vocab_size", "pad_token_id", "type_vocab_size", "is_decoder")  # of BERT's, with other meanings here


class RobertaArchitecture(BertArchitecture):
    """RoBERTa in the format of `transformers`."""

    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("vocab_size", "vocab_size", 50_265),
        ("pad_token_id", "pad_token_id", 1),
        ("type_vocab_size", "segment_vectors", 2),
        *(row for row in BertArchitecture.CONFIG_FIELDS if row[0] not in OTHER_FIELDS),
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (*BertArchitecture.REQUIRED_VALUES, ("is_decoder", False))
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = (
        *(row for row in BertArchitecture.SIZES if row[0] != "type_vocab_size"),
        ("segment_vectors", "encoder.embeddings.token_type.weight", 0),
    )
    NAMES: ClassVar[WeightNames] = replace(
        BertArchitecture.NAMES,
        prefix="roberta.",
        heads={
            "pooler.dense": "roberta.pooler.dense",
            "masked_token.dense": "lm_head.dense",
            "masked_token.norm": "lm_head.layer_norm",
            "masked_token": "lm_head",
        },
        decoder="lm_head.decoder",
        tasks={"sequence": {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}},
        inside=(),
    )
    PRETRAINED: ClassVar[str] = "ForMaskedLM"

    def parse_config(self, values: Mapping[str, Any], path: Path) -> Any:
        """Read a configuration; the positions of the file include the rows before the first one."""
        config: RobertaConfig = super().parse_config(values, path)
        if config.max_positions <= config.position_offset:
            raise ValueError(
                f"{path}: {POSITIONS}: expected more than pad_token_id + 1 = {config.position_offset}, the row of the "
                f"first position, got {config.max_positions}"
            )
        return replace(config, max_positions=config.max_positions - config.position_offset)

    def format_config(self, config: RobertaConfig, head: HeadSpec | None = None) -> dict[str, Any]:
        return super().format_config(config, head) | {POSITIONS: config.max_positions + config.position_offset}


ROBERTA = RobertaArchitecture(RobertaEncoder, RobertaConfig, "Roberta", RobertaForMaskedLM, in_transformers=True)
XLM_ROBERTA = RobertaArchitecture(
    XlmRobertaEncoder, RobertaConfig, "XLMRoberta", XlmRobertaForMaskedLM, in_transformers=True
)
CAMEMBERT = RobertaArchitecture(
    CamembertEncoder, RobertaConfig, "Camembert", CamembertForMaskedLM, in_transformers=True
)
