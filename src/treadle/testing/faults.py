"""A storage that fails on purpose: before a call, after it (the answer is lost), late, or by doing it twice.

Without it nobody would know what a worker does when the network drops the answer to a settle, until it happens.

    storage = Faulty(MemoryStorage(), [lost("settle_claim", 2), before("claim", 1, 3)])
    app = App(storage=storage)
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct

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
from treadle.errors import BadOption, StorageUnavailable
from treadle.storage.contract import Fused, Handing, Post, Storage

T = TypeVar("T")

VERBS = (
    "enqueue",
    "claim",
    "heartbeat",
    "settle",
    "settle_claim",
    "get",
    "find",
    "stats",
    "limits",
    "set_limits",
    "prune",
    "watch",
)
CARRYING = ("enqueue", "claim", "heartbeat", "settle", "settle_claim")  # those that change jobs


class Fault(Struct, frozen=True):
    """What happens to one call.

    before  it fails, and was not applied
    lost    it was applied, and fails
    twice   it is applied a second time, and answers what that answered
    held    it waits for `until` before it is applied
    """

    how: Literal["before", "lost", "twice", "held"]
    verb: str
    call: int  # the how manieth of that verb; 1 is the first
    until: asyncio.Event | None = None


Script = Callable[[str, int], Fault | None]
"""A verb and the number of its call (1 is the first) to what happens to it."""


def before(verb: str, *calls: int) -> list[Fault]:
    """These calls fail and are not applied."""
    return [Fault("before", verb, call) for call in calls]


def lost(verb: str, *calls: int) -> list[Fault]:
    """These calls are applied, but their answers are lost."""
    return [Fault("lost", verb, call) for call in calls]


def twice(verb: str, *calls: int) -> list[Fault]:
    """These calls are applied twice, as by a network that repeats."""
    return [Fault("twice", verb, call) for call in calls]


def held(verb: str, call: int, until: asyncio.Event) -> list[Fault]:
    """This call waits for the event."""
    return [Fault("held", verb, call, until)]


def bursts(
    seed: int, *, errors: tuple[int, int] = (1, 4), answers: tuple[int, int] = (1, 3), verbs: Sequence[str] = CARRYING
) -> Script:
    """So many errors, then so many answers, and so on; half of the errors are lost answers. The same for a seed."""
    chance = random.Random(seed)
    failing, left = False, 0

    def script(verb: str, call: int) -> Fault | None:
        nonlocal failing, left
        if verb not in verbs:
            return None
        if not left:
            failing = not failing
            left = chance.randint(*(errors if failing else answers))
        left -= 1
        return Fault("lost" if chance.random() < 0.5 else "before", verb, call) if failing else None

    return script


class Faulty:
    """A storage and what is to go wrong with it; everything else is the storage's own doing.

    script  faults (lists of them are taken too), or a function from (verb, number of the call) to a fault or None
    fused   False hides `settle_claim`, so that a worker makes two calls of it

    Raises BadOption for a verb that does not exist.
    """

    def __new__(cls, storage: Storage, script: Any = (), *, fused: bool = True) -> Faulty:
        return super().__new__(_FusedFaulty if cls is Faulty and fused and isinstance(storage, Fused) else cls)

    def __init__(
        self, storage: Storage, script: Script | Iterable[Fault | Iterable[Fault]] = (), *, fused: bool = True
    ) -> None:
        self.storage = storage
        self.calls: Counter[str] = Counter()  # by verb, the failed ones included
        self.faults: list[Fault] = []  # that have happened
        self._script = script if callable(script) else _scripted(script)
        self._changed = asyncio.Event()

    async def reached(self, verb: str, call: int) -> None:
        """Wait until that many calls of a verb have begun."""
        while self.calls[verb] < call:
            await self._changed.wait()

    async def _call(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        self._changed.set()
        self._changed = asyncio.Event()
        fault = self._script(verb, self.calls[verb])
        if fault is None:
            return await call()
        self.faults.append(fault)
        if fault.how == "before":
            raise StorageUnavailable(f"{verb}, call {fault.call}: made to fail before it was applied")
        if fault.until is not None:
            await fault.until.wait()
        answer = await call()
        if fault.how == "lost":
            raise StorageUnavailable(f"{verb}, call {fault.call}: made to lose its answer")
        return await call() if fault.how == "twice" else answer

    # --- the contract

    async def open(self) -> None:
        await self.storage.open()

    async def close(self) -> None:
        await self.storage.close()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        return await self._call("enqueue", lambda: self.storage.enqueue(jobs))

    async def claim(self, ask: Claim) -> Claimed:
        return await self._call("claim", lambda: self.storage.claim(ask))

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        return await self._call("heartbeat", lambda: self.storage.heartbeat(worker, holds, lease))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._call("settle", lambda: self.storage.settle(outcomes))

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._call("get", lambda: self.storage.get(ids))

    async def find(self, query: Query) -> Page:
        return await self._call("find", lambda: self.storage.find(query))

    async def stats(self) -> Stats:
        return await self._call("stats", self.storage.stats)

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await self._call("limits", lambda: self.storage.limits(use))

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        return await self._call("set_limits", lambda: self.storage.set_limits(changes))

    async def prune(self, limit: int) -> int:
        return await self._call("prune", lambda: self.storage.prune(limit))

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        return await self._call("watch", lambda: self.storage.watch(topics, timeout))

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        """Never fails: what is said there may be lost anyway."""
        return self.storage.post(take) if isinstance(self.storage, Handing) else None


class _FusedFaulty(Faulty):
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        fused = cast("Fused", self.storage)
        return await self._call("settle_claim", lambda: fused.settle_claim(outcomes, ask))


def _scripted(faults: Iterable[Fault | Iterable[Fault]]) -> Script:
    known: dict[tuple[str, int], Fault] = {}
    for each in faults:
        for fault in [each] if isinstance(each, Fault) else each:
            if fault.verb not in VERBS:
                raise BadOption("faults", f"expected one of {', '.join(VERBS)}, found {fault.verb!r}")
            known[fault.verb, fault.call] = fault
    return lambda verb, call: known.get((verb, call))
