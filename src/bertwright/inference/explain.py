"""`bertwright explain`: print the pairs of words that make two texts similar, and draw the matrix of all pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertwright.base.files import check_absent
from bertwright.base.optional import needs
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional
from bertwright.inference.pictures import PICTURES, text_style, write_picture
from bertwright.interop.model_files import model_folder
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bertwright.inference.explanation import Explanation

SHOWN = 12  # pairs of words that are printed
INCHES = 0.35  # of a word along the picture's sides


@dataclass(frozen=True)
class ExplainSettings:
    """Show which pairs of words make two texts similar: their shares add up to the cosine."""

    model: Positional[str]
    """Model of text vectors with mean pooling: a folder, a run's folder, or a hub name."""
    query: Positional[str]
    """First text."""
    text: Positional[str]
    """Second text."""
    output: Path | None = None
    """New picture of the matrix: .png, .svg or .pdf."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if self.output is not None and self.output.suffix not in PICTURES:
            raise ValueError(f"{self.output}: expected one of the suffixes {', '.join(PICTURES)}")
        for name, text in (("query", self.query), ("text", self.text)):
            if not text.strip():
                raise ValueError(f"{name}: the text is empty")


def explain(settings: ExplainSettings, reporter: Reporter = SILENT) -> Explanation:
    """Print the pairs of words with the largest shares, and draw the matrix; return it."""
    if settings.output is not None:
        check_absent(settings.output)
    folder = model_folder(settings.model)
    from bertwright.inference.bert import load_in
    from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        explanation = load_in(context, folder).explain(settings.query, settings.text)
    reporter.record(Heading(f"cosine {explanation.cosine:.4f}"))
    order = np.argsort(-np.abs(explanation.matrix), axis=None, kind="stable")[:SHOWN]
    rows = [
        (explanation.query_words[row], explanation.text_words[column], f"{explanation.matrix[row, column]:+.4f}")
        for row, column in zip(*np.unravel_index(order, explanation.matrix.shape), strict=True)
    ]
    reporter.record(Rows(("word of the query", "word of the text", "share"), rows, texts=(0, 1)))
    if settings.output is not None:
        write_picture(_figure(explanation), settings.output, reporter)
        reporter.record(
            Line(f"{settings.output}: {len(explanation.query_words)} × {len(explanation.text_words)} words")
        )
    return explanation


def _figure(explanation: Explanation) -> Figure:
    """Draw the matrix; blue raises the cosine, red lowers it."""
    with needs("plot", "a picture"):
        from matplotlib.figure import Figure

    rows, columns = explanation.matrix.shape
    figure = Figure(figsize=(columns * INCHES + 2, rows * INCHES + 2), layout="constrained")
    panel, bound = figure.subplots(), float(np.abs(explanation.matrix).max())
    image = panel.imshow(explanation.matrix, vmin=-bound, vmax=bound, cmap="RdBu")
    figure.colorbar(image, shrink=0.8, label="share of the cosine")
    panel.set_title(f"cosine {explanation.cosine:.4f}")
    panel.set_xlabel("text")
    panel.set_ylabel("query")
    panel.set_xticks(range(columns), explanation.text_words, rotation=90, **text_style())
    panel.set_yticks(range(rows), explanation.query_words, **text_style())
    return figure
