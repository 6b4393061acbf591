"""Something happened: told to whoever listens in this process, and never a danger to what happened.

Without it nobody could count failures or page somebody; with an observer that raises, nothing else would notice.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from treadle.core.model import LOST_BY, Record
from treadle.errors import BadOption

log = logging.getLogger("treadle")

NAMES: Final = (
    "enqueued",
    "started",
    "succeeded",
    "failed",
    "retrying",
    "deferred",
    "expired",
    "cancelled",
    "lost",
    "waiting",
    "lease.expired",
    "workflow.ended",
    "workflow.orphaned",
    "worker.started",
    "worker.stopping",
    "worker.stopped",
    "worker.error",
    "worker.recovered",
)


class Event(Struct, frozen=True, kw_only=True):
    """What happened, to which job or worker. `record` is the row as the teller knew it; `error` a text or exception.
    `worker` is the worker that emits the event; of "lease.expired" the one that held the lease."""

    name: str
    id: str = ""
    task: str = ""
    queue: str = ""
    attempt: int = 0
    worker: str = ""
    error: str | BaseException | None = None
    delay: float | None = None  # s until the next try: retrying, deferred
    record: Record | None = None
    states: dict[str, int] | None = None  # workflow.orphaned: how many of its jobs ended how


def was_lost(record: Record) -> bool:
    """Whether the last lease of this job ran out. Since then nothing was settled."""
    return record.reason is not None and record.reason.startswith(LOST_BY)


def lease_expired(record: Record) -> Event:
    """The event of a job whose lease ran out; without the worker's name if the job was settled since."""
    job, worker = record.job, (record.reason or "").removeprefix(LOST_BY) if was_lost(record) else ""
    return Event(
        name="lease.expired",
        id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=record.attempt + 1,
        worker=worker,
        record=record,
    )


Listener = Callable[[Event], Awaitable[None] | None]


class Emitter:
    """Who listens to what. `wants(name)` is one look-up, so an event nobody asked for costs nothing."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self.silent = True  # nobody listens to anything; a fact, as it is asked for several times a job
        self._tasks: set[asyncio.Future[None]] = set()

    def on(self, name: str, listener: Listener) -> None:
        """Call `listener` at each event of that name, "*" for all of them. Raises BadOption for an unknown name."""
        if name not in NAMES and name != "*":
            raise BadOption("on", f"there is no event {name!r}; there are {', '.join(NAMES)}")
        self._listeners.setdefault(name, []).append(listener)
        self.silent = False

    def off(self, name: str, listener: Listener) -> None:
        """Do not call it any more. Nothing happens if it was not called at all."""
        found = self._listeners.get(name, [])
        if listener in found:
            found.remove(listener)
            if not found:
                del self._listeners[name]
                self.silent = not self._listeners

    def wants(self, name: str) -> bool:
        return name in self._listeners or "*" in self._listeners

    def emit(self, event: Event) -> None:
        """Tell everybody. A listener that raises is logged; an async one runs on its own."""
        for listener in (*self._listeners.get(event.name, ()), *self._listeners.get("*", ())):
            try:
                answer = listener(event)
                if answer is not None and inspect.isawaitable(answer):
                    task = asyncio.ensure_future(self._finish(answer, event.name))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except Exception:
                log.exception("a listener of %r failed; the event went on to the others", event.name)

    @staticmethod
    async def _finish(answer: Awaitable[Any], name: str) -> None:
        try:
            await answer
        except Exception:
            log.exception("a listener of %r failed", name)

    def stream(self) -> AsyncIterator[Event]:
        """Every event of this process from this call on; a reader more than 10,000 behind misses the oldest."""
        queue: asyncio.Queue[Event] = asyncio.Queue(10_000)

        def take(event: Event) -> None:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

        async def read() -> AsyncIterator[Event]:
            try:
                while True:
                    yield await queue.get()
            finally:
                self.off("*", take)

        self.on("*", take)
        return read()

    async def settle(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the async listeners under way; one that never ends must not hold us up."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        until = loop.time() + timeout
        while (others := self._tasks - {me}) and (left := until - loop.time()) > 0:
            await asyncio.wait(others, timeout=left)
