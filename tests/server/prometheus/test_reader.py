"""Scrapes of a storage: one read for all of them, kept for 15 seconds; old values with their age while it is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from treadle import App
from treadle.errors import StorageUnavailable
from treadle.server.prometheus import StoredReader
from treadle.server.prometheus.reader import AGAIN, FRESH
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, StorageProxy

T = TypeVar("T")


class Watched(StorageProxy):
    """Counts the reads, and fails or holds them."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.reads, self.away = 0, False
        self.free, self.begun = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if verb == "stats":
            self.reads += 1
            self.begun.set()
            await self.free.wait()
            if self.away:
                raise StorageUnavailable("no route to host")
        return await super().around(verb, call)


async def test_many_scrapes_share_one_read_for_15_seconds() -> None:
    storage, clock = Watched(), HandClock()
    async with App(storage=storage) as app:
        reader = StoredReader(app._core, now=clock)
        storage.free.clear()
        scrapes = [asyncio.create_task(reader.scrape()) for _ in range(50)]
        await storage.begun.wait()
        storage.free.set()
        assert {scrape.up for scrape in await asyncio.gather(*scrapes)} == {True}
        clock.advance(FRESH - 1)
        assert (await reader.scrape()).age == FRESH - 1
        assert storage.reads == 1
        clock.advance(1)
        assert (await reader.scrape()).age == 0
        assert storage.reads == 2


async def test_during_an_outage_the_old_values_are_shown_with_their_age(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    storage, clock = Watched(), HandClock()
    async with App(storage=storage) as app:
        reader = StoredReader(app._core, now=clock)
        good = await reader.scrape()
        storage.away = True
        for _ in range(3):
            clock.advance(FRESH)
            scrape = await reader.scrape()
            assert (scrape.up, scrape.reading, scrape.error) == (False, good.reading, "no route to host")
        assert scrape.age == 3 * FRESH
        await reader.scrape()
        assert storage.reads == 4, "a failed read is not repeated at once"
        storage.away = False
        clock.advance(AGAIN)
        assert ((await reader.scrape()).up, storage.reads) == (True, 5)
    assert [record.message for record in caplog.records] == [
        "metrics: storage unavailable (no route to host); retrying",
        "metrics: storage available again",
    ]


async def test_a_scrape_does_not_wait_for_a_slow_storage_and_the_read_continues() -> None:
    storage = Watched()
    async with App(storage=storage) as app:
        reader = StoredReader(app._core, patience=0.0)
        storage.free.clear()
        scrape = await reader.scrape()
        assert (scrape.up, scrape.reading, scrape.error) == (False, None, "no answer in 0 s")
        await storage.begun.wait()
        await reader.scrape()
        assert storage.reads == 1
        reading = reader._running
        assert reading is not None
        storage.free.set()
        await reading
        scrape = await reader.scrape()
        assert scrape.up
        assert scrape.reading is not None


async def test_closing_the_app_ends_a_read_under_way() -> None:
    storage = Watched()
    app = App(storage=storage)
    await app.open()
    reader = StoredReader(app._core, patience=0.0)
    storage.free.clear()
    await reader.scrape()
    await storage.begun.wait()
    await app.close()
    assert reader._running is None


async def test_a_fault_of_the_reading_itself_is_logged_with_its_trace(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(storage=MemoryStorage()) as app:

        async def broken() -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr(app._core.queues, "stats", broken)
        assert not (await StoredReader(app._core).scrape()).up
    assert caplog.records[0].exc_info is not None
