"""Open transactions of other programs that hold a key, an id, a row or a bound: only calls that need it wait, alone.

The transactions stay open until the test ends them, so a call that is not to wait is shown by its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
import pytest

from tests.storage.postgres import support
from tests.storage.postgres.support import blocked_by, job
from tests.waiting import patient
from treadle import App, JobSpec, Limit, Locked, QueueFull, StorageUnavailable, Worker
from treadle.admin import acts
from treadle.core.model import State
from treadle.storage import locked_calls
from treadle.storage.postgres import PostgresStorage
from treadle.storage.postgres.enqueue import WITHIN
from treadle_testkit.shows import shows

T = TypeVar("T")


@pytest.fixture
def clock() -> None:
    return None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is held up is repeated for a short time only."""
    monkeypatch.setattr(locked_calls, "PATIENCE", 0.5)


@pytest.fixture
def schema() -> Iterator[str]:
    with support.a_schema() as schema:
        yield schema


@pytest.fixture
async def app(schema: str) -> AsyncIterator[App]:
    """Its pool has two connections: waiting calls must not take the last one."""
    app = App(support.url_of(schema, pool=2))

    @app.task(name="t")
    async def t(n: int) -> int:
        return n

    async with app:
        yield app


@asynccontextmanager
async def stranger(name: str = "shop") -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A transaction of another program. It is rolled back at the end."""
    async with await psycopg.AsyncConnection.connect(support.postgres.url(), application_name=name) as connection:
        yield connection
        await connection.rollback()


async def soon(call: Awaitable[T], what: str) -> T:
    async with patient(what):
        return await call


def spec(app: App, n: int, **options: Any) -> JobSpec[Any]:
    return app.find_task("t").options(**options).job(n)


HELD = {
    "key": ({"key": "customer-42"}, {"key": "customer-42"}),
    "id": ({"id": "order-1"}, {"id": "order-1"}),
}


@pytest.mark.parametrize("what", HELD)
@shows("an open transaction that holds a key or an id delays only the calls that need the same one")
async def test_only_calls_that_need_the_same_key_or_id_wait(app: App, what: str, impatient: None) -> None:
    theirs, same = HELD[what]
    other = {what: "another"}
    async with stranger() as connection:
        await app.enqueue(spec(app, 1, **theirs), within=connection)
        held = [asyncio.ensure_future(app.enqueue(spec(app, n, **same))) for n in range(3)]
        free = [app.enqueue(spec(app, 10, **other)), *(app.enqueue(spec(app, n)) for n in range(11, 15))]
        assert len(await soon(asyncio.gather(*free), "calls that need nothing of the transaction")) == 5
        await asyncio.wait(held)
        for call in held:
            error = call.exception()
            assert isinstance(error, Locked)
            assert not isinstance(error, StorageUnavailable)
            assert (error.pid, error.application) == (connection.info.backend_pid, "shop")
            assert error.state == "idle in transaction"
            assert error.age is not None
            assert repr(same[what]) in error.what
            assert f"process {connection.info.backend_pid}" in str(error)
        await connection.commit()
    if what == "key":  # the holder is returned
        assert not (await app.enqueue(spec(app, 5, **same))).created


@shows("twenty calls that wait for another transaction leave the pool to the other calls")
async def test_many_waiting_calls_leave_the_pool_to_others(app: App) -> None:
    async with stranger() as connection:
        for n in range(20):
            await app.enqueue(spec(app, n, key=f"k{n}"), within=connection)
        held = [asyncio.ensure_future(app.enqueue(spec(app, n, key=f"k{n}"))) for n in range(20)]
        await blocked_by(connection)
        for n in range(50):
            await soon(app.enqueue(spec(app, n)), "a call without a key")
        assert not any(call.done() for call in held)
        await connection.commit()
        found = await soon(asyncio.gather(*held), "the calls that waited")
    assert len({each.id for each in found}) == 20
    assert not any(each.created for each in found)


async def test_the_one_that_holds_the_key_is_named_not_the_oldest_transaction(app: App, impatient: None) -> None:
    async with stranger("older") as older, stranger("holder") as holder:
        await app.enqueue(spec(app, 1, key="a"), within=older)
        await app.enqueue(spec(app, 1, key="b"), within=holder)
        with pytest.raises(Locked) as caught:
            await app.enqueue(spec(app, 2, key="b"))
        assert (caught.value.application, caught.value.pid) == ("holder", holder.info.backend_pid)


async def test_a_call_of_many_jobs_names_the_key_that_is_held(app: App, impatient: None) -> None:
    async with stranger() as connection:
        await app.enqueue(spec(app, 1, key="k7"), within=connection)
        with pytest.raises(Locked, match="the key 'k7'") as caught:
            await app.enqueue([spec(app, n, key=f"k{n}") for n in range(20)])
    assert len(caught.value.jobs) == 1
    assert (await app.jobs.list()).records == ()


async def test_a_prepared_transaction_is_named(app: App, impatient: None) -> None:
    async with stranger() as connection:
        await connection.tpc_begin(connection.xid(1, "forgotten", "x"))
        await app.enqueue(spec(app, 1, key="a"), within=connection)
        await connection.tpc_prepare()
        try:
            with pytest.raises(Locked, match="prepared"):
                await app.enqueue(spec(app, 2, key="a"))
        finally:
            await connection.tpc_rollback()


async def test_a_job_that_waits_for_one_that_a_transaction_ends(app: App, impatient: None) -> None:
    """`after` names a job whose ending another transaction has not committed."""
    first = await app.enqueue(spec(app, 1))
    async with stranger() as connection:
        await connection.execute(f'SELECT FROM "{app.storage._address.schema}".job FOR UPDATE'.encode())
        with pytest.raises(Locked, match="the row of a job") as caught:
            await app.enqueue(spec(app, 2, after=[first.id]))
        assert caught.value.pid == connection.info.backend_pid
        await app.enqueue(spec(app, 3))


async def test_two_transactions_with_the_same_key(app: App) -> None:
    """The second one waits as long as its own lock_timeout allows, and can be used afterwards."""
    async with stranger() as first, stranger() as second:
        await app.enqueue(spec(app, 1, key="a"), within=first)
        await second.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(Locked, match="holds the key 'a'") as caught:
            await app.enqueue(spec(app, 2, key="a"), within=second)
        assert (caught.value.pid, caught.value.application) == (first.info.backend_pid, "shop")
        await app.enqueue(spec(app, 3, key="b"), within=second)
        found = await (await second.execute("SHOW lock_timeout")).fetchone()
        assert found == ("50ms",)
        await second.commit()
    assert [record.job.payload for record in (await app.jobs.list()).records] == ["[3]"]


async def test_a_transaction_waits_for_a_key_for_a_bounded_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.storage.postgres.transaction.WITHIN", WITHIN._replace(patience=100))
    async with stranger() as first, stranger() as second:
        await app.enqueue(spec(app, 1, key="a"), within=first)
        with pytest.raises(Locked):
            await app.enqueue(spec(app, 2, key="a"), within=second)
        found = await (await second.execute("SHOW lock_timeout")).fetchone()
        assert found == ("0",)


async def test_two_transactions_that_deadlock(app: App) -> None:
    """One of the two calls raises Locked, and its transaction can be used; the other call returns."""
    async with stranger() as one, stranger() as two:
        await app.enqueue(spec(app, 1, key="a"), within=one)
        await app.enqueue(spec(app, 2, key="b"), within=two)

        async def second(connection: psycopg.AsyncConnection[Any], key: str) -> Exception | None:
            try:
                await app.enqueue(spec(app, 3, key=key), within=connection)
            except Locked as error:
                await connection.rollback()
                return error
            await connection.commit()
            return None

        errors = await asyncio.gather(second(one, "b"), second(two, "a"))
    assert sorted(error is None for error in errors) == [False, True]
    assert "40P01" in next(str(error) for error in errors if error is not None)


# --- bounds


@pytest.mark.parametrize("options", [{}, {"key": "a"}, {"delay": 5}], ids=["plain", "keyed", "general"])
@shows("an open transaction that has enqueued into a bounded queue delays no other enqueue into it")
async def test_a_bound_is_not_held_until_the_commit(app: App, options: dict[str, Any]) -> None:
    await app.limits.set(Limit("queue:default", max_waiting=3))
    async with stranger() as connection:
        await app.enqueue(spec(app, 1, **options), within=connection)
        others = {"key": "b"} if options.get("key") else options
        await soon(app.enqueue(spec(app, 2, **others)), "an enqueue into the bounded queue")
        await connection.commit()
    await app.enqueue(spec(app, 3))
    with pytest.raises(QueueFull) as caught:
        await app.enqueue(spec(app, 4))
    assert caught.value.waiting == 3


async def test_open_transactions_may_exceed_a_bound_by_their_own_jobs(app: App) -> None:
    """A transaction sees its own jobs and those that are committed; other calls do not see its jobs."""
    await app.limits.set(Limit("queue:default", max_waiting=2))
    async with stranger() as one, stranger() as two:
        for connection in (one, two):
            await app.enqueue([spec(app, 1), spec(app, 2)], within=connection)
            with pytest.raises(QueueFull):
                await app.enqueue(spec(app, 3), within=connection)
            await connection.commit() if connection is two else None
        with pytest.raises(QueueFull):
            await app.enqueue(spec(app, 4))
        await one.commit()
    with pytest.raises(QueueFull) as caught:
        await app.enqueue(spec(app, 5))
    assert caught.value.waiting == 4


async def test_shed_jobs_of_an_open_transaction_delay_no_call(app: App) -> None:
    await app.limits.set(Limit("queue:default", max_waiting=2, when_full="drop_oldest"))
    await app.enqueue([spec(app, n) for n in (1, 2)])
    async with stranger() as connection:
        await app.enqueue(spec(app, 3), within=connection)
        await soon(app.enqueue(spec(app, 4)), "an enqueue that sheds")
        await connection.commit()
    waiting = [record.job.payload for record in (await app.jobs.list(status="queued")).records]
    assert sorted(waiting) == ["[3]", "[4]"]


# --- other calls


async def test_a_call_that_waits_for_a_key_holds_no_bound(app: App) -> None:
    await app.limits.set(Limit("queue:default", max_waiting=10))
    async with stranger() as connection:
        await app.enqueue(spec(app, 1, key="a"), within=connection)
        held = asyncio.ensure_future(app.enqueue(spec(app, 2, key="a")))
        await blocked_by(connection)
        await soon(app.enqueue([spec(app, n) for n in range(3)]), "an enqueue into the bounded queue")
        assert not held.done()
        await connection.commit()
        assert not (await held).created


async def test_acts_and_rules_do_not_wait_for_a_transaction(app: App) -> None:
    """Cancelling, retrying, pausing, rules, pruning: none of them needs a row of the transaction."""
    await app.limits.set(Limit("x", slots=1))
    first, second = await app.enqueue([spec(app, n, limits=["x"]) for n in (1, 2)])
    async with stranger() as connection:
        await app.enqueue(spec(app, 3, key="a", limits=["x"]), within=connection)

        async def acts() -> None:
            await app.jobs.cancel(first.id)
            await app.jobs.retry(first.id)
            await app.queues.pause("default")
            await app.queues.resume("default")
            await app.limits.set(Limit("x", slots=2))
            await app.jobs.cancel(second.id)

        await soon(acts(), "the acts")


async def test_an_outcome_that_a_transaction_holds_up_delays_no_other(schema: str) -> None:
    """A run returns a job whose key is held. The worker's other outcomes and claims go on, and the run is not
    repeated."""
    app, runs = App(support.url_of(schema)), list[int]()

    @app.task(name="t")
    async def t(n: int) -> int:
        return n

    @app.task(name="spawns")
    async def spawns() -> JobSpec[int]:
        runs.append(1)
        return t.options(key="a").job(1)

    async with app, Worker(app, concurrency=4):
        async with stranger() as connection:
            await t.options(key="a", within=connection).enqueue(0)
            held = await spawns.enqueue()
            await blocked_by(connection)
            others = await app.enqueue([t.job(n) for n in range(40)])
            found = await soon(asyncio.gather(*(each.result() for each in others)), "the other jobs")
            assert found == list(range(40))
            assert (await app.jobs.get(held.id)).state is State.RUNNING
            await connection.commit()
        await soon(held.workflow.result(), "the job that was held up")
        row = await app.jobs.get(held.id)
    assert (runs, row.attempt, row.lost) == ([1], 1, 0)


# --- the storage


async def test_a_group_names_the_jobs_that_would_wait(storage: PostgresStorage) -> None:
    """So that its other calls can be stored without them."""
    async with stranger() as connection:
        await storage.within(connection).enqueue([job("a", key="k"), job("chosen", nonce="1")])
        group = [job("b", key="other"), job("c", key="k"), job("d"), job("chosen", nonce="2")]
        with pytest.raises(Locked) as caught:
            await storage.enqueue(group)
        assert set(caught.value.jobs) == {"c", "chosen"}
        assert await storage.get(["b", "d"]) == [None, None]
        await storage.enqueue([each for each in group if each.id not in caught.value.jobs])


async def test_connections_for_waiting_calls_are_closed(storage: PostgresStorage) -> None:
    async with stranger() as connection:
        await storage.within(connection).enqueue([job("a", key="k")])
        for _ in range(2):
            with pytest.raises(Locked):
                await storage.enqueue([job("b", key="k")])
        assert storage._contention._pool._free
    assert [found.job.id for found in await storage.enqueue([job("b", key="k")])] == ["b"]
    assert not storage._contention._pool._free


async def test_a_locked_table_is_named(storage: PostgresStorage) -> None:
    async with stranger() as connection:
        await connection.execute(f'LOCK TABLE "{storage._address.schema}".holder'.encode())
        for _ in range(2):
            with pytest.raises(Locked) as caught:
                await storage.enqueue([job("b", key="k")])
        assert caught.value.pid == connection.info.backend_pid


async def test_an_act_on_a_job_that_a_transaction_holds_raises_locked(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of the transaction is to wait for it. Its row cannot go until the transaction ends."""
    monkeypatch.setattr(acts, "TRIES", 1)
    first, second = await app.enqueue([spec(app, n) for n in (1, 2)])
    async with stranger() as connection:
        await app.enqueue(spec(app, 3, after=[first.id]), within=connection)
        with pytest.raises(Locked, match=first.id):
            await app.jobs.cancel(first)
        assert await app.jobs.cancel(ids=[first.id, second.id]) == 1
        await connection.commit()
    assert await app.jobs.cancel(first) >= 1
