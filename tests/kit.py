"""What the tests of the engine share: a storage that counts and fails on command, and waiting for events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from treadle import App, Event, Record, StorageUnavailable, Worker
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
    Settled,
    Stats,
)
from treadle.storage.contract import Handing, Post, Storage


class Spy:
    """A storage that counts its calls, and is away for as many calls of a verb as `away` says."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.away: Counter[str] = Counter()
        self.deaf = False  # watch only sleeps

    def _pass(self, verb: str) -> None:
        self.calls[verb] += 1
        if self.away[verb] > 0:
            self.away[verb] -= 1
            raise StorageUnavailable(f"{verb}: pulled the plug")

    async def open(self) -> None:
        self._pass("open")
        await self.inner.open()

    async def close(self) -> None:
        self._pass("close")
        await self.inner.close()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        self._pass("enqueue")
        return await self.inner.enqueue(jobs)

    async def claim(self, ask: Claim) -> Claimed:
        self._pass("claim")
        return await self.inner.claim(ask)

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        self._pass("heartbeat")
        return await self.inner.heartbeat(worker, holds, lease)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        self._pass("settle")
        return await self.inner.settle(outcomes)

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        self._pass("get")
        return await self.inner.get(ids)

    async def find(self, query: Query) -> Page:
        self._pass("find")
        return await self.inner.find(query)

    async def stats(self) -> Stats:
        self._pass("stats")
        return await self.inner.stats()

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        self._pass("limits")
        return await self.inner.limits(use)

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        self._pass("set_limits")
        await self.inner.set_limits(changes)

    async def prune(self, limit: int) -> int:
        self._pass("prune")
        return await self.inner.prune(limit)

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        self._pass("watch")
        if self.deaf:
            await asyncio.sleep(timeout)
            return set()
        return await self.inner.watch(topics, timeout)

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return self.inner.post(take) if isinstance(self.inner, Handing) else None


class Told:
    """Every event of an app, and a way to wait for one."""

    def __init__(self, app: App) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()
        app.on("*")(self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    def names(self, *only: str) -> list[str]:
        return [event.name for event in self.events if not only or event.name in only]

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    async def until(self, name: str, times: int = 1) -> Event:
        async with asyncio.timeout(60):  # only a hang takes so long
            while len(found := self.of(name)) < times:
                self._more.clear()
                await self._more.wait()
        return found[times - 1]


def work(app: App, *args: Any, **options: Any) -> Worker:
    """A worker that looks often: with a clock moved by hand nobody tells it that a job is due."""
    return Worker(app, *args, **{"poll": 0.01, "grace": 5, **options})


async def nothing_left(before: set[asyncio.Task[Any]]) -> None:
    """Until no task runs that did not run before. A hint that a storage sends to others ends by itself."""
    async with asyncio.timeout(30):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 - the tasks belong to the code under test
            await asyncio.sleep(0.001)
