"""A step costs a storage the same however many are stored, and so does a claim however many jobs of its queue sleep:
work is counted by each engine's own measure, not timed."""

from __future__ import annotations

import itertools
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, TypeVar

import redis.asyncio

from tests.servers import valkey
from tests.storage.postgres import support
from treadle.core.model import Claim, Record
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.postgres import PostgresStorage
from treadle.storage.redis import RedisStorage
from treadle.storage.sqlite import SqliteStorage
from treadle_testkit.conformance.kit import back, beat, job, renewal, settle
from treadle_testkit.shows import shows

STEPS = 1_000
S = TypeVar("S", bound=Storage)
Measure = Callable[[Callable[[], Awaitable[object]]], Awaitable[float]]
_names = (f"steps{os.getpid()}-{n}" for n in itertools.count())


@asynccontextmanager
async def opened(storage: S) -> AsyncIterator[S]:
    await storage.open()
    yield storage
    await storage.close()


async def costs(storage: Storage, measure: Measure) -> None:
    """The work of steps by renewals, of heartbeats and of outcomes, with few and with many steps stored."""
    await storage.enqueue([job("a"), job("other")])
    turn = itertools.count()

    async def claimed() -> Record:
        [row] = (await storage.claim(Claim(worker=f"w#{next(turn)}", ids=("a",), limit=1))).records
        return row

    async def step(row: Record, n: int) -> None:
        await beat(storage, renewal(row, checkpoints=((f"s{n:04}", "x" * 900),)))

    async def work(row: Record, first: int) -> dict[str, float]:
        numbers = iter(range(first, first + 9))
        steps = [await measure(lambda: step(row, next(numbers))) for _ in range(9)]
        notes = iter("abcdefghi")
        beats = [await measure(lambda: beat(storage, renewal(row, note=next(notes)))) for _ in range(9)]
        outcome = back(row, checkpoints=((f"s{first + 9:04}", "x" * 900),))
        return {
            "step": median(steps),
            "note": median(beats),
            "outcome": await measure(lambda: settle(storage, outcome)),
        }

    few = await work(await claimed(), 10)
    row = await claimed()
    assert len(row.checkpoints) == 10
    for n in range(20, STEPS - 10):
        await step(row, n)
    many = await work(row, STEPS - 10)
    assert len((await claimed()).checkpoints) == STEPS - 10
    for what, cost in few.items():
        assert many[what] <= 1.2 * cost + SLACK, f"{what}: {cost} with few steps, {many[what]} with {STEPS}"


async def claims_with_sleepers(storage: Storage, measure: Measure) -> None:
    """The work of a claim from a queue, with few jobs of it that sleep, and with many."""
    numbers = itertools.count()

    async def claims() -> float:
        await storage.enqueue([job(f"q{next(numbers)}", queue="sleepers") for _ in range(5)])
        return median([await measure(claim) for _ in range(5)])

    async def claim(limit: int = 1) -> list[Record]:
        ask = Claim(worker=f"c#{next(numbers)}", queues=(("sleepers", limit),), limit=limit)
        return list((await storage.claim(ask)).records)

    await claims()
    few = await claims()
    await storage.enqueue([job(f"s{n}", queue="sleepers") for n in range(SLEEPERS)])
    await settle(storage, *[back(row, delay=3_600.0) for row in await claim(SLEEPERS)])
    many = await claims()
    assert many <= 1.2 * few + SLACK, f"{few} with few sleepers, {many} with {SLEEPERS}"


SLEEPERS = 500
SLACK = 64  # bytes, commands or instructions: longer numbers


@shows("the thousandth step of a job costs each storage as much as the first")
async def test_memory_allocates_no_more() -> None:
    async def peak(call: Callable[[], Awaitable[object]]) -> float:
        tracemalloc.start()
        await call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    async with opened(MemoryStorage()) as storage:
        await costs(storage, peak)


@shows("a claim costs each storage the same, however many jobs of its queue sleep")
async def test_memory_takes_no_more_instructions_with_sleepers() -> None:
    async def instructions(call: Callable[[], Awaitable[object]]) -> float:
        ran, before = 0, sys.gettrace()

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal ran
            frame.f_trace_opcodes = True
            ran += event == "opcode"
            return count

        sys.settrace(count)
        try:
            await call()
        finally:
            sys.settrace(before)
        return ran

    async with opened(MemoryStorage()) as storage:
        await claims_with_sleepers(storage, instructions)


async def test_sqlite_runs_no_more_instructions(tmp_path: Path) -> None:
    async with opened(SqliteStorage(str(tmp_path / "jobs.db"), synchronous="off")) as storage:

        async def instructions(call: Callable[[], Awaitable[object]]) -> float:
            ran = 0

            def count() -> int:
                nonlocal ran
                ran += 1
                return 0

            storage._file.db.set_progress_handler(count, 1)
            await call()
            storage._file.db.set_progress_handler(None, 1)
            return ran

        await costs(storage, instructions)
        await claims_with_sleepers(storage, instructions)


async def test_redis_runs_no_more_commands_and_writes_no_more_bytes() -> None:
    client = redis.asyncio.Redis.from_url(valkey.url())

    async def commands_and_bytes(call: Callable[[], Awaitable[object]]) -> float:
        work = 0
        async with client.monitor() as monitor:
            await client.get("begin")
            await call()
            await client.get("end")
            async for each in monitor.listen():
                if each["command"] == "GET end":
                    break
                if each["client_type"] == "lua":
                    work += 100 + len(each["command"])
        return work

    async with opened(RedisStorage(valkey.url(), ns=next(_names))) as storage:
        await costs(storage, commands_and_bytes)
        await claims_with_sleepers(storage, commands_and_bytes)
    await client.aclose()


async def test_postgres_writes_no_more_log() -> None:
    schema = support.take_schema()

    async def log(call: Callable[[], Awaitable[object]]) -> float:
        ask = "SELECT pg_current_wal_insert_lsn() - '0/0'"
        before = support.admin().execute(ask).fetchone()
        await call()
        after = support.admin().execute(ask).fetchone()
        assert before is not None
        assert after is not None
        return float(after[0] - before[0])

    async with opened(PostgresStorage(support.url_of(schema))) as storage:
        await costs(storage, log)
        await claims_with_sleepers(storage, log)
    support.give_back(schema)
