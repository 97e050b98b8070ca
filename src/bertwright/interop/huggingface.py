"""Reading and writing Hugging Face model folders: `config.json`, `model.safetensors` and the tokenizer's files.

`transformers` reads the folders written here and computes the same numbers, for BERT with the heads of pre-training or
with the linear layer of a task. Models of other architectures (`systems/registry.py`) have the same files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from torch import Tensor

from bertwright.base.files import read_json, write_json, write_text
from bertwright.interop.checksums import check_other_files, check_weights, write_checksums
from bertwright.interop.head_config import HEAD_CLASSES, HeadRecord, format_head, parse_head
from bertwright.interop.meta_model import build_on_meta, give_memory
from bertwright.interop.model_card import write_card
from bertwright.interop.model_files import CONFIG, OWN_HEAD, WEIGHTS, locate_config, new_folder
from bertwright.interop.model_format import Architecture, architecture_of, find_architecture
from bertwright.interop.sentence_modules import SentenceModules, write_sentence_modules
from bertwright.interop.weight_names import unwrap_names
from bertwright.interop.weights import (
    check_shapes,
    concatenate,
    raise_if_any,
    read_weights,
    summarize,
    write_weights,
)
from bertwright.models.encoder import EncoderConfig, EncoderModel, TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import PooledHead, TaskHead
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.registry import DEFAULT_MODEL_TYPE
from bertwright.vocabulary.tokenizer import TextTokenizer

M = TypeVar("M", bound=EncoderModel)
# Heads that a task's model need not have.
OF_PRETRAINING = re.compile(
    r"(\w+\.pooler|cls|lm_head|head|decoder|predictions|sop_classifier|vocab_\w+|(gener|discrimin)ator_\w+)\."
)
IN_ENCODER = re.compile(r"adapter|lora_|prefix|prompt", re.IGNORECASE)
NOT_COMPUTED = " (a layer that bertwright does not compute: merge it into the weights, as peft's merge_and_unload does)"
HEAD_PREFIX = "head."  # of the names of a task head's parameters in a model; files do not have it
NAMED_IN_FILES = (  # by the architecture
    "encoder.", "pooler.", "classifier.", "masked_token.", "next_sentence.", "replaced_token.", "sentence_order.",
)  # fmt: skip
Head = (
    HeadSpec | Callable[[TextEncoder], TaskHead]
)  # of a task: the paper's linear layer, or a function that builds one


class ModelConfig(NamedTuple):
    """The content of `config.json`."""

    path: Path
    values: Mapping[str, Any]
    """All fields of the file."""
    architecture: Architecture
    config: EncoderConfig

    @property
    def head(self) -> HeadRecord | None:
        """The description of a task's head; None if the file names no task model. Errors: see `parse_head`."""
        return parse_head(self.values, self.path, self.architecture.class_prefix)


class ModelSource(NamedTuple):
    """The configuration and the weights from which a model is built."""

    architecture: Architecture
    config: EncoderConfig
    tensors: Mapping[str, Tensor]
    """All weights, normalized."""
    path: Path
    """Their file, for messages."""

    def with_dropout(self, rate: float | None) -> ModelSource:
        """Return a copy with both dropout rates set to `rate`; None leaves them."""
        return self if rate is None else self._replace(config=self.config.with_dropout(rate))


class LoadResult(NamedTuple, Generic[M]):
    """A model with the weights of a folder, and how the folder's heads differ from it."""

    model: M
    """The model of pre-training (the encoder by itself for architectures without one), or a task's."""
    missing_heads: tuple[str, ...]
    """Modules of its heads that have random weights: those that the folder lacks, and a new classifier."""
    unexpected_keys: tuple[str, ...]
    """Parameters of other heads, such as a classifier."""


def load_config(folder: Path) -> EncoderConfig:
    """Read the encoder's configuration from `config.json`; see `read_config`."""
    return read_config(folder).config


def load_head(folder: Path) -> HeadRecord | None:
    """Read the description of a task's head from `config.json`; None if it names no task model; see `read_config`."""
    return read_config(folder).head


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json`.

    The checksums of all files except the weights are checked, so that a damaged tokenizer or task is noticed before it
    is read. Raises ValueError, naming the file, for unsupported options and for a checksum that differs.
    """
    check_other_files(folder)
    path = locate_config(folder)
    values = read_json(path)
    architecture = architecture_of(values, path)
    return ModelConfig(path, values, architecture, architecture.parse_config(values, path))


def read_source(folder: Path, model_config: ModelConfig) -> ModelSource:
    """Read the weights that belong to a configuration. Raises ValueError for damaged files."""
    check_weights(folder)
    path, tensors = read_weights(folder)
    architecture = model_config.architecture
    named = architecture.normalize(unwrap_names(tensors, architecture.is_of_a_head), model_config.values, path)
    return ModelSource(architecture, model_config.config, named, path)


def load_model(
    folder: Path,
    heads: Literal["required", "optional"] = "required",
    model_class: type[EncoderModel] | None = None,
    **changes: Any,
) -> LoadResult[EncoderModel]:
    """Read a folder's model in float32, ready for inference (dropout off).

    `heads="optional"` accepts a bare encoder or one with other heads; the result lists the differences. `model_class`:
    a subclass of the architecture's model, with more modules. `changes`: fields of the configuration by name, such as
    `hidden_dropout`. Raises ValueError for parameters that are missing, unexpected or of another shape, and for damaged
    files.
    """
    source = read_source(folder, read_config(folder))
    known = {field.name for field in fields(source.config)}  # type: ignore[arg-type]
    if unknown := [name for name in changes if name not in known]:
        model_type = source.architecture.encoder.model_type
        raise ValueError(f"{source.path}: {model_type} has no {', '.join(unknown)} to change")
    changed = source._replace(config=replace(source.config, **changes))  # type: ignore[type-var]
    loaded = build_model(changed, model_class)
    if heads == "required" and (loaded.missing_heads or loaded.unexpected_keys):
        lacking = f"lacks {', '.join(loaded.missing_heads)}" if loaded.missing_heads else ""
        beyond = f"has {summarize(loaded.unexpected_keys)}, of another head" if loaded.unexpected_keys else ""
        reasons = " and ".join(filter(None, (lacking, beyond)))
        raise ValueError(f"{source.path}: expected a model of pre-training with all its heads, but it {reasons}")
    return loaded


def build_model(source: ModelSource, model_class: type[EncoderModel] | None = None) -> LoadResult[EncoderModel]:
    """Build the model of pre-training with the source's weights; modules that the source lacks get random weights.

    `model_class`: a subclass to build instead, if it extends this architecture's model.
    """
    build, general = source.architecture.build_model, source.architecture.model
    if model_class is not None and isinstance(general, type) and issubclass(model_class, general):
        build = model_class
    model = meta_model(build, source)
    modules = dict.fromkeys(name.partition(".")[0] for name in model.state_dict())
    loaded = load_weights(model, source, optional=tuple(name for name in modules if name != "encoder"))
    model.eval()
    return loaded


def start_task_model(
    folder: Path, head: Head, seed: int, dropout: float | None = None, source: ModelSource | None = None
) -> LoadResult[EncoderForTask]:
    """Build a task's model for training: encoder and pooler from any model folder, a random classifier.

    `dropout`: None leaves the folder's rates; `source`: its weights, if they have been read. Errors: see `load_model`.
    """
    source = (source or read_source(folder, read_config(folder))).with_dropout(dropout)
    model = meta_model(lambda config: add_head(source.architecture.encoder(config), head), source)
    return load_weights(model, source, optional=("pooler",), new_head=True, seed=seed)


def random_task_model(folder: Path, head: Head, seed: int, dropout: float | None = None) -> EncoderForTask:
    """Build a task's model with random weights in the configuration of a model folder, as a baseline.

    `dropout`: None leaves the folder's rates. The folder's weights are not read. Errors: see `read_config`.
    """
    model_config = read_config(folder)
    config = model_config.config if dropout is None else model_config.config.with_dropout(dropout)
    model = add_head(model_config.architecture.encoder(config), head)
    model.encoder.initialize(seed)
    model.initialize_head(seed)
    return model


def load_task_model(folder: Path, dropout: float | None = None, head: Head | None = None) -> EncoderForTask:
    """Read a whole task model in float32, ready for inference: one of ours, or of the classes of `HEAD_CLASSES`.

    `dropout`: None leaves the folder's rates. `head`: a head other than a linear layer, which its task builds. Raises
    ValueError for a folder without a task's head, and as `load_model` does.
    """
    found = read_config(folder)
    if head is not None:
        return build_task_model(read_source(folder, found).with_dropout(dropout), head)
    record = found.head
    if record is None:
        names = " or ".join(found.architecture.class_prefix + one.suffix for one in HEAD_CLASSES.values())
        raise ValueError(
            f"{found.path}: architectures: expected a task model ({names}), got "
            f"{found.values.get('architectures')}; fine-tune the model first (bertwright finetune)"
        )
    source, head = read_source(folder, found), record.head
    if (
        found.config.is_causal
        and head.reads_sequence_state
        and found.values.get("model_type", DEFAULT_MODEL_TYPE) == DEFAULT_MODEL_TYPE
    ):
        raise ValueError(
            f"{found.path}: is_decoder: this left-to-right model was trained with a head that reads [CLS], which sees "
            "only itself; fine-tune its encoder again (bertwright finetune --model)"
        )
    bias = source.tensors.get(source.architecture.file_names("classifier.bias", head.kind)[0])
    if bias is not None and len(bias) != head.outputs:
        raise ValueError(f"{found.path}: id2label: expected {len(bias)} labels as in {source.path}, got {head.outputs}")
    return build_task_model(source.with_dropout(dropout), head)


def build_task_model(source: ModelSource, head: Head) -> EncoderForTask:
    """Build a task's model with the source's weights, ready for inference."""
    model = meta_model(lambda config: add_head(source.architecture.encoder(config), head), source)
    load_weights(model, source)
    return model.eval()


def add_head(encoder: TextEncoder, head: Head) -> EncoderForTask:
    """Add the head of a task to an encoder."""
    return EncoderForTask(encoder, head if isinstance(head, HeadSpec) else head(encoder))


def meta_model(build: Callable[[Any], M], source: ModelSource) -> M:
    """Build a model on the meta device, without weights.

    Raises ValueError, naming the field, if the configuration's sizes differ from the weights'.
    """
    source.architecture.check_sizes(source.tensors, source.config, source.path)
    return build_on_meta(lambda: build(source.config), len(source.tensors), source.path)


def load_weights(
    model: M, source: ModelSource, optional: tuple[str, ...] = (), new_head: bool = False, seed: int = 0
) -> LoadResult[M]:
    """Give a model on the meta device the source's weights.

    `optional`: modules of its heads that get random weights if the source has none. `new_head`: the other modules of a
    task's head always get random weights. Raises ValueError for other missing parameters, for unexpected ones, and for
    parameters of another shape.
    """
    tensors, path = source.tensors, source.path
    parameters, names = model.state_dict(keep_vars=True), file_names(model)
    modules = {name: name.removeprefix(HEAD_PREFIX).partition(".")[0] for name in names}
    given = {modules[name] for name, found in names.items() if any(t in tensors for t in found)}
    absent = {module for module in optional if module not in given}
    new = [
        name
        for name, module in modules.items()
        if module in absent or (new_head and name.startswith(HEAD_PREFIX) and module not in optional)
    ]
    loaded = {name: found for name, found in names.items() if name not in new}

    unknown = sorted(tensors.keys() - {t for found in loaded.values() for t in found})
    unexpected = tuple(filter(source.architecture.is_of_a_head, unknown))
    raise_if_any(path, "missing", [t for found in loaded.values() for t in found if t not in tensors])
    inside = [t for t in unknown if not source.architecture.is_of_a_head(t)]
    raise_if_any(path, f"unexpected{NOT_COMPUTED if any(map(IN_ENCODER.search, inside)) else ''}", inside)
    check_shapes({t: (tensors[t], parameters[n], len(found)) for n, found in loaded.items() for t in found}, path)

    state = {name: concatenate([tensors[t] for t in found]) for name, found in loaded.items()}
    model.load_state_dict(state, strict=False, assign=True)
    for name in new:
        give_memory(model, name)
    heads = model.head if isinstance(model, EncoderForTask) else model
    only = tuple(name.removeprefix(HEAD_PREFIX) for name in new)
    initialize(heads, truncated_normal(model.config.initializer_range), seed, only=only)
    if not new_head:
        model.not_computed = tuple(name for name in unexpected if not OF_PRETRAINING.match(name))
    return LoadResult(model, tuple(dict.fromkeys(modules[name] for name in new)), unexpected)


def file_names(model: EncoderModel) -> dict[str, tuple[str, ...]]:
    """Return the names in files of each parameter and buffer, in order."""
    architecture = find_architecture(model.encoder.model_type)
    kind = model.head.spec.kind if isinstance(model, EncoderForTask) else ""
    kind = kind if kind in HEAD_CLASSES else ""  # the head of text vectors has no parameters in these files
    names = [(name, name.removeprefix(HEAD_PREFIX)) for name in model.state_dict()]
    return {
        name: architecture.file_names(inside, kind) if inside.startswith(NAMED_IN_FILES) else (name,)
        for name, inside in names
    }


def to_hf_weights(model: EncoderModel, missing_heads: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return all parameters and buffers by their names in files, float32 on the CPU; a tied decoder is left out.

    `missing_heads`: as in `LoadResult`; their parameters are omitted.
    """
    tensors: dict[str, Tensor] = {}
    parameters = model.state_dict()
    for name, names_in_file in file_names(model).items():
        if name.partition(".")[0] not in missing_heads:
            tensors |= zip(names_in_file, parameters[name].float().cpu().chunk(len(names_in_file)), strict=True)
    return find_architecture(model.encoder.model_type).to_file(tensors)


def write_model(
    folder: Path,
    model: EncoderModel,
    tokenizer: TextTokenizer,
    missing_heads: Sequence[str] = (),
    modules: SentenceModules | None = None,
) -> None:
    """Write a model's files and their checksums into an existing folder; each file is whole or absent.

    `missing_heads`: as in `LoadResult`; the folder will also lack them. `modules`: of the source.
    """
    _write(folder, model, tokenizer, {}, missing_heads)
    write_sentence_modules(folder, modules)
    write_checksums(folder)


def write_task_model(folder: Path, model: EncoderForTask, tokenizer: TextTokenizer, head: HeadRecord) -> None:
    """Write a task model's files into an existing folder, without checksums: the caller adds files and writes them.

    Raises ValueError if the labels are not one name per output.
    """
    architecture = find_architecture(model.encoder.model_type)
    values = format_head(head, folder, architecture.class_prefix)
    if not model.head.has_standard_class:
        values["architectures"] = [f"{architecture.class_prefix}With{type(model.head).__name__}"]
        values |= _describe_own_head(model, architecture)
        if "auto_map" in values and (code := architecture.pooled_code):
            write_text(folder / code.name, code.read_text(encoding="utf-8"))
    _write(folder, model, tokenizer, values)


def _describe_own_head(model: EncoderForTask, architecture: Architecture) -> dict[str, Any]:
    """Return the fields of `config.json` by which `transformers` opens a head that it lacks, or fails clearly."""
    head, code = model.head, architecture.pooled_code
    if not architecture.in_transformers or getattr(model.config, "is_reversed", False):
        return {}  # it does not know the `model_type` either
    values = {"model_type": f"{model.encoder.model_type}{OWN_HEAD}"}
    if code is None or not isinstance(head, PooledHead):
        return values | {"read_with": "bertwright; transformers has no such head"}
    prefix, own_class = f"{code.stem}.Pooled{architecture.class_prefix}", HEAD_CLASSES[head.spec.kind].suffix
    own_classes = {"AutoConfig": "Config", "AutoModel": "Model", f"AutoModel{own_class}": own_class}
    return values | {
        "read_with": "bertwright, or transformers with trust_remote_code=True",
        "auto_map": {name: prefix + suffix for name, suffix in own_classes.items()},
        "pooling": head.modes,
    }


def check_vocabulary(tokenizer: TextTokenizer, config: EncoderConfig, path: Path | str) -> None:
    """Raise ValueError, naming the path, for a tokenizer with more tokens than the model has vectors."""
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{path}: expected a tokenizer of at most {config.vocab_size:,} tokens, as the model has vectors, got "
            f"{tokenizer.vocab_size:,}; take the model's own tokenizer, or add vectors (transformers: "
            "resize_token_embeddings)"
        )


def _write(
    folder: Path,
    model: EncoderModel,
    tokenizer: TextTokenizer,
    head_values: dict[str, Any],
    missing_heads: Sequence[str] = (),
) -> None:
    check_vocabulary(tokenizer, model.config, folder)
    head = model.head.spec if isinstance(model, EncoderForTask) else None
    values = find_architecture(model.encoder.model_type).format_config(model.config, head)
    write_json(folder / CONFIG, values | head_values)
    tokenizer.save(folder, max_length=model.config.max_positions)
    write_weights(folder / WEIGHTS, to_hf_weights(model, missing_heads))


def save_model(
    folder: Path,
    model: EncoderModel,
    tokenizer: TextTokenizer,
    missing_heads: Sequence[str] = (),
    modules: SentenceModules | None = None,
) -> None:
    """Write a new model folder, whole or not at all; see `write_model`. Raises ValueError if the path exists."""
    with new_folder(folder) as temporary:
        write_model(temporary, model, tokenizer, missing_heads, modules)
        write_card(temporary)
