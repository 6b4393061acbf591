"""The verbs of a transaction, with the texts of jobs and outcomes changed on the way.

A transaction may belong to a thread without an event loop, or to another loop than the storage: the blob store is then
used with connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.storage.optional_parts import Bound
from treadle.storage.payloads.texts import Texts

T = TypeVar("T")


class PayloadBound:
    """The verbs inside a transaction of the user, or of a run."""

    def __init__(self, bound: Bound, texts: Texts) -> None:
        self._bound, self._texts = bound, texts

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        texts = self._texts
        stored = list(jobs) if all(map(texts.leaves, jobs)) else await _changed(texts, lambda its: its.jobs(jobs))
        return texts.as_given(jobs, stored, await self._bound.enqueue(stored))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        async def every(texts: Texts) -> list[Outcome]:
            return [await texts.outcome(out) for out in outcomes]

        return await self._bound.settle(await _changed(self._texts, every))

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return [None if row is None else self._texts.opened(row) for row in await self._bound.get(ids)]


async def _changed(texts: Texts, change: Callable[[Texts], Awaitable[T]]) -> T:
    """Change texts on this thread: on its event loop, or on one that is made for it."""

    async def work() -> T:
        its = texts.elsewhere()
        try:
            return await change(its)
        finally:
            if its.objects is not None:
                await its.objects.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    return await work()
