"""Calls plain providers in threads, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from treadle.concurrency.threads import Answer, Threads


class NewThreads:
    """A new thread for each call, for the few values of a process."""

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def answer(result: Answer) -> None:
            if not future.done():
                future.set_result(result)

        def run() -> None:
            try:
                result: Answer = call(), None
            except BaseException as error:
                result = None, error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answer, result)

        threading.Thread(target=run, name="treadle-provider", daemon=True).start()
        return future


async def in_thread(threads: Threads, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of the call, in the caller's context. If this is cancelled, it waits for the thread, whose result is
    dropped, and then raises the cancellation."""
    here = contextvars.copy_context()
    future = threads.run(functools.partial(here.run, call, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as raised:
            cancelled = raised
    value, error = future.result()
    if cancelled is not None:
        raise cancelled
    if isinstance(error, KeyboardInterrupt | StopIteration):  # neither may be raised in a coroutine
        raise RuntimeError(f"{type(error).__name__} was raised in a thread") from error
    if error is not None:
        raise error
    return value
