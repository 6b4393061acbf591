"""Events of this process, and the listeners that are called for each.

A listener that raises is logged. The job and the other listeners are not affected.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from treadle.core import interrupts
from treadle.core.errors import BadOption
from treadle.core.model import LOST_BY, Record

log = logging.getLogger("treadle")

NAMES: Final = (
    "enqueued",
    "started",
    "succeeded",
    "failed",
    "retrying",
    "paused",
    "deferred",
    "expired",
    "cancelled",
    "lost",
    "waiting",
    "reaped",
    "workflow.ended",
    "workflow.orphaned",
    "worker.started",
    "worker.recycling",
    "worker.stopping",
    "worker.stopped",
    "worker.error",
    "worker.recovered",
)


class Event(Struct, frozen=True, kw_only=True):
    """An event of a job or a worker. `record` is the row as the emitting process knew it; `error` a text or an
    exception. `worker` is the worker that emits the event; for "reaped", the worker that held the lease."""

    name: str
    id: str = ""
    task: str = ""
    queue: str = ""
    attempt: int = 0
    worker: str = ""
    error: str | BaseException | None = None
    delay: float | None = None  # s until the next try: retrying, deferred
    record: Record | None = None
    reason: str | None = None  # worker.recycling: why its process is replaced
    states: dict[str, int] | None = None  # workflow.orphaned: number of its jobs by final state


def was_lost(record: Record) -> bool:
    """Whether the job's last lease expired and nothing was settled since."""
    return record.reason is not None and record.reason.startswith(LOST_BY)


def reaped(record: Record) -> Event:
    """The event of a job whose lease expired; `worker` is empty if the job was settled since."""
    job, worker = record.job, (record.reason or "").removeprefix(LOST_BY) if was_lost(record) else ""
    return Event(
        name="reaped",
        id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=record.attempt + 1,
        worker=worker,
        record=record,
    )


Listener = Callable[[Event], Awaitable[None] | None]


class _Wakeup:
    """Wakes one reader on its event loop, from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    def armed(self) -> asyncio.Event:
        """The event that the next `set` sets. The reader calls this before it checks what has arrived."""
        loop = asyncio.get_running_loop()
        if self._event is None or self._loop is not loop:
            self._loop, self._event = loop, asyncio.Event()
        self._event.clear()
        return self._event

    def set(self) -> bool:
        """Wake the reader, if it waits. False: its event loop has ended."""
        event, loop = self._event, self._loop
        if event is None or loop is None or event.is_set():
            return True
        try:
            if asyncio.get_running_loop() is loop:
                event.set()
                return True
        except RuntimeError:
            pass  # a thread without an event loop
        try:
            loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            return False
        return True


class Emitter:
    """The listeners by event name. `wants(name)` is one look-up, so an event without listeners costs nothing."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self.silent = True  # no listener at all; an attribute, because it is read several times per job
        self._tasks: set[asyncio.Future[None]] = set()

    def on(self, name: str, listener: Listener) -> None:
        """Call `listener` at each event of that name, "*" for all of them. Raises BadOption for an unknown name."""
        if name not in NAMES and name != "*":
            raise BadOption("on", f"unknown event {name!r}; expected one of {', '.join(NAMES)}")
        self._listeners.setdefault(name, []).append(listener)
        self.silent = False

    def off(self, name: str, listener: Listener) -> None:
        """Remove the listener. Does nothing if it was not registered."""
        listeners = self._listeners.get(name, [])
        if listener in listeners:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[name]
                self.silent = not self._listeners

    def wants(self, name: str) -> bool:
        return name in self._listeners or "*" in self._listeners

    def emit(self, event: Event) -> None:
        """Call every listener of the event. A listener that raises is logged; an async one runs as a task of its
        own."""
        for listener in (*self._listeners.get(event.name, ()), *self._listeners.get("*", ())):
            try:
                answer = listener(event)
                if answer is not None and inspect.isawaitable(answer):
                    task = asyncio.ensure_future(self._finish(answer, event.name))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except BaseException as error:  # also SystemExit and CancelledError, which would end the worker
                log.exception("a listener of %r failed; the other listeners received the event", event.name)
                interrupts.pass_on(error)

    @staticmethod
    async def _finish(answer: Awaitable[Any], name: str) -> None:
        try:
            await answer
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # asyncio would raise a SystemExit from the event loop
            log.exception("a listener of %r failed", name)
            interrupts.pass_on(error)

    def stream(self) -> AsyncIterator[Event]:
        """Every event of this process from this call on, whichever thread and event loop it happens in. A reader more
        than 10,000 events behind loses the oldest."""
        events, wake = deque[Event](maxlen=10_000), _Wakeup()

        def take(event: Event) -> None:
            events.append(event)
            if not wake.set():
                self.off("*", take)  # the reader's loop has ended

        async def read() -> AsyncIterator[Event]:
            try:
                while True:
                    arrived = wake.armed()
                    while events:
                        yield events.popleft()
                    await arrived.wait()
            finally:
                self.off("*", take)

        self.on("*", take)
        return read()

    async def settle(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the async listeners that still run on this event loop."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        until = loop.time() + timeout
        while (rest := until - loop.time()) > 0:
            others = [task for task in list(self._tasks) if task is not me and task.get_loop() is loop]
            if not others:
                return
            await asyncio.wait(others, timeout=rest)
