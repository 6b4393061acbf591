"""Asyncio tasks that always begin; and plain functions that answer coroutines.

Of a task that is cancelled before its first step asyncio runs no line, not even a `finally`. Whatever such a task was
to put in order stays as it is: a queue is "being written" for ever, a storage "being closed".
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

    Not made by the loop's task factory: no line of it runs before it is answered, so the caller can keep it first.
    """
    return asyncio.Task(_Started(work), loop=loop or asyncio.get_running_loop(), context=context)


def begin(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
    """Do this here and now, until its first wait -> the task that does the rest; None: it is done.

    Its first step belongs to the caller's turn, so it must not ask which task it is.
    """
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return asyncio.Task(_Started(work, awaited), loop=loop)


_NOTHING: Final = object()


class _Started(Coroutine[Any, Any, T]):
    """A coroutine, and the future it waits for already, which its task has not been given yet."""

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
                return awaited  # its task waits for it, and so is cancelled there
        return self._work.throw(*error)

    def __getattr__(self, name: str) -> Any:  # its name and its frame, which a task shows
        return getattr(self._work, name)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()


def answers_coroutine(function: F) -> F:
    """Mark a plain function that answers a coroutine, so that programs await what it answers. Before Python 3.12 only
    `asyncio.iscoroutinefunction` sees the mark."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    marked: Any = function
    marked._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function
