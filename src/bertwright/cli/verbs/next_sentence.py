"""`bertwright next-sentence`: the probability that each text follows the one before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console

from bertwright.cli.verbs import importing_torch
from bertwright.console import filled_table, make_console
from bertwright.interop.model_files import model_folder
from bertwright.io.decoding import FIX_INPUT, STDIN, TextCodec
from bertwright.io.stdin_texts import expand_stdin
from bertwright.settings import Positional, check_not_str
from bertwright.training.optimizer_settings import DeviceSettings

ORDER = 14
SUMMARY = "score whether each text follows the one before"
EXAMPLE = "bertwright next-sentence runs/mini 'Where are you?' 'I am at home.'"


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


SETTINGS = NextSentenceSettings


def run(settings: NextSentenceSettings, console: Console | None = None) -> list[float]:
    """Print the probability that each text but the first follows the one before it; return the probabilities.

    Raises ValueError for fewer than two texts, and for a model that was pre-trained without this task.
    """
    console = console or make_console()
    folder = model_folder(settings.model)
    texts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    check_number_of_texts(texts)
    with importing_torch():
        from bertwright.inference.model import load
        from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        model = load(folder, context.device, context.dtype)
        probabilities = model.next_sentence(texts[:-1], texts[1:])
    shown = ["", *(f"{probability:.1%}" for probability in probabilities)]
    console.print(filled_table(["text", "follows the one before"], zip(texts, shown, strict=True)))
    return probabilities
