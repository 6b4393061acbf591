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
        else:
            running.cancel()  # without effect once it runs
        raise
    finally:
        nudge.cancel()


def _nudge(loop: asyncio.AbstractEventLoop, running: ThreadFuture[Any]) -> None:
    if not running.done():
        time.sleep(0.0001)
        loop.call_later(NUDGE, _nudge, loop, running)


class Standby:
    """The thread that runs functions for the transactions of a file, and the rest of one whose loop is blocked. It
    leaves ABSENT seconds after the last transaction: to start it for each one costs 1.5 us a job, 8% of a drain."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._home = threading.get_ident()
        self._guard = threading.Lock()  # guards the three attributes below
        self._is_there = False
        self._relay: Relay | None = None  # the transaction that is open
        self._turns = 0  # calls of `attend`
        self._calls = queue.SimpleQueue[Relay | None]()  # transactions that have a function to run; None: leave

    def attend(self, relay: Relay, has_call: bool) -> None:
        """Have the thread watch a transaction until it is over. `has_call`: there is a function to run."""
        if has_call:
            self._calls.put(relay)
        with self._guard:
            self._relay = relay
            self._turns += 1
            needs_thread, self._is_there = not self._is_there, True
        if needs_thread:
            self._pool.submit(self._stand_by)

    def end(self, relay: Relay) -> None:
        """The transaction is over."""
        with self._guard:
            if self._relay is relay:
                self._relay = None

    def leave(self) -> None:
        """Have the thread leave at once."""
        self._calls.put(None)

    def _stand_by(self) -> None:
        waits = threading.get_ident() != self._home  # a simulation runs the calls of its pools in the loop's thread
        while True:
            relay, turns = self._relay, self._turns
            count = relay.count if relay is not None else 0
            try:
                called = self._calls.get(waits, ABSENT)
            except queue.Empty:
                if waits and relay is not None:
                    if relay is self._relay and relay.finish(count):
                        self.end(relay)
                    continue
                called = None
            if called is not None:
                called.call()
                continue
            with self._guard:
                if self._turns == turns:
                    self._is_there = False
                    return


class Relay:
    """Runs the steps of a transaction on the loop. A step yields None for a turn of the loop, or a function to run in
    the thread.

    If the loop takes no turn for ABSENT to 2 * ABSENT seconds, the thread runs the rest of it: code that blocks the
    loop must not keep other processes from writing.

    wanted   what the first step has yielded
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, steps: Steps[Any], wanted: Callable[[], Any] | None, standby: Standby
    ) -> None:
        self._loop, self._steps, self._wanted, self._standby = loop, steps, wanted, standby
        self._stepping = threading.Lock()  # held by the thread that runs a step
        self._calling = threading.Lock()  # held by the thread while it runs a function; taken after `_stepping`
        self.count = 0  # steps that the loop has run
        self._answer: tuple[Any, BaseException | None] = (None, None)  # result and error of the last function
        self._turn: asyncio.Future[None] | None = None  # the loop waits for it
        self._is_busy = False  # the thread does not only wait
        self._end: ThreadFuture[Any] = ThreadFuture()  # the result of the steps

    async def run(self) -> Any:
        """Run the steps -> the result of the last. If the caller is cancelled, they end with that error."""
        self._nudging = self._loop.call_later(NUDGE, self._nudge)
        try:
            while not self._end.done():
                await self._wait()
                if not self._stepping.acquire(blocking=False):
                    await asyncio.shield(asyncio.wrap_future(self._end, loop=self._loop))
                    break
                try:
                    if not self._end.done():
                        self._step()
                        self.count += 1  # counted after the step: during a long step the loop is not absent
                finally:
                    self._stepping.release()
        except (asyncio.CancelledError, GeneratorExit) as error:  # the loop is ending
            self._stop(error)
            raise
        finally:
            self._nudging.cancel()
            self._standby.end(self)
        return self._end.result()

    async def _wait(self) -> None:
        """Let the thread run the function, or the loop take a turn."""
        if self._wanted is None:
            self._standby.attend(self, has_call=False)
            await asyncio.sleep(0)
            return
        self._turn = self._loop.create_future()
        self._standby.attend(self, has_call=True)
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
        with self._stepping, self._calling:
            self._wanted = None
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

    def finish(self, count: int) -> bool:
        """Run all that is left if the loop has run no step after this one. Return whether the transaction is over."""
        with self._stepping:
            if self.count == count and not self._end.done():
                self._is_busy = True
                while not self._end.done():
                    self.call()
                    self._step()
                self._wake()
            return self._end.done()

    def call(self) -> None:
        """Run the function that the last step has yielded, if any."""
        with self._calling:
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
