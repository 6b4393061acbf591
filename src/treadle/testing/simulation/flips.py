"""The fault "flips": a step's function raises once, and a later call of the same step succeeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import TYPE_CHECKING

from treadle.execution.middleware import Middleware
from treadle.testing.simulation.loop import ACTOR

if TYPE_CHECKING:
    from treadle.execution.context import Context


class Flipped(Exception):
    """The error of a call that would succeed in a later run."""


class Flips(Middleware):
    """Raises in place of some calls. `when`: the number of a worker, and the number of the call within that worker.
    `flipped` counts the fault, and returns whether faults still happen."""

    def __init__(self, when: Set[tuple[int, int]], flipped: Callable[[], bool]) -> None:
        self._when, self._flipped = when, flipped
        self._calls: Counter[int] = Counter()

    def step(self, context: Context, name: str) -> None:
        actor = ACTOR.get()
        number = -1 if actor is None else int(actor.name.partition("-")[2].partition(".")[0])
        self._calls[number] += 1
        if (number, self._calls[number]) in self._when and self._flipped():
            raise Flipped(f"{name} is refused this time")
