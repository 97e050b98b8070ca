"""`bertwright convert`: write a checkpoint as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from tyro.conf import Positional

from bertwright.commands.output_paths import check_absent
from bertwright.console import make_console, notice, say
from bertwright.interop.model_files import check_model, model_folder

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ConvertSettings:
    """Write a BERT checkpoint as a Hugging Face folder: another folder's, a run's newest, or Google's."""

    source: Positional[str]
    """Model folder, run folder, hub name, or folder with bert_model.ckpt.* and bert_config.json."""
    output: Positional[Path]
    """New folder for the model."""
    lowercase: bool | None = None
    """True for an uncased vocabulary. Required for Google's files, which do not contain it; for others it overrides
    what they contain."""


def convert(settings: ConvertSettings, console: Console | None = None) -> None:
    """Read a checkpoint of any known format and write it as a Hugging Face folder, atomically.

    The model of a task keeps its head and its task. Raises ValueError if the output exists, and for a source that is
    not a complete BERT.
    """
    console = console or make_console()
    check_absent(settings.output)
    source = Path(settings.source)
    if not source.is_dir():
        check_model(settings.source)
    from bertwright.interop import google  # imports torch, which takes longer than the checks above
    from bertwright.interop.huggingface import load_model, save_model
    from bertwright.tasks.task_io import load_task, save_task_folder
    from bertwright.vocabulary.tokenizer import Tokenizer

    from_google = (source / google.CONFIG).is_file()
    folder = source if from_google else model_folder(settings.source)
    tokenizer = Tokenizer.load(folder / "vocab.txt" if from_google else folder, settings.lowercase)
    if not from_google and (found := load_task(folder)) is not None:
        save_task_folder(settings.output, found, tokenizer)
        say(console, f"{settings.output}: written, {count_parameters(found.model):,} parameters, for {found.task.kind}")
        return
    loaded = google.load_checkpoint(source) if from_google else load_model(folder, heads="optional")
    save_model(settings.output, loaded.model, tokenizer)
    say(console, f"{settings.output}: written, {count_parameters(loaded.model):,} parameters")
    for head in loaded.missing_heads:
        notice(console, f"{settings.source}: no {head} head; its weights in {settings.output} are random")
    if loaded.unexpected_keys:
        notice(console, f"{settings.source}: ignored, not used in pre-training: {', '.join(loaded.unexpected_keys)}")


def count_parameters(model: nn.Module) -> int:
    """Return the number of weights."""
    return sum(parameter.numel() for parameter in model.parameters())
