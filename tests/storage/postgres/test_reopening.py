"""A job ends because of its child in one transaction, and the child is reopened in another."""

from __future__ import annotations

import asyncio

import psycopg

from tests.servers import postgres
from tests.storage.postgres.support import blocked_by
from treadle.core.model import Outcome
from treadle.storage.postgres import PostgresStorage
from treadle_testkit.conformance.kit import (
    FAILED,
    READY,
    WAITING,
    back,
    claim_one,
    failed,
    job,
    out,
    refusal,
    row,
    run,
    settle,
    states,
)


async def ending_and_retry(storage: PostgresStorage) -> tuple[Outcome, Outcome]:
    """The outcome of a parent that fails because of its child, and one that reopens this child."""
    await storage.enqueue([job("parent")])
    child = job("child", parent="parent")
    await settle(
        storage, out(await claim_one(storage), WAITING, function_done=True, followups=(child,), after=("child",))
    )
    await run(storage, "child", to=FAILED)
    return failed(await claim_one(storage), reason="children", after=("child",)), back(await row(storage, "child"))


async def test_the_child_is_being_reopened(storage: PostgresStorage) -> None:
    """The ending waits for no lock, because the other transaction may wait for the row of the parent."""
    ending, retry = await ending_and_retry(storage)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        [settled] = await storage.within(other).settle([retry])
        assert settled.status == "applied"
        told = await refusal(storage, ending)
        assert (told.status, told.again) == ("refused", True)
        await other.commit()
    told = await refusal(storage, ending)
    assert (told.status, told.reason) == ("stale", "child is ready")


async def test_the_parent_is_being_ended(storage: PostgresStorage) -> None:
    """The retry waits for the ending, and reopens the parent too."""
    ending, retry = await ending_and_retry(storage)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        [settled] = await storage.within(other).settle([ending])
        assert settled.status == "applied"
        retrying = asyncio.create_task(settle(storage, retry))
        await blocked_by(other)
        await other.commit()
    await retrying
    assert await states(storage, "parent child") == [WAITING, READY]
