"""One time that an event loop has an app's storage open, and the calls of other loops under way there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeVar

from treadle.concurrency.cross_loop import LoopCall, LoopEnded
from treadle.errors import StorageUnavailable
from treadle.storage.contract import Storage

T = TypeVar("T")


Loop = asyncio.AbstractEventLoop


Why = Literal["closed", "unused", "ended", "failed", "handed over"]


PATIENCE: Final = 1.0  # seconds a cancelled call gets to end


_guest: ContextVar[Guest | None] = ContextVar("treadle_guest", default=None)  # the call of another loop, in its task


class Guest:
    """A call that another loop makes; the tasks it starts inherit it."""

    __slots__ = ("host",)

    def __init__(self, host: Ownership) -> None:
        self.host: Ownership | None = host  # None: the call has ended, and what it left behind belongs to the loop


class GuestEnded(StorageUnavailable, LoopEnded):
    """The app was closed where a call of another loop was under way. `app.sync` makes such a call again."""

    def __init__(self) -> None:
        Exception.__init__(
            self, "the app was closed in the middle of a call of another event loop; make the call again"
        )
        self.begun = True


class Ownership:
    """One time that the storage is open."""

    def __init__(self, life: object, loop: Loop, storage: Storage) -> None:
        self.life, self.loop, self.storage, self.thread = life, loop, storage, threading.get_ident()
        self.state: Literal["opening", "open", "closing", "ended"] = "opening"
        self.why: Why | None = None  # it closes, or ended
        self.opening: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.waiting = 0  # callers that wait until it is open
        self.calls: set[asyncio.Task[Any]] = set()  # of other loops
        self.at_loop_end: AsyncGenerator[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.state == "ended" or self.loop.is_closed()

    def call(self, work: Callable[[], Awaitable[T]]) -> LoopCall[T]:
        """Have this done on the loop that owns the storage, as long as it does."""
        return LoopCall(self.loop, lambda: self._counted(work), self._takes_calls)

    async def _counted(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self._takes_calls():  # it closes since this task was made, and does not know of it
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
        """Nothing may be under way on a loop that ends."""
        for task in self.calls:
            task.cancel()
        if self.calls:
            await asyncio.wait(self.calls, timeout=PATIENCE)

    def check(self) -> None:
        """Raise an error in a call that was under way when somebody closed the app."""
        if self.why == "closed":
            raise StorageUnavailable("the app was closed in the middle of this call; it may have been carried out")
