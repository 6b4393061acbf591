"""A call on the event loop of another thread, awaited on this thread's loop or waited for without one.

An answer may never come: the other loop may end first, or be blocked. So the caller looks at that loop while it waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import Final, Generic, TypeVar

from treadle.concurrency.spawn import started
from treadle.core import clock
from treadle.errors import EventLoopError, StorageUnavailable

T = TypeVar("T")

LOOK: Final = 0.1  # seconds between two looks at the other loop
STOPPED: Final = 1.0  # seconds a loop may stand still between two `run_until_complete`
BLOCKED: Final = (
    10.0  # seconds until a loop that does not begin a call counts as blocked; as long as a SQLite writer waits
)


class LoopEnded(Exception):
    """The other event loop ended, or cancelled the call, before there was an answer."""

    def __init__(self, begun: bool) -> None:
        super().__init__("the event loop ended")
        self.begun = begun  # whether it had begun the call


class LoopCall(Generic[T]):
    """One call, made on the loop `loop`. `wait` and `result` raise what the call raises, and LoopEnded,
    StorageUnavailable for a blocked loop, EventLoopError for one that nobody runs.

    wanted  asked on that loop; false: the call is not begun, as what it needs there has ended
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Awaitable[T]],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop, self._work, self._wanted = loop, work, wanted
        self._answer: Future[T] = Future()
        self._task: asyncio.Task[None] | None = None
        self._begun = self._cancelled = False
        self._asked = clock.monotonic()
        self._stopped: float | None = None  # since when nobody runs the loop
        try:
            loop.call_soon_threadsafe(self._begin)  # in a copy of the caller's context
        except RuntimeError:  # it is closed
            raise LoopEnded(False) from None

    # --- on the other loop

    def _begin(self) -> None:
        if not self._wanted():
            self._fail(LoopEnded(False))
        elif not self._cancelled:
            self._begun = True
            self._task = started(self._run(), loop=self._loop)

    async def _run(self) -> None:
        try:
            answer = await self._work()
        except asyncio.CancelledError:
            self._fail(LoopEnded(True))
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            with suppress(InvalidStateError):
                self._answer.set_result(answer)

    def _fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self._answer.set_exception(error)

    def _cut(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- for the caller

    def cancel(self) -> None:
        """The caller does not want the answer any more. May be called in any thread."""
        self._cancelled = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cut)

    async def wait(self) -> T:
        """The answer, for a caller on an event loop of its own."""
        answer = asyncio.wrap_future(self._answer)
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=LOOK)
                self._look()
        except BaseException:
            self.cancel()
            answer.cancel()
            raise
        return answer.result()

    def result(self) -> T:
        """The answer, for a thread without an event loop, which is blocked meanwhile."""
        try:
            while True:
                with suppress(NotYet):
                    return self._answer.result(LOOK)
                if self._answer.done():  # with a TimeoutError of its own
                    return self._answer.result()
                self._look()
        except BaseException:
            self.cancel()
            raise

    def _look(self) -> None:
        """Raise an error if there will be no answer."""
        if self._answer.done():
            return
        now = clock.monotonic()
        if self._loop.is_closed():
            raise LoopEnded(self._begun)
        if self._loop.is_running():
            self._stopped = None
        elif self._stopped is None:
            self._stopped = now
        elif now - self._stopped > STOPPED:
            raise stopped()
        if not self._begun and now - self._asked > BLOCKED:
            raise StorageUnavailable(
                f"the event loop this app is open on has begun nothing new for {BLOCKED:.0f} s: code on it blocks, or "
                "waits for this very call; await there, or call blocking code with asyncio.to_thread"
            )


def stopped() -> EventLoopError:
    """The error for an app that is open on a loop that nobody runs."""
    return EventLoopError(
        "this app is open on an event loop that was stopped and not closed: `await app.close()` there, or close that "
        "loop, before the app is used elsewhere"
    )


def is_own(thread: int) -> bool:
    """Whether that is the thread that runs here: it can run one event loop at a time, so a wait would be for itself."""
    return thread == threading.get_ident()
