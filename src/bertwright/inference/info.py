"""Describe a model, vocabulary, word vectors, token store, feature cache, run or series of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from bertwright.base.reporter import SILENT, Fields, Heading, Reporter
from bertwright.base.settings import Positional
from bertwright.interop.model_files import CHECKSUMS

# Functions of a folder and --verify. Each returns a `Description`, or None for a folder of another format; the first
# that knows a folder describes it. They are named as text, because some lie in rooms that use this one.
FORMATS = (
    "bertwright.inference.feature_cache:describe",
    "bertwright.tokenstore.store:describe",
    "bertwright.inference.run_description:describe",
    "bertwright.trials.ladder:describe",
    "bertwright.trials.grid:describe",
    "bertwright.trials.probe:describe",
    "bertwright.vocabulary.vector_file:describe",
    "bertwright.search.vector_index:describe",
    "bertwright.systems.translation_models:describe",
    "bertwright.inference.exported_folder:describe",
    "bertwright.tasks.task_folder:describe",
    "bertwright.vocabulary.open_tokenizer:describe",
)


@dataclass(frozen=True)
class InfoSettings:
    """Describe a folder: a model, vocabulary, word vectors, token store, features, index, run, grid or ladder."""

    folder: Positional[Path]
    """The folder to describe."""
    verify: bool = False
    """Compare every byte of a store, of a run's newest checkpoint or of a model with its digest or checksum. Models are
    always compared."""

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            problem = "a file; name its folder" if self.folder.exists() else "no such folder"
            raise ValueError(f"{self.folder}: {problem}")


def info(settings: InfoSettings, reporter: Reporter = SILENT) -> None:
    """Print the kind and the properties of a folder. Raises ValueError if its kind is unknown or it is damaged."""
    folder = settings.folder
    descriptions = (resolve_name(name)(folder, settings.verify) for name in FORMATS)
    description = next((known for known in descriptions if known is not None), None)
    if description is None:
        raise ValueError(
            f"{folder}: neither a run (settings.toml, checkpoints/), a finished token store (train/header.json), "
            "features (train/features.json), word vectors (vectors.bin or vectors.txt), an index "
            "(index.json), a model (config.json) nor a vocabulary (vocab.txt)"
        )
    if settings.verify and not description.has_digests:
        raise ValueError(
            f"{folder}: --verify: expected a token store, a run with checkpoints or a model with {CHECKSUMS}, got "
            f"another folder ({description.kind}); omit it"
        )
    reporter.record(Heading(f"{folder}: {description.kind}"))
    reporter.record(Fields(description.fields))
