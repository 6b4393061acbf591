"""Hand-off on a real server: the shared tests, and workers that stopped or were disconnected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.servers import valkey
from tests.storage.handing_kit import *  # noqa: F403
from tests.storage.handing_kit import LONG, Waits
from tests.waiting import until
from treadle import App, Worker
from treadle.core.model import Claim, NewJob
from treadle.storage.redis import RedisStorage


@pytest.fixture
def asks(storage: RedisStorage) -> Callable[[], Awaitable[int]]:
    async def standing() -> int:
        found = 0
        for channel in await storage._pool.command("PUBSUB", "CHANNELS", f"{storage._tag}:hand:*"):
            found += await storage._pool.command("EXISTS", f"{storage._tag}:ask:{channel.decode()}")
        return found

    return standing


async def test_a_worker_claims_again_after_its_connection_broke(app: App, storage: RedisStorage, waits: Waits) -> None:
    """Messages may be lost while it is disconnected, so it claims again as soon as it listens again."""

    @app.task
    async def t() -> str:
        return "ran"

    async with Worker(app, poll=LONG, lease=LONG):
        for _ in range(5):
            await waits()
            await storage._pool.command("CLIENT", "KILL", "TYPE", "pubsub")
            assert await (await t.enqueue()).result(timeout=30) == "ran"


async def test_no_job_is_handed_off_to_a_dead_process(storage: RedisStorage) -> None:
    """Its kernel has closed its connection, so the server knows."""
    gone = RedisStorage(valkey.url(), ns=storage._tag[9:-1])
    await gone.open()
    post = gone.post(lambda claim_id, row: None)
    assert post is not None

    async def listens() -> bool:
        return bool((await storage._pool.command("PUBSUB", "NUMSUB", post.address))[1])

    async def is_gone() -> bool:
        return not await listens()

    await until(listens, "the server's answer to SUBSCRIBE")
    assert (await gone.claim(Claim(worker="gone#1", hand_off=(post.address, 60.0)))).records == ()
    await gone.close()
    await until(is_gone, "the end of the connection at the server")
    await storage.enqueue([NewJob(id="a", task="t")])
    [row] = (await storage.claim(Claim(worker="w#1"))).records
    assert row.lost == 0


async def test_open_claims_leave_nothing_behind(app: App, storage: RedisStorage, waits: Waits) -> None:
    """The keys of open claims, and the counts of how often each was made."""

    @app.task
    async def t() -> None: ...

    async with Worker(app, poll=LONG), Worker(app, poll=LONG):
        await waits(2)
        for _ in range(20):
            await (await t.enqueue()).result(timeout=30)
        await waits(2)
        for key in await storage._pool.command("KEYS", f"{storage._tag}:asking:*"):
            assert await storage._pool.command("ZCARD", key) <= 2
            assert await storage._pool.command("PTTL", key) > 0


async def test_a_queue_that_a_hand_off_has_emptied(storage: RedisStorage) -> None:
    """A new job is queued there as always; the next claim that finds the queue empty removes it."""
    post = storage.post(lambda claim_id, row: None)
    assert post is not None

    async def listens() -> bool:
        return bool((await storage._pool.command("PUBSUB", "NUMSUB", post.address))[1])

    async def lines() -> list[bytes]:
        found: list[bytes] = await storage._pool.command("KEYS", f"{storage._tag}:line*")
        return found

    async def claimed(claim_id: str, *, asks: bool = False) -> list[str]:
        hand_off = (post.address, 60.0) if asks else None
        ask = Claim(worker=claim_id, queues=(("default", 9),), limit=9, hand_off=hand_off)
        return [row.job.id for row in (await storage.claim(ask)).records]

    await until(listens, "the server's answer to SUBSCRIBE")
    assert await claimed("w#1", asks=True) == []
    await storage.enqueue([NewJob(id="a", task="t")])
    assert await claimed("w#1") == ["a"]  # by hand-off
    await storage.enqueue([NewJob(id="b", task="t"), NewJob(id="c", task="t")])
    assert await claimed("w#2") == ["b", "c"]
    assert await lines() == []
    assert await claimed("w#3", asks=True) == []
    await storage.enqueue([NewJob(id="d", task="t")])
    assert await claimed("w#4") == []
    assert await lines() == []
    post.close()
