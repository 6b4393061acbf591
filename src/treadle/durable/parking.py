"""Waits in several asyncio tasks of one run: when the run may be suspended.

A wait that is not over parks its task. The run is suspended when each of its tasks is parked or waits for such a task,
and no step is in progress. It then waits for all parked waits together, and runs again as soon as one may be over.

The tasks of a run are that of its function, those that have used durable code, and those that these await. If one of
them awaits anything else, such as a reply over the network, the run is not suspended: it keeps its slot, and looks at
its waits every second until that task is parked or has ended.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from treadle.concurrency.spawn import started
from treadle.core.errors import BadStep
from treadle.core.model import Outcome
from treadle.durable.awaits import Refused, groups_of, others_of
from treadle.durable.backend import Suspend
from treadle.durable.checkpoints import StepRequest
from treadle.durable.pending import Pending, first_of
from treadle.durable.step_taker import StepTaker
from treadle.durable.waits import Wait

LOOK: Final = 1.0  # s between two looks at the waits of a run that something else keeps from being suspended


class Parked(NamedTuple):
    """A task that waits. `wait`: None where the history ends, from where it does not go on if `is_for_good`."""

    request: StepRequest
    wait: Wait | None
    pending: Pending | None
    over: asyncio.Future[None]
    is_for_good: bool

    @property
    def is_at_end(self) -> bool:
        """Whether it raises the ending of the job when all others are there, too."""
        return self.wait is None and not self.is_for_good


class Parking:
    """The parked tasks of one run."""

    def __init__(self, run: StepTaker) -> None:
        self._run = run
        self._parked: dict[asyncio.Task[Any], Parked] = {}
        self._check: asyncio.Handle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_held = False  # the parked waits are short, and are looked at when the first one is over
        self.has_ended = False
        self.trusted = frozenset[str]()  # packages, see `others_of`
        self._is_quiet = False  # nothing could happen at the last look; callbacks that were due then have run since

    async def park(
        self, request: StepRequest, wait: Wait | None = None, pending: Pending | None = None, is_for_good: bool = False
    ) -> None:
        """Park this task. Returns when it should look again, or raise the ending. Raises Suspend or CancelledError if
        the run is suspended, and BadStep."""
        task = asyncio.current_task()
        assert task is not None
        over = self._run.backend.loop.create_future()
        self._parked[task], self._is_quiet = Parked(request, wait, pending, over, is_for_good), False
        self.changed()
        try:
            await over
        finally:
            del self._parked[task]
            if not self._parked:
                self.end()

    def changed(self) -> None:
        """A task of the run was parked, or something that it awaited is done."""
        if self._check is None and self._parked and self._run.run.suspended_as is None:
            self._check = self._run.backend.loop.call_soon(self._decide)

    def end(self, for_good: bool = False) -> None:
        """Nothing is parked any more, or (`for_good`) the function has ended."""
        self.has_ended = self.has_ended or for_good
        if self._looking is not None:
            self._looking.cancel()
            self._looking, self._is_held = None, False
        for parked in self._parked.values():
            parked.over.cancel()

    def _decide(self) -> None:
        """Suspend the run if nothing else can happen in it."""
        self._check = None
        if not self._parked or self._is_held or self._run.run.suspended_as is not None:
            return
        was_quiet, self._is_quiet = self._is_quiet, False
        is_at_end = any(parked.is_at_end for parked in self._parked.values())
        try:
            is_late = any(parked.over.done() for parked in self._parked.values())
            others = None if is_late else self._others(refuses=not is_at_end)
        except Refused as refused:
            self._refuse(str(refused))
            return
        if others is None:
            self.changed()  # a task has not had its turn
        elif others or self._run.in_progress(self._outer(), self.changed):
            for other in others:
                other.remove_done_callback(self._is_done)
                other.add_done_callback(self._is_done)
            if self._looking is None:
                self._looking = self._run.backend.loop.create_task(self._look())
        elif not was_quiet:
            self._is_quiet = True
            self.changed()
        elif is_at_end:
            self.release()
        elif self.pending:
            self._wait()
        else:
            self._refuse("nothing else happens in this run")

    def _others(self, refuses: bool) -> list[asyncio.Future[Any]] | None:
        known, root = self._tasks()
        return others_of(known, root, self._parked, refuses=refuses, trusted=self.trusted)

    def _refuse(self, why: str) -> None:
        self._run.refuse(why)
        for parked in self._parked.values():
            if not parked.over.done():
                parked.over.set_exception(BadStep(parked.request.key, why))

    def _wait(self) -> None:
        """Keep the run in memory for a short wait, or suspend it."""
        if not self._run.short_waits.fits(pending := first_of(self.pending)):
            self.suspend(pending.suspended(self._run.run.record, self._run.moment()))
            return
        if self._looking is not None:
            self._looking.cancel()
        self._is_held = True
        self._looking = started(self._hold(pending), loop=self._run.backend.loop)

    def release(self) -> None:
        """Let the tasks go on that are where the history ends."""
        for group in groups_of(*self._tasks()):
            group._abort()  # type: ignore[attr-defined]  # its public way to cancel its tasks is to fail
        for parked in self._parked.values():
            if parked.is_at_end and not parked.over.done():
                parked.over.set_result(None)

    def _tasks(self) -> tuple[list[asyncio.Task[Any]], asyncio.Task[Any] | None]:
        """The tasks that have used durable code, and that of the function; None: a thread runs it."""
        root = self._run.run.place
        known = [task for task in self._run.checkpoints.tasks if not task.done()]
        return known, root if isinstance(root, asyncio.Task) else None

    def _outer(self) -> set[str]:
        """The steps whose functions wait themselves."""
        return {key for parked in self._parked.values() for key in parked.request.branch.outer}

    @property
    def pending(self) -> list[Pending]:
        """The rows and instants that the parked tasks wait for."""
        return [parked.pending for parked in self._parked.values() if parked.pending is not None]

    def _is_done(self, _: object) -> None:
        self.changed()

    def suspend(self, outcome: Outcome) -> None:
        """End the run with this outcome. If a task of the run calls this, it then raises Suspend itself."""
        run, root = self._run, self._run.run.place
        run.run.suspended_as = outcome
        for task, parked in self._parked.items():
            if task is root and not parked.over.done():
                parked.over.set_exception(Suspend())
            else:
                parked.over.cancel()
        if isinstance(root, asyncio.Task) and root not in self._parked and root is not asyncio.current_task():
            root.cancel()

    async def _hold(self, pending: Pending) -> None:
        """Wait in memory, and let all tasks look again."""
        error: Exception | None = None
        try:
            await self._run.short_waits.hold(pending)
        except Exception as failed:
            error = failed
        finally:
            self._looking, self._is_held = None, False
        for parked in self._parked.values():
            if parked.wait is None or parked.over.done():
                continue
            if error is None:
                parked.over.set_result(None)
            else:
                parked.over.set_exception(error)
        self.changed()

    async def _look(self) -> None:
        """While something else keeps the run from being suspended: store what the waits need, and look at them."""
        while self._parked:
            await asyncio.sleep(LOOK)
            for parked in tuple(self._parked.values()):
                if parked.wait is not None and parked.pending is not None and not parked.over.done():
                    await self._look_at(parked.wait, parked.pending, parked.over)

    async def _look_at(self, wait: Wait, pending: Pending, over: asyncio.Future[None]) -> None:
        """Let the task continue if its wait may be over. If the task is cancelled meanwhile, so is the look: it must
        not receive a message for a wait that is cut off."""
        look = self._run.backend.loop.create_task(self._is_due(wait, pending))
        over.add_done_callback(lambda _: look.cancel())
        try:
            await asyncio.wait([look])
        finally:
            look.cancel()
        error = None if look.cancelled() else look.exception()
        if over.done() or look.cancelled():
            return
        if error is not None:
            over.set_exception(error)
        elif look.result():
            over.set_result(None)

    async def _is_due(self, wait: Wait, pending: Pending) -> bool:
        if pending.new:
            if wait.request.key in self._run.checkpoints.unsaved:
                await self._run.backend.save(self._run.run)  # a try looks for its id in the row of its job
            await self._run.backend.store_all(pending.new)
        return pending.until is not None or await wait.look() is None
