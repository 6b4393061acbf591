"""Workers that are handed jobs, on a real server: how many at once, who hears nothing, who stops and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.engine.kit import Spy
from tests.servers import valkey
from treadle import App, Worker
from treadle.model import Claim, NewJob, Record, State
from treadle.storage.contract import Post
from treadle.storage.redis import RedisStorage

LONG = 3600.0  # s; nobody polls


@pytest.fixture
def spy(storage: RedisStorage) -> Spy:
    return Spy(storage)


@pytest.fixture
async def app(spy: Spy) -> AsyncIterator[App]:
    async with App(storage=spy) as app:
        yield app


async def until(met: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10):
        while not await met():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def asks(storage: RedisStorage) -> int:
    """How many asks stand whose address is listened to."""
    found = 0
    for channel in await storage._pool.command("PUBSUB", "CHANNELS", f"{storage._tag}:hand:*"):
        found += await storage._pool.command("EXISTS", f"{storage._tag}:ask:{channel.decode()}")
    return found


def waits(storage: RedisStorage, workers: int = 1) -> Awaitable[None]:
    async def all_do() -> bool:
        return await asks(storage) == workers

    return until(all_do)


async def test_an_idle_worker_begins_without_asking(app: App, spy: Spy, storage: RedisStorage) -> None:
    claims: list[int] = []

    @app.task
    async def t() -> None:
        claims.append(spy.calls["claim"])

    async with Worker(app, poll=LONG):
        for _ in range(20):
            await waits(storage)
            before = spy.calls["claim"]
            await (await t.enqueue()).result(timeout=10)
            assert claims.pop() == before


async def test_never_more_than_its_slots(app: App, storage: RedisStorage) -> None:
    """However jobs come: handed over, claimed, by either pump."""
    running, most, ran = [0, 0], [0, 0], list[int]()

    def task_of(worker: int) -> Callable[[int], Awaitable[None]]:
        async def t(n: int) -> None:
            running[worker] += 1
            most[worker] = max(most[worker], running[worker])
            for _ in range(n % 4):
                await asyncio.sleep(0)
            running[worker] -= 1
            ran.append(n)

        return t

    other = App(storage=storage)
    first, second = app.task(task_of(0), name="t"), other.task(task_of(1), name="t")
    assert first.name == second.name
    async with other, Worker(app, concurrency=2), Worker(other, concurrency=1):

        async def send(who: int) -> None:
            for n in range(who, 400, 4):
                await first.enqueue(n)
                await asyncio.sleep(0.001 * (n % 3))

        await asyncio.gather(*map(send, range(4)))

        async def all_ran() -> bool:
            return len(ran) >= 400

        await until(all_ran)
    assert sorted(ran) == list(range(400))
    assert most[0] <= 2
    assert most[1] <= 1


async def test_a_slot_is_kept_for_what_may_be_handed(app: App, spy: Spy, storage: RedisStorage) -> None:
    """A worker of one slot that runs a job has no ask: the next job waits for whoever is free."""
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        begun.set()
        await go.wait()

    async with Worker(app, concurrency=1, poll=LONG):
        await waits(storage)
        first = await t.enqueue()
        await asyncio.wait_for(begun.wait(), 10)
        second = await t.enqueue()
        [row] = await storage.get([second.id])
        assert row is not None
        assert row.state is State.READY
        go.set()
        await first.result(timeout=10)
        await second.result(timeout=10)


class Unheard(Spy):
    """A storage from which nothing arrives that is said at an address."""

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return super().post(lambda ticket, row: None)


async def test_what_was_said_and_not_heard_is_found_by_asking(storage: RedisStorage) -> None:
    async with App(storage=Unheard(storage)) as app:

        @app.task
        async def t() -> str:
            return "ran"

        async with Worker(app, poll=0.05, lease=LONG):
            for _ in range(5):
                await waits(storage)
                job = await t.enqueue()
                assert await job.result(timeout=10) == "ran"
                [row] = await storage.get([job.id])
                assert row is not None
                assert (row.attempt, row.lost) == (1, 0)


async def test_a_worker_whose_connection_broke_hears_of_it(app: App, storage: RedisStorage) -> None:
    """What it was handed it may not have heard of; it asks as soon as it listens again."""

    @app.task
    async def t() -> str:
        return "ran"

    async with Worker(app, poll=LONG, lease=LONG):
        for _ in range(5):
            await waits(storage)
            await storage._pool.command("CLIENT", "KILL", "TYPE", "pubsub")
            assert await (await t.enqueue()).result(timeout=10) == "ran"


async def test_nothing_is_handed_to_a_process_that_is_gone(storage: RedisStorage) -> None:
    """Its kernel has closed its connection, and the server knows."""
    gone = RedisStorage(valkey.url(), ns=storage._tag[9:-1])
    await gone.open()
    post = gone.post(lambda ticket, row: None)
    assert post is not None

    async def listens() -> bool:
        return bool((await storage._pool.command("PUBSUB", "NUMSUB", post.address))[1])

    async def is_gone() -> bool:
        return not await listens()

    await until(listens)
    assert (await gone.claim(Claim(worker="gone#1", hand=(post.address, 60.0)))).records == ()
    await gone.close()
    await until(is_gone)
    await storage.enqueue([NewJob(id="a", task="t")])
    [row] = (await storage.claim(Claim(worker="w#1"))).records
    assert row.lost == 0


async def test_a_worker_that_stops_withdraws_its_ask(app: App, storage: RedisStorage) -> None:
    @app.task
    async def t() -> None: ...

    for _ in range(5):
        async with Worker(app, poll=LONG):
            await waits(storage)
        job = await t.enqueue()
        [row] = await storage.get([job.id])
        assert row is not None
        assert (row.state, row.version) == (State.READY, 0)
        assert await app.jobs.cancel(job)


async def test_what_comes_while_a_worker_stops_is_run_or_left(app: App, storage: RedisStorage) -> None:
    ran: list[str] = []

    @app.task
    async def t(n: str) -> None:
        ran.append(n)

    for n in range(30):
        worker = Worker(app, poll=LONG)
        await worker.start()
        await waits(storage)
        job, _ = await asyncio.gather(t.enqueue(str(n)), worker.stop())
        [row] = await storage.get([job.id])
        assert row is not None
        assert row.state is (State.SUCCEEDED if str(n) in ran else State.READY)
        assert (row.lost, row.attempt) == (0, int(str(n) in ran))
        if row.state is State.READY:
            assert await app.jobs.cancel(job)


async def test_a_pause_of_the_throttle_withdraws_it(app: App, storage: RedisStorage) -> None:
    pause, asked = 0.0, asyncio.Event()

    async def throttle() -> float:
        asked.set()
        return pause

    @app.task
    async def t() -> None: ...

    async with Worker(app, poll=LONG, throttle=throttle):
        await waits(storage)
        pause = 60.0
        await waits(storage, 0)
        job = await t.enqueue()
        [row] = await storage.get([job.id])
        assert row is not None
        assert row.state is State.READY


async def test_asks_leave_nothing_behind(app: App, storage: RedisStorage) -> None:
    """Whoever asked, and how often."""

    @app.task
    async def t() -> None: ...

    async with Worker(app, poll=LONG), Worker(app, poll=LONG):
        await waits(storage, 2)
        for _ in range(20):
            await (await t.enqueue()).result(timeout=10)
        await waits(storage, 2)
        for key in await storage._pool.command("KEYS", f"{storage._tag}:asking:*"):
            assert await storage._pool.command("ZCARD", key) <= 2
            assert await storage._pool.command("PTTL", key) > 0
