"""A job ends because of its child in one transaction, and the child is reopened in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.servers import postgres
from tests.storage.postgres.support import a_schema, blocked_by, job, url_of
from treadle.core.model import Claim, Outcome, Record, State
from treadle.storage.postgres import PostgresStorage


@pytest.fixture
async def storage() -> AsyncIterator[PostgresStorage]:
    with a_schema() as schema:
        made = PostgresStorage(url_of(schema))
        await made.open()
        yield made
        await made.close()


async def row(storage: PostgresStorage, id: str) -> Record:
    [found] = await storage.get([id])
    assert found is not None
    return found


async def claim(storage: PostgresStorage, claim_id: str) -> Record:
    [found] = (await storage.claim(Claim(worker=claim_id, queues=(("default", 1),), limit=1))).records
    return found


async def ending_and_retry(storage: PostgresStorage) -> tuple[Outcome, Outcome]:
    """The outcome of a parent that fails because of its child, and one that reopens this child."""
    await storage.enqueue([job("parent")])
    parent = await claim(storage, "w#1")
    waits = Outcome(
        id="parent",
        version=parent.version,
        state=State.WAITING,
        followups=(job("child", parent="parent"),),
        after=("child",),
        failures_allowed=None,
        function_done=True,
    )
    await storage.settle([waits])
    child = await claim(storage, "w#2")
    await storage.settle([Outcome(id="child", version=child.version, state=State.FAILED, reason="error")])
    parent, child = await claim(storage, "w#3"), await row(storage, "child")
    assert (parent.id, child.state) == ("parent", State.FAILED)
    return (
        Outcome(id="parent", version=parent.version, state=State.FAILED, reason="children", after=("child",)),
        Outcome(id="child", version=child.version, state=State.READY),
    )


async def test_the_child_is_being_reopened(storage: PostgresStorage) -> None:
    """The ending waits for no lock, because the other transaction may wait for the row of the parent."""
    ending, retry = await ending_and_retry(storage)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        [settled] = await storage.within(other).settle([retry])
        assert settled.status == "applied"
        [told] = await storage.settle([ending])
        assert (told.status, told.again) == ("refused", True)
        await other.commit()
    [told] = await storage.settle([ending])
    assert (told.status, told.reason) == ("stale", "child is ready")


async def test_the_parent_is_being_ended(storage: PostgresStorage) -> None:
    """The retry waits for the ending, and reopens the parent too."""
    ending, retry = await ending_and_retry(storage)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as other:
        [settled] = await storage.within(other).settle([ending])
        assert settled.status == "applied"
        retrying = asyncio.create_task(storage.settle([retry]))
        await blocked_by(other)
        await other.commit()
    [settled] = await retrying
    assert settled.status == "applied"
    assert [(await row(storage, id)).state for id in ("parent", "child")] == [State.WAITING, State.READY]
