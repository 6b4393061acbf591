"""Lets event loops use a storage that another loop opened: each call runs on the loop that opened it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from msgspec.structs import replace

from treadle.core.errors import NestedTransaction
from treadle.core.model import Claim, Claimed, Outcome, Settled
from treadle.storage.capabilities import fused, transactional
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.optional_parts import Transaction
from treadle.storage.proxy import StorageProxy

T = TypeVar("T")


class Owner(Protocol):
    """Knows which loop has the storage open."""

    storage: Storage

    async def call(self, verb: Callable[[Storage], Awaitable[T]]) -> T: ...


class SharedStorage(StorageProxy):
    """The storage of an app, for any event loop of the process. Hand-off and moves are left out.

    The verbs of `within` run in the caller, on the connection of the user's transaction.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner  # not `super().__init__`: it would keep the current storage

    @property
    def storage(self) -> Storage:
        """The owner's current storage. It makes another after a fork, or if a loop ends without closing it."""
        return self._owner.storage

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.storage.capabilities, settle_claim=True, hand_off=False, movable=False)

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        return await self._owner.call(call)

    async def open(self, look: bool = False) -> None:
        """Do nothing: the app opens and closes the storage, on the loop that owns it."""

    async def close(self) -> None:
        """Do nothing, as `open`."""

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Settle and claim, in one round trip if the storage supports it."""

        async def both(storage: Storage) -> tuple[list[Settled], Claimed]:
            if one := fused(storage):
                return await one.settle_claim(outcomes, ask)
            return await storage.settle(outcomes), await storage.claim(ask)

        return await self._owner.call(both)

    async def begin(self, sync: bool) -> Transaction:
        """Raise NestedTransaction: the transaction of a run is bound to the event loop of its worker."""
        transactional(self.storage, "transactions", "use SQLite or PostgreSQL")
        raise NestedTransaction(
            "current().transaction() needs an app that is open on the worker's event loop, but another loop opened it "
            "first: give this worker its own App"
        )
