"""Keeps the figures as JSON: a long run can be resumed or split by peer, and the page is made from them.

There is one file per size of run and Python under .bench-cache. A repeated cell replaces the older one.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Kept = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """The median of the rounds, and their range."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found))

    @property
    def spread(self) -> float:
        """The range, as a fraction of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Results:
    """Cells by system, name and round.

    Each has `figures`, or `error` (why there are none), or `absent` (the system does not support it), and how it was
    measured: when, for how long, at which commit, and how busy other processes were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, Kept] = {}
        self.about: dict[str, Kept] = {}  # system -> the description by its adapter
        self.machine: Kept = {}
        if path.exists():
            found = json.loads(path.read_text())
            self.cells, self.about, self.machine = found["cells"], found["about"], found["machine"]

    @staticmethod
    def key(system: str, cell: str, turn: int) -> str:
        return f"{system} {cell} {turn}"

    def put(self, system: str, cell: str, turn: int, kept: Kept) -> None:
        self.cells[self.key(system, cell, turn)] = {"system": system, "cell": cell, "round": turn, **kept}
        self.save()

    def has(self, system: str, cell: str, turn: int) -> bool:
        """Whether it was measured or is unsupported; failures are measured again."""
        found = self.cells.get(self.key(system, cell, turn))
        return found is not None and "error" not in found

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        words = {"machine": self.machine, "about": self.about, "cells": self.cells}
        new.write_text(json.dumps(words, indent=1))
        os.replace(new, self.path)

    # --- reading

    def values(self, system: str, figure: str) -> list[float]:
        """One value for each round that has it."""
        mine = (cell for cell in self.cells.values() if cell["system"] == system)
        return [cell["figures"][figure] for cell in mine if figure in cell.get("figures", ())]

    def figure(self, system: str, figure: str) -> Figure | None:
        values = self.values(system, figure)
        return Figure.of(values) if values else None

    def median(self, system: str, figure: str) -> float | None:
        found = self.figure(system, figure)
        return found.median if found else None

    def errors(self, system: str, cell: str) -> list[str]:
        mine = (it for it in self.cells.values() if it["system"] == system and it["cell"] == cell)
        return [it["error"] for it in mine if "error" in it]

    def took(self, system: str, cell: str) -> float | None:
        """Seconds of the latest measurement."""
        mine = [
            it["took"] for it in self.cells.values() if it["system"] == system and it["cell"] == cell and "took" in it
        ]
        return mine[-1] if mine else None
