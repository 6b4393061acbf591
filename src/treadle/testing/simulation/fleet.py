"""One run of a whole fleet under one seed: its workers, its program, its faults, and the violations at the end."""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from treadle.core.errors import StorageError, StorageUnavailable
from treadle.core.job import Job
from treadle.core.model import Record
from treadle.core.query_model import Query
from treadle.policy.parts import is_part
from treadle.storage.contract import Storage
from treadle.testing.given_storage import GROUP, UNFINISHED, rows_of
from treadle.testing.history import Entry, History, Violation, brief, check
from treadle.testing.history.jobs import is_own
from treadle.testing.payloads import in_test
from treadle.testing.simulation.arguments import (
    check_encoded,
    check_repeatable,
    check_result,
    check_scenario,
    check_spawned,
    name_of,
)
from treadle.testing.simulation.faults import FLIPS, Fault, Flips
from treadle.testing.simulation.loop import ACTOR, SimulatedLoop, Stuck
from treadle.testing.simulation.network import Line, Network
from treadle.testing.simulation.slot import Slot
from treadle.testing.simulation.stage import Stage, alone, borrowed, seeded

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.resources import Overrides

T = TypeVar("T")

MORNING = 1_700_000_000.0  # time of the storage's clock at the beginning
PAUSE = 0.05  # seconds before a failed call is repeated
WRONG = 0.4  # leases after which a clock step is reverted
FRAMES = 8  # frames that are shown of a traceback
HERE = os.path.dirname(__file__)
AFTER = 3  # leases after the end of the scenario during which faults still happen
CALLBACK = "Exception in callback"  # only these loop errors count; exceptions of the program's own tasks do not


class Case(Struct, frozen=True):
    """All inputs of a run: with the same program, the same case gives the same run.

    size  the amount of work in the scenario, see `Simulation.size`
    """

    seed: int
    size: int
    workers: int
    faults: tuple[Fault, ...] = ()


class Settings(Struct, frozen=True, kw_only=True):
    """The settings common to all runs; their names are those of `simulate`."""

    app: Callable[[], App]
    scenario: Callable[[Simulation], Awaitable[Any]]
    invariants: Sequence[Callable[[Simulation], Any]] = ()
    concurrency: int
    lease: float
    patience: float
    connect: Callable[[Callable[[], float]], Storage]
    options: Mapping[str, Any] = {}
    overrides: Overrides = {}


class Found(Struct, frozen=True):
    """The result of one run; `runs`: number of runs of jobs, `faults`: number of faults that happened."""

    case: Case
    violations: tuple[Violation, ...]
    runs: int
    faults: int


class Simulation:
    """One fleet under one seed, as its scenario and the invariants see it.

    app     the app under test
    rng  a random.Random of this seed, for the scenario's own choices
    size    amount of work, 1 or more; a failure is tried again with less
    rows    every row of the storage, at the end
    """

    def __init__(self, case: Case, settings: Settings) -> None:
        self.app = settings.app()  # before the event loop is made, because it may raise
        self.case, self._settings = case, settings
        self.seed, self.size = case.seed, case.size
        self.rng = random.Random(f"{case.seed} scenario")
        self._loop = SimulatedLoop(random.Random(f"{case.seed} loop"))
        self._faults = random.Random(f"{case.seed} faults")
        self._ahead = 0.0  # seconds that the storage's clock was set ahead
        self._ahead_since = 0.0  # the loop's time of the last step
        self._unnoticed = 0.0  # seconds that it was ahead while no heartbeat reached the storage
        self._storage = settings.connect(self.now)
        self._network = Network(self._storage, self._loop, random.Random(f"{case.seed} network"))
        self._slots = [Slot(self, number) for number in range(case.workers)]
        self._spawned: list[asyncio.Task[Any]] = []
        self._errors: list[BaseException] = []
        self.cause: BaseException | None = None  # the first exception of the scenario or of an invariant
        self._healed = False
        self._fallen = 0  # faults other than those of the network
        self.expected: dict[str, str | None] = {}
        self.waiting: set[str] = set()
        self.acted: set[str] = set()
        self.rows: list[Record] = []
        self._texts = in_test(self.app._core.choice.wrap, self.now)
        flips = {(fault.who, int(fault.at)) for fault in case.faults if fault.kind == FLIPS}
        layers = (Flips(flips, self._flipped),) if flips else ()
        self._stage = Stage(self._network, self.now, self._texts, settings.overrides, layers)

    # --- for scenarios

    def now(self) -> float:
        """The time of the storage's clock, in seconds since 1970."""
        return MORNING + self._loop.now + self._ahead

    @property
    def history(self) -> History:
        """The history of the current process: `sim.history.add("step", current().id, name="pay")`."""
        return (ACTOR.get() or self._loop.root).history

    @property
    def entries(self) -> Sequence[Entry]:
        """The history entries of all processes."""
        return self._loop.entries

    async def again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the call until the storage answers, as a program does for a waiting caller.

        A failed call may have been applied, so it needs an id or a key to be repeated safely.
        """
        check_repeatable(call)
        while True:
            try:
                return await call()
            except StorageUnavailable:
                await asyncio.sleep(PAUSE)

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start another process of the program, such as a producer or an operator. It runs until it ends by itself."""
        check_spawned(name, work)
        actor = self._loop.actor(name)
        self._network.connect(actor, Line())
        task = self._loop.start(actor, work)
        self._spawned.append(task)
        return task

    def expect(self, job: Job[Any, Any] | str, value: str | None) -> None:
        """Expect this job to succeed with this encoded value (that of its workflow, if it has one). None: expect it not
        to succeed."""
        check_encoded(value)
        id = job if isinstance(job, str) else job.id
        if not {id, *(up for down, up in self._waits() if down == id)} & self.acted:
            self.expected[id] = value

    def forget(self, job: Job[Any, Any] | str) -> None:
        """Drop all expectations of this job and of those that wait for it by name, because an act changes it."""
        id = job if isinstance(job, str) else job.id
        gone = {id, *(down for down, up in self._waits() if up == id)}
        self.acted |= gone
        for name in gone:
            self.expected.pop(name, None)

    def _waits(self) -> Iterator[tuple[str, str]]:
        """Each job that was enqueued with an upstream, and that upstream."""
        return (
            (entry.id, up) for entry in self.entries if entry.what == "asked" for up in entry.facts.get("after", ())
        )

    def may_wait(self, job: Job[Any, Any] | str) -> None:
        """Allow this job to be unfinished at the end."""
        self.waiting.add(job if isinstance(job, str) else job.id)

    # --- one run

    def run(self) -> Found:
        """Run the whole simulation, and return the violations."""
        loop, noise = self._loop, random.Random(f"{self.seed} noise")
        try:
            with alone(), seeded(loop, noise), borrowed(self.app._core, self._stage, loop, noise, self._failed):
                try:
                    violations = self._lived()
                finally:
                    loop.end()
        finally:
            loop.close()
        runs = sum(entry.what == "began" for entry in loop.entries)
        return Found(self.case, tuple(violations), runs, self._network.faults + self._fallen)

    def _lived(self) -> list[Violation]:
        """Run the fleet from start to end, and return the violations."""
        loop, broken, violations = self._loop, list[Violation](), list[Violation]()
        scenario = check_scenario(self._settings.scenario(self))
        try:
            broken = loop.run_until_complete(loop.start(loop.root, self._life(scenario)))
        except Stuck as error:
            violations.append(Violation("unfinished", str(error), story=self._tail()))
        except Exception as error:  # raised by the scenario: a violation
            violations.append(self._raised("scenario", error))
            self.cause = error
        violations += [self._raised("worker", error) for error in self._errors]
        violations += [self._odd(context) for context in loop.errors if context["message"].startswith(CALLBACK)]
        return violations or broken + self._broken()

    async def _life(self, scenario: Awaitable[Any]) -> list[Violation]:
        await self._storage.open()
        try:
            await self.app.open()
            self._go_wrong()
            for slot in self._slots:
                slot.boot()
            program = self.spawn("program-1", _awaited(scenario))
            self._network.connect(self._loop.actors[-1], self._line_of(-1))
            await self._ended(program)
            await self._rest(AFTER * self._settings.lease)
            self._heal()
            # Only a heartbeat of that time reveals that the clock was ahead. Without one, what was written then is
            # late.
            await self._rest(self._settings.patience + self._unnoticed)
            rows = await rows_of(self._storage, Query(limit=GROUP, order="oldest"))
            self.rows = rows if self._texts is None else await self._texts.readable(rows)
            limits, drifts = await self._storage.limits(), await self._storage.recount()
            self._loop.root.history.add("note", text="all rows are read")  # the rules need the time of this read
        finally:
            for slot in self._slots:
                slot.end()
            await self._storage.close()
        rest: dict[str, Any] = {"expected": self.expected, "waiting": self.waiting, "drifts": drifts}
        return check(self._loop.entries, self.rows, limits, lease=self._settings.lease, **rest)

    async def _ended(self, program: asyncio.Task[Any]) -> None:
        """Wait for the scenario, then for the processes it spawned. Raises what they raise."""
        until = self._loop.now + self._settings.patience
        for task in (program, *self._spawned):
            await asyncio.wait([task], timeout=max(0.0, until - self._loop.now))
            if not task.done():
                raise Stuck(f"the scenario did not end within {self._settings.patience:g} s")
            task.result()

    def _line_of(self, who: int) -> Line:
        line = Line()
        own = (fault for fault in self.case.faults if fault.who == who)
        line.faults = {int(fault.at): fault.kind for fault in own if fault.kind in ("before", "lost", "twice")}
        return line

    def _go_wrong(self) -> None:
        for fault in self.case.faults:
            if fault.kind == "clock":
                self._loop.call_later(fault.at, self._set_clock, fault.seconds)
                self._loop.call_later(fault.at + WRONG * self._settings.lease, self._set_clock, -fault.seconds)

    def _flipped(self) -> bool:
        """Count a fault "flips", and return whether the call raises: not once the faults have ended."""
        self._fallen += not self._healed
        return not self._healed

    def _set_clock(self, seconds: float) -> None:
        if not self._healed:
            if max(self._network.heartbeats.values(), default=0.0) < self._ahead_since:
                self._unnoticed = max(self._unnoticed, self._ahead)
            self._ahead, self._ahead_since = self._ahead + seconds, self._loop.now
            self._fallen += seconds != 0
            self._loop.root.history.add("clock", seconds=seconds)

    def _heal(self) -> None:
        """End all faults, and set the clock right."""
        if self._ahead:
            self._set_clock(-self._ahead)
        self._healed = True
        for slot in self._slots:
            slot.heal()

    async def _rest(self, seconds: float) -> None:
        """Wait until every job that should end has ended, but at most this many seconds."""
        until, pause = self._loop.now + seconds, 0.25
        while self._loop.now < until and await self._works():
            await asyncio.sleep(pause)
            pause = min(pause * 1.25, 30.0)

    async def _works(self) -> bool:
        rows = await rows_of(self._storage, Query(state=UNFINISHED, limit=GROUP, order="oldest"))
        return any(self._should_end(row) for row in rows)

    def _should_end(self, row: Record) -> bool:
        if is_part(row.job):
            return row.job.parent not in self.waiting
        return row.job.id not in self.waiting and not is_own(row)

    # --- violations

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, StorageError):
            self._errors.append(error)

    def _raised(self, where: str, error: BaseException) -> Violation:
        story = (*traced(error), *self._tail())
        return Violation("error", f"{where}: {type(error).__name__}: {error}", story=story)

    def _odd(self, context: Mapping[str, Any]) -> Violation:
        return Violation("error", f"{context.get('message')}: {context['exception']!r}", story=self._tail())

    def _tail(self) -> tuple[str, ...]:
        return tuple(str(entry) for entry in self._loop.entries[-30:])

    def _broken(self) -> list[Violation]:
        """The caller's invariants that do not hold."""
        return [broken for invariant in self._settings.invariants if (broken := self._check(invariant)) is not None]

    def _check(self, invariant: Callable[[Simulation], Any]) -> Violation | None:
        name = name_of(invariant)
        try:
            held = invariant(self)
        except AssertionError as error:
            self.cause = self.cause or error
            text = str(error).partition("\n")[0] or "it does not hold"
            return Violation("invariant", f"{name}: {text}", story=self._story())
        except Exception as error:
            self.cause = self.cause or error
            text = f"{name}: {type(error).__name__}: {error}"
            return Violation("error", text, story=(*traced(error), *self._story()))
        check_result(name, held)
        return None if held is not False else Violation("invariant", f"{name}: it returned False", story=self._story())

    def _story(self) -> tuple[str, ...]:
        return brief([str(entry) for entry in self._loop.entries])


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def traced(error: BaseException) -> tuple[str, ...]:
    """Where the user's code has raised this exception: its last frames, without those of the simulation."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(HERE)]
    return tuple(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames[-FRAMES:])
