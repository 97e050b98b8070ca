"""GPT's model folders, as `transformers` reads and writes them: `OpenAIGPTLMHeadModel` and its relatives.

Their linear layers are `Conv1D`: the weights are transposed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertwright.interop.weight_names import WeightNames
from bertwright.models.head_spec import HeadSpec
from bertwright.models.initialization import parameter_rng
from bertwright.systems.bert.bert_folder import BertArchitecture
from bertwright.systems.gpt.gpt import GptConfig, GptEncoder, GptLanguageModel
from bertwright.vocabulary.byte_pair_tokenizer import DESCRIPTION, VOCAB, BytePairTokenizer

WORDS = "transformer.tokens_embed.weight"
CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
BUFFERS = re.compile(r"(\.attn\.bias|position_ids)$")  # constants in files of earlier versions


class GptArchitecture(BertArchitecture):
    """GPT in the format of `transformers`."""

    NAMES: ClassVar[WeightNames] = WeightNames(
        prefix="transformer.",
        encoder={"embeddings.word": "tokens_embed", "embeddings.position": "positions_embed"},
        layer="h.N.",
        layers={
            "qkv": "attn.c_attn",
            "attention_output": "attn.c_proj",
            "attention_norm": "ln_1",
            "intermediate": "mlp.c_fc",
            "output": "mlp.c_proj",
            "output_norm": "ln_2",
        },
        heads={"masked_token": "lm_head"},
        decoder="lm_head",
        tasks={kind: {"classifier": "score"} for kind in ("sequence", "choice", "token")},
    )
    PRETRAINED: ClassVar[str] = "LMHeadModel"
    CONFIG_FIELDS: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        ("vocab_size", "vocab_size", 40_478),
        ("n_positions", "max_positions", 512),
        ("n_embd", "hidden_size", 768),
        ("n_layer", "num_layers", 12),
        ("n_head", "num_heads", 12),
        ("afn", "activation", "gelu"),
        ("resid_pdrop", "hidden_dropout", 0.1),
        ("attn_pdrop", "attention_dropout", 0.1),
        ("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        ("initializer_range", "initializer_range", 0.02),
        ("pad_token_id", "pad_token_id", 0),
    )
    REQUIRED_VALUES: ClassVar[tuple[tuple[str, Any], ...]] = (("afn", "gelu"), ("tie_word_embeddings", True))
    SIZES: ClassVar[tuple[tuple[str, str, int], ...]] = tuple(
        size for size in BertArchitecture.SIZES if size[0] in ("vocab_size", "embedding_size", "max_positions")
    )
    TANH_GELU: ClassVar[tuple[str, ...]] = ("gelu",)  # the name of the approximation in this class of `transformers`

    def parse_config(self, values: Mapping[str, Any], path: Path) -> GptConfig:
        """Read a configuration; the vocabulary gets the tokens of the layout that the tokenizer's files lack."""
        config: GptConfig = super().parse_config(values, path)
        expected = config.hidden_dropout
        if (given := values.get("embd_pdrop", expected)) != expected:
            raise ValueError(f"{path}: embd_pdrop: expected {expected}, as resid_pdrop, got {given!r}; change the file")
        vocab_size = config.vocab_size + count_added_tokens(path.parent, config.vocab_size)
        return replace(config, vocab_size=vocab_size, intermediate_size=4 * config.hidden_size)

    def format_config(self, config: GptConfig, head: HeadSpec | None = None) -> dict[str, Any]:
        own = {"model_type": self.encoder.model_type, "embd_pdrop": config.hidden_dropout}
        return super().format_config(config, head) | own

    def normalize(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
        """Return tensors under the names of `OpenAIGPTLMHeadModel`, transposed, without the copy of tied vectors."""
        named = {name: tensor for name, tensor in tensors.items() if not BUFFERS.search(name)}
        named = super().normalize(named, values, path)
        if WORDS in named and named[WORDS].ndim == 2:
            named[WORDS] = self.add_rows(named[WORDS], values, path)
        return self.to_file(named)

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


def count_added_tokens(folder: Path, vocab_size: int) -> int:
    """Return how many tokens of the layout follow the vocabulary of a model folder, such as OpenAI's, that lacks them.

    Raises ValueError for a damaged vocabulary.
    """
    if not any((folder / name).is_file() for name in (VOCAB, DESCRIPTION)):
        return 0
    return max(0, BytePairTokenizer.load(folder).vocab_size - vocab_size)


GPT = GptArchitecture(GptEncoder, GptConfig, "OpenAIGPT", GptLanguageModel, in_transformers=True)
