"""Figures with their budgets, and the table of them."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

START: Final = "<!-- dashboard: written by `dev.py bench dashboard` -->"
END: Final = "<!-- /dashboard -->"


class Figure(NamedTuple):
    """One measured number; `most`: its budget, None if it has none."""

    what: str
    value: float
    unit: str
    most: float | None = None

    @property
    def is_beyond(self) -> bool:
        return self.most is not None and self.value > self.most

    def row(self) -> str:
        budget = "" if self.most is None else f"{self.most:g} {self.unit}"
        return f"| {self.what} | {self.value:,.2f} {self.unit} | {budget} | {'BEYOND' if self.is_beyond else ''} |"


def table(figures: list[Figure]) -> str:
    return "\n".join(["| | measured | budget | |", "|---|---|---|---|", *(each.row() for each in figures)])


def verdict(figures: list[Figure]) -> int:
    """Print the table -> 1 if a figure is beyond its budget."""
    print(f"\n{table(figures)}")
    beyond = [each.what for each in figures if each.is_beyond]
    print(f"\nbeyond the budget: {'; '.join(beyond)}" if beyond else "\nwithin all budgets")
    return 1 if beyond else 0


def parts(page: Path) -> tuple[str, str]:
    """The text of a page before and after the table. Exits with the reason if it has no marks for it."""
    head, start, rest = page.read_text(encoding="utf-8").partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"--write: {page} has no lines {START!r} and {END!r}, between which the table goes")
    return head + start, end + tail


def write(page: Path, figures: list[Figure]) -> None:
    """Put the table between the marks of a page."""
    head, tail = parts(page)
    words = f"{datetime.now(UTC):%-d %B %Y}, CPython {platform.python_version()}:"
    page.write_text(f"{head}\n\n{words}\n\n{table(figures)}\n\n{tail}", encoding="utf-8")
