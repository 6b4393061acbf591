"""Acts on many jobs use statements for all jobs of a call; the function for one row is not called."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from psycopg import sql

from tests.storage.postgres import support
from treadle import App
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.errors import StorageError
from treadle.storage.postgres import PostgresStorage
from treadle.storage.postgres.statements import renamed

MANY = 300  # more than one group
PER_ROW = renamed("settle_one(")[:-1]
OUTCOME = renamed("job_outcome")
REFUSE = """
CREATE OR REPLACE FUNCTION {}.{}(outcome {}.{}, moment float8, t float8, OUT status text, OUT why text)
LANGUAGE plpgsql AS $$ BEGIN RAISE 'the function for one row was called for %', outcome; END $$
"""


@pytest.fixture
async def app() -> AsyncIterator[App]:
    schema = support.take_schema()
    async with App(storage=PostgresStorage(support.url_of(schema))) as made:
        names = (schema, PER_ROW, schema, OUTCOME)
        support.admin().execute(sql.SQL(REFUSE).format(*map(sql.Identifier, names)))
        yield made
    support.admin().execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


async def fill(app: App, state: str) -> None:
    """Jobs that are queued (some with a limit), due later, running, or dead."""
    delay = 60.0 if state == "later" else 0.0
    await app.storage.enqueue(
        [
            NewJob(id=f"j{n:04}", task="t", queue="q", delay=delay, limits=(("l", 1),) if n % 3 else ())
            for n in range(MANY)
        ]
    )
    if state in ("running", "failed"):
        rows = (await app.storage.claim(Claim(worker="w#1", queues=(("q", MANY),), limit=MANY))).records
        if state == "failed":
            await app.storage.settle(
                [
                    Outcome(id=row.id, version=row.version, state=State.FAILED, attempt=1, reason="error", error="boom")
                    for row in rows
                ]
            )


@pytest.mark.parametrize("state", ["ready", "later", "running"])
async def test_a_cancel_of_many_is_one_statement_a_group(app: App, state: str) -> None:
    await fill(app, state)
    assert await app.jobs.cancel(queue="q") == MANY
    rows = (await app.jobs.list(queue="q", limit=MANY)).records
    assert {(row.state, row.reason, row.error, row.worker) for row in rows} == {
        (State.CANCELLED, "asked", "cancelled by hand", "w#1" if state == "running" else None)
    }
    assert not any(each.used for each in await app.storage.limits())


async def test_a_retry_of_many_is_one_statement_a_group(app: App) -> None:
    await fill(app, "failed")
    assert await app.jobs.retry(queue="q") == MANY
    rows = (await app.storage.claim(Claim(worker="w#2", queues=(("q", MANY),), limit=MANY))).records
    assert len(rows) == MANY
    assert {(row.attempt, row.reopenings, row.error, row.reason, row.ended_at) for row in rows} == {
        (0, 1, None, None, None)
    }


async def test_a_run_now_of_many_is_one_statement_a_group(app: App) -> None:
    await fill(app, "later")
    assert await app.jobs.run_now(queue="q") == MANY
    rows = (await app.storage.claim(Claim(worker="w#2", queues=(("q", MANY),), limit=MANY))).records
    assert len(rows) == MANY


async def test_a_delete_of_many_is_one_statement_a_group(app: App) -> None:
    await fill(app, "failed")
    assert await app.jobs.delete(queue="q") == MANY
    rows = (await app.jobs.list(queue="q", limit=MANY)).records
    assert {round((row.expires_at or 0) - (row.ended_at or 0)) for row in rows} == {60}
    assert await app.jobs.delete(queue="q") == 0


async def test_the_function_for_one_row_is_watched(app: App) -> None:
    """A job with a key needs that function, so a call of it would be noticed here."""
    await app.storage.enqueue([NewJob(id="a", task="t", queue="q", key="k")])
    [row] = (await app.storage.claim(Claim(worker="w#1", queues=(("q", 1),), limit=1))).records
    await app.storage.settle([Outcome(id="a", version=row.version, state=State.FAILED, attempt=1, reason="error")])
    with pytest.raises(StorageError, match="the function for one row was called"):
        await app.jobs.retry(queue="q")
