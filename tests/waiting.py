"""How tests wait. No other test module sleeps or polls, see tests/project/test_waiting.py.

Each act of this process has a signal: an event of the app (`Told`), a call of the storage (`Spy`), a `Signal`.
Only the effects of another process or of a server are polled, with `until` and `until_blocking`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

PATIENCE = 60.0  # s until a wait fails; only a defect takes so long
PAUSE = 0.005  # s between two looks at another process or a server


class NotSeen(AssertionError):
    """A condition did not come true in time."""


async def until(seen: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Poll another process, its files or a server until `seen` (async or not) returns something true; return that."""
    async with patient(what, patience):
        while not (found := await _value(seen())):  # noqa: ASYNC110  # nothing in this process tells of it
            await asyncio.sleep(PAUSE)
    return found


def until_blocking(seen: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The same without an event loop."""
    end = time.monotonic() + patience
    while not (found := seen()):
        if time.monotonic() > end:
            raise NotSeen(f"not within {patience:g} s: {what}")
        time.sleep(PAUSE)
    return found


async def random_moment(rng: random.Random, least: float, most: float) -> None:
    """Let so many seconds pass, before a fault whose moment must be random: it is not waited for anything."""
    await asyncio.sleep(rng.uniform(least, most))


async def turn(number: int) -> None:
    """Let the event loop turn so many times: for tests that try an act at each turn in turn. To wait for something, or
    to show that it does not happen, a number of turns proves nothing: use a later event."""
    for _ in range(number):
        await asyncio.sleep(0)


async def each_turn(continues: Callable[[], bool]) -> AsyncIterator[None]:
    """One step in each turn of the event loop, while the condition holds: for tests that act in every turn."""
    while continues():
        await asyncio.sleep(0)
        yield


class Turns:
    """Counts the turns of the event loop while it is entered, and calls `each` in every one."""

    def __init__(self, each: Callable[[], object] = int) -> None:
        self.count, self._each = 0, each

    def __enter__(self) -> Turns:
        self._next = asyncio.get_running_loop().call_soon(self._turned)
        return self

    def __exit__(self, *_: object) -> None:
        self._next.cancel()

    def _turned(self) -> None:
        self.count += 1
        self._each()
        self._next = asyncio.get_running_loop().call_soon(self._turned)


class Signal:
    """Sent at each change in this process, by any thread; wakes those that wait until a condition holds."""

    def __init__(self) -> None:
        self.sent = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def send(self, *_: object) -> None:
        self.sent += 1
        for loop, changed in tuple(self._waiting):
            loop.call_soon_threadsafe(changed.set)

    async def until(self, holds: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """Check the condition (async or not) now and after each `send`, until it is true; return its value."""
        changed = asyncio.Event()
        waiting = asyncio.get_running_loop(), changed
        self._waiting.append(waiting)
        try:
            async with patient(what, patience):
                while not (found := await _value(holds())):
                    await changed.wait()
                    changed.clear()
        finally:
            self._waiting.remove(waiting)
        return found

    async def again(self, what: str, times: int = 1) -> None:
        """Wait until it is sent so many times from now on."""
        enough = self.sent + times
        await self.until(lambda: self.sent >= enough, what)

    def after(self, patch: pytest.MonkeyPatch, owner: object, *names: str) -> Signal:
        """From now on, send after each call of these functions (async or not) of a class, an object or a module."""
        for name in names:
            patch.setattr(owner, name, _sending(getattr(owner, name), lambda: None, self.send))
        return self

    def around(self, patch: pytest.MonkeyPatch, owner: object, *names: str) -> Signal:
        """The same, also when a call has begun and waits for something."""
        for name in names:
            patch.setattr(owner, name, _sending(getattr(owner, name), self.send, self.send))
        return self


def _sending(
    function: Callable[..., Any], before: Callable[[], object], after: Callable[[], object]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        before()
        try:
            return function(*args, **options)
        finally:
            after()

    @functools.wraps(function)
    async def awaited(*args: Any, **options: Any) -> Any:
        before()  # those that wait are woken in the next turn of the loop
        try:
            return await function(*args, **options)
        finally:
            after()

    return awaited if inspect.iscoroutinefunction(function) else called


@asynccontextmanager
async def patient(what: str, patience: float = PATIENCE) -> AsyncIterator[None]:
    """Fail with the name of what did not happen in time."""
    try:
        async with asyncio.timeout(patience) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise NotSeen(f"not within {patience:g} s: {what}") from None
        raise


async def _value(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found
