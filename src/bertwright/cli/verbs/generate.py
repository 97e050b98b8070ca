"""`bertwright generate`: continue texts with a left-to-right language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from bertwright.base.console import filled_table, make_console
from bertwright.cli.verbs import importing_torch
from bertwright.inference.text_settings import GenerateSettings
from bertwright.interop.model_files import model_folder
from bertwright.text.decoding import FIX_INPUT, TextCodec
from bertwright.text.stdin_texts import expand_stdin

if TYPE_CHECKING:
    from bertwright.inference.generation import Generation

SETTINGS = GenerateSettings
ORDER = 15
SUMMARY = "continue texts with a GPT"
EXAMPLE = "bertwright generate runs/gpt --prompt 'It was a dark night, and' --sample --top-p 0.9"


def run(settings: GenerateSettings, console: Console | None = None) -> list[Generation]:
    """Print each prompt with its continuation; return the continuations.

    Raises ValueError for an empty prompt, and for a model that is not a left-to-right language model.
    """
    console = console or make_console()
    folder = model_folder(settings.model)
    prompts = expand_stdin(settings.prompt, TextCodec(hint=FIX_INPUT))
    with importing_torch():
        from bertwright.inference.bert import load
        from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        model = load(folder, context.device, context.dtype)
        generations = model.generate(prompts, settings.generation)
    rows = [
        (prompt, generation.text, f"{generation.log_probability:.2f}")
        for prompt, generation in zip(prompts, generations, strict=True)
    ]
    console.print(filled_table(["prompt", "continuation", "log-probability"], rows))
    return generations
