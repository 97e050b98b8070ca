"""`bertwright fill-mask`: show a model's predictions for each [MASK] of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from bertwright.base.console import heading, make_console, make_table
from bertwright.cli.verbs import importing_torch
from bertwright.inference.text_settings import FillMaskSettings
from bertwright.interop.model_files import model_folder
from bertwright.text.decoding import FIX_INPUT, TextCodec
from bertwright.text.stdin_texts import expand_stdin

if TYPE_CHECKING:
    from bertwright.inference.fill_mask import MaskPrediction

SETTINGS = FillMaskSettings
ORDER = 13
SUMMARY = "predict the tokens for [MASK] in a text"
EXAMPLE = "bertwright fill-mask runs/mini 'Paris is the [MASK] of France.'"

MASK_COLUMNS = 26  # terminal columns of one [MASK] and its candidates


def run(settings: FillMaskSettings, console: Console | None = None) -> list[MaskPrediction]:
    """Print each text with its masks filled, and the candidates per [MASK]; return the predictions.

    Raises ValueError for a text without a [MASK].
    """
    console = console or make_console()
    folder = model_folder(settings.model)
    texts = expand_stdin(settings.texts, TextCodec(hint=FIX_INPUT))
    with importing_torch():
        from bertwright.inference.bert import load
        from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        model = load(folder, context.device, context.dtype)
        predictions = model.fill_mask(texts, settings.top_k)
    for prediction in predictions:
        heading(console, prediction.text)
        for table in _candidate_tables(prediction, masks_per_table=max(1, console.width // MASK_COLUMNS)):
            console.print(table)
    return predictions


def _candidate_tables(prediction: MaskPrediction, masks_per_table: int) -> Iterator[Table]:
    """Yield tables with two columns per [MASK]: candidate and probability."""
    for first in range(0, len(prediction.masks), masks_per_table):
        masks = prediction.masks[first : first + masks_per_table]
        table = make_table()
        for number in range(first + 1, first + len(masks) + 1):
            table.add_column(f"[MASK] {number}" if len(prediction.masks) > 1 else "[MASK]")
            table.add_column("probability", justify="right")
        for candidates in zip(*masks, strict=True):
            table.add_row(*(cell for token, share in candidates for cell in (token, f"{share:.1%}")))
        yield table
