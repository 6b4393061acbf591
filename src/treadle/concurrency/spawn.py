"""Asyncio tasks that always begin, and plain functions that return coroutines.

If a task is cancelled before its first step, asyncio runs none of its code, not even a `finally`. State that the task
should reset, such as "being written" or "being closed", would then stay for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def started(
    work: Coroutine[Any, Any, T],
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    """A task that runs at least to its first wait. If it is cancelled before it began, CancelledError is raised there.

    It bypasses the loop's task factory, so no part of the task runs before this returns, and the caller can store the
    task first.
    """
    return asyncio.Task(_Started(work), loop=loop or asyncio.get_running_loop(), context=context)


def begin(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
    """Run the coroutine now, until its first wait -> the task that continues it; None: it is done.

    Its first step runs in the caller's task, so it must not use the current task.
    """
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return asyncio.Task(_Started(work, awaited), loop=loop)


def mark_retrieved(task: asyncio.Future[Any]) -> None:
    """A done callback of a task whose callers may all be cancelled: asyncio does not log its error then."""
    if not task.cancelled():
        task.exception()


_NOTHING: Final = object()


class _Started(Coroutine[Any, Any, T]):
    """A coroutine together with the future that it already waits for, which its new task has not received yet."""

    __slots__ = ("_awaited", "_begun", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any = _NOTHING) -> None:
        self._work, self._awaited, self._begun = work, awaited, False

    def send(self, value: Any) -> Any:
        if self._begun:
            return self._work.send(value)
        self._begun = True
        return self._work.send(None) if self._awaited is _NOTHING else self._awaited

    def throw(self, *error: Any) -> Any:
        if not self._begun:
            awaited = self.send(None)
            if awaited is not None and awaited.cancel():
                return awaited  # its task waits for this future, and so is cancelled there
        return self._work.throw(*error)

    def __getattr__(self, name: str) -> Any:  # asyncio reads the coroutine's name and frame here when it shows a task
        return getattr(self._work, name)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()


def answers_coroutine(function: F) -> F:
    """Mark a plain function that returns a coroutine, so that programs await its result. Before Python 3.12 only
    `asyncio.iscoroutinefunction` recognises the mark."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    marked: Any = function
    marked._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function
