"""Gathers the jobs of batch tasks into calls: an item waits for others, one call runs all, each gets its own result.

An item that waits takes no slot of the worker. A call takes one, like a job.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Hashable, Sequence
from concurrent import futures
from typing import Any

from treadle.concurrency import forks
from treadle.concurrency.spawn import started
from treadle.concurrency.threads import Threads
from treadle.core.model import Record
from treadle.durable import IN_BATCH
from treadle.execution import in_thread
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun, batch_here
from treadle.execution.middleware import Middleware, inside_calls
from treadle.tasks.batch_function import answers
from treadle.tasks.core import BatchCore
from treadle.worker.state import WorkerState

Answer = tuple[Any, BaseException | None]


class Seat:
    """One item of a call that is gathered or runs."""

    __slots__ = ("future", "item", "run")

    def __init__(self, run: JobRun, item: Any, future: asyncio.Future[Answer]) -> None:
        self.run, self.item, self.future = run, item, future


class BatchGathering:
    """Items for one call of a batch task."""

    __slots__ = ("begun", "call", "left", "seats", "since", "task", "timer", "waits_for", "why")

    def __init__(self, task: BatchCore, since: float) -> None:
        self.task, self.since = task, since
        self.seats: list[Seat] = []
        self.left = 0  # items whose runs were cancelled while the call ran
        self.timer: asyncio.TimerHandle | None = None
        self.call: asyncio.Task[None] | None = None
        self.why: str | None = None  # why a call in a thread should stop
        self.waits_for: futures.Future[Any] | None = None  # on the event loop, for a call in a thread
        self.begun = False  # the first step of `call` has run; if it is cancelled before, no line of it runs

    def stop(self, why: str | None) -> None:
        """Cancel the call. A function in a thread continues, and its call waits for it, until it is cancelled once more
        at the end of the event loop; what the function waits for on the event loop is cancelled."""
        assert self.call is not None
        self.call.cancel()
        if self.task.runs == "async":
            return
        self.why = why or "stop"
        if self.waits_for is not None:
            self.waits_for.cancel()


class Batches:
    """The batch calls that one worker gathers.

    layers   the middleware that overrides `call`
    patient  False: a call waits only for items that are queued already. For tests.
    """

    def __init__(
        self,
        state: WorkerState,
        threads: Callable[[], Threads],
        layers: Sequence[Middleware] = (),
        patient: bool = True,
    ) -> None:
        self._state, self._threads, self._patient = state, threads, patient
        self._layers = layers
        self._loop = state.loop
        self._open: dict[tuple[str, Hashable], BatchGathering] = {}

    def room(self, task: BatchCore) -> int:
        """How many more items of this task may wait: in all, for all keys together, as many as one call takes."""
        waiting = sum(len(gathering.seats) for (name, _), gathering in self._open.items() if name == task.name)
        return max(0, task.size - waiting)

    @property
    def open(self) -> bool:
        """Whether items wait for others."""
        return bool(self._open)

    def calls(self, task: BatchCore) -> int:
        """How many calls of this task are gathered now."""
        return sum(name == task.name for name, _ in self._open)

    def waits(self, run: JobRun) -> bool:
        """Whether this item waits for others, so that its call has not begun."""
        return any(seat.run is run for gathering in self._open.values() for seat in gathering.seats)

    def gathering(self) -> tuple[tuple[str, float, float], ...]:
        """For each task with waiting items: its name, the seconds its first item has waited, and the seconds until
        the last of its calls begins at the latest."""
        now = self._loop.time()
        waits: dict[str, tuple[float, float]] = {}
        for (name, _), gathering in self._open.items():
            if gathering.timer is not None:
                waited, remaining = waits.get(name, (0.0, 0.0))
                waits[name] = max(waited, now - gathering.since), max(remaining, gathering.timer.when() - now)
        return tuple((name, *times) for name, times in waits.items())

    def looked(self, records: Sequence[Record]) -> None:
        """A claim brought these jobs. Unless `patient`, begin the calls of tasks that got no new item."""
        if self._patient or not self._open:
            return
        with_new_items = {record.job.task for record in records}
        for key, gathering in list(self._open.items()):
            if key[0] not in with_new_items:
                self._begin(key, gathering)

    async def join(self, task: BatchCore, run: JobRun, item: Any) -> Any:
        """Add an item to a call, and return its own result when the call has ended. Raises the exception that the
        function returned for this item, or raised.

        An item that is cancelled while it waits leaves. While the call runs, it stays until the call has ended, because
        no other worker may run it meanwhile. The call is cancelled when all its items are.
        """
        run.place = IN_BATCH
        key = task.name, None if task.by is None else task.by(item)
        gathering = self._open.get(key) or self._new(key, task)
        seat = Seat(run, item, self._loop.create_future())
        gathering.seats.append(seat)
        if len(gathering.seats) >= task.size:
            self._begin(key, gathering)
        elif not self._patient:
            self._state.wake.set()  # claim again; without new items the call begins
        try:
            value, error = await asyncio.shield(seat.future)
        except asyncio.CancelledError:
            if gathering.call is None:
                self._leave(key, gathering, seat)
                raise
            gathering.left += 1
            if gathering.left == len(gathering.seats) and gathering.begun:
                gathering.stop(run.why)
            await asyncio.wait([seat.future])
            value, error = seat.future.result()
            if error is not None or run.why != "stop":
                raise
        if error is not None:
            raise error
        return value

    def _new(self, key: tuple[str, Hashable], task: BatchCore) -> BatchGathering:
        gathering = self._open[key] = BatchGathering(task, self._loop.time())
        if self._patient:
            gathering.timer = self._loop.call_later(task.max_wait, self._begin, key, gathering)
        self._state.outlasted_by(task.max_wait)
        return gathering

    def _leave(self, key: tuple[str, Hashable], gathering: BatchGathering, seat: Seat) -> None:
        gathering.seats.remove(seat)
        if not gathering.seats:
            self._close(key, gathering)

    def _close(self, key: tuple[str, Hashable], gathering: BatchGathering) -> None:
        del self._open[key]
        if gathering.timer is not None:
            gathering.timer.cancel()

    def _begin(self, key: tuple[str, Hashable], gathering: BatchGathering) -> None:
        self._close(key, gathering)
        # More calls may begin than there are slots, by one for each key: otherwise claimed items would wait behind long
        # jobs.
        self._state.slots.take()
        # Not in the context of the last item.
        context = self._state.job_context()
        gathering.call = started(self._call(gathering), loop=self._loop, context=context)

    async def _call(self, gathering: BatchGathering) -> None:
        task, seats = gathering.task, gathering.seats
        gathering.begun = True
        contexts = tuple(Context(seat.run) for seat in seats)
        batch_here.set(tuple(seat.run for seat in seats))
        results: list[Any]
        process_tag = forks.tag
        use, needs, entered = self._state.resource_use, task.needs, False
        try:
            if use is not None and needs is not None:
                await use.enter(needs.uses)
                entered = True
            if gathering.left == len(seats):
                raise asyncio.CancelledError
            answer = await self._run(gathering, contexts)
            if forks.tag is not process_tag:
                forks.end()
            results = answers(task.name, answer, len(seats))
        except BaseException as error:
            if forks.tag is not process_tag:
                forks.end(error)
            for seat in seats:
                seat.future.set_result((None, error))
        else:
            for seat, result in zip(seats, results, strict=True):
                seat.future.set_result((None, result) if isinstance(result, Exception) else (result, None))
        finally:
            if entered and use is not None and needs is not None:
                use.release(needs.uses)
            self._state.slots.release()
            self._state.wake.set()

    async def _run(self, gathering: BatchGathering, contexts: Sequence[Context]) -> Any:
        task, seats = gathering.task, gathering.seats
        function, items, is_async = task.function, [seat.item for seat in seats], task.runs == "async"
        site = seats[0].run.site
        if task.injector is not None and site is not None:
            function = task.injector.bound_to(site, function, is_async, gathering)
        if self._layers:
            function = inside_calls(self._layers, contexts, function, is_async)
        if is_async:
            return await function(items)
        here = contextvars.copy_context()
        return await in_thread(self._threads(), lambda: here.run(function, items), task.name, lambda: True)
