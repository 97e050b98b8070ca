"""`bertwright attention`: draw the attention weights of a text, or write them to a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertwright.base.files import check_absent, new_file
from bertwright.base.optional import needs
from bertwright.base.reporter import SILENT, Line, Reporter
from bertwright.base.settings import Positional, check_minimum
from bertwright.inference.pictures import PICTURES, text_style, write_picture
from bertwright.interop.model_files import model_folder
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bertwright.inference.attention_weights import Attention

ARRAYS = ".npz"
SINGLE_INCHES, PANEL_INCHES = 7.0, 1.6  # side of the only panel; of one of several
TICKS, PANEL_TICKS = 60, 16  # maximum number of tokens that are written along the axes; of one of several panels


@dataclass(frozen=True)
class AttentionSettings:
    """Draw the attention weights of a text: a panel per layer (rows, the lowest first) and head (columns)."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    text: Positional[str]
    """Text to read, not longer than the model's positions."""
    output: Path
    """New file: a picture (.png, .svg, .pdf), or the arrays `tokens` and `weights` (layers × heads × tokens × tokens,
    from the attending to the attended token) for NumPy (.npz)."""
    text_pair: str | None = None
    """Second text of a pair."""
    layer: int | None = None
    """Layer to draw, from 1; unset: all."""
    head: int | None = None
    """Head to draw, from 1; unset: all."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_minimum(self, 1, "layer", "head")
        if self.output.suffix not in (*PICTURES, ARRAYS):
            raise ValueError(f"{self.output}: expected one of the suffixes {', '.join((*PICTURES, ARRAYS))}")


def attention(settings: AttentionSettings, reporter: Reporter = SILENT) -> Attention:
    """Write the attention weights of a text as a picture or as arrays; return the weights that were written.

    Raises ValueError for an existing file, for a layer or head that the model does not have, and as `Bert.attention`.
    """
    check_absent(settings.output)
    folder = model_folder(settings.model)
    from bertwright.inference.bert import load_in
    from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        model = load_in(context, folder)
        attended = model.attention(settings.text, settings.text_pair)
    for axis, (name, number) in enumerate((("layer", settings.layer), ("head", settings.head))):
        if number is not None:
            count = attended.weights.shape[axis]
            if number > count:
                raise ValueError(f"--{name}: expected 1 to {count}, got {number}")
            attended = attended._replace(weights=attended.weights.take([number - 1], axis))
    if settings.output.suffix == ARRAYS:
        with new_file(settings.output) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, tokens=np.array(attended.tokens), weights=attended.weights)
    else:
        write_picture(_figure(settings, attended), settings.output, reporter)
    layers, heads, tokens, _ = attended.weights.shape
    reporter.record(Line(f"{settings.output}: layers {layers}, heads {heads}, tokens {tokens}"))
    return attended


def _figure(settings: AttentionSettings, attended: Attention) -> Figure:
    """Draw a panel for each layer and head; darker is more."""
    with needs("plot", "a picture"):
        from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    layers, heads, tokens, _ = attended.weights.shape
    single = layers == heads == 1
    side = SINGLE_INCHES if single else PANEL_INCHES
    figure = Figure(figsize=(heads * side + 0.8, layers * side + 0.8), layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False)
    for (row, column), panel in np.ndenumerate(panels):
        panel.imshow(attended.weights[row, column], vmin=0, vmax=1, cmap="Blues")
        panel.set_xticks([])
        panel.set_yticks([])
        if column == 0:
            panel.set_ylabel(f"layer {settings.layer or row + 1}")
        if row == 0:
            panel.set_title(f"head {settings.head or column + 1}", fontsize="medium")
        if tokens <= (TICKS if single else PANEL_TICKS):
            _label_tokens(panel, attended.tokens, "medium" if single else "xx-small", row == layers - 1, column == 0)
    return figure


def _label_tokens(panel: Axes, tokens: tuple[str, ...], size: str, below: bool, left: bool) -> None:
    """Write the attended tokens below a panel and the attending ones at its left; "$" starts no formula."""
    style = {**text_style(), "fontsize": size}
    if below:
        panel.set_xticks(range(len(tokens)), tokens, rotation=90, **style)
    if left:
        panel.set_yticks(range(len(tokens)), tokens, **style)
