"""The kept counts on a Redis server: a recount in steps between other calls."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from typing import Any

import pytest

from tests.servers import valkey
from tests.storage.play import Crowd, Play, said
from tests.storage.redis.reads_kit import reads_of
from treadle.core.model import Claim, NewJob
from treadle.core.query_model import CountDrift, Query
from treadle.storage import queries
from treadle.storage.redis import RedisStorage
from treadle.storage.redis.recount import PAGE, recount
from treadle.testing import HandClock

SEEDS = int(os.environ.get("TEST_SEEDS", "5"))
_names = (f"k{os.getpid()}-{n}" for n in itertools.count())


async def opened(clock: HandClock) -> RedisStorage:
    storage = RedisStorage(valkey.url(), ns=next(_names), now=clock)
    await storage.open()
    return storage


async def numbers(storage: RedisStorage, key: str) -> dict[bytes, int]:
    words = await storage.read("HGETALL", key)
    return {
        words[at]: int(words[at + 1]) for at in range(0, len(words), 2) if b":" in words[at] and words[at + 1] != b"0"
    }


async def in_rows(storage: RedisStorage) -> dict[bytes, int]:
    rows = (await storage.find(Query(limit=10_000))).records
    return Counter(f"{queries.kind_of(row)}:{row.job.queue}\0{row.job.task}".encode() for row in rows)


async def play(game: Play, storage: RedisStorage, clock: HandClock, steps: int) -> None:
    """Random calls; between them a recount takes its steps, each of one to three rows."""
    for turn in range(steps):
        await said(game.next(), storage)
        game.rows = {row.job.id: row for row in (await storage.find(Query(limit=10_000))).records}
        assert await numbers(storage, "counts") == await in_rows(storage)
        ended = await storage.call("recount", "run", 1 + turn % 3)
        if ended == b"1":
            assert await numbers(storage, "recount") == await in_rows(storage)
            if turn % 5 == 0:
                await storage.call("compare", "run")
        clock.advance(game.dice.choice([0, 0, 0.25, 1, 1, 3, 12, 70]))


@pytest.mark.parametrize("game", [Play, Crowd])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_recount_between_other_calls_is_exact(seed: int, game: Any) -> None:
    """Its counts follow every change of a row that it has read, on the bulk path and the per-row path."""

    async def run() -> None:
        clock = HandClock()
        storage = await opened(clock)
        try:
            await play(game(seed, clock), storage, clock, 100)
        finally:
            await storage.close()

    asyncio.run(run())


async def test_a_recount_by_two_processes_at_once(storage: RedisStorage) -> None:
    """The second one waits for the first, and for one whose process has died: until it expires."""
    await storage.enqueue([NewJob(id=f"a{n}", task="t") for n in range(1_000)])
    await storage.write("HINCRBY", "counts", "queued:default\0t", 5)
    wrong = CountDrift(queue="default", task="t", kind="queued", kept=1_005, counted=1_000)
    assert await asyncio.gather(*(storage.recount() for _ in range(3))) == [(wrong,)] * 3
    assert await storage.call("recount", "killed", 1) == b"0"
    await storage.write("PEXPIRE", "recount", 200)
    assert await storage.recount(repair=True) == (wrong,)
    assert await storage.recount() == ()


async def test_a_recount_that_expired_starts_again(storage: RedisStorage) -> None:
    """Its process was suspended: changes that came meanwhile did not reach its counts."""
    await storage.enqueue([NewJob(id=f"a{n}", task="t") for n in range(5)])
    assert await storage.call("recount", "run", 3) == b"0"
    await storage.write("DEL", "recount")
    await storage.enqueue([NewJob(id="b", task="t")])
    while await storage.call("recount", "run", 3) != b"1":
        pass
    assert await numbers(storage, "recount") == {b"queued:default\0t": 6}
    assert not await storage.call("compare", "another", "", "queued:default\0t"), "that recount is not in progress"


async def test_stats_of_more_queues_than_one_script_reads(storage: RedisStorage) -> None:
    await storage.enqueue([NewJob(id=f"a{n:04}", task="t", queue=f"q{n:04}") for n in range(1_300)])
    found = (await storage.stats()).counts
    assert [(it.queue, it.queued, it.oldest is not None) for it in found] == [
        (f"q{n:04}", 1, True) for n in range(1_300)
    ]
    kept, counted = await recount(storage, repair=False)
    assert kept == counted
    assert len(kept) == 1_300


async def test_counts_of_no_job_are_removed(storage: RedisStorage) -> None:
    await storage.enqueue([NewJob(id="a", task="t")])
    await storage.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))
    assert set(await storage.read("HGETALL", "counts")) >= {b"queued:default\0t", b"0"}
    await storage.prune(10)
    assert await storage.read("HGETALL", "counts") == [b"running:default\0t", b"1"]


async def test_stats_read_no_rows(storage: RedisStorage) -> None:
    await storage.enqueue([NewJob(id=f"a{n}", task="t") for n in range(3_000)])
    found = list[int]()
    async with reads_of(found):
        assert [it.jobs for it in (await storage.stats()).counts] == [3_000]
        assert found == []
        await storage.recount()
    assert max(found) <= PAGE, "a step of a recount held up other calls"
