"""The last calls of a worker that stops: it takes back what it has written about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from treadle.concurrency.spawn import started
from treadle.concurrency.uncut import UncutCalls, ended_or_cut
from treadle.core.errors import StorageError

HURRY: Final = 1.0  # s for each step of a stop without grace

LastCall = Callable[[], Coroutine[Any, Any, object]]


async def sign_off(calls: UncutCalls, last: Sequence[LastCall], hurry: asyncio.Event) -> bool:
    """Wait for the calls in progress, and make the last ones. Returns whether all were made.

    All that has `HURRY` s from the moment when `hurry` is set, the calls in progress half of it: one that gets no
    answer must not cost the others.
    """

    async def leave() -> bool:
        try:
            await calls.ended(hurry, HURRY / 2)
            for call in last:
                await call()
        except (StorageError, asyncio.CancelledError):
            return False
        return True

    leaving = started(leave())
    await ended_or_cut([leaving], hurry, HURRY)
    return leaving.result()
