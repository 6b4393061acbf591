"""Mistakes with coroutines: reports calls that were dropped without `await`, refuses calls that would block an event
loop, and says when `async with` is needed."""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Callable, Coroutine
from types import CodeType
from typing import Any, TypeVar

from treadle.core.errors import EventLoopError

T = TypeVar("T")
C = TypeVar("C", bound=type)

log = logging.getLogger("treadle")


class _Watched(weakref.ref[Any]):
    """A reference to a coroutine that has not begun: which call made it, and where."""

    __slots__ = ("call", "code", "instruction")

    call: str
    code: CodeType
    instruction: int


def report_dropped(call: str, work: Coroutine[Any, Any, T], unbegun: list[Any]) -> Coroutine[Any, Any, T]:
    """The coroutine, after arranging that an error is logged if it is thrown away before it began: its job is lost.

    unbegun  an argument of the coroutine, which begins with `unbegun.clear()`

    The weak reference is in the frame of the coroutine. So Python calls `_dropped` only if the coroutine is destroyed
    before its frame: not after it began, and not if it was closed or cancelled on purpose.
    """
    caller = sys._getframe(2)
    reference = _Watched(work, _dropped)
    reference.call, reference.code, reference.instruction = call, caller.f_code, caller.f_lasti
    unbegun.append(reference)
    return work


def _dropped(reference: _Watched) -> None:
    code = reference.code
    lines = (line for start, end, line in code.co_lines() if start <= reference.instruction < end)
    place = f"{code.co_filename}:{next(lines, None) or code.co_firstlineno}"
    log.error("enqueue of %s was dropped without await: no job was stored (%s)", reference.call, place)


def refuse_to_block(call: str, instead: str) -> None:
    """Raise EventLoopError if an event loop runs in this thread: the call waits, and would block that loop."""
    if asyncio._get_running_loop() is not None:
        raise EventLoopError(f"{call} would block the event loop that runs in this thread: write `await {instead}`")


def async_block(instead: str) -> Callable[[C], C]:
    """Let a plain `with` on an async context manager raise a TypeError that says what to write, such as "write `async
    with app:`". Type checkers do not see these methods, so they still refuse the plain `with`."""

    def decorate(kind: C) -> C:
        def refused(self: object, *_: object) -> None:
            raise TypeError(f"a plain `with` does not work here: {instead}")

        for name in ("__enter__", "__exit__"):
            setattr(kind, name, refused)
        return kind

    return decorate


def plain_block(instead: str) -> Callable[[C], C]:
    """The same for a class that needs a plain `with`, where `async with` is written."""

    def decorate(kind: C) -> C:
        async def refused(self: object, *_: object) -> None:
            raise TypeError(f"`async with` does not work here: {instead}")

        for name in ("__aenter__", "__aexit__"):
            setattr(kind, name, refused)
        return kind

    return decorate
