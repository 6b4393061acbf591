"""Turns a check of a port into a test: the port from its fixture, a clock, and an event loop per test.

The checks need no pytest plugin for coroutines.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle.testing.clock import HandClock

BY_HAND = (2.0,)  # lease in the checks, in seconds
# In real time, a busy machine may stall for longer than a lease: a failed check is repeated with longer leases. The
# shortest is one that systems which count whole seconds can keep.
REAL = (1.0, 4.0, 15.0)
PATIENCE = 30.0  # seconds to wait for eventually consistent systems

Check = Callable[..., Awaitable[None]]


class Desk:
    """A port under test, and a way to let time pass for it."""

    def __init__(self, port: Any, make: Any, clock: HandClock, advance: Any, lease: float) -> None:
        self.port, self.make, self.clock, self._advance, self.lease = port, make, clock, advance, lease
        self.over = 1.25 * lease  # seconds until a lease has certainly expired

    def has(self, method: str) -> bool:
        return callable(getattr(self.port, method, None))

    async def advance(self, seconds: float) -> None:
        if self._advance is not None:
            await self._advance(seconds)
        else:
            self.clock.advance(seconds)

    async def pop_all(self, count: int, lease: float = 60.0) -> list[Any]:
        """Pop exactly `count` messages, in as many calls as that takes."""
        taken: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while len(taken) < count:
                more = await self.port.pop(count - len(taken), lease)
                taken += more
                if not more:
                    await asyncio.sleep(0.01 if self._advance is not None else 0)
        return taken

    async def pop_one(self, lease: float = 60.0) -> Any:
        [message] = await self.pop_all(1, lease)
        return message


def checks(kind: str, needs: str | None = None) -> Callable[[Check], Callable[..., None]]:
    """`needs`: an optional method, without which the port is not tested for it."""

    def decorate(check: Check) -> Callable[..., None]:
        make_name = f"make_{kind}"

        @functools.wraps(check)
        def test(**given: Any) -> None:
            asyncio.run(_play(check, given[make_name], given["advance"], needs))

        place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, place) for name in (make_name, "advance")]
        )
        return test

    return decorate


async def _play(check: Check, make: Any, advance: Any, needs: str | None) -> None:
    leases = BY_HAND if advance is None else REAL
    for lease in leases:
        clock = HandClock()
        desk = Desk(await opened(make, clock), make, clock, advance, lease)
        try:
            if needs is not None and not desk.has(needs):
                pytest.skip(f"this port has no {needs}, which is optional")
            await check(desk)
        except AssertionError:
            if lease == leases[-1]:
                raise
        else:
            return
        finally:
            await close(desk.port)


async def opened(make: Any, clock: HandClock) -> Any:
    port = make(clock)
    return await port if inspect.isawaitable(port) else port


async def close(port: Any) -> None:
    closing = getattr(port, "close", None)
    if closing is not None:
        done = closing()
        if inspect.isawaitable(done):
            await done


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until it holds: a remote server does not report when it has caught up."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
