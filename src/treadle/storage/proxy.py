"""A storage that forwards every call to another one: the base of wrappers that count, delay, fail or move calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar, cast

from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.optional_parts import (
    Bound,
    Collected,
    Fused,
    HandOffs,
    Movable,
    Payloads,
    Post,
    Risk,
    Surroundings,
    Transaction,
    Transactional,
)
from treadle.storage.transfer import Chunk, MoveState

T = TypeVar("T")


def kind_of(storage: Storage) -> str:
    """The name of a storage's class, behind all proxies."""
    while isinstance(storage, StorageProxy):
        storage = storage.storage
    return type(storage).__name__


class StorageProxy:
    """Forwards the methods of a storage, its capabilities, and the methods that belong to them.

    Override `around` to act on every call, `capabilities` to hide a capability, or a single method.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def storage(self) -> Storage:
        """The storage that the calls go to."""
        return self._storage

    @property
    def capabilities(self) -> Capabilities:
        return self.storage.capabilities

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        """Make one call to the storage; `verb` is the name of its method. `post` and `within` do not come through here,
        because they only make an object."""
        return await call(self.storage)

    async def open(self, look: bool = False) -> None:
        await self.around("open", lambda storage: storage.open(look) if look else storage.open())

    async def close(self) -> None:
        await self.around("close", lambda storage: storage.close())

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        return await self.around("enqueue", lambda storage: storage.enqueue(jobs))

    async def claim(self, ask: Claim) -> Claimed:
        return await self.around("claim", lambda storage: storage.claim(ask))

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        return await self.around("heartbeat", lambda storage: storage.heartbeat(worker, renewals, lease))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self.around("settle", lambda storage: storage.settle(outcomes))

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        return await self.around("settle_claim", lambda storage: cast("Fused", storage).settle_claim(outcomes, ask))

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self.around("get", lambda storage: storage.get(ids))

    async def find(self, query: Query) -> Page:
        return await self.around("find", lambda storage: storage.find(query))

    async def stats(self) -> Stats:
        return await self.around("stats", lambda storage: storage.stats())

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        return await self.around("recount", lambda storage: storage.recount(repair))

    async def glance(self, most: int = 10_000) -> Glance:
        return await self.around("glance", lambda storage: storage.glance(most))

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await self.around("limits", lambda storage: storage.limits(use))

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        await self.around("set_limits", lambda storage: storage.set_limits(changes))

    async def prune(self, limit: int) -> int:
        return await self.around("prune", lambda storage: storage.prune(limit))

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        await self.around("store_metrics", lambda storage: storage.store_metrics(rows, remove))

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        return await self.around("read_metrics", lambda storage: storage.read_metrics(since, until))

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        return await self.around("watch", lambda storage: storage.watch(topics, timeout))

    # the methods of capabilities

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return cast("HandOffs", self.storage).post(take)

    def within(self, session: Any) -> Bound:
        return cast("Transactional", self.storage).within(session)

    async def begin(self, sync: bool) -> Transaction:
        return await self.around("begin", lambda storage: cast("Transactional", storage).begin(sync))

    async def whole(self, rows: Sequence[Record | None], fields: Collection[str]) -> list[Record | None]:
        return await self.around("whole", lambda storage: cast("Payloads", storage).whole(rows, fields))

    async def risks(self) -> Sequence[Risk]:
        return await self.around("risks", lambda storage: cast("Surroundings", storage).risks())

    async def oldest_open(self) -> float:
        return await self.around("oldest_open", lambda storage: cast("Transactional", storage).oldest_open())

    async def collect(
        self, age: float, dry: bool = False, progress: Callable[[Collected], None] | None = None
    ) -> Collected:
        return await self.around("collect", lambda storage: cast("Payloads", storage).collect(age, dry, progress))

    async def read_mark(self) -> MoveState | None:
        return await self.around("read_mark", lambda storage: cast("Movable", storage).read_mark())

    async def set_mark(self, mark: MoveState) -> None:
        await self.around("set_mark", lambda storage: cast("Movable", storage).set_mark(mark))

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        return await self.around("unload", lambda storage: cast("Movable", storage).unload(cursor, limit))

    async def load(self, load: Chunk, mark: MoveState) -> None:
        await self.around("load", lambda storage: cast("Movable", storage).load(load, mark))
