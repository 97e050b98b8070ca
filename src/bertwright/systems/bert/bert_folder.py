"""BERT's model folders, as `transformers` reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertwright.interop.model_files import CONFIG
from bertwright.interop.model_format import Architecture
from bertwright.interop.weight_names import hf_names, is_of_a_head, normalize_names
from bertwright.interop.weights import check_sizes, raise_if_any
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining

# `model_type` of BERTs that `transformers` would read but compute wrongly; it rejects these names (decision 17).
REVERSED = "bert-rtl"  # reads from right to left
READS_LAST = "bert-ltr"  # reads from left to right, and its head reads the last token; `transformers` would read [CLS]
DECODER, HEAD_DENSE = "cls.predictions.decoder.weight", "cls.predictions.transform.dense.weight"
WORDS, LAYERS = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer."


class BertArchitecture(Architecture):
    """BERT in the format of `transformers`; a subclass has a model of BERT's layers whose parts have other names."""

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
    # Fields that weights determine as well: the field, a parameter and its dimension.
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("vocab_size", WORDS, 0),
        ("hidden_size", WORDS, 1),
        ("intermediate_size", "bert.encoder.layer.0.intermediate.dense.weight", 0),
        ("max_position_embeddings", "bert.embeddings.position_embeddings.weight", 0),
        ("type_vocab_size", "bert.embeddings.token_type_embeddings.weight", 0),
    )
    TANH_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")  # three names of one formula; the first is written
    TIED = "tie_word_embeddings"
    # Beginnings of names in BERT's files, and what they are in the files of this model; the first that fits counts.
    RENAMED: ClassVar[tuple[tuple[str, str], ...]] = ()

    def to_bert(self, file_name: str) -> str:
        """Return the name in BERT's files of a parameter of this model's files."""
        found = ((new, old) for old, new in self.RENAMED if file_name.startswith(new))
        new, old = next(found, ("", ""))
        return old + file_name.removeprefix(new)

    def from_bert(self, name: str) -> str:
        """Return the name in this model's files of a parameter of BERT's files."""
        old, new = next((pair for pair in self.RENAMED if name.startswith(pair[0])), ("", ""))
        return new + name.removeprefix(old)

    def parse_config(self, values: Mapping[str, Any], path: Path) -> Any:
        """Read a configuration from the fields of `config.json`, or of Google's `bert_config.json`."""
        for name, supported in self.REQUIRED_VALUES:
            if values.get(name, supported) != supported:
                raise ValueError(f"{path}: {name}: expected {supported!r}, got {values[name]!r}")
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

    def format_config(self, config: BertConfig, head: HeadSpec | None = None) -> dict[str, Any]:
        """Return the fields that `transformers` reads."""
        values: dict[str, Any] = {"architectures": ["BertForPreTraining"], "dtype": "float32", "model_type": "bert"}
        values |= dict(self.REQUIRED_VALUES) | {self.TIED: True}
        values |= {field: getattr(config, name) for field, name, _ in self.CONFIG_FIELDS}
        if config.is_reversed:
            values["model_type"] = REVERSED
        elif config.is_causal and head is not None and head.reads_sequence_state:
            values["model_type"] = READS_LAST
        if config.activation == "gelu_tanh":
            values["hidden_act"] = self.TANH_GELU[0]
        return values

    def file_names(self, name: str, classifier: str) -> tuple[str, ...]:
        """Return the names in `transformers` of one of our parameters."""
        return tuple(map(self.from_bert, hf_names(name, classifier)))

    def is_of_a_head(self, file_name: str) -> bool:
        """Return whether a parameter of `transformers` is a head's."""
        return is_of_a_head(self.to_bert(file_name))

    def normalize(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
        """Return tensors under the names of the `…For…` classes, without the copy of a tied decoder."""
        found = normalize_names({self.to_bert(name): tensor for name, tensor in tensors.items()})
        decoder = found.pop(DECODER, None)
        if decoder is not None and not torch.equal(decoder, found.setdefault(WORDS, decoder)):
            name = self.from_bert(DECODER)
            raise ValueError(f"{path}: {name} differs from the word embeddings; only tied weights are supported")
        if decoder is None and values.get(self.TIED) is False and HEAD_DENSE in found:
            raise ValueError(f"{path}: {self.from_bert(DECODER)} is missing, and {CONFIG} has {self.TIED} = false")
        return {self.from_bert(name): tensor for name, tensor in found.items()}

    def check_sizes(self, tensors: Mapping[str, Tensor], config: BertConfig, path: Path) -> None:
        """Raise ValueError if normalized tensors do not have the sizes of the configuration."""
        expected = self.format_config(config)
        named = [(field, self.from_bert(name), dimension) for field, name, dimension in self.SIZES]
        raise_if_any(path, "missing", sorted({name for _, name, _ in named} - tensors.keys()))
        sizes = {field: (*tensors[name].shape, 0)[dimension] for field, name, dimension in named}
        layers = {name.split(".")[3] for name in tensors if name.startswith(self.from_bert(LAYERS))}
        sizes["num_hidden_layers"] = len(layers)
        check_sizes({field: (expected[field], size) for field, size in sizes.items()}, path)


POOLED_CODE = Path(__file__).with_name("modeling_pooled_bert.py")
BERT = BertArchitecture(
    BertEncoder, BertConfig, "Bert", BertForPretraining, in_transformers=True, pooled_code=POOLED_CODE
)
