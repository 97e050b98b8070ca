"""ModernBERT's model folders, as `transformers` reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from bertwright.interop.weight_names import WeightNames
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.bert.bert_folder import BertArchitecture
from bertwright.systems.modernbert.modernbert import ModernBertConfig, ModernBertEncoder, ModernBertForMaskedLM

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers in `layer_types`
# Our field with the base of the rotations of each kind, and its name in files of `transformers` before version 5.
BASES = {GLOBAL: ("global_base", "global_rope_theta", 160_000.0), LOCAL: ("local_base", "local_rope_theta", 10_000.0)}
LAYER_TYPES, ROTATIONS, EVERY = "layer_types", "rope_parameters", "global_attn_every_n_layers"


class ModernBertArchitecture(BertArchitecture):
    """ModernBERT in the format of `transformers`."""

    NAMES: ClassVar[WeightNames] = WeightNames(
        prefix="model.",
        encoder={
            "embeddings.word": "embeddings.tok_embeddings",
            "embeddings.norm": "embeddings.norm",
            "final_norm": "final_norm",
        },
        layer="layers.N.",
        layers={
            "attention_norm": "attn_norm",
            "qkv": "attn.Wqkv",
            "attention_output": "attn.Wo",
            "feed_forward_norm": "mlp_norm",
            "intermediate": "mlp.Wi",
            "output": "mlp.Wo",
        },
        heads={
            "pooler.dense": "head.dense",
            "pooler.norm": "head.norm",
            "masked_token.dense": "head.dense",
            "masked_token.norm": "head.norm",
            "masked_token": "decoder",
        },
        decoder="decoder",
        tasks={"span": {"classifier": "classifier"}},
    )
    PRETRAINED: ClassVar[str] = "ForMaskedLM"
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("vocab_size", "vocab_size", 50_368),
        ("hidden_size", "hidden_size", 768),
        ("num_hidden_layers", "num_layers", 22),
        ("num_attention_heads", "num_heads", 12),
        ("intermediate_size", "intermediate_size", 1152),
        ("hidden_activation", "activation", "gelu"),
        ("embedding_dropout", "hidden_dropout", 0.0),
        ("attention_dropout", "attention_dropout", 0.0),
        ("mlp_dropout", "mlp_dropout", 0.0),
        ("classifier_dropout", "head_dropout", 0.0),
        ("max_position_embeddings", "max_positions", 8192),
        ("initializer_range", "initializer_range", 0.02),
        ("norm_eps", "layer_norm_eps", 1e-5),
        ("pad_token_id", "pad_token_id", 50_283),
        ("local_attention", "local_attention", 128),
        (EVERY, "global_every", 3),
        ("classifier_pooling", "classifier_pooling", "cls"),
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (
        ("attention_bias", False),
        ("mlp_bias", False),
        ("norm_bias", False),
        ("classifier_bias", False),
        ("decoder_bias", True),
        ("classifier_activation", "gelu"),
    )
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("vocab_size", "encoder.embeddings.word.weight", 0),
        ("embedding_size", "encoder.embeddings.word.weight", 1),
        ("intermediate_size", "encoder.layers.0.output.weight", 1),
    )

    def parse_config(self, values: Mapping[str, Any], path: Path) -> Any:
        """Read a configuration; the kinds of layers and the bases of rotations have had two forms in `transformers`."""
        every = read_pattern(values, path)
        changes: dict[str, Any] = {BASES[kind][0]: read_base(values, kind, path) for kind in BASES}
        padding = {} if values.get("pad_token_id", 0) is not None else {"pad_token_id": 0}
        config: ModernBertConfig = super().parse_config({**values, **padding, EVERY: every}, path)
        return replace(config, **changes | dict.fromkeys(padding))

    def format_config(self, config: ModernBertConfig, head: HeadSpec | None = None) -> dict[str, Any]:
        """Return the fields that `transformers` reads, in both forms."""
        bases = {kind: getattr(config, ours) for kind, (ours, _, _) in BASES.items()}
        return super().format_config(config, head) | {
            LAYER_TYPES: [LOCAL if config.window(layer) else GLOBAL for layer in range(config.num_layers)],
            ROTATIONS: {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            **{earlier: bases[kind] for kind, (_, earlier, _) in BASES.items()},
        }


def read_pattern(values: Mapping[str, Any], path: Path) -> Any:
    """Return the distance of two layers that attend to all tokens. Raises ValueError for an irregular pattern."""
    every, types = values.get(EVERY, 3), values.get(LAYER_TYPES)
    if types is None:
        return every
    if not isinstance(types, list) or not all(kind in (GLOBAL, LOCAL) for kind in types):
        raise ValueError(f"{path}: {LAYER_TYPES}: expected a list of {GLOBAL} and {LOCAL}, got {str(types)[:60]}")
    found = next((number for number, kind in enumerate(types) if number and kind == GLOBAL), max(len(types), 1))
    pattern = [LOCAL if number % found else GLOBAL for number in range(len(types))]
    if types != pattern or len(types) != values.get("num_hidden_layers", 22):
        raise ValueError(f"{path}: {LAYER_TYPES}: expected {GLOBAL} in every n-th layer from the first, got {types}")
    return found if found < len(types) or type(every) is not int else max(every, found)


def read_base(values: Mapping[str, Any], kind: str, path: Path) -> float:
    """Return the base of the rotations of a kind of layer. Raises ValueError for scaled rotations."""
    _, earlier, default = BASES[kind]
    rotations = values.get(ROTATIONS) or {}
    given = rotations.get(kind, {}) if isinstance(rotations, dict) else None
    if not isinstance(given, dict) or given.get("rope_type", "default") != "default" or values.get("rope_scaling"):
        shown = str(values.get("rope_scaling") or rotations)[:90]
        raise ValueError(f"{path}: {ROTATIONS}: expected rope_type default for {kind}, got {shown}")
    base = given.get("rope_theta", values.get(earlier, default))
    if not isinstance(base, int | float) or isinstance(base, bool) or not base > 0:
        raise ValueError(f"{path}: {ROTATIONS}: expected a number above 0 as rope_theta of {kind}, got {base!r}")
    return float(base)


MODERNBERT = ModernBertArchitecture(
    ModernBertEncoder, ModernBertConfig, "ModernBert", ModernBertForMaskedLM, in_transformers=True
)
