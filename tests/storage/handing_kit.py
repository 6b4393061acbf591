"""Hand-off on any storage that supports it: how many jobs at once; workers that miss messages, stop or pause.

A test module provides the fixtures `storage` and `asks`, and imports everything from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.kit import Spy
from tests.waiting import turn, until
from treadle import App, Worker
from treadle.core.model import Record, State
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Post

LONG = 3600.0  # seconds; no process polls

Waits = Callable[..., Awaitable[None]]


@pytest.fixture
def spy(storage: Storage) -> Spy:
    return Spy(storage)


@pytest.fixture
async def app(spy: Spy) -> AsyncIterator[App]:
    async with App(storage=spy) as app:
        yield app


@pytest.fixture
def waits(asks: Callable[[], Awaitable[int]]) -> Waits:
    """Wait until this many claims are open whose address has a listener."""

    async def wait(workers: int = 1) -> None:
        async def all_do() -> bool:
            return await asks() == workers

        await until(all_do, f"{workers} asks at the storage")

    return wait


async def test_an_idle_worker_starts_a_handed_off_job_without_a_claim(
    app: App, spy: Spy, storage: Storage, waits: Waits
) -> None:
    claims: list[int] = []

    @app.task
    async def t() -> None:
        claims.append(spy.calls["claim"])

    async with Worker(app, poll=LONG):
        for _ in range(20):
            await waits()
            before = spy.calls["claim"]
            await (await t.enqueue()).result(timeout=30)
            assert claims.pop() == before


async def test_a_worker_runs_no_more_jobs_than_its_slots(app: App, storage: Storage) -> None:
    """Whether its jobs come by hand-off or by claim, through either dispatcher."""
    running, most, ran = [0, 0], [0, 0], list[int]()

    def task_of(worker: int) -> Callable[[int], Awaitable[None]]:
        async def t(n: int) -> None:
            running[worker] += 1
            most[worker] = max(most[worker], running[worker])
            await turn(n % 4)
            running[worker] -= 1
            ran.append(n)

        return t

    other = App(storage=storage)
    first, second = app.task(task_of(0), name="t"), other.task(task_of(1), name="t")
    assert first.name == second.name
    async with other, Worker(app, concurrency=2), Worker(other, concurrency=1):

        async def send(who: int) -> None:
            sent = []
            for n in range(who, 400, 4):
                sent.append(await first.enqueue(n))
                if n % 3:
                    await sent[-1].result(timeout=30)  # a worker may be idle again
            for job in sent:
                await job.result(timeout=30)

        await asyncio.gather(*map(send, range(4)))
    assert sorted(ran) == list(range(400))
    assert most[0] <= 2
    assert most[1] <= 1


async def test_a_worker_without_a_free_slot_has_no_open_claim(
    app: App, spy: Spy, storage: Storage, waits: Waits
) -> None:
    """A worker of one slot that runs a job has no open claim: the next job waits for any free worker."""
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        begun.set()
        await go.wait()

    async with Worker(app, concurrency=1, poll=LONG):
        await waits()
        first = await t.enqueue()
        await asyncio.wait_for(begun.wait(), 30)
        second = await t.enqueue()
        [row] = await storage.get([second.id])
        assert row is not None
        assert row.state is State.READY
        go.set()
        await first.result(timeout=30)
        await second.result(timeout=30)


class Unheard(Spy):
    """A storage whose messages to an address never arrive."""

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return super().post(lambda claim_id, row: None)


async def test_a_job_without_its_notification_is_found_by_a_claim(storage: Storage, waits: Waits) -> None:
    async with App(storage=Unheard(storage)) as app:

        @app.task
        async def t() -> str:
            return "ran"

        async with Worker(app, poll=0.05, lease=LONG):
            for _ in range(5):
                await waits()
                job = await t.enqueue()
                assert await job.result(timeout=30) == "ran"
                [row] = await storage.get([job.id])
                assert row is not None
                assert (row.attempt, row.lost) == (1, 0)


async def test_a_worker_that_stops_withdraws_its_open_claim(app: App, storage: Storage, waits: Waits) -> None:
    @app.task
    async def t() -> None: ...

    for _ in range(5):
        async with Worker(app, poll=LONG):
            await waits()
        job = await t.enqueue()
        [row] = await storage.get([job.id])
        assert row is not None
        assert (row.state, row.version) == (State.READY, 0)
        assert await app.jobs.cancel(job)


async def test_a_job_enqueued_while_a_worker_stops_runs_or_stays_queued(
    app: App, storage: Storage, waits: Waits
) -> None:
    ran: list[str] = []

    @app.task
    async def t(n: str) -> None:
        ran.append(n)

    for n in range(30):
        worker = Worker(app, poll=LONG)
        await worker.start()
        await waits()
        job, _ = await asyncio.gather(t.enqueue(str(n)), worker.stop())
        [row] = await storage.get([job.id])
        assert row is not None
        assert row.state is (State.SUCCEEDED if str(n) in ran else State.READY)
        assert (row.lost, row.attempt) == (0, int(str(n) in ran))
        if row.state is State.READY:
            assert await app.jobs.cancel(job)


async def test_a_pause_of_the_throttle_withdraws_the_open_claim(app: App, storage: Storage, waits: Waits) -> None:
    pause, asked = 0.0, asyncio.Event()

    async def throttle() -> float:
        asked.set()
        return pause

    @app.task
    async def t() -> None: ...

    async with Worker(app, poll=LONG, throttle=throttle):
        await waits()
        pause = 60.0
        await waits(0)
        job = await t.enqueue()
        [row] = await storage.get([job.id])
        assert row is not None
        assert row.state is State.READY
