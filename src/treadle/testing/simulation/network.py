"""The storage as the processes of a simulation reach it: each call travels, may fail, and outlives its caller.

A call that was sent is carried out also if the process that sent it is killed meanwhile; so is that of a real server.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context
from typing import Any, ClassVar, Literal, TypeVar, cast

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
from treadle.errors import StorageUnavailable
from treadle.storage.contract import Fused, OneByOne, Storage
from treadle.testing.simulation.loop import ACTOR, Actor, SimulatedLoop

T = TypeVar("T")

TRAVEL = 0.02  # s at most that a slow call is on its way, each way
SLOW = 0.3  # the part of the calls that are slow


class Line:
    """How one process is connected: the faults of its calls, by number."""

    def __init__(self) -> None:
        self.calls = 0
        self.faults: dict[int, str] = {}
        self.cut_until = 0.0


class Network:
    """One storage, and a line to it for each actor."""

    def __new__(cls, storage: Storage, *_: Any) -> Network:
        return super().__new__(_OneByOne if isinstance(storage, OneByOne) else cls)

    def __init__(self, storage: Storage, loop: SimulatedLoop, chance: random.Random) -> None:
        self.storage, self._loop, self._chance = storage, loop, chance
        self._server = loop.actor("storage")
        self._context = Context()
        self._context.run(ACTOR.set, self._server)
        self._lines: dict[Actor, Line] = {}
        self._claimed: set[tuple[str, int]] = set()
        self.calls: Counter[str] = Counter()
        self.faults = 0  # that have happened

    def connect(self, actor: Actor, line: Line) -> None:
        """From now on this actor's calls take that line. Without one nothing goes wrong."""
        self._lines[actor] = line

    async def _call(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        line = self._lines.get(ACTOR.get() or self._loop.root)
        fault = None
        if line is not None:
            line.calls += 1
            fault = line.faults.pop(line.calls, None)
            if line.cut_until > self._loop.now:
                fault = "lost" if self._chance.random() < 0.5 else "before"
        await self._travel()
        if fault == "before":
            self.faults += 1
            raise StorageUnavailable(f"{verb}: made to fail before it was applied")
        answer = await self._served(call, twice=fault == "twice")
        await self._travel()
        self.faults += fault is not None
        if fault == "lost":
            raise StorageUnavailable(f"{verb}: made to lose its answer")
        return answer

    async def _travel(self) -> None:
        slow = self._chance.random()
        await asyncio.sleep(TRAVEL * slow / SLOW if slow < SLOW else 0)

    async def _served(self, call: Callable[[], Awaitable[T]], twice: bool) -> T:
        """Carried out by the server, whatever becomes of the caller. A task of the server's own is made only for a call
        that waits for something: most do not, and without tasks for them a seed has half as many steps."""

        async def serve() -> T:
            answer = await call()
            return await call() if twice else answer

        work = serve()
        try:
            first = self._context.run(work.send, None)
        except StopIteration as done:
            answer: T = done.value
            return answer
        return await asyncio.shield(self._loop.start(self._server, _went_on(work, first)))

    def _note(self, claimed: Claimed, ask: Claim) -> None:
        """The first time that a claim is carried out is when the job is claimed."""
        for row in claimed.records:
            key = row.job.id, row.version
            if key not in self._claimed:
                self._claimed.add(key)
                self._server.history.add("claimed", row.job.id, version=row.version, name=ask.worker)

    # --- the contract

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        return await self._call("enqueue", lambda: self.storage.enqueue(jobs))

    async def claim(self, ask: Claim) -> Claimed:
        async def claim() -> Claimed:
            claimed = await self.storage.claim(ask)
            self._note(claimed, ask)
            return claimed

        return await self._call("claim", claim)

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        return await self._call("heartbeat", lambda: self.storage.heartbeat(worker, holds, lease))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._call("settle", lambda: self.storage.settle(outcomes))

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        async def both() -> tuple[list[Settled], Claimed]:
            settled, claimed = await cast("Fused", self.storage).settle_claim(outcomes, ask)
            self._note(claimed, ask)
            return settled, claimed

        return await self._call("settle_claim", both)

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


async def _went_on(work: Coroutine[Any, Any, T], first: object) -> T:
    return await _Begun(work, first)


class _Begun(Awaitable[T]):
    """The rest of a coroutine that waits for `first`."""

    def __init__(self, work: Coroutine[Any, Any, T], first: object) -> None:
        self._work, self._first = work, first

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            yield self._first
        except BaseException:  # the simulation ends
            self._work.close()
            raise
        return (yield from self._work.__await__())


class _OneByOne(Network):
    one_by_one: ClassVar[Literal[True]] = True
