"""Parts of a page of HTML: one file, no script, nothing from elsewhere; every text is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from bertwright.base.messages import escape_control

MAX_TEXT = 400  # characters of a cell
WIDTH, HEIGHT, LEFT, BOTTOM = 440, 230, 62, 28  # of a chart in pixels, and of its margins
LARGEST = 1e300  # of the numbers that a chart can show; no comparison with it holds for NaN
STYLE = """
:root{--text:#1b1f24;--muted:#5b6570;--back:#fff;--line:#d5dae0;--c0:#0b62c4;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce}
@media(prefers-color-scheme:dark){:root{--text:#e6e9ed;--muted:#9aa5b1;--back:#15181c;--line:#3a424b;
--c0:#6db1ff;--c1:#ff9c66;--c2:#5ed08a;--c3:#cf9bff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:64rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.6rem}h2{font-size:1.3rem;border-bottom:1px solid var(--line);margin-top:2.2rem}
h3{font-size:1.05rem;margin-bottom:.3rem}p,figcaption,footer{color:var(--muted);margin:.3rem 0}
.wide{overflow-x:auto;margin:.4rem 0 1.1rem}summary{color:var(--muted);cursor:pointer}
table{border-collapse:collapse;font-size:.9rem}td,th{padding:.2rem .7rem;text-align:right;
border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}
th{color:var(--muted);font-weight:600}.text{text-align:left}td.text{overflow-wrap:anywhere}.charts{display:flex;flex-wrap:wrap;gap:1rem}
figure{margin:0}svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--muted)}
.bar{background:var(--c0);height:.7rem}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def escape(value: object) -> str:
    """Return a value as text of a page: no markup, no control characters, at most MAX_TEXT characters.

    >>> escape("<b>&")
    '&lt;b&gt;&amp;'
    """
    text = str(value)
    return html.escape(escape_control(text[:MAX_TEXT] + ("…" if len(text) > MAX_TEXT else "")))


def make_page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page; `parts`: its content as HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">\n'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def make_table(columns: Sequence[str], rows: Sequence[Sequence[object]], texts: Sequence[int] = (0,)) -> str:
    """Return a table; `texts`: columns with texts instead of numbers."""
    marks = [' class="text"' if number in texts else "" for number in range(len(columns))]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for mark, name in zip(marks, columns, strict=True))
    lines = ["".join(f"<td{m}>{escape(cell)}</td>" for m, cell in zip(marks, row, strict=True)) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def make_bars(shares: Mapping[str, float], unit: str) -> str:
    """Return a table of quantities with their shares of the sum as bars."""
    total = sum(shares.values()) or 1.0
    rows = [
        f'<tr><td class="text">{escape(name)}</td><td>{value:,.2f} {unit}</td><td>{value / total:.1%}</td>'
        f'<td class="text"><div class="bar" style="width:{16 * value / total:.2f}rem"></div></td></tr>'
        for name, value in shares.items()
    ]
    return f"<table>{''.join(rows)}</table>"


def make_chart(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return a figure with a line for each curve of points (x, y), as SVG; a point alone is a dot.

    Points with a number that is infinite or not a number are left out, and the caption counts them.
    """
    drawn = {name: [one for one in curve if all(abs(n) < LARGEST for n in one)] for name, curve in curves.items()}
    points = [point for curve in drawn.values() for point in curve]
    if left_out := sum(map(len, curves.values())) - len(points):
        title, points = f"{title} ({left_out} points left out: infinite or not a number)", points or [(0, 0)]
    (x0, x1), (y0, y1) = (_span([point[axis] for point in points]) for axis in (0, 1))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 12),
            HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - BOTTOM - 12),
        )

    parts = []
    for y in _ticks(y0, y1):
        _, top = place(x0, y)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{top:.1f}" y2="{top:.1f}" stroke="var(--line)"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{top + 4:.1f}" text-anchor="end">{y:,.10g}</text>')
    for x in _ticks(x0, x1):
        left, bottom = place(x, y0)
        parts.append(f'<text x="{left:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{x:,.10g}</text>')
    for number, curve in enumerate(drawn.values()):
        placed, color = [place(*point) for point in curve], f"var(--c{number % 4})"
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        if len(placed) <= 30:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in placed]
    names = (f'<b style="color:var(--c{number % 4})">{escape(name)}</b>' for number, name in enumerate(curves))
    legend = f": {', '.join(names)}" if len(curves) > 1 else ""
    frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(title)}"'
    return f"<figure><figcaption>{escape(title)}{legend}</figcaption><svg {frame}>{''.join(parts)}</svg></figure>"


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers from low to high, two to six of them.

    >>> _ticks(0, 75), _ticks(0.926, 0.95)
    ([0.0, 20.0, 40.0, 60.0], [0.93, 0.935, 0.94, 0.945, 0.95])
    """
    least = (high - low) / 5
    unit = 10 ** math.floor(math.log10(least))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that holds the values; the ends differ."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
