"""Requests that are carried out in groups: those that come while one group is under way make up the next.

One task carries the groups out. Whatever ends it, every caller gets an answer or an error, and the next request works:
asyncio cancels the task, its event loop is closed in the middle of a step, the process forks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from treadle.concurrency.spawn import started
from treadle.errors import EventLoopError, StorageUnavailable

T = TypeVar("T")


class Request:
    """What one caller asks for, and the future of its answer."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(self, found: Any) -> None:
        """Give the caller its answer; an Exception is raised there. A caller that has gone gets none."""
        if self.answer.done() or self.answer.get_loop().is_closed():
            return
        if isinstance(found, Exception):
            self.answer.set_exception(found)
            self.answer.exception()  # seen, even if the caller is cancelled before it looks
        else:
            self.answer.set_result(found)


R = TypeVar("R", bound=Request)


class GroupCommit(Generic[R]):
    """The requests of one file, or of one storage.

    name       what is asked, for errors
    carry_out  does what a group asks for and replies to each request; an Exception goes to those without a reply
    pick       takes the next group from those that wait; default: all of them
    left       called on the next event loop where one was closed in the middle of a step
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
        """Begin anew, as in a forked child, which has none of its parent's tasks and threads."""
        self._lock = threading.Lock()  # one call at a time, also over event loops
        self._drop()

    def _drop(self) -> None:
        self._waiting: deque[R] = deque()
        self._task: asyncio.Task[None] | None = None

    # --- asking

    async def ask(self, request: R) -> Any:
        """The reply to this request."""
        self._check_loop()
        self._waiting.append(request)
        if self._task is None:
            self._task = started(self._work(self._waiting))
        return await request.answer

    async def idle(self) -> None:
        """Wait until no request is under way, and no thread of `in_thread`."""
        while True:
            self._check_loop()
            if self._task is not None:
                await asyncio.wait([self._task])
            elif self._lock.locked():  # a thread that outlived its event loop
                await self.in_thread(lambda: None)
            else:
                return

    async def stop(self) -> None:
        """End what is under way in the middle. Those who wait for a reply get an error."""
        waiting, task = self._waiting, self._task
        self._drop()
        self._refuse(waiting, "it was abandoned")
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])

    def _check_loop(self) -> None:
        """Drop what an event loop left that was closed in the middle of a step."""
        there = None if self._task is None else self._task.get_loop()
        if there is None or there is asyncio.get_running_loop():
            return
        if not there.is_closed():
            raise EventLoopError(
                f"{self._name} is in the middle of a call of another event loop: await that call first, or use one "
                "event loop for all calls"
            )
        self._drop()
        self._left()

    # --- one group after the other

    async def _work(self, waiting: deque[R]) -> None:
        try:
            while waiting:
                await self._step(self._pick(waiting))
        finally:
            if self._waiting is waiting:
                self._drop()
                self._go_on([request for request in waiting if not request.answer.done()])

    def _go_on(self, requests: list[R]) -> None:
        """The task was cancelled. Its group has an error; those behind it that anybody still waits for go on."""
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
                StorageUnavailable(
                    f"{self._name}: {why} in the middle of this call, which may have been carried out; repeat it"
                )
            )

    # --- threads

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Do it in a thread, and to its end: a cancelled task waits for it all the same and goes on with the answer.
        One call at a time, also where an event loop was closed while its call was under way."""
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
