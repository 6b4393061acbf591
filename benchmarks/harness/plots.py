"""Draws bars as SVG: one panel per storage, one bar per system, with Treadle in another colour.

Bars start at zero on a linear axis, because readers compare their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.harness.goals import number
from benchmarks.harness.keep import Figure

WIDTH, LABEL, VALUE = 760, 150, 120  # px: the picture, the names to the left of the bars, the figures to the right
ROW, BAR, HEAD = 22, 14, 34
OURS, THEIRS, INK, SOFT, PAPER = "#0b6e4f", "#8da0b3", "#1d2733", "#5d6b7a", "#ffffff"


@dataclass(frozen=True)
class Bar:
    name: str
    figure: Figure
    ours: bool


@dataclass(frozen=True)
class Panel:
    title: str
    bars: Sequence[Bar]


def text(
    x: float, y: float, words: str, *, size: int = 12, colour: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(words)}</text>"
    )


def panel(it: Panel, top: float) -> tuple[list[str], float]:
    """The elements of a panel, and where the next one begins."""
    parts = [text(16, top + 18, it.title, size=13, bold=True)]
    most = max((bar.figure.high for bar in it.bars), default=0.0) or 1.0
    room = WIDTH - LABEL - VALUE - 16
    y = top + HEAD
    for bar in it.bars:
        long = room * bar.figure.median / most
        low, high = (LABEL + room * value / most for value in (bar.figure.low, bar.figure.high))
        middle = y + ROW / 2
        parts.append(text(LABEL - 8, middle + 4, bar.name, anchor="end", bold=bar.ours))
        parts.append(
            f'<rect x="{LABEL}" y="{middle - BAR / 2:.1f}" width="{max(1.0, long):.1f}" height="{BAR}" '
            f'rx="2" fill="{OURS if bar.ours else THEIRS}"/>'
        )
        if high - low > 1:
            parts.append(
                f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}m0 -3v6M{low:.1f} {middle - 3:.1f}v6" '
                f'stroke="{INK}" stroke-width="1.2" fill="none"/>'
            )
        parts.append(
            text(max(LABEL + long, high) + 8, middle + 4, number(bar.figure.median), colour=INK, bold=bar.ours)
        )
        y += ROW
    return parts, y + 10


def bars(title: str, unit: str, panels: Sequence[Panel]) -> str:
    """The whole picture. `unit` describes the axis, and which end is better."""
    parts, y = [text(16, 28, title, size=17, bold=True), text(16, 46, unit, colour=SOFT)], 58.0
    for it in panels:
        made, y = panel(it, y)
        parts += made
    height = y + 6
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="system-ui, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )
