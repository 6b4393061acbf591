"""Simulates a whole fleet in one process, in virtual time, with an interleaving chosen by a seed: `simulate`.

Workers, producers and operators are actors on one event loop. Storage answers are lost, calls are applied twice, the
clock is set, and workers stop, stall beyond their leases, or are killed at any await. At the end the checker of
`treadle.testing.history` compares the recorded history with the rows, and the caller's invariants are checked.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import BadOption, TreadleError
from treadle.core.file_urls import url_of
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.testing.history import Violation
from treadle.testing.simulation.arguments import (
    check_numbers,
    check_plain,
    check_worker_options,
    faults_of,
    invariants_of,
    maker_of,
    seeds_of,
)
from treadle.testing.simulation.faults import KINDS, Fault, Kind, drawn
from treadle.testing.simulation.fleet import Case, Found, Settings, Simulation
from treadle.testing.simulation.loop import ACTOR, Actor, SimulatedLoop
from treadle.testing.simulation.slot import crash
from treadle.testing.simulation.stage import uncollected

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.resources import Overrides

__all__ = [
    "ACTOR",
    "KINDS",
    "Actor",
    "Case",
    "Fault",
    "Found",
    "Kind",
    "Report",
    "SimulatedLoop",
    "Simulation",
    "SimulationFailed",
    "Violation",
    "crash",
    "simulate",
]

SHOWN = 3  # violations in a message


class Report(Struct, frozen=True):
    """The totals of a successful simulation: seeds, runs of jobs, faults, and seconds taken."""

    seeds: int
    runs: int
    faults: int
    seconds: float

    def __str__(self) -> str:
        rate = 60 * self.seeds / self.seconds if self.seconds else 0.0
        what = f"{self.seeds:,} seeds, {self.runs:,} runs, {self.faults:,} faults"
        return f"{what} in {self.seconds:.1f} s ({rate:,.0f} seeds/min)"


class SimulationFailed(TreadleError, AssertionError):
    """A seed that breaks a promise or an invariant. Its `__cause__` is the exception of an invariant or the scenario.

    found   the run after shrinking: its case, and its violations with the story of each job
    first   the run of the seed before shrinking
    seeds   number of seeds run, including this one
    """

    def __init__(self, found: Found, first: Found, seeds: int) -> None:
        self.found, self.first, self.seeds = found, first, seeds
        case, rest = found.case, len(found.violations) - SHOWN
        lines = [
            f"seed {case.seed} breaks {', '.join(sorted({violation.rule for violation in found.violations}))}; "
            f"it was number {seeds:,}. Run it alone with seeds=[{case.seed}].",
            f"Shrunk to size {case.size} with {case.workers} worker{'s' if case.workers > 1 else ''}, "
            + ("where nothing goes wrong" if not case.faults else "where"),
            *(f"  {fault}" for fault in case.faults),
            *map(str, found.violations[:SHOWN]),
        ]
        super().__init__("\n".join([*lines, f"... and {rest} more"] if rest > 0 else lines))


def simulate(
    app: App | Callable[[], App],
    scenario: Callable[[Simulation], Awaitable[Any]],
    *,
    seeds: int | Iterable[int] = 200,
    invariants: Iterable[Callable[[Simulation], Any]] = (),
    workers: int = 3,
    concurrency: int = 2,
    size: int = 8,
    faults: Sequence[Kind] = KINDS,
    most_faults: int = 6,
    lease: float = 5.0,
    patience: float = 3_600.0,
    storage: Literal["memory", "sqlite"] = "memory",
    shrink: bool = True,
    progress: Callable[[Report], Any] | None = None,
    options: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
) -> Report:
    """Run the scenario under each seed, with a fleet of the app's workers and random faults.

    app          the app, or a function that makes one for each seed
    scenario     a coroutine function such as `async def buy(sim):` that acts as a program: it enqueues, waits, cancels.
                 Each run begins with an empty storage
    seeds        how many, counted from 0, or which ones
    invariants   plain functions, called with the Simulation once every job has ended. One does not hold if it raises an
                 exception or returns False
    workers      the most workers; the seed picks a number from 1. Each runs up to `concurrency` jobs at once
    options      further options of each `Worker`
    size         the largest `sim.size`; the seed picks one from 1
    faults       kinds of faults, of which up to `most_faults` happen in one run. "flips" is not among the default ones:
                 the function of a step raises an error once, and a later call of the step succeeds
    lease        seconds of virtual time
    patience     seconds of virtual time after the last fault within which every job must have ended
    storage      "sqlite": a file in a temporary folder, made for each seed
    shrink       make a failing case smaller before raising it
    progress     called after each seed
    overrides    functions that replace providers of `depends(...)`, or the lifespan, by what they replace

    Plain functions run on the loop, take no virtual time, and cannot call the app (`enqueue_sync`, steps). Only the
    event loop's time is virtual: a task that blocks, starts threads or calls a real server does so in real time, and
    its seed might not reproduce. There are no transactions and no outbox; blobs are stored in memory. Raises
    SimulationFailed for the first seed that fails, and BadOption for tasks of kind "process" and for wrong options.
    """
    if storage not in ("memory", "sqlite"):
        raise BadOption("storage", f"expected memory or sqlite, found {storage!r}")
    check_numbers(
        {"workers": workers, "concurrency": concurrency, "size": size},
        most_faults,
        {"lease": lease, "patience": patience},
    )
    if progress is not None:
        check_plain("progress", progress)
    check_worker_options(options or {})
    kinds, numbers = faults_of(faults), seeds_of(seeds)
    with tempfile.TemporaryDirectory(prefix="treadle-simulation-") as folder:
        settings = Settings(
            app=maker_of(app, scenario),
            scenario=scenario,
            invariants=invariants_of(invariants),
            concurrency=concurrency,
            lease=lease,
            patience=patience,
            options=dict(options or {}),
            overrides=dict(overrides or {}),
            connect=_memory if storage == "memory" else _Files(Path(folder)),
        )
        begun, report = time.perf_counter(), Report(0, 0, 0, 0.0)
        for seed in numbers:
            run, cause = _run(case_of(seed, size, workers, kinds, most_faults, lease), settings)
            seconds = time.perf_counter() - begun
            report = Report(report.seeds + 1, report.runs + run.runs, report.faults + run.faults, seconds)
            if run.violations:
                raise _failure(run, cause, settings, report.seeds, shrink)
            if progress is not None:
                progress(report)
    if report.seeds and not report.runs:
        warnings.warn(f"no job ran in {report.seeds} seeds; does the scenario await its calls?", stacklevel=2)
    return report


def _run(case: Case, settings: Settings) -> tuple[Found, BaseException | None]:
    """Run one case. Returns the result, and the first exception of the scenario or of an invariant."""
    with uncollected():
        simulation = Simulation(case, settings)
        result = simulation.run(), simulation.cause
        del simulation  # so that it is collected at the end of the block
    return result


def _failure(found: Found, cause: BaseException | None, settings: Settings, seeds: int, shrink: bool) -> Exception:
    """The error for a run with violations, raised from the exception of the run that it shows."""
    causes = {found.case: cause}

    def run(case: Case) -> Found:
        other, causes[case] = _run(case, settings)
        return other

    small = shrunk(found, run) if shrink else found
    failure = SimulationFailed(small, found, seeds)
    failure.__cause__ = causes[small.case]
    return failure


def case_of(seed: int, size: int, workers: int, kinds: tuple[Kind, ...], most: int, lease: float) -> Case:
    """The case that a seed selects."""
    rng = random.Random(f"{seed} case")
    crew = rng.randint(1, workers)
    return Case(seed, rng.randint(1, size), crew, drawn(rng, crew, kinds, most, lease, program=True))


def _memory(now: Callable[[], float]) -> Storage:
    return connect("memory://", now=now)


class _Files:
    """Makes a SQLite file for each run and deletes the file of the previous run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def __call__(self, now: Callable[[], float]) -> Storage:
        for path in self._folder.glob(f"{self._number}.db*"):
            if path.is_file():
                path.unlink()
        self._number += 1
        return connect(f"{url_of(self._folder / f'{self._number}.db')}?synchronous=normal", now=now)


# --- shrinking
#
# Shrinks a failing case: fewer faults, fewer workers and a smaller size, while the same rule is still broken.


TRIES = 200  # most runs


def shrunk(found: Found, run: Callable[[Case], Found]) -> Found:
    """The smallest case found that breaks one of the rules of the first one."""
    rules, tries, again = {violation.rule for violation in found.violations}, 0, True
    while again:
        again = False
        for case in _smaller(found.case):
            if tries == TRIES:
                return found
            tries += 1
            other = run(case)
            if rules & {violation.rule for violation in other.violations}:
                found, again = other, True
                break
    return found


def _smaller(case: Case) -> Iterator[Case]:
    """Smaller cases, those with the largest reductions first."""
    if case.faults:
        yield replace(case, faults=())
    half = len(case.faults) // 2
    if half:
        yield replace(case, faults=case.faults[:half])
        yield replace(case, faults=case.faults[half:])
    for size in sorted({1, case.size // 2, case.size - 1}):
        if 0 < size < case.size:
            yield replace(case, size=size)
    if case.workers > 1:
        workers = case.workers - 1
        yield replace(case, workers=workers, faults=tuple(fault for fault in case.faults if fault.who < workers))
    for index in range(len(case.faults)):
        yield replace(case, faults=case.faults[:index] + case.faults[index + 1 :])
