"""Runs in a thread what would block the event loop, and the rest of a transaction whose loop is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")
Steps = Generator[Callable[[], Any] | None, Any, T]

NUDGE: Final = 0.005  # seconds after which the loop begins to sleep, so that the thread gets the GIL
ABSENT: Final = 0.05  # seconds without a turn of the loop after which a thread runs the rest of a transaction


async def in_thread(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, call: Callable[[], T], finish: bool = True
) -> T:
    """Run a call in a thread. If it takes long, sleep here now and then: a loop that is busy with short callbacks never
    releases the GIL for long enough. `finish`: wait for the call even if the caller is cancelled."""
    running: ThreadFuture[T] = pool.submit(call)
    waiting = asyncio.wrap_future(running, loop=loop)
    nudge = loop.call_later(NUDGE, _nudge, loop, running)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if finish:
            running.exception()  # a transaction is never left while a thread works in it
        raise
    finally:
        nudge.cancel()


def _nudge(loop: asyncio.AbstractEventLoop, running: ThreadFuture[Any]) -> None:
    if not running.done():
        time.sleep(0.0001)
        loop.call_later(NUDGE, _nudge, loop, running)


class Relay:
    """Runs the steps of a transaction on the loop. A step yields None for a turn of the loop, or a function to run in
    the thread.

    If the loop takes no turn for ABSENT seconds while the transaction is open, the thread runs the rest of it: code
    that blocks the loop must not keep other processes from writing.

    wanted   what the first step has yielded
    is_open  whether the transaction is open
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        steps: Steps[Any],
        wanted: Callable[[], Any] | None,
        is_open: Callable[[], bool],
    ) -> None:
        self._loop, self._steps, self._wanted, self._is_open = loop, steps, wanted, is_open
        self._home = threading.get_ident()
        self._stepping = threading.Lock()  # held by the thread that runs a step
        self._count = 0  # steps that the loop has run
        self._calls = queue.SimpleQueue[bool]()  # True: there is a function to run; False: the transaction is over
        self._answer: tuple[Any, BaseException | None] = (None, None)  # of the last function
        self._turn: asyncio.Future[None] | None = None  # the loop waits for it
        self._is_busy = False  # the thread does not only wait
        self._thread: ThreadFuture[None] | None = None
        self._end: ThreadFuture[Any] = ThreadFuture()  # the result of the steps

    async def run(self, pool: ThreadPoolExecutor) -> Any:
        """Run the steps -> the result of the last. If the caller is cancelled, they end with that error."""
        self._nudging = self._loop.call_later(NUDGE, self._nudge)
        try:
            while not self._end.done():
                await self._wait(pool)
                if not self._stepping.acquire(blocking=False):
                    await asyncio.shield(asyncio.wrap_future(self._end, loop=self._loop))
                    break
                try:
                    if not self._end.done():
                        self._step()
                        self._count += 1  # not before: the loop is not absent during a long step
                finally:
                    self._stepping.release()
        except (asyncio.CancelledError, GeneratorExit) as error:  # the loop is ending
            self._stop(error)
            raise
        finally:
            self._nudging.cancel()
            self._calls.put(False)
        return self._end.result()

    async def _wait(self, pool: ThreadPoolExecutor) -> None:
        """Let the thread run the function, or the loop take a turn."""
        needs_thread = self._thread is None or self._thread.done()
        if self._wanted is None:
            if needs_thread:
                self._thread = pool.submit(self._stand_by)
            await asyncio.sleep(0)
            return
        self._turn = self._loop.create_future()
        if needs_thread:
            self._thread = pool.submit(self._begin)
        else:
            self._calls.put(True)
        if not self._end.done():
            await self._turn

    def _step(self) -> None:
        """Run one step. It must be called under `_stepping`."""
        (answer, error), self._answer = self._answer, (None, None)
        try:
            self._wanted = self._steps.send(answer) if error is None else self._steps.throw(error)
        except StopIteration as stop:
            self._end.set_result(stop.value)
        except BaseException as failed:
            self._end.set_exception(failed)

    def _stop(self, error: BaseException) -> None:
        """Wait for the thread, then end the steps."""
        self._calls.put(False)
        if self._thread is not None and not self._thread.cancel():
            self._thread.exception()
        if not self._end.done():
            self._answer = None, error
            self._step()

    def _take_turn(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def _nudge(self) -> None:
        if self._is_busy:
            time.sleep(0.0001)
        self._nudging = self._loop.call_later(NUDGE, self._nudge)

    # --- in the thread

    def _begin(self) -> None:
        self._call()
        if self._is_open():
            self._stand_by()

    def _stand_by(self) -> None:
        """Until the transaction is over, run functions and, if the loop is blocked, all that is left."""
        if threading.get_ident() == self._home:
            return  # a simulation runs the calls of its pools at once, in the thread of the loop
        while True:
            count = self._count
            try:
                if not self._calls.get(timeout=ABSENT):
                    return
                self._call()
            except queue.Empty:
                with self._stepping:
                    if self._count == count:
                        self._finish()
                        return

    def _finish(self) -> None:
        self._is_busy = True
        while not self._end.done():
            self._call()
            self._step()
        self._wake()

    def _call(self) -> None:
        """Run the function that the last step has yielded, if any."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        self._is_busy = True
        try:
            self._answer = wanted(), None
        except BaseException as error:
            self._answer = None, error
        self._is_busy = False
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take_turn)
