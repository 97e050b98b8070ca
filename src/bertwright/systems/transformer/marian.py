"""Folders of translation models as `transformers` reads them: MarianMTModel with ReLU.

Marian's position encodings have all sines first and then all cosines, the paper's alternate. The order of the hidden
dimensions is arbitrary everywhere else, so the files hold all weights in Marian's order of the dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bertwright.base.files import read_json, write_json
from bertwright.interop.checksums import check_other_files, write_checksums
from bertwright.interop.model_files import CONFIG, WEIGHTS, locate_config
from bertwright.interop.weights import write_weights
from bertwright.systems.transformer.transformer import Transformer, TransformerConfig
from bertwright.systems.translation_models import ADVICE, TranslationSystem, build_with_weights
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from bertwright.translation.settings import TrainTranslationSettings

MODEL_TYPE = "marian"
POSITIONS = 512  # rows of Marian's table of encodings; ours has no last row
# Fields of config.json with their only supported values.
FIXED: dict[str, Any] = {
    "model_type": MODEL_TYPE,
    "activation_function": "relu",
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
}
# Our fields, and the fields of config.json that hold each.
FIELDS = {
    "vocab_size": ("vocab_size", "decoder_vocab_size"),
    "hidden_size": ("d_model",),
    "num_layers": ("encoder_layers", "decoder_layers"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "intermediate_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "dropout": ("dropout",),
}
# Modules of a layer, and the modules of Marian's that hold each; several are stacked in ours.
MODULES = {
    "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": ("self_attn.out_proj",),
    "self_attention.norm": ("self_attn_layer_norm",),
    "cross_attention.q": ("encoder_attn.q_proj",),
    "cross_attention.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": ("encoder_attn.out_proj",),
    "cross_attention.norm": ("encoder_attn_layer_norm",),
    "feed_forward.inner": ("fc1",),
    "feed_forward.output": ("fc2",),
    "feed_forward.norm": ("final_layer_norm",),
}
WORDS = "model.shared.weight"


def new_system(settings: TrainTranslationSettings, sources: Sequence[str], target: TextTokenizer) -> TranslationSystem:
    """Return a new Transformer and the tokenizer of both sides."""
    changes = {} if settings.dropout is None else {"dropout": settings.dropout}
    config = TransformerConfig.from_size(settings.size, target.vocab_size, **changes)
    return TranslationSystem(Transformer(config, seed=settings.seed), target, target)


def write_system(folder: Path, system: TranslationSystem) -> None:
    """Write a Transformer, its tokenizer and their checksums into an existing folder; each file is whole or absent."""
    model, tokenizer, _ = system
    config = model.config
    values = FIXED | {name: getattr(config, ours) for ours, names in FIELDS.items() for name in names}
    end, pad = tokenizer.layout.last, tokenizer.id("[PAD]")
    values |= {"architectures": ["MarianMTModel"], "dtype": "float32", "max_position_embeddings": POSITIONS}
    values |= {"bos_token_id": tokenizer.layout.first, "decoder_start_token_id": tokenizer.layout.first}
    values |= {"eos_token_id": end, "forced_eos_token_id": None, "pad_token_id": end if pad is None else pad}
    write_json(folder / CONFIG, values)
    tokenizer.save(folder, max_length=POSITIONS)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        names = marian_names(name)
        moved = to_marian_order(name, parameter.detach().float().cpu())
        tensors |= zip(names, moved.chunk(len(names)), strict=True)
    write_weights(folder / WEIGHTS, tensors)
    write_checksums(folder)


def load_system(folder: Path) -> TranslationSystem:
    """Read a folder that `write_system` wrote, in float32, ready for inference (dropout off).

    Raises ValueError, naming the file, for another kind of model and for damaged, missing or unexpected weights.
    """
    check_other_files(folder)
    config = read_config(locate_config(folder))
    model = build_with_weights(lambda: Transformer(config), folder, marian_names)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(to_marian_order(name, parameter, inverse=True))
    tokenizer = open_tokenizer(folder)
    return TranslationSystem(model, tokenizer, tokenizer)


def read_config(path: Path) -> TransformerConfig:
    """Read a config.json. Raises ValueError, naming the field, for values that are not supported."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(values).__name__}")
    for name, expected in FIXED.items():
        if values.get(name) != expected:
            raise ValueError(f"{path}: {name}: expected {expected!r}, got {values.get(name)!r}; {ADVICE}")
    fields = {}
    for ours, names in FIELDS.items():
        kinds = (int, float) if ours == "dropout" else (int,)
        for name in names:
            if type(values.get(name)) not in kinds or values[name] != values[names[0]]:
                raise ValueError(f"{path}: {name}: expected a number, equal in both halves, got {values.get(name)!r}")
        fields[ours] = values[names[0]]
    try:
        return TransformerConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def marian_names(name: str) -> tuple[str, ...]:
    """Return the names in files of one of our parameters.

    >>> marian_names("decoder_layers.3.cross_attention.q.bias")
    ('model.decoder.layers.3.encoder_attn.q_proj.bias',)
    """
    if name == "words.weight":
        return (WORDS,)
    side, number, rest = name.split(".", 2)
    half, (module, leaf) = side.removesuffix("_layers"), rest.rsplit(".", 1)
    return tuple(f"model.{half}.layers.{number}.{part}.{leaf}" for part in MODULES[module])


def to_marian_order(name: str, tensor: Tensor, inverse: bool = False) -> Tensor:
    """Reorder the dimensions of a parameter that belong to token states: our order to Marian's, or back."""
    module = name.rsplit(".", 2)[-2]
    writes_states = module in ("output", "norm")
    dimension = 0 if writes_states else tensor.ndim - 1
    if not writes_states and name.endswith("bias"):  # of projections into heads or into the feed-forward layer
        return tensor
    size = tensor.shape[dimension]
    order = torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2)])
    return tensor.index_select(dimension, order.argsort() if inverse else order).contiguous()
