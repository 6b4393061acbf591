"""Carries out requests in groups: requests that arrive during one group form the next group.

One task carries out the groups. Every caller gets a result or an error, and the next request works, even if the task is
cancelled, its event loop is closed during a step, or the process forks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from treadle.concurrency.spawn import started
from treadle.core.errors import EventLoopError, StorageUnavailable

T = TypeVar("T")


class Request:
    """The request of one caller, and the future of its result."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(self, answer: Any) -> None:
        """Set the caller's result, or raise an Exception there. Does nothing if the caller is gone."""
        if self.answer.done() or self.answer.get_loop().is_closed():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
            self.answer.exception()  # marked as retrieved, in case the caller is cancelled first
        else:
            self.answer.set_result(answer)


R = TypeVar("R", bound=Request)


class GroupCommit(Generic[R]):
    """The requests to one file, or to one storage.

    name       the target, for errors
    carry_out  carries out a group and replies to each request; if it raises an Exception, requests without a reply get
               that
    pick       takes the next group from the waiting requests; default: all of them
    left       called on the next event loop if one was closed during a step
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[list[R]], Awaitable[None]],
        pick: Callable[[deque[R]], list[R]] | None = None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._carry_out, self._pick, self._left = name, carry_out, pick or _all, left
        self.forget()

    def forget(self) -> None:
        """Start without tasks and threads, as a forked child does."""
        self._lock = threading.Lock()  # one call at a time, also across event loops
        self._drop()

    def _drop(self) -> None:
        self._waiting: deque[R] = deque()
        self._task: asyncio.Task[None] | None = None

    # --- requests

    async def ask(self, request: R) -> Any:
        """The reply to this request."""
        self._check_loop()
        self._waiting.append(request)
        if self._task is None:
            self._task = started(self._work(self._waiting))
        return await request.answer

    async def idle(self) -> None:
        """Wait until no request and no thread of `in_thread` is running."""
        while True:
            self._check_loop()
            if self._task is not None:
                await asyncio.wait([self._task])
            elif self._lock.locked():  # a thread that outlived its event loop
                await self.in_thread(lambda: None)
            else:
                return

    def _check_loop(self) -> None:
        """Drop the state of an event loop that was closed during a step."""
        there = None if self._task is None else self._task.get_loop()
        if there is None or there is asyncio.get_running_loop():
            return
        if not there.is_closed():
            raise EventLoopError(
                f"{self._name} is carrying out a call from another event loop: await that call first, or use one "
                "event loop for all calls"
            )
        self._drop()
        self._left()

    # --- one group at a time

    async def _work(self, waiting: deque[R]) -> None:
        try:
            while waiting:
                await self._step(self._pick(waiting))
        finally:
            if self._waiting is waiting:
                self._drop()
                self._go_on([request for request in waiting if not request.answer.done()])

    def _go_on(self, requests: list[R]) -> None:
        """The task was cancelled, and its group got an error. Continue with later requests that have a caller."""
        if requests and not requests[0].answer.get_loop().is_closed():
            self._waiting.extend(requests)
            self._task = started(self._work(self._waiting), loop=requests[0].answer.get_loop())

    async def _step(self, group: list[R]) -> None:
        try:
            await self._carry_out(group)
        except Exception as error:
            for request in group:
                request.reply(error)
        except BaseException as error:
            self._refuse(group, f"it was stopped ({type(error).__name__})")
            raise

    def _refuse(self, requests: list[R] | deque[R], why: str) -> None:
        for request in requests:
            request.reply(
                StorageUnavailable(f"{self._name}: {why} during this call, which may have been carried out; repeat it")
            )

    # --- threads

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Call in a thread, to its end: a task that is cancelled meanwhile still waits, and continues with the result.
        One call at a time, even if an event loop was closed during its call."""
        lock = self._lock

        def alone() -> T:
            with lock:
                return call()

        running = asyncio.get_running_loop().run_in_executor(None, alone)
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        return running.result()


def _all(waiting: deque[R]) -> list[R]:
    group = list(waiting)
    waiting.clear()
    return group
