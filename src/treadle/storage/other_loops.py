"""A storage as event loops see it that do not have it open: each verb is carried out on the loop that does.

It offers the contract's verbs, and none of the faster paths that depend on a loop of one's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from treadle.core.model import (
    Claim,
    Claimed,
    Held,
    Hold,
    LimitChange,
    LimitUse,
    NewJob,
    Outcome,
    Page,
    Presence,
    Query,
    Record,
    Settled,
    Stats,
)
from treadle.errors import NestedTransaction
from treadle.storage.contract import Bound, Fused, Storage, Transaction
from treadle.storage.transfer import MoveState, mark_of
from treadle.storage.user_session import transactional

T = TypeVar("T")


class Owner(Protocol):
    """Knows which loop has the storage open."""

    storage: Storage

    async def call(self, verb: Callable[[Storage], Awaitable[T]]) -> T: ...


class SharedStorage:
    """The storage of an app, for any event loop of the process."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    async def open(self) -> None:
        """The app opens and closes the storage, on the loop that owns it."""

    async def close(self) -> None:
        """As `open`."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        return await self._owner.call(lambda storage: storage.enqueue(jobs))

    async def claim(self, ask: Claim) -> Claimed:
        return await self._owner.call(lambda storage: storage.claim(ask))

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        return await self._owner.call(lambda storage: storage.heartbeat(worker, holds, lease))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._owner.call(lambda storage: storage.settle(outcomes))

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """In one trip where the storage can."""

        async def both(storage: Storage) -> tuple[list[Settled], Claimed]:
            if isinstance(storage, Fused):
                return await storage.settle_claim(outcomes, ask)
            return await storage.settle(outcomes), await storage.claim(ask)

        return await self._owner.call(both)

    async def read_mark(self) -> MoveState | None:
        """The move that the storage is part of; None also for storages that keep no marks."""
        return await self._owner.call(mark_of)

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._owner.call(lambda storage: storage.get(ids))

    async def find(self, query: Query) -> Page:
        return await self._owner.call(lambda storage: storage.find(query))

    async def stats(self) -> Stats:
        return await self._owner.call(lambda storage: storage.stats())

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        await self._owner.call(lambda storage: storage.set_limits(changes))

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await self._owner.call(lambda storage: storage.limits(use))

    async def prune(self, limit: int) -> int:
        return await self._owner.call(lambda storage: storage.prune(limit))

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        return await self._owner.call(lambda storage: storage.watch(topics, timeout))

    def within(self, session: Any) -> Bound:
        """The verbs inside the caller's transaction run on the caller's own connection, on no other loop."""
        found = transactional(self._owner.storage, "within=", "use SQLite or PostgreSQL, or enqueue after your commit")
        return found.within(session)

    async def begin(self, sync: bool) -> Transaction:
        """Raises NestedTransaction: a transaction of a run belongs to the event loop of its worker."""
        transactional(self._owner.storage, "transactions", "use SQLite or PostgreSQL")
        raise NestedTransaction(
            "current().transaction() needs the app open on the worker's own event loop, and another loop has opened it "
            "first: give this worker an App of its own"
        )
