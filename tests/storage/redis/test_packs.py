"""Many jobs that end in one call are stored as one pack: the answers are the same as for single entries."""

from __future__ import annotations

import itertools
import os

from msgspec.structs import replace

from tests.servers import valkey
from treadle.core.model import Claim, Outcome, State
from treadle.core.query_model import Query
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock
from treadle_testkit.conformance.kit import done, job

_names = (f"p{os.getpid()}-{n}" for n in itertools.count())


async def _keys(storage: RedisStorage) -> set[str]:
    tag = storage._tag
    return {key.decode().removeprefix(f"{tag}:") for key in await storage._pool.command("KEYS", f"{tag}:*")}


async def _by_ending(storage: Storage, limit: int) -> list[str]:
    cursor, ids = None, list[str]()
    while True:
        page = await storage.find(Query(order="ended", limit=limit, cursor=cursor))
        ids += [row.job.id for row in page.records]
        cursor = page.cursor
        if cursor is None:
            return ids


async def _end(storage: Storage, turn: int, most: int) -> int:
    rows = (await storage.claim(Claim(worker=f"w#{turn}", limit=most))).records
    await storage.settle(list(map(done, rows)))
    return len(rows)


async def test_many_jobs_that_end_together_are_stored_and_pruned() -> None:
    """Pages, small prunes, and rows that changed since: as in the memory storage. At the end nothing is left."""
    clock = HandClock()
    memory, redis = MemoryStorage(clock), RedisStorage(valkey.url(), ns=next(_names), now=clock)
    await redis.open()
    jobs = [job(f"{(n * 37) % 100:02}{n:04}", keep=60.0 if n % 3 else 90.0) for n in range(400)]
    ids = [spec.id for spec in jobs]
    for storage in (memory, redis):
        await storage.enqueue(jobs)
    for turn in range(8):
        assert await _end(memory, turn, 50) == await _end(redis, turn, 50) == 50
        clock.advance(turn % 2)  # two calls at each time
    assert await redis.read("ZCARD", "ended") == await redis.read("ZCARD", "old") == 0
    assert await redis.read("HLEN", "packs") == await redis.read("ZCARD", "packs:old") == 8  # 4 times, 60 or 90 s
    for limit in (7, 1_000):
        found = await _by_ending(redis, limit)
        assert found == await _by_ending(memory, limit)
        assert len(found) == 400

    clock.advance(10)
    for n, id in enumerate(ids[::9]):
        for storage in (memory, redis):
            [row] = await storage.get([id])
            assert row is not None
            out = done(row, keep=(60.0, 75.0, 200.0)[n % 3])
            await storage.settle([replace(out, state=State.READY, keep=None) if n % 4 == 0 else out])
    assert await _end(memory, 8, 9) == await _end(redis, 8, 9) == 9  # jobs that were reopened end again, later
    assert await _by_ending(redis, 11) == await _by_ending(memory, 11)
    for limit in (7, 0, 30, 1, 90, 5, 1_000, 1_000, 1_000):
        assert await redis.prune(limit) == await memory.prune(limit)
        assert await redis.get(ids) == await memory.get(ids)
        assert await _by_ending(redis, 13) == await _by_ending(memory, 13)
        clock.advance(20 if limit < 1_000 else 60)

    rest = await _end(redis, 9, 99)
    clock.advance(1_000)
    assert await redis.prune(1_000) == rest
    assert await _keys(redis) == {"schema"}
    await redis.close()


async def test_rows_of_a_pack_that_other_jobs_need_stay() -> None:
    """They stay as long as another job needs them. After one prune has checked such a row, it is stored alone."""
    clock = HandClock()
    redis = RedisStorage(valkey.url(), ns=next(_names), now=clock)
    await redis.open()
    await redis.enqueue([job(f"a{n}", keep=60.0) for n in range(20)])
    rows = (await redis.claim(Claim(worker="w#1", limit=20))).records
    await redis.enqueue([job("b", keep=60.0, after=("a3", "x")), job("x", task="")][::-1])
    await redis.settle(list(map(done, rows)))
    clock.advance(61)
    assert [await redis.prune(5), await redis.prune(99), await redis.prune(99)] == [5, 14, 0]
    assert [row.job.id for row in (await redis.find(Query(order="ended"))).records] == ["a3"]
    await redis.settle([Outcome(id="x", version=0, state=State.SUCCEEDED)])
    await redis.settle(list(map(done, (await redis.claim(Claim(worker="w#2", limit=9))).records)))
    clock.advance(86_500)
    assert await redis.prune(99) == 3
    assert await _keys(redis) == {"schema"}
    await redis.close()
