"""Settings of `bertwright fill-mask`, `next-sentence` and `generate`, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertwright.base.settings import MAX_SEED, Positional, check_limit, check_minimum, check_not_str, check_range
from bertwright.interop.model_files import check_model
from bertwright.text.sources import STDIN
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
        check_texts(self, 'fill-mask MODEL "Paris is the [MASK] of France."')


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


@dataclass(frozen=True)
class GenerationSettings:
    """How a text is continued: by sampling, by the most probable token each time, or by beam search."""

    max_new_tokens: int = 40
    """Tokens of a continuation, as far as the model has positions."""
    sample: bool = True
    """Draw each token by its probability; otherwise, take the most probable one (greedy decoding), which soon repeats
    itself. A beam search does neither."""
    temperature: float = 1.0
    """In sampling: divisor of the logits; below 1, probable tokens become more probable."""
    top_k: int | None = None
    """In sampling: draw among this many most probable tokens. Unset: among all."""
    top_p: float | None = None
    """In sampling: draw among the fewest most probable tokens with this sum of probabilities. Unset: among all."""
    num_beams: int = 1
    """Hypotheses of a beam search, which looks for the most probable continuation; 1: none."""
    seed: int = 0
    """Seed of sampling. The numbers of a prompt also depend on its place in the list, so that a prompt that is given
    several times has several continuations."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "max_new_tokens", "top_k", "num_beams")
        check_limit(self, "above 0", "temperature")
        check_limit(self, "above 0 and up to 1", "top_p")
        check_range(self, 0, MAX_SEED, "seed")
        given = {"temperature": self.temperature != 1.0, "top_k": self.top_k, "top_p": self.top_p}
        if not self.samples and (odd := [name for name, value in given.items() if value]):
            cause = f"num_beams = {self.num_beams}" if self.num_beams > 1 else "sample = False"
            raise ValueError(
                f"{', '.join(odd)}: change how tokens are drawn, but with {cause} none is; omit one of them"
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        return self.sample and self.num_beams == 1

    def __str__(self) -> str:
        if self.num_beams > 1:
            return f"a beam of {self.num_beams}"
        if not self.sample:
            return "the most probable token each time"
        options = {"temperature": self.temperature, "top-k": self.top_k, "top-p": self.top_p, "seed": self.seed}
        shown = [f"{name} {value:g}" for name, value in options.items() if value is not None]
        return f"drawn by probability ({', '.join(shown)})"


@dataclass(frozen=True)
class GenerateSettings:
    """Continue texts with a left-to-right language model."""

    model: Positional[str]
    """Model folder, run folder or hub name, of pre-training with --architecture gpt."""
    texts: Positional[tuple[str, ...]]
    """Beginnings of texts; - reads them from standard input, one per line, and skips blank lines."""
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_texts(self, 'generate MODEL "It was a dark night"')


@dataclass(frozen=True)
class ScoreSettings:
    """Print the log-probability and the perplexity of texts by a left-to-right language model."""

    model: Positional[str]
    """Model folder, run folder or hub name, of pre-training with --architecture gpt, ulmfit or elmo (its forward
    direction), or with --objective ltr."""
    texts: Positional[tuple[str, ...]]
    """Texts; - reads them from standard input, one per line, and skips blank lines."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_texts(self, 'score MODEL "The bear sleeps."')


def check_texts(settings: FillMaskSettings | GenerateSettings | ScoreSettings, example: str) -> None:
    """Raise ValueError, with an example of the command, for settings without a text."""
    check_not_str(settings, "texts")
    if not settings.texts:
        raise ValueError(f"no text given; for example: bertwright {example}")


def check_number_of_texts(texts: tuple[str, ...] | list[str]) -> None:
    """Raise ValueError for fewer than two texts."""
    if len(texts) < 2:
        raise ValueError(f"expected at least two texts, got {len(texts)}; give a text and the one that may follow it")


def check_inputs(settings: FillMaskSettings | NextSentenceSettings | GenerateSettings | ScoreSettings) -> None:
    """Check the model without torch. Raises ValueError for a folder that has none."""
    check_model(settings.model)
