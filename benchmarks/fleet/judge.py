"""Judges recorded figures: which cells are marked, and which of the marks are known. Measures nothing.

    slow    less than a third of the baseline
    more    slower with more workers than with the fewest measured
    stuck   jobs were left, and none of them ended for five seconds
    failed  the cell could not be measured

A cell is marked only if each of its rounds is: one slow round on a busy machine does not count.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

SLOW: Final = 1 / 3  # of plain
MORE: Final = 0.8  # of the rate with the fewest workers; smaller differences are noise
STUCK: Final = 5.0  # seconds without an ending
MARKS: Final = ("slow", "more", "stuck", "failed")


class Cell(NamedTuple):
    """The identity of a figure. `concurrency` is 0 for single calls."""

    storage: str
    row: str
    kind: str
    workers: int
    concurrency: int

    def __str__(self) -> str:
        slots = f" x {self.concurrency}" if self.concurrency else ""
        return f"{self.storage}, {self.row}, {self.kind}, {self.workers}{slots}"


@dataclass(frozen=True)
class Figure:
    """One round of a cell. `rate` and `plain` are jobs or calls per second; `plain` is None without a baseline."""

    rate: float = 0.0
    plain: float | None = None
    left: int = 0  # jobs that had not ended at the cut
    quiet: float = 0.0  # seconds from the last ending to the cut
    server: float = 0.0  # us of CPU per plain job
    workers: float = 0.0
    error: str = ""

    @property
    def ratio(self) -> float | None:
        return self.rate / self.plain if self.plain else None


Figures = Mapping[Cell, Sequence[Figure]]  # the rounds of each cell


@dataclass(frozen=True)
class Known:
    """Marks with a known reason. An empty field matches all values.

    `least` is the smallest ratio that the reason explains: to plain for `slow`, to the fewest workers for `more`.
    """

    mark: str
    reason: str
    least: float = 0.0
    storages: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    concurrency: tuple[int, ...] = ()

    def covers(self, cell: Cell, mark: str) -> bool:
        """Whether it explains this mark of this cell."""
        fields = (
            (self.storages, cell.storage),
            (self.rows, cell.row),
            (self.kinds, cell.kind),
            (self.workers, cell.workers),
            (self.concurrency, cell.concurrency),
        )
        return mark == self.mark and all(not some or value in some for some, value in fields)


class Mark(NamedTuple):
    ratio: float  # to plain, or to the fewest workers; 0 for other marks
    says: str


class Verdict(NamedTuple):
    cell: Cell
    mark: str
    says: str
    known: Known | None


class Misnamed(ValueError):
    """An unknown name."""


def named(what: str, name: str, names: Collection[str]) -> str:
    """The name itself if it is one of `names`. Raises Misnamed, which suggests the closest one."""
    if name in names:
        return name
    close = difflib.get_close_matches(name, list(names), 1, 0.4)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise Misnamed(f"{what}: found {name!r}; {meant}expected some of {', '.join(names)}")


def fewest(cell: Cell, figures: Iterable[Cell]) -> Cell:
    """The same cell with the fewest measured workers."""
    return min(each for each in figures if each._replace(workers=cell.workers) == cell)


def marks_of(cell: Cell, figures: Figures) -> dict[str, Mark]:
    """The marks of a cell, each with its figure."""
    rounds = figures[cell]
    if all(each.error for each in rounds):
        return {"failed": Mark(0.0, rounds[-1].error)}
    good = [each for each in rounds if not each.error]
    found = {}
    ratios = [each.ratio for each in good if each.ratio is not None]
    if ratios and max(ratios) < SLOW:
        found["slow"] = Mark(max(ratios), f"{max(ratios):.2f} of plain")
    first = fewest(cell, figures)
    alone = [each.rate for each in figures[first] if not each.error]
    best = max(each.rate for each in good)
    if first != cell and alone and best < MORE * min(alone):
        says = f"{best:,.0f}/s, with {first.workers} {min(alone):,.0f}/s"
        found["more"] = Mark(best / min(alone), says)
    if all(each.left and each.quiet > STUCK for each in good):
        found["stuck"] = Mark(0.0, f"{good[-1].left} jobs left, none ended for {good[-1].quiet:.0f} s")
    return found


def judged(figures: Figures, known: Sequence[Known]) -> list[Verdict]:
    """All marks in the order of the cells, each with the first reason that covers it."""
    found = []
    for cell in figures:
        for name, mark in marks_of(cell, figures).items():
            reasons = (each for each in known if each.covers(cell, name) and mark.ratio >= each.least)
            found.append(Verdict(cell, name, mark.says, next(reasons, None)))
    return found


def outlived(verdicts: Sequence[Verdict], figures: Figures, known: Sequence[Known]) -> list[Known]:
    """Reasons that cover measured cells of which none is marked any more."""
    used = {id(each.known) for each in verdicts}
    return [each for each in known if id(each) not in used and any(each.covers(cell, each.mark) for cell in figures)]


def load(path: Path, names: Mapping[str, Collection[str]]) -> list[Known]:
    """The known marks of a file. `names` has the values allowed in `storages`, `rows` and `kinds`. Raises Misnamed."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_known(each, names) for each in found.get("known", [])]


def _known(entry: dict[str, Any], names: Mapping[str, Collection[str]]) -> Known:
    fields = tuple(Known.__dataclass_fields__)
    for field in entry:
        named("known.toml", field, fields)
    named("known.toml, mark", entry.get("mark", ""), MARKS)
    if not str(entry.get("reason", "")).strip():
        raise Misnamed(f"known.toml: an entry of {entry['mark']!r} has no reason; write one")
    for field, allowed in names.items():
        for name in entry.get(field, ()):
            named(f"known.toml, {field}", name, allowed)
    lists = {field: tuple(value) for field, value in entry.items() if field not in ("mark", "reason", "least")}
    return Known(entry["mark"], entry["reason"], float(entry.get("least", 0.0)), **lists)
