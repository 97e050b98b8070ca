"""The names of a model's files, and where a model is: in a folder, in a run, or on the Hugging Face hub."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from bertwright.base.files import atomic_folder, digest_bytes, digest_file, read_json
from bertwright.base.foreign import check_link, check_links, is_name_below
from bertwright.base.messages import first_line
from bertwright.base.object_storage import as_url
from bertwright.systems.registry import DEFAULT_MODEL_TYPE, System, system_of_folder

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
MODULES = "modules.json"  # see interop/sentence_modules.py
CHECKSUMS = "checksums.json"  # see interop/checksums.py
CARD = "README.md"  # see interop/model_card.py
CLASSES = "classes.json"  # the values of y behind the label names, for a classifier of `estimators`
OWN_HEAD = "-own-head"  # ending of a `model_type` of `transformers` if it lacks the class of the head
SOURCE_WORDS = "source_words.txt"  # see systems/translation_models.py
ADAPTER = "adapter_config.json"
OTHER_FORMATS = {  # suffixes of weights that are not read
    **dict.fromkeys(("onnx", "xml", "pb", "tflite", "ot"), "save the model that it was made from with transformers"),
    "gguf": "transformers converts some: AutoModel.from_pretrained(FOLDER, gguf_file=NAME).save_pretrained(NEW)",
    **dict.fromkeys(("h5", "msgpack"), "convert it with transformers (from_tf or from_flax=True, save_pretrained)"),
    "distcp": "a sharded checkpoint: accelerate merge-weights FOLDER NEW",
}
DOWNLOADED = [
    CONFIG,
    ADAPTER,
    SOURCE_WORDS,
    WEIGHTS,
    "model-*.safetensors",
    SHARDS,
    CHECKSUMS,
    "task.json",
    CLASSES,
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    MODULES,
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]*_*/*.json",  # folders of modules
    "[0-9]*_*/*.safetensors",
    "[0-9]*_*/vocab.txt",
]

# Modules that take long to import are imported on use: the commands before pre-training use this module too.


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run of pre-training or fine-tuning."""
    return (folder / "settings.toml").is_file() and (folder / "checkpoints").is_dir()


def is_finished_folder(name: str) -> bool:
    """Return whether a name is a model folder here, or a finished run: no hub name, no checkpoint of a training."""
    return Path(name).is_dir() and not (model_folder(name) / "state.json").is_file()


def model_folder(name: str | Path | None) -> Path:
    """Find the folder of a model by its name.

    - A model folder: itself.
    - A run: its finished model; if the run is unfinished, its best checkpoint on dev, or its newest one if none was
      scored on dev, with a warning.
    - A grid search: the model that it chose.
    - `org/name` or `hf://org/name`, optionally with `@revision`: the folder in the Hugging Face cache, downloaded if it
      is not there.

    Raises ValueError for None (a setting that the user left out), for a run without a checkpoint, for a folder that
    holds no model, and if neither a folder nor the hub has the name.
    """
    if name is None:
        raise ValueError("no model given: --model FOLDER, a pre-trained BERT of yours or of the hub")
    if not str(name):  # Path would take it for the current folder
        raise ValueError("the name of the model is empty; give a folder or a hub name")
    folder = Path(name)
    if (folder / "settings.toml").is_file() and (folder / "model").is_dir():
        return folder / "model"
    if is_run(folder):
        return _find_checkpoint(folder)
    if folder.is_file():
        raise ValueError(f"{name}: expected a model folder, a run folder or a hub name, got a file")
    if not folder.is_dir():
        folder = _download(str(name))
        return _transformer_folder(folder)
    folder = _transformer_folder(folder)
    locate_config(folder)
    return folder


def _transformer_folder(folder: Path) -> Path:
    """Return the folder with the configuration: in old layouts of sentence-transformers, one inside the folder."""
    if (folder / CONFIG).is_file() or not (folder / MODULES).is_file():
        return folder
    return folder / read_modules(folder / MODULES)[0][1]


def read_modules(path: Path) -> list[tuple[str, PurePosixPath]]:
    """Read type and path of each module of a `modules.json`. Raises ValueError for paths that leave its folder."""
    listed, modules = read_json(path), list[tuple[str, PurePosixPath]]()
    for module in listed if isinstance(listed, list) else []:
        kind, name = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        inside = name.removesuffix("/") if isinstance(name, str) else None
        if not isinstance(kind, str) or inside is None or not (name == "" or is_name_below(inside)):
            modules.clear()
            break
        check_link(path.parent / inside, path.parent)
        modules.append((kind, PurePosixPath(inside)))
    if not modules:
        raise ValueError(f"{path}: expected a list of modules with their type and their path inside the folder")
    return modules


def locate_config(folder: Path) -> Path:
    """Return the path of a model folder's `config.json`.

    Raises ValueError for a folder without it, and for one with links to other folders.
    """
    check_links(folder)
    path = folder / CONFIG
    if not path.is_file():
        if explained := explain_folder(folder):
            raise ValueError(f"{folder}: {explained}")
        raise ValueError(
            f"{folder}: no {CONFIG}, so this is not a model folder; name the folder of a model or run (for Google's "
            "checkpoints, see bertwright convert)"
        )
    return path


def explain_folder(folder: Path) -> str:
    """Return what a folder without the files of a whole model is, and how to make it whole; empty if unknown."""
    if (folder / ADAPTER).is_file():
        values = read_json(folder / ADAPTER)
        names = ("peft_type", "base_model_name_or_path")
        kind, base = (values.get(name, "?") for name in names) if isinstance(values, dict) else "??"
        return (
            f"{'a LoRA' if kind == 'LORA' else f'an ({kind})'} adapter of {base}, not a whole model ({ADAPTER}); "
            "merge it, and save the tokenizer, too (peft: AutoPeftModelFor….from_pretrained(FOLDER).merge_and_unload()"
            ".save_pretrained(NEW))"
        )
    checkpoints = sorted(path.name for path in folder.glob("checkpoint-*") if (path / CONFIG).is_file())
    if checkpoints:
        return f"a folder of a trainer's checkpoints ({', '.join(checkpoints)}); name one, such as {checkpoints[-1]}"
    for suffix, way_out in OTHER_FORMATS.items():
        if files := sorted({*folder.glob(f"*.{suffix}"), *folder.glob(f"{suffix}/*.{suffix}")}):
            found = files[0].relative_to(folder)
            return f"no {WEIGHTS}, and {found} is not read; {way_out}"
    if any((folder / name).is_file() for name in ("trainer_state.json", "training_args.bin")):
        return f"a trainer's checkpoint without its model; save it with {CONFIG} and {WEIGHTS} (save_pretrained)"
    if (folder / "1_Pooling").is_dir() or (folder / "config_sentence_transformers.json").is_file():
        return "a folder of sentence-transformers without its BERT; copy or download it whole"
    return ""


def check_model(name: str | Path | None) -> None:
    """Raise ValueError for a name that `model_folder` does not find; without torch, which checkpoints need."""
    if name is None or not is_run(Path(name)):
        model_folder(name)


def read_model_config(name: Any) -> dict[str, Any]:
    """Return the fields of the `config.json` of the model with this name, without torch; none if there is no model."""
    try:
        checkpoints = sorted(Path(name).glob("*/step-*"))  # all of a run have the same configuration
        values = dict(read_json(locate_config(checkpoints[0] if checkpoints else model_folder(name))))
        return values | {"model_type": str(values.get("model_type", DEFAULT_MODEL_TYPE)).removesuffix(OWN_HEAD)}
    except (TypeError, ValueError, AttributeError, OSError):
        return {}


def system_of_model(name: Any) -> System | None:
    """Return the system of the model with this name, without torch; None if there is no model."""
    return system_of_folder(str(read_model_config(name).get("model_type")))


def digest_model(name: str | Path | None) -> str:
    """Digest the files of the model that a name refers to now, with its tokenizer; a run or the hub may change them."""
    folder = model_folder(name)
    files = sorted({file for pattern in DOWNLOADED for file in folder.glob(pattern)} - {folder / CHECKSUMS})
    return digest_bytes(*(f"{file.relative_to(folder)} {digest_file(file)}".encode() for file in files))


def _find_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of an unfinished run, or the newest if there is no best one, with a warning."""
    from bertwright.training import checkpoint

    best = checkpoint.verify_latest(run / "best")
    checkpoint_folder = best or checkpoint.verify_latest(run / "checkpoints")
    if checkpoint_folder is None:
        if (run / "report.json").is_file():
            raise ValueError(f"{run}: this run's weights were deleted when it had been scored; choose another model")
        raise ValueError(f"{run}: this run has no checkpoint yet; wait for its first one, or choose another model")
    which = "best" if best else "newest"
    warnings.warn(
        f"{run}: this run is unfinished; using its {which} checkpoint, {checkpoint_folder.name}", stacklevel=3
    )
    return checkpoint_folder


def _download(name: str) -> Path:
    """Return the folder of a model of the hub in the Hugging Face cache. Raises ValueError if the hub has none."""
    repository, _, revision = name.removeprefix("hf://").strip("/").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        example = f"google-bert/{name}" if name.startswith("bert-") else "org/name"
        raise ValueError(f"{name}: no such folder; give a model folder, or a hub name such as {example}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=DOWNLOADED))
    except Exception as error:  # the hub client raises its own errors, its HTTP library's, and OSError
        raise ValueError(
            f"{name}: no such folder, and {repository} could not be downloaded from the Hugging Face hub "
            f"({first_line(error)})"
        ) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` when the block ends; after an error nothing is left behind.

    Raises ValueError if `folder` already exists.
    """
    if folder.exists():
        raise ValueError(f"{folder}: already exists; choose another path or delete it")
    with atomic_folder(folder) as temporary:
        yield temporary


def vocabulary_folder(name: str) -> Path:
    """Return a vocabulary's folder; a run or a name on the hub stands for its model's."""
    if as_url(name):
        return Path(name)
    return Path(name) if Path(name).exists() and not is_run(Path(name)) else model_folder(name)
