"""Gathers the jobs of batch tasks into calls: an item waits for others, the call is for all, each has its own answer.

Without it a batch task would be called with one item at a time. An item that waits takes no slot of the worker; a call
takes one, like a job.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from treadle.concurrency import forks
from treadle.concurrency.spawn import started
from treadle.core.model import Record
from treadle.durable.steps import IN_BATCH
from treadle.execution.context import Context, enter_batch
from treadle.execution.runner import Threads, in_thread
from treadle.tasks.batch import BatchTask, answers
from treadle.worker.state import WorkerState

Answer = tuple[Any, BaseException | None]


class Seat:
    """One item of a call that is gathered or runs."""

    __slots__ = ("context", "future", "item")

    def __init__(self, context: Context, item: Any, future: asyncio.Future[Answer]) -> None:
        self.context, self.item, self.future = context, item, future


class BatchGathering:
    """Items for one call of a batch task."""

    __slots__ = ("begun", "call", "left", "seats", "since", "task", "timer")

    def __init__(self, task: BatchTask[Any, Any], since: float) -> None:
        self.task, self.since = task, since
        self.seats: list[Seat] = []
        self.left = 0  # items whose runs were cut short while the call ran
        self.timer: asyncio.TimerHandle | None = None
        self.call: asyncio.Task[None] | None = None
        self.begun = False  # a task that is cancelled before its first step never takes it


class Batches:
    """All that one worker gathers.

    patient  False: nobody is waited for who is not in line already. For tests.
    """

    def __init__(
        self,
        state: WorkerState,
        threads: Callable[[], Threads],
        patient: bool = True,
        waits_for: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._state, self._threads, self._patient, self._waits_for = state, threads, patient, waits_for
        self._loop = state.loop
        self._open: dict[tuple[str, Hashable], BatchGathering] = {}

    def room(self, task: BatchTask[Any, Any]) -> int:
        """How many more items may wait here: as many as one call takes, whatever their keys."""
        waiting = sum(len(each.seats) for (name, _), each in self._open.items() if name == task.name)
        return max(0, task.size - waiting)

    @property
    def open(self) -> bool:
        """Whether items wait for others."""
        return bool(self._open)

    def waits(self, context: Context) -> bool:
        """Whether this item is gathered, and its call has not begun."""
        return any(seat.context is context for each in self._open.values() for seat in each.seats)

    def gathering(self) -> tuple[tuple[str, float, float], ...]:
        """Of each task whose items wait: its name, the seconds its first item has waited, and the seconds until
        the last of its calls begins at the latest."""
        now = self._loop.time()
        found: dict[str, tuple[float, float]] = {}
        for (name, _), each in self._open.items():
            if each.timer is not None:
                waited, left = found.get(name, (0.0, 0.0))
                found[name] = max(waited, now - each.since), max(left, each.timer.when() - now)
        return tuple((name, *times) for name, times in found.items())

    def looked(self, records: Sequence[Record]) -> None:
        """A claim brought these, and no more is in line."""
        if self._patient or not self._open:
            return
        fresh = {record.job.task for record in records}
        for key, gathering in list(self._open.items()):
            if key[0] not in fresh:
                self._begin(key, gathering)

    async def join(self, task: BatchTask[Any, Any], context: Context, item: Any) -> Any:
        """The item's own answer, once the call is over. Raises what stands in its place, or what the function raised.

        An item that is cut short while it waits leaves; while the call runs, it stays until that is over, as nobody may
        run it again meanwhile. The call is cancelled when all its items are cut short.
        """
        context.place = IN_BATCH
        key = task.name, None if task.by is None else task.by(item)
        gathering = self._open.get(key) or self._new(key, task)
        seat = Seat(context, item, self._loop.create_future())
        gathering.seats.append(seat)
        if len(gathering.seats) >= task.size:
            self._begin(key, gathering)
        elif not self._patient:
            self._state.wake.set()  # look again, and go when there is nobody
        try:
            value, error = await asyncio.shield(seat.future)
        except asyncio.CancelledError:
            if gathering.call is None:
                self._leave(key, gathering, seat)
                raise
            gathering.left += 1
            if gathering.left == len(gathering.seats) and gathering.begun and task.runs == "async":
                gathering.call.cancel()
            await asyncio.wait([seat.future])
            value, error = seat.future.result()
            if error is not None or context.why != "stop":
                raise
        if error is not None:
            raise error
        return value

    def _new(self, key: tuple[str, Hashable], task: BatchTask[Any, Any]) -> BatchGathering:
        gathering = self._open[key] = BatchGathering(task, self._loop.time())
        gathering.timer = self._loop.call_later(task.max_wait, self._begin, key, gathering)
        self._waits_for(task.max_wait)
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
        # More may begin than there are slots, by one for each key: else items of ours would wait behind long jobs.
        self._state.free -= 1
        # Not in the context of the item that happens to be the last.
        context = self._state.own_context()
        gathering.call = started(self._call(gathering), loop=self._loop, context=context)

    async def _call(self, gathering: BatchGathering) -> None:
        task, seats = gathering.task, gathering.seats
        gathering.begun = True
        enter_batch(tuple(seat.context for seat in seats))
        found: list[Any]
        process = forks.tag
        try:
            if gathering.left == len(seats):
                raise asyncio.CancelledError
            answer = await self._run(task, [seat.item for seat in seats])
            if forks.tag is not process:
                forks.end()
            found = answers(task.name, answer, len(seats))
        except BaseException as error:
            if forks.tag is not process:
                forks.end(error)
            for seat in seats:
                seat.future.set_result((None, error))
        else:
            for seat, each in zip(seats, found, strict=True):
                seat.future.set_result((None, each) if isinstance(each, Exception) else (each, None))
        finally:
            self._state.free += 1
            self._state.wake.set()

    async def _run(self, task: BatchTask[Any, Any], items: list[Any]) -> Any:
        if task.runs == "async":
            return await task.function(items)
        here = contextvars.copy_context()
        return await in_thread(self._threads(), lambda: here.run(task.function, items), task.name, lambda: True)
