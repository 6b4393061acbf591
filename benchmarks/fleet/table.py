"""The tables of `bench fleet`: Markdown that is readable as plain text, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.fleet.judge import Cell, Figure, Figures, Known, Verdict

WIDTH: Final = 100
SIGNS: Final = {"slow": "<", "more": "v", "stuck": "#", "failed": "x"}
LEGEND: Final = (
    "A cell is the ratio to plain, where 1 is as fast; in the row `plain`, and where nothing compares, jobs or calls a "
    "second. Marks: `<` under a third, `v` slower with more workers, `#` stuck, `x` failed; `!` is not a known mark."
)
CPU_LEGEND: Final = (
    "A cell is the CPU of servers + workers, in microseconds, for a plain job or what counts as one. "
    "A busy machine changes it less than the speed."
)
TITLES: Final = {
    "noop": "jobs that do nothing",
    "nap": "jobs of 50 ms",
    "calls": "calls, by worker or producer processes",
}


def page(figures: Figures, verdicts: Sequence[Verdict]) -> str:
    """All tables, then the meaning of each mark."""
    parts = [textwrap.fill(LEGEND, WIDTH)]
    for storage, kind in dict.fromkeys((cell.storage, cell.kind) for cell in figures):
        cells = [cell for cell in figures if (cell.storage, cell.kind) == (storage, kind)]
        shown = {cell: _shown(cell, figures, verdicts) for cell in cells}
        parts.append(f"**{storage}, {TITLES[kind]}**\n\n{grid(shown)}")
    return "\n\n".join([*parts, *_marks(verdicts)])


def grid(shown: Mapping[Cell, str]) -> str:
    """Rows are features or calls; columns are workers and, for drains, their concurrency."""
    columns = sorted({(cell.concurrency, cell.workers) for cell in shown})
    found = {(cell.row, cell.concurrency, cell.workers): text for cell, text in shown.items()}
    rows = dict.fromkeys(cell.row for cell in shown)
    lines = [["", *(_column(slots, workers) for slots, workers in columns)]]
    lines += [[row, *(found.get((row, *column), "") for column in columns)] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns) + 1)]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([_line(lines[0], widths), rule, *(_line(line, widths) for line in lines[1:])])


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
    """The best ratio of the rounds, or the best rate without a baseline."""
    good = [each for each in rounds if not each.error]
    if not good:
        return "-"
    best = max(good, key=lambda each: each.ratio if each.ratio is not None else each.rate)
    return f"{best.rate:,.0f}" if best.ratio is None else f"{best.ratio:.2f}"


def costs(figures: Figures) -> str:
    """Tables of CPU per job, from the round with the lowest."""
    parts = [textwrap.fill(CPU_LEGEND, WIDTH)]
    for storage, kind in dict.fromkeys((cell.storage, cell.kind) for cell in figures if cell.concurrency):
        cells = [cell for cell in figures if (cell.storage, cell.kind) == (storage, kind)]
        shown = {cell: _cost(figures[cell]) for cell in cells}
        parts.append(f"**{storage}, {TITLES[kind]}**\n\n{grid(shown)}")
    return "\n\n".join(parts)


def _cost(rounds: Sequence[Figure]) -> str:
    good = [each for each in rounds if not each.error]
    if not good:
        return "-"
    least = min(good, key=lambda each: each.server + each.workers)
    return f"{least.server:,.0f} + {least.workers:,.0f}"


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
            textwrap.fill(
                f"* {SIGNS[known.mark]} {len(cells)} of {_of(cells)}: {known.reason}", WIDTH, subsequent_indent="  "
            )
            for known, cells in reasons.items()
        ]
        parts.append("**Known**\n\n" + "\n".join(lines))
    return parts


def _of(verdicts: Sequence[Verdict]) -> str:
    storages = dict.fromkeys(each.cell.storage for each in verdicts)
    rows = list(dict.fromkeys(each.cell.row for each in verdicts))
    return f"{', '.join(storages)} ({', '.join(rows[:6])}{', ...' if len(rows) > 6 else ''})"
