"""Hugging Face model folders, both ways: `config.json`, `model.safetensors` and the tokenizer's files.

`transformers` opens what is written here, and both give the same numbers: models with the heads of pre-training, and
models with the one layer of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bertwright.files import read_json, write_json
from bertwright.interop.head_config import ARCHITECTURES, HeadRecord, head_fields, head_from
from bertwright.interop.model_files import CONFIG, WEIGHTS, new_folder
from bertwright.interop.weight_names import hf_names, is_of_a_head, normalize_names
from bertwright.interop.weights import check_shapes, raise_if_any, read_weights, summarize, write_weights
from bertwright.models.config import BertConfig
from bertwright.models.encoder import initialize
from bertwright.models.heads import BertForPretraining, BertForTask, HeadSpec
from bertwright.vocabulary.tokenizer import Tokenizer

Model = BertForPretraining | BertForTask
M = TypeVar("M", bound=Model)

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
# What decides how much is built is told by the weights, too: the field, a parameter and which of its dimensions it is.
SIZES = (
    ("vocab_size", "bert.embeddings.word_embeddings.weight", 0),
    ("hidden_size", "bert.embeddings.word_embeddings.weight", 1),
    ("intermediate_size", "bert.encoder.layer.0.intermediate.dense.weight", 0),
    ("max_position_embeddings", "bert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "bert.embeddings.token_type_embeddings.weight", 0),
)
# Three names of one formula; the first is written.
TANH_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
TIED = "tie_word_embeddings"
DECODER, HEADS_OWN = "cls.predictions.decoder.weight", "cls.predictions.transform.dense.weight"
# What a folder may ask for and this encoder does not compute.
REFUSED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("model_type", ("bert",)),
    ("position_embedding_type", ("absolute",)),
    ("add_cross_attention", (False,)),
)


class LoadResult(NamedTuple):
    """A model read from elsewhere, and what was not there."""

    model: BertForPretraining
    missing_heads: tuple[str, ...]
    """Those of `HEADS` that the folder lacks; they hold fresh random numbers."""
    unexpected_keys: tuple[str, ...]
    """Foreign parameters of heads that are no part of pre-training, such as a classifier."""


class TaskModelInit(NamedTuple):
    """A task's model before its first step."""

    model: BertForTask
    newly_initialized: tuple[str, ...]
    """What the folder did not give and holds random numbers: the classifier, and the pooler where it had none."""


class IncompatibleKeys(NamedTuple):
    """What a folder did not give to a model, and what the model did not take."""

    newly_initialized: tuple[str, ...]
    """Modules that hold random numbers."""
    unexpected_keys: tuple[str, ...]
    """Foreign parameters of other heads."""


def load_config(folder: Path) -> BertConfig:
    """Read `config.json`. Raises ValueError for what this encoder does not compute, naming field and value."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder}: no {CONFIG}, so this is not a model folder")
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
    fields |= {name: possible[0] for name, possible in REFUSED} | {TIED: True}
    fields |= {theirs: getattr(config, ours) for theirs, ours, _ in CONFIG_FIELDS}
    if config.activation == "gelu_tanh":
        fields["hidden_act"] = TANH_GELU[0]
    return fields


def load_model(folder: Path, heads: Literal["required", "optional"] = "required", **changes: Any) -> LoadResult:
    """Read a folder's model in float32, ready for inference (dropout off).

    `heads="optional"` also takes a bare encoder, or one with other heads; what was missing or left is in the result.
    `changes`: fields of the configuration by name, such as `hidden_dropout`.
    Raises ValueError for missing, unexpected or misshapen parameters, and for a damaged file.
    """
    config = replace(load_config(folder), **changes)
    path, tensors = read_weights(folder)
    if read_json(folder / CONFIG).get(TIED) is False and HEADS_OWN in tensors and DECODER not in tensors:
        raise ValueError(f"{path}: no {DECODER}, though {CONFIG} says that it is not the word embeddings ({TIED})")
    loaded = build_model(config, tensors, path)
    if heads == "required" and (loaded.missing_heads or loaded.unexpected_keys):
        lacking = f"lacks {', '.join(loaded.missing_heads)}" if loaded.missing_heads else ""
        beyond = f"has {summarize(loaded.unexpected_keys)} beyond it" if loaded.unexpected_keys else ""
        raise ValueError(f"{path}: not a whole pre-training model: it {' and '.join(filter(None, (lacking, beyond)))}")
    return loaded


def build_model(config: BertConfig, foreign: Mapping[str, Tensor], path: Path) -> LoadResult:
    """The pre-training model of `config` with the numbers of foreign tensors; `path` is where they come from."""
    model = meta_model(BertForPretraining, config, foreign, path)
    filled = load_weights(model, foreign, path, optional=HEADS)
    return LoadResult(model.eval(), filled.newly_initialized, filled.unexpected_keys)


def start_task_model(folder: Path, head: HeadSpec, seed: int, **changes: Any) -> TaskModelInit:
    """A task's model before training: encoder and pooler from any BERT folder, the classifier random from `seed`.

    `changes`: fields of the configuration by name, such as `hidden_dropout`. Raises ValueError as `load_model` does.
    """
    config = replace(load_config(folder), **changes)
    path, tensors = read_weights(folder)
    model = meta_model(partial(BertForTask, head=head), config, tensors, path)
    filled = load_weights(model, tensors, path, optional=("pooler",), drawn=("classifier",), seed=seed)
    return TaskModelInit(model, filled.newly_initialized)


def load_task_model(folder: Path) -> BertForTask:
    """Read a whole task model in float32, ready for inference: one of ours, or of `ARCHITECTURES`.

    Raises ValueError for a folder without a task's head, and as `load_model` does.
    """
    config, described = load_config(folder), load_head(folder)
    if described is None:
        raise ValueError(
            f"{folder / CONFIG}: names no task model ({', '.join(a.name for a in ARCHITECTURES.values())}); "
            "`bertwright finetune` makes one of it"
        )
    head = described.head
    path, tensors = read_weights(folder)
    bias = tensors.get(f"{ARCHITECTURES[head.kind].classifier}.bias")
    if bias is not None and len(bias) != head.outputs:
        raise ValueError(f"{folder / CONFIG}: tells of {head.outputs} outputs (id2label), {path} has {len(bias)}")
    model = meta_model(partial(BertForTask, head=head), config, tensors, path)
    load_weights(model, tensors, path)
    return model.eval()


def load_head(folder: Path) -> HeadRecord | None:
    """What `config.json` says of a task's head; None where it names no task model. Raises ValueError as `head_from`."""
    load_config(folder)  # it is there, and it is a BERT's
    return head_from(read_json(folder / CONFIG), folder / CONFIG)


def meta_model(make: Callable[[BertConfig], M], config: BertConfig, foreign: Mapping[str, Tensor], path: Path) -> M:
    """A model on the meta device, without numbers, of the size that the foreign tensors at `path` have.

    Raises ValueError, naming the field, where the configuration gives another: what it gives may be too much to build.
    """
    given, asked = normalize_names(foreign), config_fields(config)
    raise_if_any(path, "missing", sorted({name for _, name, _ in SIZES} - given.keys()))
    sizes = {field: (*given[name].shape, 0)[dimension] for field, name, dimension in SIZES}
    sizes["num_hidden_layers"] = len({name.split(".")[3] for name in given if name.startswith("bert.encoder.layer.")})
    for field, size in sizes.items():
        if asked[field] != size:
            raise ValueError(f"{path}: {field} is {size} in these weights, {asked[field]} in their configuration")
    with torch.device("meta"), _NoInit():
        return make(config)


class _NoInit(TorchFunctionMode):
    """Skips torch.nn's own initialization of weights: on the meta device it imports torch._refs and sympy, for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def load_weights(
    model: Model,
    foreign: Mapping[str, Tensor],
    path: Path,
    optional: tuple[str, ...] = (),
    drawn: tuple[str, ...] = (),
    seed: int = 0,
) -> IncompatibleKeys:
    """Give a model on the meta device the numbers of foreign tensors, which come from `path`.

    `drawn`: modules that get random numbers of `seed` whatever is given; `optional`: those that do where nothing is.
    Raises ValueError for other parameters that are missing, for unexpected ones, and for those of another shape.
    """
    given = normalize_names(foreign)
    check_tied(given, path)
    parameters = dict(model.named_parameters())
    theirs = all_names(model)
    lacking = tuple(m for m in optional if not any(t in given for n in theirs if n.startswith(m) for t in theirs[n]))
    fresh = tuple(module for module, _ in model.named_children() if module in lacking + drawn)
    wanted = {name: names for name, names in theirs.items() if not name.startswith(fresh)}

    unknown = sorted(given.keys() - {name for names in wanted.values() for name in names})
    ignored = tuple(filter(is_of_a_head, unknown))
    raise_if_any(path, "missing", [name for names in wanted.values() for name in names if name not in given])
    raise_if_any(path, "unexpected", [name for name in unknown if name not in ignored])
    check_shapes({t: (given[t], parameters[name], len(names)) for name, names in wanted.items() for t in names}, path)

    state = {name: joined([given[t] for t in names]) for name, names in wanted.items()}
    model.load_state_dict(state, strict=False, assign=True)
    for module in [inner for name in fresh for inner in model.get_submodule(name).modules()]:
        for name, meta in module.named_parameters(recurse=False):  # Module.to_empty would import sympy, for a second
            setattr(module, name, torch.nn.Parameter(torch.empty(meta.shape)))
    initialize(model, model.config.initializer_range, seed, only=fresh)
    return IncompatibleKeys(fresh, ignored)


def all_names(model: Model) -> dict[str, tuple[str, ...]]:
    """For each of our parameters, in order, what `transformers` calls it."""
    classifier = ARCHITECTURES[model.head.kind].classifier if isinstance(model, BertForTask) else ""
    return {name: hf_names(name, classifier) for name, _ in model.named_parameters()}


def joined(parts: list[Tensor]) -> Tensor:
    """Several of their tensors as one of ours, in float32 and in memory of its own.

    Of its own because tensors lie in a safetensors file without regard to alignment, and matrix products round
    differently on unaligned memory: a loaded model would not be equal to the saved one to the bit.
    """
    return torch.cat([part.float() for part in parts])


def check_tied(given: dict[str, Tensor], path: Path) -> None:
    """Take out the decoder's copy of the word embeddings; a decoder of its own would give other numbers."""
    decoder = given.pop(DECODER, None)
    words = given.get("bert.embeddings.word_embeddings.weight")
    if decoder is not None and words is not None and not torch.equal(decoder, words):
        raise ValueError(f"{path}: {DECODER} differs from the word embeddings; here the two are one (tied)")


def to_hf_weights(model: Model) -> dict[str, Tensor]:
    """All parameters under the names of `transformers`, float32 on the CPU; the tied decoder is not repeated."""
    foreign: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters())
    for name, names in all_names(model).items():
        foreign |= zip(names, parameters[name].detach().float().cpu().chunk(len(names)), strict=True)
    return foreign


def write_model(folder: Path, model: BertForPretraining, tokenizer: Tokenizer) -> None:
    """Write a model's files into a folder that exists; each file is whole or absent."""
    _write(folder, model, tokenizer, config_fields(model.config))


def write_task_model(
    folder: Path, model: BertForTask, tokenizer: Tokenizer, labels: tuple[str, ...], regression: bool
) -> None:
    """The same for a task's model; `labels` and `regression` as in `HeadRecord`.

    Raises ValueError where the labels are not one name for each output of the head.
    """
    described = head_fields(HeadRecord(model.head, labels, regression), folder)
    _write(folder, model, tokenizer, config_fields(model.config) | described)


def check_vocabulary(tokenizer: Tokenizer, config: BertConfig, place: Path | str) -> None:
    """Raise ValueError, naming the place, for a tokenizer with more tokens than the model has vectors of."""
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{place}: the tokenizer has {tokenizer.vocab_size:,} tokens, the model vectors of {config.vocab_size:,}; "
            "they do not belong together, or tokens were added without vectors (transformers: resize_token_embeddings)"
        )


def _write(folder: Path, model: Model, tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    check_vocabulary(tokenizer, model.config, folder)
    write_json(folder / CONFIG, fields)
    tokenizer.save(folder, max_length=model.config.max_positions)
    write_weights(folder / WEIGHTS, to_hf_weights(model))


def save_model(folder: Path, model: BertForPretraining, tokenizer: Tokenizer) -> None:
    """Write a new model folder, whole or not at all. Raises ValueError when something is there already."""
    with new_folder(folder) as part:
        write_model(part, model, tokenizer)
