"""Shared parts of the tests of the engine: a storage that counts and fails on command, and waiting for events."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from tests.waiting import Signal, patient
from treadle import App, Event, StorageUnavailable, Worker
from treadle.core.events import was_lost
from treadle.core.model import Claim, HeartbeatResult, LeaseRenewal, Pairs, Presence, Record
from treadle.policy import attempts
from treadle.policy.guilt import trial_note
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.proxy import StorageProxy
from treadle.testing import HandClock
from treadle.worker.heartbeat import Heartbeat

T = TypeVar("T")

_deaths = itertools.count()

READS = frozenset({"get", "find", "stats", "glance", "limits", "read_metrics"})
UNHEARD = ["queue:nobody sends to it"]  # a topic


class Spy(StorageProxy):
    """A storage that counts its calls. `away`: the number of calls of a verb that fail."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.away: Counter[str] = Counter()
        self.deaf = False  # watch returns no topic
        self.called = Signal()  # when a call that is no read begins and ends

    @property
    def capabilities(self) -> Capabilities:
        """Without `settle_claim`, so that a worker makes two calls, each of which is counted."""
        return Capabilities(hand_off=self.inner.capabilities.hand_off)

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        if verb in READS:
            return await self._made(verb, call)
        self.called.send()
        try:
            return await self._made(verb, call)
        finally:
            self.called.send()

    async def _made(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if self.away[verb] > 0:
            self.away[verb] -= 1
            raise StorageUnavailable(f"{verb}: pulled the plug")
        return await call(self.inner)

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        return await super().watch(UNHEARD if self.deaf else topics, timeout)

    async def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Check the condition now, and whenever a call that is no read begins or ends, until it is true. It may read
        the storage; changes of the storage that do not come through this object are not noticed."""
        return await self.called.until(holds, what)


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

    def of(self, name: str, id: str = "") -> list[Event]:
        return [event for event in self.events if event.name == name and (not id or event.id == id)]

    async def until(self, name: str, times: int = 1, id: str = "") -> Event:
        """Wait for so many of these events, of the job `id` or of all."""
        async with patient(f"{times} events {name}"):
            while len(found := self.of(name, id)) < times:
                self._more.clear()
                await self._more.wait()
        return found[times - 1]


def heartbeats(patch: pytest.MonkeyPatch) -> Signal:
    """Sent after each heartbeat. A test that lets a lease end waits for the first one before: it renews the lease."""
    return Signal().after(patch, Heartbeat, "once")


def work(app: App, *args: Any, **options: Any) -> Worker:
    """A worker that polls often: with a clock moved by hand, no notification says that a job is due."""
    return Worker(app, *args, **{"poll": 0.01, "grace": 5, **options})


async def lose(storage: Storage, clock: HandClock, *ids: str, times: int = 1, alone: bool = False) -> None:
    """Let workers die while they run these jobs; `alone`: while nothing else ran there."""
    for _ in range(times):
        dead = f"dead{next(_deaths)}"
        claim = Claim(worker=f"{dead}#0", ids=ids, limit=len(ids), lease=30.0)
        records = (await storage.claim(claim)).records
        assert len(records) == len(ids)
        if alone:
            renewals = [
                LeaseRenewal(row.job.id, row.version, checkpoints=(*trial_note(row), *_losses(row))) for row in records
            ]
            assert await storage.heartbeat(Presence(worker=dead, gone=True), renewals, 30.0) == HeartbeatResult()
        clock.advance(31)


def _losses(row: Record) -> Pairs:
    return attempts.losses(row) if was_lost(row) else ()


async def presences(storage: Storage) -> Sequence[Presence]:
    """The workers that have stored a heartbeat."""
    return (await storage.stats()).workers


async def nothing_left(before: set[asyncio.Task[Any]]) -> None:
    """Until no task runs that did not run before. A hint that a storage sends to others ends by itself."""
    async with patient("the end of the tasks"):
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)
