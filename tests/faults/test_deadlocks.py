"""Real deadlocks between a call of Treadle and a user's transaction: the call is rolled back and repeated, without an
error.

The other transaction holds the lock that the call needs second, and then needs the one that the call holds. The server
rolls back the transaction that began to wait first; the tests make that Treadle's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.faults.stages import PostgresStage, staged
from tests.faults.test_outages import WITHIN, Shop
from tests.waiting import until
from treadle import Event, current

# the server must find the deadlock before the call has waited for its second lock; under load that is chance
ATTEMPTS = 40
FIND: tuple[LiteralString, ...] = (
    "ALTER ROLE postgres SET deadlock_timeout = '200ms'",
    "ALTER ROLE postgres RESET deadlock_timeout",
)
# for the user's transaction, so that the server does not roll it back
LATER: LiteralString = "SET deadlock_timeout = '20s'"


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Shop, PostgresStage]]:
    async with staged(PostgresStage) as stage:
        await asyncio.to_thread(stage._do, FIND[0])
        try:
            yield Shop(stage.url, WITHIN), stage
        finally:
            await asyncio.to_thread(stage._do, FIND[1])


def undone(stage: PostgresStage, verb: str) -> int:
    """How often the server rolled back a call of this verb because of a deadlock."""
    log = Path(stage.server.folder, "log").read_text(errors="replace")
    return len(re.findall(rf"ERROR:  deadlock detected(?:(?!ERROR:).)*STATEMENT: [^\n]*\.{verb}_", log, re.DOTALL))


async def until_it_waits(looking: psycopg.AsyncConnection[Any], verb: str) -> None:
    ask = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ %s AND datname = current_database()"

    async def waits() -> int:
        return (await looking.execute(ask, (rf"\.{verb}_",))).rowcount

    await until(waits, f"a {verb} that waits for a lock", WITHIN)


async def deadlock(
    stage: PostgresStage,
    verb: str,
    first: Callable[..., Awaitable[Any]],
    ours: Callable[[], Awaitable[Any]],
    second: Callable[..., Awaitable[Any]],
) -> Any:
    """Play a deadlock: the user's first statement, the call, the user's second statement, its commit. Return the call's
    result."""
    async with (
        await psycopg.AsyncConnection.connect(stage.direct, autocommit=True) as looking,
        await psycopg.AsyncConnection.connect(stage.direct) as theirs,
    ):
        await theirs.execute(LATER)
        await first(within=theirs)
        call = asyncio.ensure_future(ours())
        await until_it_waits(looking, verb)
        await second(within=theirs)
        await theirs.commit()
    async with asyncio.timeout(WITHIN):
        return await call


async def test_two_transactions_enqueue_with_the_same_keys() -> None:
    """Both calls return the jobs of the user, who was first; no error is raised. The worker starts later: a job that
    has ended leaves its key to the call."""
    async with shop() as (it, stage), it.app:
        for attempt in range(ATTEMPTS):
            low, high = (it.sell.options(key=f"{attempt} {name}") for name in ("a", "b"))
            first, second = high.job(1), low.job(1)
            answers = await deadlock(
                stage,
                "enqueue_keyed",
                partial(it.app.enqueue, first),
                partial(it.app.enqueue, [low.job(2), high.job(2)]),
                partial(it.app.enqueue, second),
            )
            assert [job.id for job in answers] == [second.id, first.id]
            it.stored.update(job.id for job in answers)
            if undone(stage, "enqueue_keyed"):
                break
        else:
            pytest.fail("no deadlock came about")
        async with it.worker():
            await it.all_ended()
        await it.nothing_lost_nothing_twice(stage.direct)
        assert it.outages == []


async def test_endings_of_jobs_that_get_a_dependent_meanwhile() -> None:
    """A worker settles two jobs; the user's transaction begins to wait for one of them, and then for the other."""
    async with shop() as (it, stage):
        ends, running = asyncio.Event(), asyncio.Semaphore(0)

        async def hold() -> None:
            it.runs[current().id] += 1
            running.release()
            await ends.wait()

        async def ends_both() -> None:
            ends.set()
            await it.all_ended()

        task, lost = it.app.task(name="hold")(hold), list[Event]()
        it.app.on("lost")(lost.append)
        async with it.app, it.worker():
            for _ in range(ATTEMPTS):
                ends.clear()
                jobs = await it.app.enqueue([task.job(), task.job()])
                low, high = sorted(job.id for job in jobs)
                for _ in jobs:
                    await running.acquire()

                waiting = [it.sell.options(after=[id]).job(1) for id in (high, low)]
                it.stored.update((low, high, *(spec.id for spec in waiting)))
                first, second = (partial(it.app.enqueue, spec) for spec in waiting)
                await deadlock(stage, "settle_and_claim", first, ends_both, second)
                if undone(stage, "settle_and_claim"):
                    break
            else:
                pytest.fail("no deadlock came about")
            await it.all_ended()
            await it.nothing_lost_nothing_twice(stage.direct)
            assert (it.outages, lost) == ([], [])
