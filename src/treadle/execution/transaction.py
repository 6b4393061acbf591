"""`current().transaction()`: commits the writes of a run and the ending of its job together.

The transaction stays open after the block. When the function has returned, the job is settled in it. If the function
raises, everything is rolled back, so a task that runs twice writes once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, TypeVar

from treadle.core.errors import NestedTransaction, Stale
from treadle.core.model import Outcome, Record, Settled
from treadle.storage.capabilities import transactional
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Transaction

T = TypeVar("T")


class Open:
    """The transaction of one run, from the start of the block to the end of the job."""

    def __init__(self, made: Transaction, record: Record, timeout: float) -> None:
        self._made, self._record, self._timeout = made, record, timeout
        self.raw, self.alone = made.raw, made.alone
        self._timer = asyncio.get_running_loop().call_later(timeout, self._expire)
        self._expired: asyncio.Task[None] | None = None

    def _expire(self) -> None:
        self._expired = asyncio.ensure_future(self._made.roll_back())

    @property
    def over(self) -> TimeoutError | None:
        """The error if the transaction has timed out, so that nothing will be committed."""
        if self._expired is None:
            return None
        alone = "; every other write to the storage waited for it" if self.alone else ""
        return TimeoutError(f"the transaction was open for more than {self._timeout:g} s and was rolled back{alone}")

    async def check(self) -> None:
        """Raise Stale if the lease was lost, so that the writes of the block are not committed."""
        id = self._record.job.id
        [row] = await self._made.bound.get([id])
        if row is None or row.version != self._record.version:
            raise Stale(id, "not stored any more" if row is None else f"{row.state} at version {row.version}")

    async def settle(self, outcome: Outcome) -> Settled:
        """Settle the job inside the transaction; nothing is durable yet."""
        [settled] = await self._made.bound.settle([outcome])
        return settled

    async def commit(self) -> None:
        self._timer.cancel()
        if (error := self.over) is not None:
            raise error
        await self._made.commit()

    async def close(self) -> None:
        """Roll back unless committed, and release the connection."""
        self._timer.cancel()
        try:
            if self._expired is not None:
                await asyncio.wait([self._expired])
        finally:
            await self._made.close()


class Holder(Protocol):
    """A run, which keeps its transaction between the end of the block and the end of the job."""

    transaction: Open | None


class Scope:
    """The block that `current().transaction()` returns: `async with` in a coroutine, `with` in a thread."""

    def __init__(
        self, storage: Storage, record: Record, timeout: float, loop: asyncio.AbstractEventLoop, run: Holder
    ) -> None:
        self._storage, self._record, self._timeout, self._loop, self._run = storage, record, timeout, loop, run

    async def __aenter__(self) -> Any:
        return await self._begin(sync=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._end(error)

    def __enter__(self) -> Any:
        return self._wait(self._begin(sync=True))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._wait(self._end(error))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        work.close()
        raise NestedTransaction("in a coroutine, write `async with current().transaction() as tx:`")

    async def _begin(self, sync: bool) -> Any:
        storage = transactional(
            self._storage,
            "current().transaction()",
            "use SQLite or PostgreSQL, or make the task's writes repeatable: `current().version` is a fencing token",
        )
        if self._run.transaction is not None:
            raise NestedTransaction(
                "this run already has a transaction, which stays open until the function has returned"
            )
        opened = Open(await storage.begin(sync), self._record, self._timeout)
        try:
            await opened.check()
        except BaseException:
            await opened.close()
            raise
        self._run.transaction = opened
        return opened.raw

    async def _end(self, error: BaseException | None) -> None:
        opened = self._run.transaction
        if opened is None:
            return
        why = error or opened.over
        if why is None:
            try:
                await opened.check()
            except BaseException as stale:
                why = stale
        if why is not None:
            self._run.transaction = None
            await opened.close()
            if why is not error:
                raise why
