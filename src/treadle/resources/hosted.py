"""Runs an asynchronous generator in an asyncio task of its own, from its first line to its last.

Task groups and cancel scopes must be left in the task that entered them. One asyncio task may enter a generator and
another one leave it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from concurrent import futures
from contextvars import Context
from typing import Any, TypeVar

from treadle.concurrency.spawn import started
from treadle.core import interrupts
from treadle.resources.generators import Problem, begin, end

log = logging.getLogger("treadle")

T = TypeVar("T")

CANCELLED = 2.0  # s that a cancelled generator gets to end

RAISED = (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup)
"""The exceptions of providers: all but those that end a coroutine from outside."""


class Exit(Exception):
    """Carries a SystemExit or a KeyboardInterrupt to another asyncio task. asyncio ends the event loop with them if a
    task raises them, and with it the worker and all its jobs."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine. Raises Exit in place of those, and interrupts the loop if it was Ctrl-C."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        interrupts.pass_on(error)
        raise Exit(error) from None


def result_of(done: asyncio.Future[T] | futures.Future[T]) -> T:
    """The result of a task that ran `contained`; for a future of another thread, waits for it. Raises the exception
    that was contained."""
    try:
        return done.result()
    except Exit as exit:
        error = exit.error
    raise error


class Hosted:
    """One generator. `name` and `problem` are for errors, `context` has the context variables that it sees;
    None: those of `enter`."""

    def __init__(
        self, name: str, generator: AsyncGenerator[Any, None], problem: Problem, context: Context | None
    ) -> None:
        self._name, self._generator, self._problem, self._context = name, generator, problem, context
        self._value: Any = None
        self._error: BaseException | None = None  # the error to raise at the yield
        self._entered, self._leaving = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[None] | None = None  # None before `enter`
        self._cancelled = False  # whether this object has cancelled the task

    async def enter(self) -> Any:
        """The value that the generator yields. Raises what it raises. If this call is cancelled, so is the
        generator."""
        self.task = task = started(contained(self._run()), context=self._context)
        entered = asyncio.ensure_future(self._entered.wait())
        try:
            await asyncio.wait([task, entered], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        finally:
            entered.cancel()
        if self._entered.is_set():
            return self._value
        if task.cancelled():
            raise self._problem("cancelled itself")
        result_of(task)
        raise AssertionError("the task of a generator ended before its yield, without an error")

    async def leave(self, error: BaseException | None = None) -> None:
        """Run the code after the yield, with `error` raised there if it is given. Raises what the generator raises. If
        this call is cancelled, so is the generator. If the generator did not reach its yield, it only waits for its
        end: `enter` has raised its error."""
        task, self._error = self.task, error
        if task is None:
            return
        self._leaving.set()
        had_ended = task.done()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self.cancel()
            raise
        if not self._entered.is_set():
            return
        if not task.cancelled():
            result_of(task)
        elif (
            not had_ended and not self._cancelled
        ):  # such as a commit that was cancelled: it is not known whether it was done
            raise self._problem("cancelled itself behind its yield")

    async def cancel(self) -> None:
        """Cancel the generator, and wait until it has ended, at most `CANCELLED` seconds."""
        task = self.task
        if task is None:
            return
        self._cancelled = True
        task.cancel()
        await asyncio.wait([task], timeout=CANCELLED)
        if not task.done():
            log.error("%s ignores its cancellation; it is left running", self._name)
        elif not task.cancelled():
            task.exception()  # seen: the caller raises its cancellation

    @property
    def is_leaving(self) -> bool:
        """Whether `leave` was called."""
        return self._leaving.is_set()

    async def _run(self) -> None:
        self._value = await begin(self._generator, self._problem)
        self._entered.set()
        try:
            await self._leaving.wait()
        except BaseException as error:  # its own task group cancels it, or the event loop ends
            await end(self._generator, error, self._problem)
            here = asyncio.current_task()
            if here is not None and not here.cancelling():  # a task group of its own has cancelled it
                raise self._problem("ended while it was in use") from error
            raise
        await end(self._generator, self._error, self._problem)
