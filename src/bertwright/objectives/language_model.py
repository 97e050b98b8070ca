"""What the objectives of language models have in common: columns, and the check of the model to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from bertwright.objectives.objective import LOSS, Column

if TYPE_CHECKING:
    from bertwright.interop.huggingface import LoadResult
    from bertwright.models.heads import EncoderModel
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.vocabulary.tokenizer import TextTokenizer

M = TypeVar("M", bound="EncoderModel")


def language_model_columns(label: str) -> tuple[Column, ...]:
    """Return the columns of a language model; `label`: its name for people."""
    return (
        Column(LOSS, f"{label} loss (nats)", "{:.3f}", f"{label} loss {{:.3f}}", "loss {:.3f}", True),
        Column("perplexity", f"{label} perplexity", "{:,.1f}"),  # the figure of the paper's table 6
        Column("mlm_accuracy", f"{label} accuracy", "{:.1%}", "accuracy {:.1%}", is_plotted=True),
    )


def load_first_model(
    folder: Path,
    kind: type[M],
    name: str,
    settings: ModelSettings,
    tokenizer: TextTokenizer,
    heads: Literal["required", "optional"],
) -> tuple[M, LoadResult[EncoderModel]]:
    """Load the model of a checkpoint or of --init, with the dropouts of the settings.

    `name`: of `kind`, for people. Raises ValueError for another kind of model, and for another vocabulary.
    """
    from bertwright.interop.huggingface import check_vocabulary

    model, loaded = load_kind(folder, kind, name, heads, settings.dropouts)
    check_vocabulary(tokenizer, model.config, folder)
    return model, loaded


def load_kind(
    folder: Path, kind: type[M], name: str, heads: Literal["required", "optional"], changes: Mapping[str, float]
) -> tuple[M, LoadResult[EncoderModel]]:
    """Load a model of one kind, with `changes` of its configuration. Raises ValueError for another kind of model."""
    from bertwright.interop.huggingface import load_model

    loaded = load_model(folder, heads, kind, **changes)
    if not isinstance(loaded.model, kind):
        model_type = loaded.model.encoder.model_type
        raise ValueError(f"{folder}: expected {name}, got model_type {model_type}; give another --init")
    return loaded.model, loaded
