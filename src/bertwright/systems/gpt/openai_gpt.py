"""GPT's model folders, as `transformers` reads and writes them: `OpenAIGPTLMHeadModel` and its relatives.

Their linear layers are `Conv1D`: the weights are transposed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertwright.interop.head_config import HEAD_CLASSES
from bertwright.interop.model_format import Architecture
from bertwright.interop.weights import check_sizes, raise_if_any
from bertwright.models.head_spec import HeadSpec
from bertwright.models.initialization import parameter_rng
from bertwright.systems.gpt.gpt import GptConfig, GptEncoder, GptLanguageModel
from bertwright.vocabulary.byte_pair_tokenizer import DESCRIPTION, VOCAB, BytePairTokenizer

PREFIX = "transformer."
WORDS, POSITIONS, TIED = f"{PREFIX}tokens_embed.weight", f"{PREFIX}positions_embed.weight", "lm_head.weight"
# Our module, and theirs. Both directions read these tables.
EMBEDDING_NAMES = {"embeddings.word": "tokens_embed", "embeddings.position": "positions_embed"}
LAYER_NAMES = {
    "qkv": "attn.c_attn",
    "attention_output": "attn.c_proj",
    "attention_norm": "ln_1",
    "intermediate": "mlp.c_fc",
    "output": "mlp.c_proj",
    "output_norm": "ln_2",
}
CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
BUFFERS = re.compile(r"(\.attn\.bias|position_ids)$")  # constants in files of earlier versions
GELU = "gelu"  # the tanh approximation, in this class of `transformers`


class GptArchitecture(Architecture):
    """GPT in the format of `transformers`."""

    # Field of config.json, our field, and the default of `transformers` for files without it.
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("vocab_size", "vocab_size", 40_478),
        ("n_positions", "max_positions", 512),
        ("n_embd", "hidden_size", 768),
        ("n_layer", "num_layers", 12),
        ("n_head", "num_heads", 12),
        ("resid_pdrop", "hidden_dropout", 0.1),
        ("attn_pdrop", "attention_dropout", 0.1),
        ("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        ("initializer_range", "initializer_range", 0.02),
        ("pad_token_id", "pad_token_id", 0),
    )

    def parse_config(self, values: Mapping[str, Any], path: Path) -> GptConfig:
        """Read a configuration from the fields of `config.json`."""
        given: dict[str, Any] = {}
        for field, name, default in self.CONFIG_FIELDS:
            value = default if values.get(field) is None else values[field]
            if type(value) is not type(default) and not (type(default) is float and type(value) is int):
                raise ValueError(f"{path}: {field}: expected {type(default).__name__}, got {value!r}")
            given[name] = value
        required = {"afn": GELU, "embd_pdrop": given["hidden_dropout"], "tie_word_embeddings": True}
        for field, expected in required.items():
            if values.get(field, expected) != expected:
                raise ValueError(f"{path}: {field}: expected {expected!r}, got {values[field]!r}; change the file")
        given["vocab_size"] += count_added_tokens(path.parent, given["vocab_size"])
        try:
            return GptConfig(intermediate_size=4 * given["hidden_size"], **given)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def format_config(self, config: GptConfig, head: HeadSpec | None = None) -> dict[str, Any]:
        """Return the fields that `transformers` reads."""
        values: dict[str, Any] = {"architectures": ["OpenAIGPTLMHeadModel"], "dtype": "float32"}
        values |= {"model_type": self.encoder.model_type, "afn": GELU, "embd_pdrop": config.hidden_dropout}
        values |= {field: getattr(config, name) for field, name, _ in self.CONFIG_FIELDS}
        return values | {"tie_word_embeddings": True}

    def file_names(self, name: str, kind: str = "") -> tuple[str, ...]:
        """Return the name in `transformers` of one of our parameters."""
        module, _, last = name.rpartition(".")
        if module == "classifier":
            classifier = HEAD_CLASSES[kind].classifier
            return (f"{'score' if classifier == 'classifier' else classifier}.{last}",)
        module = module.removeprefix("encoder.")
        if layer := re.fullmatch(r"layers\.(\d+)\.(\w+)", module):
            return (f"{PREFIX}h.{layer[1]}.{LAYER_NAMES[layer[2]]}.{last}",)
        return (f"{PREFIX}{EMBEDDING_NAMES[module]}.{last}",)

    def is_of_a_head(self, file_name: str) -> bool:
        return not file_name.startswith(PREFIX)

    def normalize(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
        """Return tensors under the names of `OpenAIGPTLMHeadModel`, transposed, without the copy of tied vectors."""
        prefixed = any(name.startswith(PREFIX) for name in tensors)
        named = {name if prefixed else PREFIX + name: tensor for name, tensor in tensors.items()}
        tied = named.pop(TIED, None)
        if tied is not None and WORDS in named and not torch.equal(tied, named[WORDS]):
            raise ValueError(f"{path}: {TIED} differs from the word embeddings; only tied weights are supported")
        if WORDS in named and named[WORDS].ndim == 2:
            named[WORDS] = self.add_rows(named[WORDS], values, path)
        return self.to_file({name: tensor for name, tensor in named.items() if not BUFFERS.search(name)})

    def add_rows(self, words: Tensor, values: Mapping[str, Any], path: Path) -> Tensor:
        """Add random vectors for the start, delimiter and extract tokens that a tokenizer lacks (section 4.1)."""
        added = count_added_tokens(path.parent, len(words))
        rng = parameter_rng(0, WORDS)
        new = torch.randn(added, words.shape[1], generator=rng) * (values.get("initializer_range") or 0.02)
        return torch.cat([words, new.to(words.dtype)])

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Transpose the weights of linear layers inside the Transformer."""
        return {
            name: tensor.T.contiguous() if CONV1D.search(name) and tensor.ndim == 2 else tensor
            for name, tensor in tensors.items()
        }

    def check_sizes(self, tensors: Mapping[str, Tensor], config: GptConfig, path: Path) -> None:
        """Raise ValueError if normalized tensors do not have the sizes of the configuration."""
        raise_if_any(path, "missing", sorted({WORDS, POSITIONS} - tensors.keys()))
        words, positions = ((*tensors[name].shape, 0, 0) for name in (WORDS, POSITIONS))
        layers = {name.split(".")[2] for name in tensors if name.startswith(f"{PREFIX}h.")}
        sizes = {
            "vocab_size": (config.vocab_size, words[0]),
            "n_embd": (config.hidden_size, words[1]),
            "n_positions": (config.max_positions, positions[0]),
            "n_layer": (config.num_layers, len(layers)),
        }
        check_sizes(sizes, path)


def count_added_tokens(folder: Path, vocab_size: int) -> int:
    """Return how many tokens of the layout follow the vocabulary of a model folder, such as OpenAI's, that lacks them.

    Raises ValueError for a damaged vocabulary.
    """
    if not any((folder / name).is_file() for name in (VOCAB, DESCRIPTION)):
        return 0
    return max(0, BytePairTokenizer.load(folder).vocab_size - vocab_size)


GPT = GptArchitecture(GptEncoder, GptConfig, "OpenAIGPT", GptLanguageModel, in_transformers=True)
