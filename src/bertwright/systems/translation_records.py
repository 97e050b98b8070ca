"""What training and translating know of a translation model without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TranslationRecord:
    """A value of `train-translation --architecture`."""

    summary: str
    model_type: str
    """Name in `config.json` of its folders."""
    sizes: Mapping[str, Mapping[str, Any]]
    """Value of --size → fields of the configuration."""
    defaults: Callable[[str, int], dict[str, Any]]
    """Function from the size and the steps of warm-up to settings, as a TOML table."""
    new: str
    """Function from a `translation_models.TranslationRequest` to a `TranslationSystem`, as "module:NAME"."""
    write: str
    """Function that writes a `TranslationSystem` into a folder, as "module:NAME"."""
    load: str
    """Function that reads such a folder, as "module:NAME"."""
    reads_words: bool = False
    """Whether sources are whole words, which may have given vectors; else pieces of a joint vocabulary."""
