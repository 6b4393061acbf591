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


Why = Literal["closed", "unused", "ended", "failed", "handed over"]


PATIENCE: Final = 1.0  # seconds to wait for cancelled calls to end


_guest: ContextVar[Guest | None] = ContextVar(
    "treadle_guest", default=None
)  # in the task of another loop's call: that call


class Guest:
    """A call that comes from another loop. The tasks it starts inherit it through the context."""

    __slots__ = ("host",)

    def __init__(self, host: Ownership) -> None:
        self.host: Ownership | None = host  # None: the call has ended; tasks that it left running are no guests


class GuestEnded(StorageUnavailable, LoopEnded):
    """The app was closed during a call from another loop. `app.sync` repeats such a call."""

    def __init__(self) -> None:
        Exception.__init__(self, "the app was closed during a call from another event loop; repeat the call")
        self.begun = True


class Ownership:
    """One period in which a loop has the storage open."""

    def __init__(self, life: object, loop: Loop, storage: Storage) -> None:
        self.life, self.loop, self.storage, self.thread = life, loop, storage, threading.get_ident()
        self.state: Literal["opening", "open", "closing", "ended"] = "opening"
        self.why: Why | None = None  # the reason why it is closing or has ended
        self.opening: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.waiting = 0  # number of callers that wait until it is open
        self.calls: set[asyncio.Task[Any]] = set()  # tasks of calls from other loops
        self.at_loop_end: AsyncGenerator[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.state == "ended" or self.loop.is_closed()

    def call(self, work: Callable[[], Awaitable[T]]) -> LoopCall[T]:
        """A call that runs `work` on the owning loop, as long as that loop owns the storage."""
        return LoopCall(self.loop, lambda: self._counted(work), self._takes_calls)

    async def _counted(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self._takes_calls():  # closing began after this task was created; it is not in `calls` yet
            raise LoopEnded(False)
        task, guest = asyncio.current_task(), Guest(self)
        assert task is not None
        self.calls.add(task)
        _guest.set(guest)
        try:
            return await work()
        finally:
            guest.host = None
            self.calls.discard(task)

    def _takes_calls(self) -> bool:
        return self.state in ("opening", "open")

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
