"""Runs in a thread what would block the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

NUDGE: Final = 0.005  # seconds after which a thread is helped to the GIL


async def in_thread(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, call: Callable[[], Any], finish: bool = True
) -> Any:
    """Run it there. When it takes long, sleep a little here now and then: a loop that is busy in short callbacks never
    leaves the GIL long enough for a thread to return. `finish`: cancelled, it is waited for all the same."""
    running: ThreadFuture[Any] = pool.submit(call)
    waiting = asyncio.wrap_future(running, loop=loop)
    nudge = loop.call_later(NUDGE, _nudge, loop, running)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if finish:
            running.exception()  # a transaction is never left with a thread in it
        raise
    finally:
        nudge.cancel()


def _nudge(loop: asyncio.AbstractEventLoop, running: ThreadFuture[Any]) -> None:
    if not running.done():
        time.sleep(0.0001)
        loop.call_later(NUDGE, _nudge, loop, running)
