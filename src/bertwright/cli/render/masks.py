"""Candidates for each [MASK] of a text as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType

from bertwright.cli.render.terminal import plain_text, text_table
from bertwright.inference.fill_mask import MaskPrediction

MASK_COLUMNS = 26  # terminal columns of one [MASK] and its candidates


def render(prediction: MaskPrediction, width: int) -> RenderableType:
    """Return the text with its masks filled, and tables of as many masks as fit side by side."""
    tables = []
    per_table = max(1, width // MASK_COLUMNS)
    for first in range(0, len(prediction.masks), per_table):
        masks = prediction.masks[first : first + per_table]
        table = text_table((), ())
        for number in range(first + 1, first + len(masks) + 1):
            table.add_column(f"[MASK] {number}" if len(prediction.masks) > 1 else "[MASK]")
            table.add_column("probability", justify="right")
        for candidates in zip(*masks, strict=True):
            table.add_row(*(cell for token, share in candidates for cell in (token, f"{share:.1%}")))
        tables.append(table)
    return Group(plain_text(prediction.text, "bold"), *tables)
