"""What has been measured, kept as JSON: a long run can be resumed, or done peer by peer, and the page is made of it.

One file for each size of run and each Python under .bench-cache; a cell measured again replaces the older one.
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
    """The median of the rounds, and how far they lie apart."""

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
        """From the lowest to the highest, in parts of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Results:
    """Cells by system, name and round.

    Each holds `figures`, or `error` (why there are none) or `absent` (the system has no such thing), and how it was
    measured: when, how long it took, at which commit, and how busy others were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, Kept] = {}
        self.about: dict[str, Kept] = {}  # system -> what its adapter said
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
        """Whether it was measured, or cannot be; a failure is tried again."""
        found = self.cells.get(self.key(system, cell, turn))
        return found is not None and "error" not in found

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        words = {"machine": self.machine, "about": self.about, "cells": self.cells}
        new.write_text(json.dumps(words, indent=1))
        os.replace(new, self.path)

    # --- looking

    def values(self, system: str, figure: str) -> list[float]:
        """One for each round that has it."""
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
        """How long it took when it was last measured."""
        mine = [
            it["took"] for it in self.cells.values() if it["system"] == system and it["cell"] == cell and "took" in it
        ]
        return mine[-1] if mine else None
