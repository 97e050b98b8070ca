"""`bertwright next-sentence`: the probability that each text follows the one before it."""

from __future__ import annotations

from rich.console import Console

from bertwright.base.console import filled_table, make_console
from bertwright.cli.verbs import importing_torch
from bertwright.inference.text_settings import NextSentenceSettings, check_number_of_texts
from bertwright.interop.model_files import model_folder
from bertwright.text.decoding import FIX_INPUT, TextCodec
from bertwright.text.stdin_texts import expand_stdin

SETTINGS = NextSentenceSettings
ORDER = 14
SUMMARY = "score whether each text follows the one before"
EXAMPLE = "bertwright next-sentence runs/mini 'Where are you?' 'I am at home.'"


def run(settings: NextSentenceSettings, console: Console | None = None) -> list[float]:
    """Print the probability that each text but the first follows the one before it; return the probabilities.

    Raises ValueError for fewer than two texts, and for a model that was pre-trained without this task.
    """
    console = console or make_console()
    folder = model_folder(settings.model)
    texts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    check_number_of_texts(texts)
    with importing_torch():
        from bertwright.inference.bert import load
        from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        model = load(folder, context.device, context.dtype)
        probabilities = model.next_sentence(texts[:-1], texts[1:])
    shown = ["", *(f"{probability:.1%}" for probability in probabilities)]
    console.print(filled_table(["text", "follows the one before"], zip(texts, shown, strict=True)))
    return probabilities
