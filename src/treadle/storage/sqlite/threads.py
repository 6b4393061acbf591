"""Runs in a thread what would block the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

NUDGE: Final = 0.005  # seconds after which the loop begins to sleep, so that the thread gets the GIL


async def in_thread(
    loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, call: Callable[[], Any], finish: bool = True
) -> Any:
    """Run a call in a thread. If it takes long, sleep here now and then: a loop that is busy with short callbacks never
    releases the GIL for long enough. `finish`: wait for the call even if the caller is cancelled."""
    running: ThreadFuture[Any] = pool.submit(call)
    waiting = asyncio.wrap_future(running, loop=loop)
    nudge = loop.call_later(NUDGE, _nudge, loop, running)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if finish:
            running.exception()  # a transaction is never left while a thread works in it
        raise
    finally:
        nudge.cancel()


def _nudge(loop: asyncio.AbstractEventLoop, running: ThreadFuture[Any]) -> None:
    if not running.done():
        time.sleep(0.0001)
        loop.call_later(NUDGE, _nudge, loop, running)
