"""The tables of `bench fleet`: Markdown that is readable as it is, 100 columns wide at most."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from benchmarks.fleet.judge import Cell, Figure, Figures, Known, Verdict

WIDTH: Final = 100
SIGNS: Final = {"slow": "<", "more": "v", "stuck": "#", "failed": "x"}
LEGEND: Final = (
    "A cell is the ratio to plain, where 1 is as fast; in the row `plain`, and where nothing compares, jobs or calls a "
    "second. Marks: `<` under a third, `v` slower with more workers, `#` stuck, `x` failed; `!` is not a known mark."
)
TITLES: Final = {
    "noop": "jobs that do nothing", "nap": "jobs of 50 ms", "calls": "calls, by worker or producer processes",
}  # fmt: skip


def page(figures: Figures, verdicts: Sequence[Verdict]) -> str:
    """All tables, then what each mark means."""
    parts = [textwrap.fill(LEGEND, WIDTH)]
    for storage, kind in dict.fromkeys((cell.storage, cell.kind) for cell in figures):
        cells = [cell for cell in figures if (cell.storage, cell.kind) == (storage, kind)]
        parts.append(f"**{storage}, {TITLES[kind]}**\n\n{table(cells, figures, verdicts)}")
    return "\n\n".join([*parts, *_marks(verdicts)])


def table(cells: Sequence[Cell], figures: Figures, verdicts: Sequence[Verdict]) -> str:
    """Rows are features or calls, columns are workers and, of drains, their concurrency."""
    columns = sorted({(cell.concurrency, cell.workers) for cell in cells})
    found = {(cell.row, cell.concurrency, cell.workers): cell for cell in cells}
    lines = [["", *(_column(slots, workers) for slots, workers in columns)]]
    for row in dict.fromkeys(cell.row for cell in cells):
        here = [found.get((row, *column)) for column in columns]
        lines.append([row, *(_shown(cell, figures, verdicts) if cell else "" for cell in here)])
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns) + 1)]
    shown = [_line(line, widths) for line in lines]
    return "\n".join([shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]])


def _column(slots: int, workers: int) -> str:
    return f"{workers} x {slots}" if slots else f"{workers}"


def _line(words: Sequence[str], widths: Sequence[int]) -> str:
    cells = [words[0].ljust(widths[0]), *map(str.rjust, words[1:], widths[1:])]
    return f"| {' | '.join(cells)} |"


def _shown(cell: Cell, figures: Figures, verdicts: Sequence[Verdict]) -> str:
    mine = [each for each in verdicts if each.cell == cell]
    signs = "".join(SIGNS[each.mark] for each in mine) + ("!" if any(each.known is None for each in mine) else "")
    return f"{figure(figures[cell])} {signs}".strip()


def figure(rounds: Sequence[Figure]) -> str:
    """The best ratio of the rounds, or the best rate where nothing compares."""
    good = [each for each in rounds if not each.error]
    if not good:
        return "-"
    best = max(good, key=lambda each: each.ratio if each.ratio is not None else each.rate)
    return f"{best.rate:,.0f}" if best.ratio is None else f"{best.ratio:.2f}"


def _marks(verdicts: Sequence[Verdict]) -> list[str]:
    """The new marks one by one, the known ones by reason."""
    parts = []
    if new := [each for each in verdicts if each.known is None]:
        lines = [f"* {SIGNS[each.mark]} {each.cell}: {each.says}" for each in new]
        parts.append(f"**{len(new)} new**\n\n" + "\n".join(lines))
    reasons: dict[Known, list[Verdict]] = {}
    for each in verdicts:
        if each.known is not None:
            reasons.setdefault(each.known, []).append(each)
    if reasons:
        lines = [
            textwrap.fill(f"* {SIGNS[known.mark]} {len(cells)} of {_of(cells)}: {known.reason}", WIDTH,
                          subsequent_indent="  ")
            for known, cells in reasons.items()
        ]  # fmt: skip
        parts.append("**Known**\n\n" + "\n".join(lines))
    return parts


def _of(verdicts: Sequence[Verdict]) -> str:
    storages = dict.fromkeys(each.cell.storage for each in verdicts)
    rows = list(dict.fromkeys(each.cell.row for each in verdicts))
    return f"{', '.join(storages)} ({', '.join(rows[:6])}{', ...' if len(rows) > 6 else ''})"
