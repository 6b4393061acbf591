"""Figures with their budgets, and the table of them."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness.marked_page import Section

SECTION: Final = Section("<!-- dashboard: written by `dev.py bench dashboard` -->", "<!-- /dashboard -->")


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


def write(page: Path, figures: list[Figure]) -> None:
    """Put the table between the marks of a page. Raises Unmarked."""
    words = f"{datetime.now(UTC):%-d %B %Y}, CPython {platform.python_version()}:"
    SECTION.write(page, f"{words}\n\n{table(figures)}")
