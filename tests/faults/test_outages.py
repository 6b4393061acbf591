"""Servers that are unavailable: workers survive and log it once; no acknowledged job is lost or settled twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.faults.stages import OUTAGES, SERVED, SqliteStage, Stage, be_patient, staged
from tests.servers.sentinel import MASTER, Sentinels
from tests.waiting import until
from treadle import App, Event, Retry, State, StorageError, StorageUnavailable, Worker, current
from treadle_testkit.proxy import Proxy
from treadle_testkit.shows import shows

PATIENCE, SHORT = 5.0, 1.0  # seconds that a call may take in these tests, and those it waits if no answer comes
SILENT = ("black hole", "frozen", "locked")
SOON = Retry(base=0.02, max=0.1)
WITHIN = 60.0  # seconds for anything at all: only a hang takes so long
OUTAGE = ("worker.error", "worker.recovered")


class Shop:
    """An app with a task that counts its runs, the acknowledged jobs, and the emitted events."""

    def __init__(self, url: str, bound: float = 4 * PATIENCE) -> None:
        self.app, self.bound = App(url), bound
        self.runs: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()  # by job: how often the storage confirmed an outcome to a worker
        self.stored: set[str] = set()  # ids of acknowledged jobs
        self.refusals: list[StorageError] = []
        self.outages: list[str] = []
        self.changed = asyncio.Event()
        self.sell = self.app.task(name="sell", retry=Retry(attempts=3, base=0))(self._sell)
        self.app.on("*")(self._heard)

    async def _sell(self, n: int) -> str:
        self.runs[current().id] += 1
        await asyncio.sleep(0)
        return f"{n} {current().version}"

    def _heard(self, event: Event) -> None:
        if event.name in OUTAGE:
            self.outages.append(event.name)
        if event.name == "succeeded":
            self.settled[event.id] += 1
        self.changed.set()

    async def until(self, true: Any) -> None:
        async with asyncio.timeout(WITHIN):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    async def produce(self, count: int) -> None:
        """Enqueue as a caller should: the same specs again until there is an answer, which must come within a time
        limit."""
        for n in range(count):
            specs = [self.sell.job(n), self.sell.job(n)]
            while True:
                try:
                    async with asyncio.timeout(self.bound):
                        jobs = await self.app.enqueue(specs)
                except StorageError as error:  # a TimeoutError is a hang, and fails the test
                    self.refusals.append(error)
                    self.changed.set()
                    await asyncio.sleep(0.02)
                else:
                    self.stored.update(job.id for job in jobs)
                    break
            await asyncio.sleep(0.005)

    def worker(self, **options: Any) -> Worker:
        return Worker(self.app, **{"concurrency": 8, "poll": 0.05, "recovery": SOON, "grace": 5, **options})

    async def all_ended(self) -> None:
        """Every acknowledged job has succeeded, once."""
        await self.until(lambda: self.stored <= self.settled.keys())

    def count_of_succeeded(self, count: int) -> Callable[[], Awaitable[bool]]:
        """Returns a function that asks the storage whether so many jobs have succeeded."""

        async def holds() -> bool:
            return (await self.app.jobs.list(state="succeeded", count=True)).total == count

        return holds

    async def nothing_lost_nothing_twice(self, url: str) -> None:
        """Compare the stored rows, read over another connection, with the acknowledged jobs."""
        other = App(url)
        async with other:
            rows = {row.job.id: row async for row in other.jobs.iterate()}
        assert rows.keys() >= self.stored
        assert {rows[id].state for id in self.stored} == {State.SUCCEEDED}
        assert {count for id, count in self.settled.items()} == {1}
        for id in self.stored:
            assert self.runs[id] == 1 + rows[id].lost, id


@asynccontextmanager
async def shop(
    kind: type[Stage], monkeypatch: pytest.MonkeyPatch, patience: float = PATIENCE
) -> AsyncIterator[tuple[Shop, Any]]:
    be_patient(kind, monkeypatch, patience)
    async with staged(kind) as stage:
        yield Shop(stage.url), stage


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), [pytest.param(kind, way, id=f"{kind.name}-{way}") for kind, way in OUTAGES])
async def test_no_job_is_lost_in_an_outage_under_load(
    kind: type[Stage], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = SHORT if way in SILENT else PATIENCE
    async with shop(kind, monkeypatch, patience) as (it, stage), it.app, it.worker():
        producing = [asyncio.create_task(it.produce(40)) for _ in range(3)]
        await it.until(lambda: len(it.settled) > 10)
        begin, end = stage.outages[way]
        await begin()
        works_on = way == "full" and "redis" in kind.name  # it refuses new jobs, and lets a worker finish those it has
        is_held = way == "locked" and kind is SqliteStage  # by another writer, which is no outage
        try:
            await it.until(lambda: (it.outages or works_on or is_held) and it.refusals)
            if works_on:
                await it.all_ended()
        finally:
            await end()
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*producing)
        await it.all_ended()
        if it.outages or not (works_on or is_held):
            await it.until(lambda: len(it.outages) > 1 and len(it.outages) % 2 == 0)
            # A lock request waits for those before it, and later ones wait behind it, which may be an outage by itself.
            times = len(it.outages) // 2 if way == "locked" else 1
            assert it.outages == ["worker.error", "worker.recovered"] * times
        await it.nothing_lost_nothing_twice(stage.direct)


@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.name)
async def test_a_worker_waits_for_a_server_that_is_not_there_yet(
    kind: type[Stage], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(kind, monkeypatch) as (it, stage):
        await stage.proxy.refuse()
        with pytest.raises(StorageUnavailable):
            await it.app.enqueue(it.sell.job(1))
        worker = it.worker()
        starting = asyncio.create_task(worker.start())
        await it.until(lambda: it.outages)
        assert not starting.done()
        await stage.proxy.accept()
        await starting
        await it.produce(1)
        await it.all_ended()
        await worker.stop()
        await it.app.close()
    assert it.outages == ["worker.error", "worker.recovered"]
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [("storage unavailable" in text, "available again" in text) for text in said] == [
        (True, False),
        (False, True),
    ]


@shows("a worker that waits for its storage can be stopped")
@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.name)
async def test_a_worker_that_waits_can_be_stopped(kind: type[Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(kind, monkeypatch) as (it, stage):
        await stage.proxy.refuse()
        running = asyncio.create_task(it.worker().run())
        await it.until(lambda: it.outages)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(WITHIN):
            await running


@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.name)
async def test_a_network_that_loses_every_few_packets(
    kind: type[Stage], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers and two producers lose requests, answers and hints."""
    rng, cuts = random.Random(seed), 0

    async def lose(proxy: Proxy) -> None:
        nonlocal cuts
        while True:
            call = rng.randint(1, 12)
            if rng.random() < 0.5:
                cut = proxy.lose_request(call=call)
            else:
                cut = proxy.lose_answer(call=call, after=call)
            await cut.happened()
            cuts += 1

    async with shop(kind, monkeypatch) as (it, stage), it.app, it.worker(), it.worker():
        losing = asyncio.create_task(lose(stage.proxy))
        async with asyncio.timeout(WITHIN):
            while cuts < 10:
                await asyncio.gather(it.produce(10), it.produce(10))
        await it.all_ended()
        losing.cancel()
        stage.proxy.forget()
        await it.nothing_lost_nothing_twice(stage.direct)


@pytest.mark.slow
async def test_no_job_is_lost_in_a_fail_over_under_load() -> None:
    """Replication is asynchronous: jobs that the replica had are not lost, later ones are enqueued again."""
    sentinels = Sentinels(fsync="always")
    try:
        await asyncio.to_thread(sentinels.start)
        it = Shop(f"redis+sentinel://{sentinels.addresses}/{MASTER}", WITHIN)
        async with it.app:
            await it.produce(60)
            await asyncio.to_thread(sentinels.settled)
            primary, replica = sentinels.servers
            async with it.worker(concurrency=2, lease=2.0):
                await it.until(lambda: len(it.settled) > 20)
                await asyncio.to_thread(primary.kill)
                await it.produce(5)  # waits for the new primary
                await it.all_ended()
                await it.until(lambda: len(it.outages) != 1)
                # The replica may not have had the last endings, so those jobs run again.
                await until(it.count_of_succeeded(130), "every job in the new primary", WITHIN)
            assert it.outages in ([], ["worker.error", "worker.recovered"])
            assert len(it.stored) == 130
        assert sentinels.primary is replica
    finally:
        await asyncio.to_thread(sentinels.close)
