"""Pictures with words of any script, written as files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertwright.base.files import new_file
from bertwright.base.reporter import Reporter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
CJK_FONTS = (  # fonts with Korean, Chinese and Japanese, which matplotlib's own font lacks
    "Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo",
    "Hiragino Sans", "Microsoft YaHei", "PingFang SC", "WenQuanYi Zen Hei", "Arial Unicode MS",
)  # fmt: skip


def text_style() -> dict[str, Any]:
    """Return how words are written: "$" starts no formula, and fonts with further scripts are used if installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return {"parse_math": False, "fontfamily": ["sans-serif", *(name for name in CJK_FONTS if name in installed)]}


def write_picture(figure: Figure, path: Path, reporter: Reporter) -> None:
    """Write a figure to a new file, atomically; print a notice if no font has some characters of its tokens."""
    with new_file(path) as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph .* missing")  # matplotlib warns of each character without a font
        figure.savefig(temporary, dpi=130, format=path.suffix[1:])
    if any(str(warning.message).startswith("Glyph") for warning in caught):
        reporter.note(
            "no installed font has some characters of the tokens; they are drawn as boxes unless you install one, such "
            "as Noto Sans CJK for Korean, Chinese and Japanese"
        )
