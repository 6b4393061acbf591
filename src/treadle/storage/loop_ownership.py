"""Represents one period in which an event loop has an app's storage open, and the calls that other loops make there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeVar

from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.core.errors import StorageUnavailable
from treadle.storage.contract import Storage

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop

State = Literal["opening", "open", "closing", "ended"]
Why = Literal["closed", "unused", "ended", "failed", "handed over"]

PATIENCE: Final = 1.0  # seconds to wait for cancelled calls to end

_guest: ContextVar[tuple[Ownership, asyncio.Task[Any]] | None] = ContextVar("treadle_guest", default=None)
"""In the task of a call from another loop, and in the tasks that it starts: the ownership, and the task of the call."""


class GuestEnded(StorageUnavailable, LoopEnded):
    """The app was closed during a call from another loop. `app.sync` repeats such a call."""

    def __init__(self) -> None:
        Exception.__init__(self, "the app was closed during a call from another event loop; repeat the call")
        self.begun = True


class Ownership:
    """One period in which a loop has the storage open. `Lifecycle` changes its `state`.

    opening      the task that opens the storage
    closing      the task that closes it; None: none does
    at_loop_end  closes it when the loop ends
    """

    opening: asyncio.Task[None]
    at_loop_end: AsyncGenerator[None]

    def __init__(self, life: object, loop: Loop, storage: Storage) -> None:
        self.life, self.loop, self.storage, self.thread = life, loop, storage, threading.get_ident()
        self.state: State = "opening"
        self.why: Why | None = None  # the reason why it is closing or has ended
        self.closing: asyncio.Task[None] | None = None
        self.calls: set[asyncio.Task[Any]] = set()  # tasks of calls from other loops

    @property
    def is_over(self) -> bool:
        return self.state == "ended" or self.loop.is_closed()

    @property
    def takes_calls(self) -> bool:
        return self.state in ("opening", "open")

    async def ready(self) -> None:
        """Wait until the storage is open, or this has ended. Raises the error of the opening, and LoopEnded."""
        if self.loop is not asyncio.get_running_loop():
            await LoopCall(self.loop, self.ready).wait()
        elif self.state == "closing" and self.closing is not None:
            await asyncio.wait([self.closing])
        elif self.state == "opening":
            await asyncio.wait([self.opening])
            if not self.opening.cancelled():
                self.opening.result()

    def call(self, work: Callable[[], Awaitable[T]]) -> LoopCall[T]:
        """A call that runs `work` on the owning loop, as long as that loop owns the storage."""
        return LoopCall(self.loop, lambda: self._counted(work), lambda: self.takes_calls)

    async def _counted(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self.takes_calls:  # closing began after this task was created; it is not in `calls` yet
            raise LoopEnded(False)
        task = asyncio.current_task()
        assert task is not None
        self.calls.add(task)
        _guest.set((self, task))
        try:
            return await work()
        finally:
            self.calls.discard(task)

    async def end_calls(self) -> None:
        """Cancel the calls from other loops and wait up to `PATIENCE` seconds for them."""
        for task in self.calls:
            task.cancel()
        if self.calls:
            await asyncio.wait(self.calls, timeout=PATIENCE)

    def check(self) -> None:
        """Raise StorageUnavailable if the app was closed during this call."""
        if self.why == "closed":
            raise StorageUnavailable("the app was closed during this call, which may have been carried out")


def is_guest(life: object) -> bool:
    """Whether the running code belongs to a call that came from another loop while this loop had the storage open."""
    ownership, task = _guest.get() or (None, None)
    if ownership is None or task is None or task.done():  # a task that outlives its call is not a guest
        return False
    return ownership.life is life and ownership.loop is asyncio.get_running_loop()
