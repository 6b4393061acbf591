"""Waits in several asyncio tasks of one run: when the run may be suspended.

A wait that is not over parks its task. The run is suspended when each of its tasks is parked or waits for such a task,
and no step is in progress. It then waits for all parked waits together, and runs again as soon as one may be over.

The tasks of a run are that of its function, those that have used durable code, and those that these await. If one of
them awaits anything else, such as a reply over the network, the run is not suspended: it keeps its slot, and looks at
its waits every second until that task is parked or has ended. A lock, event or queue of asyncio counts as a wait for
another task if a parked task holds it in a variable.

In a cleanup, a task is also parked where the history of its ended job ends. When nothing else can happen in the run,
all of these tasks go on together, and each raises the ending of the job. Each TaskGroup among them is aborted then, so
that it cancels its tasks here: it would do that when the first one ends, and cut off what the others do to clean up.

A program whose path would depend on the time of a run is refused: `asyncio.timeout` and `asyncio.wait_for` around a
wait, and asyncio's ways to take the first of several tasks.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
from asyncio import locks, queues, tasks
from collections.abc import Iterator
from types import AsyncGeneratorType, GeneratorType, MethodType
from typing import Any, Final, NamedTuple

from treadle.core.errors import BadStep
from treadle.durable.backend import Suspend
from treadle.durable.checkpoints import StepRequest
from treadle.durable.pending import Pending, first_of
from treadle.durable.step_taker import StepTaker
from treadle.durable.waits import Wait

LOOK: Final = 1.0  # s between two looks at the waits of a run that something else keeps from being suspended
DEPTH: Final = 3  # references from the frames of a parked task to a lock that it holds
REACHED: Final = 2_000  # objects that are looked at for that

TIMED: Final = "asyncio.timeout and asyncio.wait_for begin anew in each run; write `async with current().timeout(...)`"
RACED: Final = "asyncio takes what is done first, which may differ in the next run; use current().first or as_completed"
_PRIMITIVES: Final = (locks.__file__, queues.__file__)
_GENERATORS: Final = (GeneratorType, AsyncGeneratorType)


class Parked(NamedTuple):
    """A task that waits. `wait`: None if it is where the history ends."""

    request: StepRequest
    wait: Wait | None
    pending: Pending | None
    over: asyncio.Future[None]


class Refused(Exception):
    """A task awaits a wait in a way that a later run could not repeat."""


class Parking:
    """The parked tasks of one run."""

    def __init__(self, run: StepTaker) -> None:
        self._run = run
        self._parked: dict[asyncio.Task[Any], Parked] = {}
        self._check: asyncio.Handle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_held = False  # the parked waits are short, and are looked at when the first one is over
        self.has_ended = False
        self._groups: list[asyncio.TaskGroup] = []  # those in which the tasks were at the last look at the end
        self._is_quiet = False  # nothing could happen at the last look; callbacks that were due then have run since

    async def park(self, request: StepRequest, wait: Wait | None = None, pending: Pending | None = None) -> None:
        """Park this task. Returns when it should look again, or raise the ending. Raises Suspend or CancelledError if
        the run is suspended, and BadStep."""
        task = asyncio.current_task()
        assert task is not None
        over = self._run.backend.loop.create_future()
        self._parked[task], self._is_quiet = Parked(request, wait, pending, over), False
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
        run = self._run.run
        if not self._parked or self._is_held or run.suspended_as is not None:
            return
        was_quiet, self._is_quiet = self._is_quiet, False
        is_at_end = any(parked.wait is None for parked in self._parked.values())
        try:
            is_late = any(parked.over.done() for parked in self._parked.values())
            others = None if is_late else self._busy(refuses=not is_at_end)
        except Refused as refused:
            self._run.refuse(str(refused))
            for parked in self._parked.values():
                if not parked.over.done():
                    parked.over.set_exception(BadStep(parked.request.key, str(refused)))
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
        elif self._looking is None and self._run.short_waits.fits(pending := first_of(self.pending)):
            self._is_held = True
            self._looking = self._run.backend.loop.create_task(self._hold(pending))
        else:
            self._suspend()

    def release(self) -> None:
        """Let the tasks go on that are where the history ends."""
        self._busy(refuses=False)
        for group in self._groups:
            group._abort()  # type: ignore[attr-defined]  # its public way to cancel its tasks is to fail
        for parked in self._parked.values():
            if parked.wait is None and not parked.over.done():
                parked.over.set_result(None)

    def _outer(self) -> set[str]:
        """The steps whose functions wait themselves."""
        return {key for parked in self._parked.values() for key in parked.request.branch.outer}

    @property
    def pending(self) -> list[Pending]:
        """The rows and instants that the parked tasks wait for."""
        return [parked.pending for parked in self._parked.values() if parked.pending is not None]

    def _is_done(self, _: object) -> None:
        self.changed()

    def _suspend(self) -> None:
        run, root = self._run, self._run.run.place
        pending = first_of(self.pending)
        run.run.suspended_as = pending.suspended(run.run.record, run.moment())
        for task, parked in self._parked.items():
            if task is root and not parked.over.done():
                parked.over.set_exception(Suspend())
            else:
                parked.over.cancel()
        if isinstance(root, asyncio.Task) and root not in self._parked:
            root.cancel()

    async def _hold(self, pending: Pending) -> None:
        """Wait in memory, and let all tasks look again."""
        try:
            await self._run.short_waits.hold(pending)
        finally:
            self._looking, self._is_held = None, False
        for parked in self._parked.values():
            if parked.wait is not None and not parked.over.done():
                parked.over.set_result(None)
        self.changed()

    async def _look(self) -> None:
        """While something else keeps the run from being suspended: store what the waits need, and look at them."""
        while self._parked:
            await asyncio.sleep(LOOK)
            for task, parked in tuple(self._parked.items()):
                if parked.wait is None or parked.pending is None:
                    continue
                try:
                    if parked.pending.new:
                        await self._run.backend.store_all(parked.pending.new)
                    is_due = parked.pending.until is not None or await parked.wait.look() is None
                except Exception as error:
                    if not parked.over.done():
                        parked.over.set_exception(error)
                    continue
                if is_due and self._parked.get(task) is parked and not parked.over.done():
                    parked.over.set_result(None)

    # --- the tasks of the run

    def _busy(self, refuses: bool) -> list[asyncio.Future[Any]] | None:
        """The futures that the tasks of the run await, without its waits and its tasks. None: a task is about to run.
        Raises Refused if it `refuses`: what a job has done behind its waits is not refused at its end."""
        todo: list[Any] = [task for task in self._run.checkpoints.tasks if not task.done()]
        if isinstance(self._run.run.place, asyncio.Task):
            todo.append(self._run.run.place)
        self._groups, is_late = [], False
        seen, others = set[int](), list[asyncio.Future[Any]]()
        while todo:
            task = todo.pop()
            if id(task) in seen or task.done():
                continue
            seen.add(id(task))
            chain = list(_chain(task))
            if not refuses:
                self._groups += _groups(task, chain)
            elif _is_timed(task, chain):
                raise Refused(TIMED)
            if task in self._parked:
                continue
            waiter = getattr(task, "_fut_waiter", None)
            if waiter is None or waiter.done():
                is_late = True
                continue
            awaited = _awaited(waiter, chain, refuses)
            if awaited is not None:
                todo += [other for other in awaited if isinstance(other, asyncio.Task)]
                others += [other for other in awaited if not isinstance(other, asyncio.Task) and not other.done()]
            elif not self._holds(_primitive(chain)):
                others.append(waiter)
        return None if is_late else others

    def _holds(self, primitive: object) -> bool:
        """Whether a parked task refers to this lock, event or queue in its own frames."""
        if primitive is None:
            return False
        for task in self._parked:
            level: list[Any] = list(_chain(task))
            seen = {id(thing) for thing in level}
            for _ in range(DEPTH):
                below = [thing for thing in gc.get_referents(*level) if id(thing) not in seen]
                if any(thing is primitive for thing in below):
                    return True
                seen |= set(map(id, below))
                if len(seen) > REACHED:
                    break
                level = [thing for thing in below if not isinstance(thing, type | asyncio.AbstractEventLoop)]
        return False


def _chain(task: asyncio.Task[Any]) -> Iterator[Any]:
    """The coroutines of a task, each awaited by the one before it."""
    coroutine: Any = task.get_coro()
    while getattr(coroutine, "cr_frame", None) is not None:
        yield coroutine
        coroutine = coroutine.cr_await


def _is_timed(task: asyncio.Task[Any], chain: list[Any]) -> bool:
    """Whether the task is in a block of `asyncio.timeout` or anyio with a time, in one of these coroutines."""
    return any(_cuts_off(task, manager) for coroutine in chain for manager in _managers(coroutine))


def _managers(coroutine: Any) -> Iterator[Any]:
    """The objects to which a coroutine refers. The managers of the `with` blocks in which it is are among them: its
    frame has the bound method that ends such a block; from Python 3.14 on, the function and the manager."""
    todo, seen = [coroutine], set[int]()
    while todo:
        for thing in gc.get_referents(todo.pop()):
            manager: Any = thing.__self__ if type(thing) is MethodType else thing
            yield manager
            inner = inspect.getattr_static(manager, "gen", None)
            if type(inner) in _GENERATORS and id(inner) not in seen:  # of contextlib.contextmanager
                seen.add(id(inner))
                todo.append(inner)


def _cuts_off(task: asyncio.Task[Any], manager: Any) -> bool:
    """Whether this is the manager of a block with a time that the task has entered and not left."""
    kind = type(manager)
    if issubclass(kind, asyncio.Timeout):
        return manager._task is task and manager._timeout_handler is not None
    if not kind.__module__.startswith("anyio.") or not hasattr(manager, "deadline"):
        return False
    return manager._host_task is task and manager._active and manager.deadline != math.inf


def _groups(task: asyncio.Task[Any], chain: list[Any]) -> Iterator[asyncio.TaskGroup]:
    """The groups of asyncio in whose blocks the task is, in one of these coroutines, or at whose end it waits."""
    inner = chain[-1].cr_frame.f_locals.get("self") if chain else None
    for manager in (inner, *(manager for coroutine in chain for manager in _managers(coroutine))):
        if isinstance(manager, asyncio.TaskGroup) and manager._parent_task is task:
            yield manager


def _awaited(waiter: Any, chain: list[Any], refuses: bool) -> list[Any] | None:
    """The tasks and futures that a task awaits together; None: something else. Raises Refused if it `refuses`."""
    if isinstance(waiter, asyncio.Task):
        return [waiter]
    if hasattr(waiter, "_children"):  # of asyncio.gather
        return list(waiter._children)
    names = [coroutine.cr_code.co_qualname for coroutine in chain if coroutine.cr_code.co_filename == tasks.__file__]
    inner = chain[-1].cr_frame.f_locals if chain else {}
    if any("_wait_for_one" in name for name in names):
        return _refused(RACED, refuses)
    if "wait_for" in names:
        return _refused(TIMED, refuses)
    if "_wait" in names:
        if refuses and inner["timeout_handle"] is not None:
            raise Refused(TIMED)
        if refuses and inner["return_when"] != asyncio.ALL_COMPLETED:
            raise Refused(RACED)
        return list(inner["fs"])
    group = inner.get("self")
    return list(group._tasks) if isinstance(group, asyncio.TaskGroup) else None


def _refused(why: str, refuses: bool) -> list[Any]:
    if refuses:
        raise Refused(why)
    return []


def _primitive(chain: list[Any]) -> object:
    """The lock, event or queue of asyncio for which the last of these coroutines waits; None: it is something else."""
    if not chain or chain[-1].cr_code.co_filename not in _PRIMITIVES:
        return None
    return chain[-1].cr_frame.f_locals.get("self")
