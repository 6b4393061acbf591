"""Calls that are not cut short when their caller is cancelled.

A storage may carry out a call whose caller is gone, and do so after a later call on another connection. A worker that
stops would then be listed again, or hold the lead, after it had signed off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from treadle.concurrency.spawn import mark_retrieved, started

T = TypeVar("T")


class UncutCalls:
    """The calls in progress. Before you take back what they write, wait for them with `ended`."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[Any]] = set()

    async def make(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call. If this is cancelled, the call continues."""
        task = started(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(mark_retrieved)
        await asyncio.wait([task])
        return task.result()

    async def ended(self, hurry: asyncio.Event | None = None, patience: float = 0.0) -> None:
        """Wait until no call is in progress. `patience` s after `hurry` was set, the remaining calls are cancelled; all
        are cancelled if this is."""
        while calls := self._in_progress():
            await ended_or_cut(calls, hurry or asyncio.Event(), patience)

    def _in_progress(self) -> list[asyncio.Task[Any]]:
        """The calls that have not ended. Some ended calls are never discarded, because their event loop was closed."""
        return [task for task in self._calls if not task.done()]

    @property
    def in_progress(self) -> bool:
        return bool(self._in_progress())

    def cut(self) -> None:
        """Cancel the calls in progress."""
        for task in list(self._calls):
            task.cancel()


async def ended_or_cut(tasks: Collection[asyncio.Task[Any]], hurry: asyncio.Event, patience: float) -> None:
    """Wait until the tasks have ended. `patience` s after `hurry` was set, the remaining ones are cancelled; all are if
    this is cancelled."""
    hurried, running = asyncio.Task(hurry.wait()), set(tasks)
    try:
        while running and not hurried.done():
            await asyncio.wait([*running, hurried], return_when=asyncio.FIRST_COMPLETED)
            running = {task for task in running if not task.done()}
        if running:
            _, running = await asyncio.wait(running, timeout=patience)
    finally:
        hurried.cancel()
        for task in running:
            task.cancel()
    if running:
        await asyncio.wait(running)


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine to its end and ignore cancellation, as a commit must not stop half-way. The end of the event
    loop still cancels it."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()
