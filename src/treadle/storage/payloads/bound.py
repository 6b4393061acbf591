"""The verbs of a transaction, with the texts of jobs and outcomes changed on the way.

A transaction may belong to a thread without an event loop, or to another loop than the storage: the blob store is then
used with connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.storage.optional_parts import Bound, Transaction
from treadle.storage.payloads.texts import Texts

T = TypeVar("T")


class PayloadParts:
    """The rules of a storage, and the rows that its callers see."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts

    def as_given(self, jobs: Sequence[NewJob], stored: Sequence[NewJob], rows: Sequence[Record]) -> list[Record]:
        """The rows of an enqueue: each new one with the job as the caller gave it."""
        return [
            replace(row, job=new) if row.job is sent and sent is not new else self.texts.opened(row)
            for new, sent, row in zip(jobs, stored, rows, strict=True)
        ]


class PayloadBound:
    """The verbs inside a transaction of the user, or of a run."""

    def __init__(self, bound: Bound, parts: PayloadParts) -> None:
        self._bound, self._parts = bound, parts

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        texts = self._parts.texts
        stored = list(jobs) if all(map(texts.leaves, jobs)) else await _changed(texts, lambda its: its.jobs(jobs))
        return self._parts.as_given(jobs, stored, await self._bound.enqueue(stored))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        async def every(texts: Texts) -> list[Outcome]:
            return [await texts.outcome(out) for out in outcomes]

        return await self._bound.settle(await _changed(self._parts.texts, every))

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return [None if row is None else self._parts.texts.opened(row) for row in await self._bound.get(ids)]


class PayloadTransaction:
    """The transaction of one run."""

    def __init__(self, made: Transaction, parts: PayloadParts) -> None:
        self._made = made
        self.raw: Any = made.raw
        self.alone = made.alone
        self.bound: Bound = PayloadBound(made.bound, parts)

    async def commit(self) -> None:
        await self._made.commit()

    async def roll_back(self) -> None:
        await self._made.roll_back()

    async def close(self) -> None:
        await self._made.close()


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
