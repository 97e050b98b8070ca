"""Hugging Face model folders, both ways: `config.json`, `model.safetensors` and the tokenizer's files.

No pickle is ever opened. `transformers` opens what `save_model` writes, and both give the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.files import read_json, whole_file, whole_folder, write_json
from bertwright.models.config import BertConfig
from bertwright.models.encoder import initialize
from bertwright.models.heads import BertForPretraining
from bertwright.vocabulary.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
DOWNLOADED = [
    WEIGHTS,
    "model-*.safetensors",
    SHARDS,
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
]

Names = tuple[tuple[str, tuple[str, ...]], ...]
# Our module, and theirs; several of theirs are one of ours, laid end to end along the first dimension.
# Parameters keep their last word, `weight` or `bias`. Import and export both read this table; nothing else is known.
EMBEDDING_NAMES: Names = (
    ("encoder.embeddings.word", ("bert.embeddings.word_embeddings",)),
    ("encoder.embeddings.position", ("bert.embeddings.position_embeddings",)),
    ("encoder.embeddings.token_type", ("bert.embeddings.token_type_embeddings",)),
    ("encoder.embeddings.norm", ("bert.embeddings.LayerNorm",)),
)
LAYER_NAMES: Names = (
    ("qkv", ("attention.self.query", "attention.self.key", "attention.self.value")),
    ("attention_output", ("attention.output.dense",)),
    ("attention_norm", ("attention.output.LayerNorm",)),
    ("intermediate", ("intermediate.dense",)),
    ("output", ("output.dense",)),
    ("output_norm", ("output.LayerNorm",)),
)
HEAD_NAMES: Names = (
    ("pooler.dense", ("bert.pooler.dense",)),
    ("masked_token.dense", ("cls.predictions.transform.dense",)),
    ("masked_token.norm", ("cls.predictions.transform.LayerNorm",)),
    ("masked_token", ("cls.predictions",)),
    ("next_sentence", ("cls.seq_relationship",)),
)
HEADS = ("pooler", "masked_token", "next_sentence")  # what a folder may lack where heads are optional

# Their field of config.json, ours, and their default, which holds where the file does not say.
CONFIG_FIELDS: tuple[tuple[str, str, Any], ...] = (
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
    ("is_decoder", "causal", False),
)
# Three names of one formula; the first is written.
TANH_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
# What a folder may ask for and this encoder does not compute.
REFUSED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("model_type", ("bert",)),
    ("position_embedding_type", ("absolute",)),
    ("add_cross_attention", (False,)),
    ("tie_word_embeddings", (True,)),
)


class Loaded(NamedTuple):
    """A model read from elsewhere, and what was not there."""

    model: BertForPretraining
    missing_heads: tuple[str, ...]
    """Those of `HEADS` that the folder lacks; they hold fresh random numbers."""
    ignored: tuple[str, ...]
    """Foreign parameters of heads that are no part of pre-training, such as a classifier."""


def find_folder(name: str | Path) -> Path:
    """A local folder as it is; `org/name` or `hf://org/name` downloaded into the Hugging Face cache, or found there.

    Raises ValueError when it is neither.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    on_hub = str(name).removeprefix("hf://").strip("/")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", on_hub):
        raise ValueError(f"{name}: no such folder; give a model folder, or a hub name such as hf://org/name")
    from huggingface_hub import snapshot_download  # here: half a second to import, and most loads are local

    try:
        return Path(snapshot_download(on_hub, allow_patterns=DOWNLOADED))
    except Exception as error:  # the hub client raises its own errors, those of its HTTP library, and OSError
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{name}: no such folder here, and the Hugging Face hub did not give {on_hub} ({reason})"
        ) from error


def load_config(folder: Path) -> BertConfig:
    """Read `config.json`. Raises ValueError for what this encoder does not compute, naming field and value."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder}: no config.json, so this is not a model folder")
    return config_from(read_json(path), path)


def config_from(fields: Any, path: Path) -> BertConfig:
    """Our configuration from the fields of a `config.json` (or Google's `bert_config.json`) read at `path`."""
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: an object with the model's sizes expected, {type(fields).__name__} found")
    for name, possible in REFUSED:
        if fields.get(name, possible[0]) not in possible:
            raise ValueError(f"{path}: {name} = {fields[name]!r} is not computed here, only {possible[0]!r}")
    ours: dict[str, Any] = {}
    for theirs, name, default in CONFIG_FIELDS:
        value = default if fields.get(theirs) is None else fields[theirs]
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise ValueError(f"{path}: {theirs} = {value!r}; {type(default).__name__} expected")
        ours[name] = value
    if ours["activation"] in TANH_GELU:
        ours["activation"] = "gelu_tanh"
    try:
        return BertConfig(**ours)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def config_fields(config: BertConfig) -> dict[str, Any]:
    """What `transformers` reads from `config.json`."""
    fields: dict[str, Any] = {"architectures": ["BertForPreTraining"], "dtype": "float32"}
    fields |= {name: possible[0] for name, possible in REFUSED}
    fields |= {theirs: getattr(config, ours) for theirs, ours, _ in CONFIG_FIELDS}
    if config.activation == "gelu_tanh":
        fields["hidden_act"] = TANH_GELU[0]
    return fields


def load_model(folder: Path, heads: Literal["required", "optional"] = "required") -> Loaded:
    """Read a folder's model in float32, ready for inference (dropout off).

    `heads="optional"` also takes a bare encoder, or one with other heads; what was missing or left is in the result.
    Raises ValueError for missing, unexpected or misshapen parameters, and for a damaged file.
    """
    config = load_config(folder)
    path, tensors = read_weights(folder)
    loaded = assemble(config, tensors, path)
    if heads == "required" and (loaded.missing_heads or loaded.ignored):
        lacking = f"lacks {', '.join(loaded.missing_heads)}" if loaded.missing_heads else ""
        beyond = f"has {few(loaded.ignored)} beyond it" if loaded.ignored else ""
        raise ValueError(f"{path}: not a whole pre-training model: it {' and '.join(filter(None, (lacking, beyond)))}")
    return loaded


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """All tensors of a folder by their foreign names, and the file to name in messages."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, read_safetensors(folder / WEIGHTS)
    if (folder / SHARDS).is_file():
        index = read_json(folder / SHARDS)
        if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
            raise ValueError(f"{folder / SHARDS}: no weight_map, which names the file of each parameter")
        tensors: dict[str, Tensor] = {}
        for name in sorted({Path(str(file)).name for file in index["weight_map"].values()}):
            tensors |= read_safetensors(folder / name)
        return folder / SHARDS, tensors
    if (folder / "pytorch_model.bin").is_file():
        raise ValueError(
            f"{folder}: only pytorch_model.bin, a pickle, which can run any code and is never opened here; where you "
            f'trust it, convert it once: python -c "from transformers import BertForPreTraining as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\""
        )
    raise ValueError(f"{folder}: no {WEIGHTS} and no {SHARDS}")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing, though {SHARDS} names it") from None
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}); copy or download it again") from None


def assemble(config: BertConfig, foreign: Mapping[str, Tensor], path: Path) -> Loaded:
    """The model of `config` with the numbers of foreign tensors; `path` is where they come from, for messages."""
    given = canonical(foreign)
    with torch.device("meta"):  # shapes without numbers: nothing is drawn that would be overwritten at once
        model = BertForPretraining(config)
    parameters = dict(model.named_parameters())
    theirs = {name: foreign_names(name) for name in parameters}
    check_tied(given, path)

    missing_heads = tuple(
        head for head in HEADS if not any(t in given for n in parameters if n.startswith(head) for t in theirs[n])
    )
    wanted = {name: names for name, names in theirs.items() if not name.startswith(missing_heads)}
    known = {name for names in wanted.values() for name in names}
    missing = [name for names in wanted.values() for name in names if name not in given]
    unexpected = sorted(name for name in given.keys() - known)
    ignored = tuple(name for name in unexpected if not name.startswith(("bert.", "cls.")))
    report(path, "missing", missing)
    report(path, "unexpected", [name for name in unexpected if name not in ignored])

    check_shapes({t: (given[t], parameters[name], len(names)) for name, names in wanted.items() for t in names}, path)
    state = {name: joined([given[t] for t in names]) for name, names in wanted.items()}
    model.load_state_dict(state, strict=False, assign=True)
    for head in missing_heads:
        model.get_submodule(head).to_empty(device="cpu")
    initialize(model, config.initializer_range, seed=0, only=missing_heads)
    return Loaded(model.eval(), missing_heads, ignored)


def joined(parts: list[Tensor]) -> Tensor:
    """Several of their tensors as one of ours, in float32 and in memory of its own.

    Of its own because tensors lie in a safetensors file without regard to alignment, and matrix products round
    differently on unaligned memory: a loaded model would not be equal to the saved one to the bit.
    """
    return torch.cat([part.float() for part in parts])


def foreign_names(name: str) -> tuple[str, ...]:
    """What `transformers` calls one of our parameters; several names stand for a concatenation.

    >>> foreign_names("encoder.layers.3.qkv.bias")[1:]
    ('bert.encoder.layer.3.attention.self.key.bias', 'bert.encoder.layer.3.attention.self.value.bias')
    """
    module, _, kind = name.rpartition(".")
    prefix = ""
    table = dict(EMBEDDING_NAMES + HEAD_NAMES)
    if layer := re.fullmatch(r"encoder\.layers\.(\d+)\.(\w+)", module):
        module, prefix, table = layer[2], f"bert.encoder.layer.{layer[1]}.", dict(LAYER_NAMES)
    return tuple(f"{prefix}{theirs}.{kind}" for theirs in table[module])


def canonical(foreign: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Foreign tensors under the names of `BertForPreTraining`, whichever architecture or year wrote them."""
    prefixed = any(name.startswith("bert.") for name in foreign)
    given: dict[str, Tensor] = {}
    for name, tensor in foreign.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if not prefixed and name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        if not name.endswith(".position_ids"):  # a buffer 0, 1, 2 … of earlier versions
            given[name] = tensor
    if "cls.predictions.decoder.bias" in given:
        bias = given.pop("cls.predictions.decoder.bias")
        given.setdefault("cls.predictions.bias", bias)
    return given


def check_tied(given: dict[str, Tensor], path: Path) -> None:
    """Take out the decoder's copy of the word embeddings; a decoder of its own would give other numbers."""
    decoder = given.pop("cls.predictions.decoder.weight", None)
    words = given.get("bert.embeddings.word_embeddings.weight")
    if decoder is not None and words is not None and not torch.equal(decoder, words):
        raise ValueError(
            f"{path}: cls.predictions.decoder.weight differs from the word embeddings; here the two are one (tied)"
        )


def check_shapes(pieces: Mapping[str, tuple[Tensor, Tensor, int]], path: Path) -> None:
    """`pieces`: for each foreign name its tensor, our parameter, and how many pieces that one is made of."""
    misshapen = []
    for name, (tensor, parameter, parts) in pieces.items():
        shape = (parameter.shape[0] // parts, *parameter.shape[1:])
        if tuple(tensor.shape) != shape:
            misshapen.append(f"{name} {tuple(tensor.shape)} instead of {shape}")
    report(path, "not of the shape that the configuration asks for", misshapen)
    quantized = [f"{name} {tensor.dtype}" for name, (tensor, _, _) in pieces.items() if not tensor.is_floating_point()]
    report(path, "not floating-point numbers", quantized)


def report(path: Path, what: str, names: list[str]) -> None:
    if names:
        count = "1 parameter is" if len(names) == 1 else f"{len(names)} parameters are"
        raise ValueError(f"{path}: {count} {what}: {few(names)}")


def few(names: Iterable[str]) -> str:
    """The first names of a list that may be long."""
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def to_foreign(model: BertForPretraining) -> dict[str, Tensor]:
    """All parameters under the names of `transformers`, float32 on the CPU; the tied decoder is not repeated."""
    foreign: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        names = foreign_names(name)
        foreign |= zip(names, parameter.detach().float().cpu().chunk(len(names)), strict=True)
    return foreign


def write_model(folder: Path, model: BertForPretraining, tokenizer: Tokenizer) -> None:
    """Write a model's files into a folder that exists; each file is whole or absent."""
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, the model {model.config.vocab_size}; "
            "they do not belong together"
        )
    write_json(folder / "config.json", config_fields(model.config))
    tokenizer.save(folder, max_length=model.config.max_positions)
    with whole_file(folder / WEIGHTS) as part:
        try:
            save_file(to_foreign(model), part, metadata={"format": "pt"})
        except SafetensorError as error:  # what the library makes of a full disk
            raise OSError(f"{folder / WEIGHTS}: not written ({error})") from None


def save_model(folder: Path, model: BertForPretraining, tokenizer: Tokenizer) -> None:
    """Write a new model folder, whole or not at all. Raises ValueError when something is there already."""
    if folder.exists():
        raise ValueError(f"{folder}: is there already; name a new folder")
    with whole_folder(folder) as part:
        write_model(part, model, tokenizer)
