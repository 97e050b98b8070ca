"""Settings of `bertwright fill-mask` and `next-sentence`, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertwright.io.decoding import STDIN
from bertwright.settings import Positional, check_not_str
from bertwright.training.device_settings import DeviceSettings


@dataclass(frozen=True)
class FillMaskSettings:
    """Show a model's most probable tokens for each [MASK] of some texts."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    texts: Positional[tuple[str, ...]]
    """Texts, each with at least one [MASK]; - reads them from standard input, one per line, and skips blank lines."""
    top_k: int = 5
    """Number of candidates per [MASK]."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts")
        if not self.texts:
            raise ValueError('no text given; for example: bertwright fill-mask MODEL "Paris is the [MASK] of France."')


@dataclass(frozen=True)
class NextSentenceSettings:
    """Show the probability that each text follows the one before it (paper, section 3.1, task 2)."""

    model: Positional[str]
    """Model folder, run folder, or hub name, of pre-training with next-sentence prediction."""
    texts: Positional[tuple[str, ...]]
    """Two texts or more, such as the sentences of a document in order; - reads them from standard input, one per line,
    and skips blank lines."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts")
        if self.texts != (STDIN,):
            check_number_of_texts(self.texts)


def check_number_of_texts(texts: tuple[str, ...] | list[str]) -> None:
    """Raise ValueError for fewer than two texts."""
    if len(texts) < 2:
        raise ValueError(f"expected at least two texts, got {len(texts)}; give a text and the one that may follow it")
