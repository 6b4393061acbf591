"""A call on the event loop of another thread. The caller awaits it on its own loop, or waits without one.

The other loop may end first or be blocked, and then never respond. So the caller checks that loop while it waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import Final, Generic, TypeVar

from treadle.concurrency.real_threads import are_greenlets, until
from treadle.concurrency.spawn import started
from treadle.core import clock
from treadle.core.errors import EventLoopError, StorageUnavailable

T = TypeVar("T")

LOOK: Final = 0.1  # s between two checks of the other loop
STOPPED: Final = 1.0  # s for which a loop may pause between two `run_until_complete`
BLOCKED: Final = 10.0  # s until a loop that does not begin a call counts as blocked; as long as a SQLite writer waits


class LoopEnded(Exception):
    """The other event loop ended, or cancelled the call, before there was a result."""

    def __init__(self, begun: bool) -> None:
        super().__init__("the event loop ended")
        self.begun = begun  # whether the call was begun


class LoopCall(Generic[T]):
    """One call on the loop `loop`. `wait` and `result` raise the call's own errors, LoopEnded, StorageUnavailable for a
    blocked loop, and EventLoopError for a loop that does not run.

    wanted  called on that loop; if False, the call is not begun, and LoopEnded is raised
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
        self._over = False  # whether the answer has arrived
        self._since = clock.monotonic()
        self._stopped: float | None = None  # when the loop was first found not running; None: it ran at the last check
        try:
            loop.call_soon_threadsafe(self._begin)  # it runs in a copy of the caller's context
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
            self._over = True

    def _fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self._answer.set_exception(error)
        self._over = True

    def _cut(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- for the caller

    def cancel(self) -> None:
        """Cancel the call; its result is ignored. Can be called in any thread."""
        self._cancelled = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cut)

    async def wait(self) -> T:
        """The result, for a caller on another event loop."""
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
        """The result, for a thread without an event loop; blocks the thread."""
        try:
            while True:
                if are_greenlets():  # greenlets may touch the answer only when the other thread is done with it
                    until(lambda: self._over, LOOK)
                with suppress(NotYet):
                    return self._answer.result(0 if are_greenlets() else LOOK)
                if self._answer.done():  # the call itself raised TimeoutError
                    return self._answer.result()
                self._look()
        except BaseException:
            self.cancel()
            raise

    def _look(self) -> None:
        """Raise an error if there will be no result."""
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
        if not self._begun and now - self._since > BLOCKED:
            raise StorageUnavailable(
                f"the event loop on which this app is open has started no call for {BLOCKED:.0f} s: code on it blocks, "
                "or waits for this very call; await there, or call blocking code with asyncio.to_thread"
            )


def stopped() -> EventLoopError:
    """The error for an app that is open on a loop that does not run."""
    return EventLoopError(
        "this app is open on an event loop that was stopped but not closed: `await app.close()` there, or close that "
        "loop, before another loop uses the app; at a prompt or in a notebook, await the method instead of app.sync"
    )


def is_own(thread: int) -> bool:
    """Whether this is the current thread, which cannot wait for its own event loop: it would wait for itself."""
    return thread == threading.get_ident()
