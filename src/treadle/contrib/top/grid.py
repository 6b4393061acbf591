"""Columns of text in a given width: which columns fit, and how wide each is. Pure.

A narrow screen shows fewer columns, never half of one; a text that does not fit ends with an ellipsis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from treadle.core.redaction import in_line

GAP: Final = 2  # cells between two columns
BARS: Final = "▁▂▃▄▅▆▇█"

Tone = Literal["", "dim", "strong", "good", "busy", "warn", "bad"]


class Cell(Struct, frozen=True):
    """A text on one line, and the tone of its colour. The text must be clear alone: a screen may have no colours."""

    text: str
    tone: Tone = ""


class Column(Struct, frozen=True, kw_only=True):
    """A column.

    rank      columns with a higher rank are left out first; those of rank 0 always stay
    least     cells that a column with `stretch` keeps at least, before others are left out
    most      cells that it takes at most
    optional  it is left out if all its cells are empty
    """

    name: str
    rank: int = 0
    right: bool = False
    least: int = 8
    most: int = 40
    stretch: bool = False
    optional: bool = False


class Row(Struct, frozen=True):
    """A row. key: identifies it across refreshes; shows: the object in it, such as a queue."""

    key: str
    cells: tuple[Cell, ...]
    shows: Any = None

    def matches(self, text: str) -> bool:
        """Whether a cell contains the text, without regard to case."""
        return any(text.casefold() in cell.text.casefold() for cell in self.cells)


def cell(value: object, tone: Tone = "") -> Cell:
    """A cell of any value: control characters are escaped, and there are no line breaks."""
    return Cell(in_line(str(value)), tone)


def fit(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[tuple[int, int]]:
    """The columns that fit into `width` cells: (index, cells), in their order."""
    natural = [
        min(column.most, max([cell_len(column.name), *(cell_len(row.cells[index].text) for row in rows)]))
        for index, column in enumerate(columns)
    ]
    least = [min(wide, columns[index].least) if columns[index].stretch else wide for index, wide in enumerate(natural)]
    kept = [
        index
        for index, column in enumerate(columns)
        if not column.optional or any(row.cells[index].text for row in rows)
    ]
    while _sum(kept, least) > width:
        droppable = [index for index in kept if columns[index].rank]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda index: (columns[index].rank, index)))
    widths = {index: natural[index] for index in kept}
    for index in sorted(kept, key=lambda index: (not columns[index].stretch, -index)):
        over = _sum(kept, widths) - width
        if over > 0:
            widths[index] = max(1, least[index] if columns[index].stretch else 1, widths[index] - over)
    return [(index, widths[index]) for index in kept]


def _sum(kept: Sequence[int], widths: Sequence[int] | dict[int, int]) -> int:
    return sum(widths[index] for index in kept) + GAP * (len(kept) - 1)


def padded(text: str, width: int, right: bool = False) -> str:
    """The text in exactly `width` cells."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    return " " * (width - size) + text if right else text + " " * (width - size)


def spark(values: Sequence[float], width: int) -> str:
    """A line of bars, the newest value last. Nothing is the lowest bar, and anything else is higher.

    With more values than cells, neighbours are added up. The first bar may then be of fewer values than the others.
    """
    if not values or width <= 0:
        return ""
    size = -(-len(values) // width)
    rest = len(values) % size
    first = [sum(values[:rest])] if rest else []
    sums = first + [sum(values[index : index + size]) for index in range(rest, len(values), size)]
    most = max(sums)
    return "".join(BARS[0] if value <= 0 else BARS[1 + round((len(BARS) - 2) * value / most)] for value in sums)


def gauge(used: float, whole: float, width: int = 8) -> str:
    """A bar that shows how much of the whole is used. Anything above 0 fills one cell at least."""
    if whole <= 0:
        return ""
    share = min(1.0, max(0.0, used / whole))
    full = min(width, max(round(share * width), 1 if used > 0 else 0))
    return "█" * full + "░" * (width - full)
