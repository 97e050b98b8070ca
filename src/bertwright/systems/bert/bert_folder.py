"""BERT's model folders, as `transformers` reads and writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertwright.interop.model_files import CONFIG
from bertwright.interop.model_format import Architecture
from bertwright.interop.weight_names import WeightNames
from bertwright.interop.weights import check_sizes, raise_if_any
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining

# `model_type` of BERTs that `transformers` would read but compute wrongly; it rejects these names (decision 17).
REVERSED = "bert-rtl"  # reads from right to left
READS_LAST = "bert-ltr"  # reads from left to right, and its head reads the last token; `transformers` would read [CLS]
NAMES = WeightNames(
    prefix="bert.",
    encoder={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.token_type": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
    },
    layer="encoder.layer.N.",
    layers={
        "qkv": "attention.self.query attention.self.key attention.self.value",
        "attention_output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "intermediate": "intermediate.dense",
        "output": "output.dense",
        "output_norm": "output.LayerNorm",
    },
    heads={
        "pooler.dense": "bert.pooler.dense",
        "masked_token.dense": "cls.predictions.transform.dense",
        "masked_token.norm": "cls.predictions.transform.LayerNorm",
        "masked_token": "cls.predictions",
        "next_sentence": "cls.seq_relationship",
    },
    decoder="cls.predictions.decoder",
    inside=("cls.",),
)


class BertArchitecture(Architecture):
    """A BERT, or a system with its layers, in the format of `transformers`; a subclass has other tables."""

    NAMES: ClassVar[WeightNames] = NAMES
    PRETRAINED: ClassVar[str] = "ForPreTraining"  # end of the name of the class with the heads of pre-training

    # Field of config.json, our field, and the default of `transformers` for files without it.
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("vocab_size", "vocab_size", 30_522),
        ("hidden_size", "hidden_size", 768),
        ("num_hidden_layers", "num_layers", 12),
        ("num_attention_heads", "num_heads", 12),
        ("intermediate_size", "intermediate_size", 3072),
        ("hidden_act", "activation", "gelu"),
        ("hidden_dropout_prob", "hidden_dropout", 0.1),
        ("attention_probs_dropout_prob", "attention_dropout", 0.1),
        ("max_position_embeddings", "max_positions", 512),
        ("type_vocab_size", "type_vocab_size", 2),
        ("initializer_range", "initializer_range", 0.02),
        ("layer_norm_eps", "layer_norm_eps", 1e-12),
        ("pad_token_id", "pad_token_id", 0),
        ("is_decoder", "is_causal", False),
        ("sinusoidal_positions", "sinusoidal_positions", False),  # our own; transformers reads the weights
    )
    # Options of `transformers` that are not implemented, with their only supported value.
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (
        ("position_embedding_type", "absolute"),
        ("add_cross_attention", False),
    )
    # Fields that weights determine as well: our field, our parameter and its dimension.
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("vocab_size", "encoder.embeddings.word.weight", 0),
        ("embedding_size", "encoder.embeddings.word.weight", 1),
        ("intermediate_size", "encoder.layers.0.intermediate.weight", 0),
        ("max_positions", "encoder.embeddings.position.weight", 0),
        ("type_vocab_size", "encoder.embeddings.token_type.weight", 0),
    )
    # Three names of one formula; the first is written.
    TANH_GELU: ClassVar[tuple[str, ...]] = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
    TIED = "tie_word_embeddings"
    NUM_LAYERS = "num_layers"  # our field with the number of layers in files

    def parse_config(self, values: Mapping[str, Any], path: Path) -> Any:
        """Read a configuration from the fields of `config.json`, or of Google's `bert_config.json`."""
        for name, supported in self.REQUIRED_VALUES:
            if values.get(name, supported) != supported:
                raise ValueError(f"{path}: {name}: expected {supported!r}, got {values[name]!r}; change the file")
        found: dict[str, Any] = {}
        for field, name, default in self.CONFIG_FIELDS:
            value = default if values.get(field) is None else values[field]
            if type(value) is not type(default) and not (type(default) is float and type(value) is int):
                raise ValueError(f"{path}: {field}: expected {type(default).__name__}, got {value!r}")
            found[name] = value
        if found["activation"] in self.TANH_GELU:
            found["activation"] = "gelu_tanh"
        found["is_reversed"] = values.get("model_type") == REVERSED
        try:
            return self.config(**found)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def format_config(self, config: Any, head: HeadSpec | None = None) -> dict[str, Any]:
        """Return the fields that `transformers` reads."""
        values: dict[str, Any] = {"architectures": [self.class_prefix + self.PRETRAINED], "dtype": "float32"}
        values |= {"model_type": self.encoder.model_type} | dict(self.REQUIRED_VALUES) | {self.TIED: True}
        values |= {field: getattr(config, name) for field, name, _ in self.CONFIG_FIELDS}
        if config.is_reversed:
            values["model_type"] = REVERSED
        elif config.is_causal and head is not None and head.reads_sequence_state:
            values["model_type"] = READS_LAST
        if config.activation == "gelu_tanh":
            values[next(field for field, name, _ in self.CONFIG_FIELDS if name == "activation")] = self.TANH_GELU[0]
        return values

    def file_names(self, name: str, kind: str = "") -> tuple[str, ...]:
        return self.NAMES.of(name, kind)

    def is_of_a_head(self, file_name: str) -> bool:
        return self.NAMES.is_of_a_head(file_name)

    def normalize(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
        """Return tensors under the names of the `…For…` classes, without the copy of a tied decoder."""
        found, name = self.NAMES.normalize(tensors), f"{self.NAMES.decoder}.weight"
        decoder, words = found.pop(name, None), self.file_names("encoder.embeddings.word.weight")[0]
        if decoder is not None and not torch.equal(decoder, found.setdefault(words, decoder)):
            raise ValueError(f"{path}: {name} differs from the word embeddings; only tied weights are supported")
        dense = self.NAMES.heads.get("masked_token.dense")
        if decoder is None and values.get(self.TIED) is False and f"{dense}.weight" in found:
            raise ValueError(f"{path}: {name} is missing, and {CONFIG} has {self.TIED} = false")
        return found

    def check_sizes(self, tensors: Mapping[str, Tensor], config: BertConfig, path: Path) -> None:
        names = {field: self.file_names(name)[0] for field, name, _ in self.SIZES}
        raise_if_any(path, "missing", sorted(set(names.values()) - tensors.keys()))
        sizes = {field: (*tensors[names[field]].shape, 0)[dimension] for field, _, dimension in self.SIZES}
        pattern = re.compile(re.escape(self.NAMES.prefix + self.NAMES.layer).replace("N", r"(\d+)"))
        layers = {found[1] for name in tensors if (found := pattern.match(name))}
        sizes |= {self.NUM_LAYERS: len(layers)}
        in_file = {ours: field for field, ours, _ in self.CONFIG_FIELDS}
        in_file.setdefault("embedding_size", in_file["hidden_size"])
        expected = self.format_config(config)
        check_sizes({in_file[field]: (expected[in_file[field]], size) for field, size in sizes.items()}, path)


POOLED_CODE = Path(__file__).with_name("modeling_pooled_bert.py")
BERT = BertArchitecture(
    BertEncoder, BertConfig, "Bert", BertForPretraining, in_transformers=True, pooled_code=POOLED_CODE
)
