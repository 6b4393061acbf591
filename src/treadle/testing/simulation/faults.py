"""The faults of one simulation: a list of values drawn from the seed, so that a failing case can be shrunk."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from treadle.execution.middleware import Middleware
from treadle.testing.simulation.loop import ACTOR

if TYPE_CHECKING:
    from treadle.execution.context import Context

DAY = 86_400.0  # seconds

Kind = Literal["kill", "stop", "stall", "before", "lost", "twice", "cut", "clock", "flips"]
KINDS: tuple[Kind, ...] = ("kill", "stop", "stall", "before", "lost", "twice", "cut", "clock")
FLIPS: Final = "flips"
"""The kind that is no fault of the fleet but of the world outside: one call of a step's function raises `Flipped`, and
a later call of the same step succeeds. A simulation has it only if `faults` names it, because jobs may fail with it."""

"""The kinds of faults that a simulation has by default.

kill    the worker ends without any cleanup, after that many steps; another one starts in its place
stop    the worker stops, with a second's grace; another one starts in its place
stall   the worker does not run for `seconds`
before  one call is not applied, and raises StorageUnavailable
lost    one call is applied, and raises StorageUnavailable
twice   one call is applied twice
cut     the calls of `seconds` raise StorageUnavailable; half of them are applied
clock   the clock of the storage steps by `seconds`, and back after two fifths of a lease
"""


class Fault(Struct, frozen=True):
    """One fault.

    who  the number of the worker; -1: the program
    at   when it happens: after that many steps of the worker (kill, stop, stall, cut), at the call with this number
         (before, lost, twice), at the function of the step with this number (flips), or after that many seconds (clock)
    """

    kind: Kind
    who: int = 0
    at: float = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        who = "the program" if self.who < 0 else f"worker {self.who}"
        match self.kind:
            case "clock":
                return f"the clock steps by {self.seconds:+.3f} s after {self.at:.3f} s"
            case "before" | "lost" | "twice":
                what = {"before": "is not applied", "lost": "loses its answer", "twice": "is applied twice"}[self.kind]
                return f"call {self.at:.0f} of {who} {what}"
            case "flips":
                return f"call {self.at:.0f} of a step's function by {who} raises, and a later one does not"
            case "cut" | "stall":
                what = "is cut off" if self.kind == "cut" else "stands still"
                return f"{who} {what} for {self.seconds:.3f} s after {self.at:.0f} steps"
            case _:
                return f"{who} {'is killed' if self.kind == 'kill' else 'is stopped'} after {self.at:.0f} steps"


def drawn(
    rng: random.Random, workers: int, kinds: tuple[Kind, ...], most: int, lease: float, program: bool
) -> tuple[Fault, ...]:
    """Draw up to `most` faults of these kinds; with `program`, also for calls of the program."""
    return tuple(
        _one(rng, rng.choice(kinds), workers, lease, program) for _ in range(rng.randint(0, most) if kinds else 0)
    )


def _one(rng: random.Random, kind: Kind, workers: int, lease: float, program: bool) -> Fault:
    who = rng.randrange(-1 if program else 0, workers)
    match kind:
        case "clock":
            size = rng.choice((0.1, lease, 5 * lease, 60.0, DAY))
            after = rng.choice((0.5, lease, 3 * lease)) * rng.random()
            return Fault(kind, 0, after, rng.choice((-1, 1)) * size * rng.random())
        case "flips":
            return Fault(kind, max(0, who), int(12 * rng.random()) + 1)
        case "before" | "lost" | "twice":
            return Fault(kind, who, int(rng.choice((4, 20, 60)) * rng.random()) + 1)
        case "stall":
            long = rng.choice((0.5 * lease, 1.5 * lease, 4 * lease))
            return Fault(kind, max(0, who), _steps(rng), long * rng.uniform(0.5, 1))
        case "cut":
            return Fault(kind, who, _steps(rng), rng.choice((0.2, lease, 2 * lease)) * rng.random())
        case _:
            return Fault(kind, max(0, who), _steps(rng))


def _steps(rng: random.Random) -> int:
    return int(rng.choice((30, 150, 600)) * rng.random()) + 1


# --- flips
#
# The fault "flips": a step's function raises once, and a later call of the same step succeeds.


class Flipped(Exception):
    """The error of a call that a later run would make with success."""


class Flips(Middleware):
    """Raises in place of some calls. `when`: the number of a worker, and the number of the call among its own;
    `flipped` counts the fault, and says whether it still happens."""

    def __init__(self, when: Set[tuple[int, int]], flipped: Callable[[], bool]) -> None:
        self._when, self._flipped = when, flipped
        self._calls: Counter[int] = Counter()

    def step(self, context: Context, name: str) -> None:
        actor = ACTOR.get()
        number = -1 if actor is None else int(actor.name.partition("-")[2].partition(".")[0])
        self._calls[number] += 1
        if (number, self._calls[number]) in self._when and self._flipped():
            raise Flipped(f"{name} is refused this time")
