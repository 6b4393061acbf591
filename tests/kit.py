"""Shared parts of the tests of the engine: a storage that counts and fails on command, and waiting for events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from treadle import App, Event, StorageUnavailable, Worker
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.proxy import StorageProxy

T = TypeVar("T")


class Spy(StorageProxy):
    """A storage that counts its calls. `away`: the number of calls of a verb that fail."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.away: Counter[str] = Counter()
        self.deaf = False  # then `watch` only sleeps

    @property
    def capabilities(self) -> Capabilities:
        """Without `settle_claim`, so that a worker makes two calls, each of which is counted."""
        return Capabilities(hand_off=self.inner.capabilities.hand_off)

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        if self.away[verb] > 0:
            self.away[verb] -= 1
            raise StorageUnavailable(f"{verb}: pulled the plug")
        return await call(self.inner)

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if self.deaf:
            self.calls["watch"] += 1
            await asyncio.sleep(timeout)
            return set()
        return await super().watch(topics, timeout)


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
    """A worker that polls often: with a clock moved by hand, no notification says that a job is due."""
    return Worker(app, *args, **{"poll": 0.01, "grace": 5, **options})


async def nothing_left(before: set[asyncio.Task[Any]]) -> None:
    """Wait until every task that this one started has ended. A task that sends hints to other processes ends by
    itself."""
    async with asyncio.timeout(30):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 - the tasks belong to the code under test
            await asyncio.sleep(0.001)
