"""Calls a plain function in a thread. A thread cannot be cancelled, so its call is awaited to the end in any case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from treadle.concurrency.threads import Threads

log = logging.getLogger("treadle")


async def in_thread(
    threads: Threads,
    call: Callable[[], Any],
    name: str,
    counts: Callable[[], bool],
    interrupt: Callable[[], None] = lambda: None,
) -> Any:
    """The result of `call` in a thread. If cancelled, it calls `interrupt` and still waits for the thread; `counts`
    then says whether the result is used."""
    future = threads.run(call)
    try:
        value, error = await asyncio.shield(future)
    except asyncio.CancelledError:
        interrupt()
        # Releasing the job while its function still runs could run it twice at once.
        await asyncio.wait([future])
        value, error = future.result()
        if error is not None:
            log.info("%s raised an exception after its cancellation", name, exc_info=error)
            raise
        if not counts():
            raise
    if isinstance(error, KeyboardInterrupt):
        raise RuntimeError("KeyboardInterrupt was raised in a thread") from error  # it must not reach the loop
    if error is not None:
        raise error
    return value
