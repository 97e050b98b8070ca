"""Where a model is: in a folder here, in what a run left, or on the Hugging Face hub; and what its files are called."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertwright.files import atomic_folder

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
CLASSES = "classes.json"  # beside a classifier of `estimators`: what its label names stood for in y
DOWNLOADED = [
    CONFIG,
    WEIGHTS,
    "model-*.safetensors",
    SHARDS,
    "task.json",
    CLASSES,
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
]

# What takes long to import is imported on use: the stages before pre-training ask for folders too.


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run of pre-training or fine-tuning."""
    return (folder / "settings.toml").is_file() and (folder / "checkpoints").is_dir()


def model_folder(name: str | Path) -> Path:
    """The folder of a model, by what a user may call it.

    A model folder is itself. A run stands for its finished model; an unfinished one, with a warning, for its best
    checkpoint on dev or, without one, its newest. A grid stands for the model that it chose. `org/name` and
    `hf://org/name`, with `@revision` if need be, are downloaded into the Hugging Face cache, or found there. Raises
    ValueError for a run that has no checkpoint yet, and where neither folder nor hub has the name.
    """
    if not str(name):  # Path would take it for the current folder
        raise ValueError("the name of the model is empty; give a folder or a hub name")
    folder = Path(name)
    if (folder / "settings.toml").is_file() and (folder / "model").is_dir():
        return folder / "model"
    if is_run(folder):
        return _of_run(folder)
    return folder if folder.is_dir() else _downloaded(str(name))


def _of_run(run: Path) -> Path:
    """Return the best checkpoint of an unfinished run, or the newest if none was evaluated as best, with a warning."""
    from bertwright.training import checkpoint

    best = checkpoint.latest(run / "best")
    found = best or checkpoint.latest(run / "checkpoints")
    if found is None:
        raise ValueError(f"{run}: a run without a checkpoint yet")
    which = "best" if best else "newest"
    warnings.warn(f"{run}: this run is not finished; its {which} checkpoint is used, {found.name}", stacklevel=3)
    return found


def _downloaded(name: str) -> Path:
    on_hub, _, revision = name.removeprefix("hf://").strip("/").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", on_hub):
        raise ValueError(f"{name}: no such folder; give a model folder, or a hub name such as hf://org/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(on_hub, revision=revision or None, allow_patterns=DOWNLOADED))
    except Exception as error:  # the hub client raises its own errors, those of its HTTP library, and OSError
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{name}: no such folder here, and the Hugging Face hub did not give {on_hub} ({reason})"
        ) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A path to write to that becomes `folder`, whole or not at all. ValueError when something is there already."""
    if folder.exists():
        raise ValueError(f"{folder}: already exists; choose another path or delete it")
    with atomic_folder(folder) as part:
        yield part
