"""Folders of sentence-transformers: `modules.json` names what turns a BERT's states into the vector of a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from bertwright.base.files import read_bytes, read_json, write_json
from bertwright.base.foreign import check_link
from bertwright.interop.model_files import CONFIG, MODULES, read_modules
from bertwright.interop.weights import read_weights
from bertwright.models.pooling import POOLINGS

SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
CARRIED_SUFFIXES = (".json", ".safetensors", ".txt")
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU", "ELU", "Mish", "Softplus")
VECTOR = "sentence_embedding"
LAYERS = ("Dense", "LayerNorm", "Normalize", "Dropout")  # modules after the pooling that are computed here
NO_LIMIT = 1e20  # `transformers` writes 10^30 as the length of a tokenizer that has no limit
TEXT, NUMBER, YES_NO = (str, type(None)), (int, type(None)), (bool, type(None))
VALUE_TYPES: dict[str, tuple[type, ...]] = {  # of the values that are used here, in whichever file they are
    **dict.fromkeys(("max_seq_length", "truncate_dim", "out_features", "dimension"), NUMBER),
    **dict.fromkeys(("do_lower_case", "include_prompt", "bias", "use_residual"), YES_NO),
    **dict.fromkeys(("default_prompt_name", "activation_function", "module_input_name", "module_output_name"), TEXT),
    "model_max_length": (int, float, type(None)),
    "pooling_mode": (str, list, type(None)),
    "prompts": (dict, type(None)),
    "modality_config": (dict, type(None)),
}


class UnsupportedModuleError(ValueError):
    """A module that is not computed here."""


@dataclass(frozen=True)
class SentenceModules:
    """The modules of a folder, and the files that describe them."""

    modes: tuple[str, ...] = ()
    """Pooling modes; the vectors of several are concatenated."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled, too."""
    layers: tuple[Callable[[Tensor], Tensor], ...] = ()
    """Modules after the pooling, N × H to N × size."""
    size: int | None = None
    """Numbers per vector; None: as many as the pooling gives."""
    max_length: int | None = None
    """Longest sequence in tokens, at whose end a text is truncated; None: the model's positions."""
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    """Name of the prompt that texts get if none is chosen."""
    description: str = ""
    unsupported: str = ""
    """Why vectors cannot be computed as the folder says; empty if they can."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files that a saved model needs, by their path in the folder."""

    def transform(self, vectors: Tensor, normalize: bool | None = False) -> Tensor:
        """Apply the modules after the pooling to N vectors; `normalize` False omits the normalization among them."""
        for layer in self.layers:
            if normalize is not False or layer is not nn.functional.normalize:
                vectors = (layer.to(vectors.device) if isinstance(layer, nn.Module) else layer)(vectors)
        return vectors[:, : self.size]

    def vector_size(self, hidden_size: int) -> int:
        """Return the numbers per vector of a model with this hidden size."""
        return len(self.modes) * hidden_size if self.size is None else self.size

    def limit(self, positions: int) -> int:
        """Return the tokens at which a text is truncated, in a model with this number of positions."""
        return min(self.max_length or positions, positions)

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt; None: of the default one. Raises ValueError for a name that the folder lacks."""
        name = self.default_prompt if name is None else name
        if name is not None and name not in self.prompts:
            raise ValueError(f"prompt_name: expected one of {', '.join(self.prompts) or '(none)'}, got {name!r}")
        return "" if name is None else self.prompts[name]


MEAN = SentenceModules(("mean",), layers=(nn.functional.normalize,))  # of a folder without modules


class Dense(nn.Module):
    """A linear layer with an activation function and, if the folder says so, a residual connection."""

    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None

    def __init__(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Build the layer of a `2_Dense/config.json`."""
        super().__init__()
        self.register_buffer("weight", tensors["linear.weight"].float())
        self.register_buffer("bias", tensors["linear.bias"].float() if values.get("bias", True) else None)
        self.activation = getattr(nn, _activation_name(values))()
        self.has_residual = values.get("use_residual", False)
        self.register_buffer("residual", tensors.get("residual.weight"))

    def forward(self, vectors: Tensor) -> Tensor:
        """Transform N × H vectors to N × out_features."""
        output: Tensor = self.activation(nn.functional.linear(vectors, self.weight, self.bias))
        if not self.has_residual:
            return output
        return output + (vectors if self.residual is None else vectors @ self.residual.float().T)


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """Read the modules of a model folder of sentence-transformers; None for other folders.

    `folder`: the folder with `config.json`; in old layouts, `modules.json` is in the folder above. A module that is not
    supported is named in the result. Raises ValueError, naming the file, for damaged files.
    """
    root = folder if (folder / MODULES).is_file() else folder.parent
    path = root / MODULES
    if not path.is_file():
        found = [name for name in (SETTINGS, "1_Pooling/config.json") if (folder / name).is_file()]
        if not found:
            return None
        text = f"{folder}: {found[0]} belongs to sentence-transformers, but {MODULES} is missing; copy it, too"
        return SentenceModules(unsupported=text, description=f"not supported: {text}")
    modules = read_modules(path)
    if root / modules[0][1] != folder:
        return None  # of another model, which lies around this one
    files = dict(_carried_files(root, modules))
    settings = _read_object(root / SETTINGS)
    # Older releases named the file of the Transformer's settings after other models, too.
    paths = [folder / TRANSFORMER_SETTINGS, *sorted(folder.glob("sentence_*_config.json"))]
    transformer: dict[str, Any] = next(filter(None, map(_read_object, paths)), {})
    limit = transformer.get("max_seq_length") or _read_object(folder / "tokenizer_config.json").get("model_max_length")
    limit = int(limit) if limit and 1 <= limit < NO_LIMIT else None
    prompts = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    if odd := [name for name, text in prompts.items() if not isinstance(text, str)]:
        raise ValueError(
            f"{root / SETTINGS}: prompts: expected a text as {odd[0]!r}, got {str(prompts[odd[0]])[:60]!r}"
        )
    read = SentenceModules(
        max_length=limit,
        lowercase=bool(transformer.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt=settings.get("default_prompt_name"),
        files=files | {TRANSFORMER_SETTINGS: json.dumps(transformer | {"max_seq_length": limit}, indent=2).encode()},
    )
    try:
        _check_settings(root / SETTINGS, settings, transformer)
        read = _add_modules(read, root, modules, settings.get("truncate_dim"))
        _check_sizes(read, path, _read_object(folder / CONFIG).get("hidden_size"))
        return read
    except UnsupportedModuleError as error:
        return replace(read, unsupported=str(error), description=f"not supported: {error}")


def make_sentence_modules(
    source: SentenceModules | None,
    modes: tuple[str, ...],
    hidden_size: int,
    max_length: int,
    prompts: Mapping[str, str],
) -> SentenceModules:
    """Describe a model whose vectors have length 1, with files in the form that every sentence-transformers reads.

    Layers of the `source` folder stay if it has the same pooling modes. Its own files are in either form: since 5.4,
    sentence-transformers has other names of modules and of the pooling's settings, which earlier releases reject.
    """
    layers: list[Callable[[Tensor], Tensor]] = []
    files: dict[str, bytes] = {}
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    if source is not None and source.modes == modes:
        layers = [layer for layer in source.layers if layer is not nn.functional.normalize]
        for row in json.loads(source.files[MODULES])[2:]:
            if (kind := row["type"].rpartition(".")[2]) in ("Dense", "LayerNorm"):
                kinds.append((kind, row["path"]))
                files |= {name: content for name, content in source.files.items() if name.startswith(row["path"])}
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds)
    ]
    base = source or SentenceModules()
    pooling: dict[str, Any] = {row.former_name: name in modes for name, row in POOLINGS.items() if row.former_name}
    if not all(POOLINGS[mode].former_name for mode in modes):
        pooling = {"pooling_mode": [*modes]}  # a name that versions before 5.4 do not know
    pooling |= {"word_embedding_dimension": hidden_size, "include_prompt": base.include_prompt}
    contents: dict[str, Any] = {
        MODULES: listed,
        "1_Pooling/config.json": pooling,
        SETTINGS: {
            "model_type": "SentenceTransformer",
            "prompts": dict(prompts),
            "default_prompt_name": base.default_prompt if base.default_prompt in prompts else None,
            "similarity_fn_name": "cosine",
        },
        TRANSFORMER_SETTINGS: {"max_seq_length": max_length, "do_lower_case": base.lowercase},
    }
    size = base.size if base.modes == modes else None
    return SentenceModules(
        modes, base.include_prompt, (*layers, nn.functional.normalize), size, max_length, base.lowercase, prompts,
        contents[SETTINGS]["default_prompt_name"], f"{' and '.join(modes)} pooling, normalized",
        files=files | {name: json.dumps(content, indent=2).encode() for name, content in contents.items()},
    )  # fmt: skip


def write_sentence_modules(folder: Path, modules: SentenceModules | None) -> None:
    """Write the files of the modules beside a model, so that sentence-transformers computes the same vectors."""
    for name, content in (modules.files if modules else {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if modules and modules.files:
        listed = json.loads(modules.files[MODULES])
        listed[0]["path"] = ""  # old layouts: in a folder of its own
        write_json(folder / MODULES, listed)


def _carried_files(root: Path, modules: Sequence[tuple[str, PurePosixPath]]) -> Iterator[tuple[str, bytes]]:
    yield MODULES, read_bytes(root / MODULES)
    if (root / SETTINGS).is_file():
        yield SETTINGS, read_bytes(root / SETTINGS)
    for _, name in modules[1:]:
        for path in sorted((root / name).rglob("*") if name.parts else ()):
            if path.is_file() and path.suffix in CARRIED_SUFFIXES:
                check_link(path, root)
                yield path.relative_to(root).as_posix(), read_bytes(path)


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if the file is absent. Raises ValueError for values of another type."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}")
    for name, types in VALUE_TYPES.items():
        if type(value := content.get(name)) not in types:
            raise ValueError(f"{path}: {name}: expected {types[0].__name__}, got {str(value)[:60]!r}")
    return content


def _check_settings(path: Path, settings: Mapping[str, Any], transformer: Mapping[str, Any]) -> None:
    """Raise UnsupportedModuleError for models that are no SentenceTransformer over the last layer's states."""
    if (kind := settings.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise UnsupportedModuleError(f"{path}: expected a SentenceTransformer, got a {kind}")
    task = transformer.get("transformer_task", "feature-extraction")
    text = (transformer.get("modality_config") or {}).get("text", {})
    output = text.get("method_output_name", "last_hidden_state") if isinstance(text, dict) else text
    if task != "feature-extraction" or output != "last_hidden_state":
        raise UnsupportedModuleError(f"{path.with_name(TRANSFORMER_SETTINGS)}: {task} from {output} is not supported")


def _add_modules(
    read: SentenceModules, root: Path, modules: Sequence[tuple[str, PurePosixPath]], truncate: int | None
) -> SentenceModules:
    """Return the modules with pooling and layers. Raises UnsupportedModuleError, naming the module."""
    words: list[str] = []
    layers: list[Callable[[Tensor], Tensor]] = []
    for number, (kind, name) in enumerate(modules):
        package, _, short = kind.rpartition(".")
        config = root / name / "config.json"
        values = _read_object(config) if number else {}
        if number and short in ("Pooling", "Dense", "LayerNorm") and not config.is_file():
            raise ValueError(
                f"{config}: missing, but {root / MODULES} names its module; copy or download the whole folder"
            )
        known = package.startswith("sentence_transformers") or kind == short
        ends = {values.get(key) or VECTOR for key in ("module_input_name", "module_output_name")}
        if known and number == 0 and short in ("Transformer", "BERT"):
            continue
        if known and number == 0 and short == "StaticEmbedding":
            read = replace(read, modes=("mean",))
            words.append("mean of the tokens' vectors")
            continue
        if known and number == 1 and short == "Pooling":
            read = replace(read, modes=read_modes(config, values), include_prompt=values.get("include_prompt", True))
            words.append(f"{' and '.join(read.modes)} pooling")
        elif not known or not read.modes or ends != {VECTOR} or short not in LAYERS:
            raise UnsupportedModuleError(
                f"{root / MODULES}: module {number} is {kind}; expected Transformer, Pooling, then Dense, LayerNorm, "
                "Normalize or Dropout of sentence-transformers"
            )
        elif short == "Normalize":
            layers.append(nn.functional.normalize)
            words.append("normalized")
        elif short != "Dropout":
            layers.append(layer := _read_layer(root / name, short, values))
            words.append(short)
            if isinstance(layer, Dense):
                read = replace(read, size=len(layer.weight))
                words[-1] += f" to {read.size}"
    if not read.modes:
        raise UnsupportedModuleError(f"{root / MODULES}: expected a Pooling module, got none")
    if truncate is not None:
        read = replace(read, size=truncate)
        words.append(f"the first {truncate} numbers")
    words += [f"at most {read.max_length:,} tokens"] if read.max_length else []
    words += [f"prompts {', '.join(read.prompts)}"] if any(read.prompts.values()) else []
    return replace(read, layers=tuple(layers), description=", ".join(words))


def _check_sizes(modules: SentenceModules, path: Path, hidden_size: Any) -> None:
    """Raise ValueError if the layers do not take vectors of the pooling's size, or give none."""
    if type(hidden_size) is not int or hidden_size < 1:
        return  # the configuration of the model is checked elsewhere
    try:
        size = modules.transform(torch.zeros(1, len(modules.modes) * hidden_size), normalize=None).shape[1]
    except RuntimeError as error:
        raise ValueError(f"{path}: the modules do not fit one another ({error}); download the folder again") from None
    if size != modules.vector_size(hidden_size):
        raise ValueError(f"{path}: expected vectors of {modules.vector_size(hidden_size)} numbers, got {size}")


def read_modes(path: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the names of a folder's poolings from the file of its pooling module."""
    given = values.get("pooling_mode") or [
        name for name, row in POOLINGS.items() if row.former_name and values.get(row.former_name)
    ]
    modes = (given,) if isinstance(given, str) else tuple(given) or ("mean",)
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise UnsupportedModuleError(f"{path}: pooling_mode: expected {', '.join(POOLINGS)}, got {unknown[0]}")
    return modes


def _activation_name(values: Mapping[str, Any]) -> str:
    name = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    return "Identity" if name is None else str(name).rpartition(".")[2]


def _read_layer(folder: Path, kind: str, values: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """Read the weights of a Dense or LayerNorm module. Raises ValueError for files that are missing or do not fit."""
    if kind == "Dense" and (name := _activation_name(values)) not in ACTIVATIONS:
        raise UnsupportedModuleError(f"{folder / 'config.json'}: activation_function: {name} is not supported")
    path, tensors = read_weights(folder)
    try:
        if kind == "Dense":
            return Dense(values, tensors)
        layer = nn.LayerNorm(len(tensors["norm.weight"]))
        layer.load_state_dict({name.removeprefix("norm."): tensor.float() for name, tensor in tensors.items()})
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path}: the weights of {kind} do not fit its {folder / 'config.json'} ({error})") from None
    return layer
