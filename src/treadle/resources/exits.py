"""Passes SystemExit and KeyboardInterrupt on from one asyncio task to another.

asyncio ends the event loop with them if a task raises them, and with it the worker and all its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent import futures
from typing import Any, TypeVar

from treadle.core import interrupts

T = TypeVar("T")

RAISED = (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup)
"""The exceptions of providers: all but those that end a coroutine from outside."""


class Exit(Exception):
    """Carries one of the two."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """The result of the coroutine. Raises Exit in place of the two, and interrupts the loop if it was Ctrl-C."""
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
