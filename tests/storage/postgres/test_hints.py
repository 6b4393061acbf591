"""Hints are sent after the commit: no transaction notifies, so commits do not wait for each other."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from itertools import count

import psycopg
import pytest
from msgspec import structs

from tests.servers.postgres import Postgres
from tests.storage.postgres import support
from tests.storage.postgres.support import done, job
from tests.waiting import Signal, until
from treadle.core.model import Claim
from treadle.storage.postgres import PostgresStorage, notifier
from treadle.storage.postgres.user_commits import UserCommits
from treadle.storage.user_session import at_once

LONG = 60.0  # seconds; no test waits that long unless a hint is missing
CALLS = 8
WAITS = (
    "SELECT wait_event_type, wait_event FROM pg_stat_activity "
    "WHERE query LIKE '%enqueue_plain%' AND state = 'active' AND pid <> pg_backend_pid()"
)
LISTENED = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
    "AND (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0)"
)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[PostgresStorage, PostgresStorage]]:
    """Two storages of one schema that share nothing but the server, like two processes."""
    with support.a_schema() as schema:
        first, second = (PostgresStorage(support.url_of(schema)) for _ in range(2))
        try:
            await listening(first, second)
            yield first, second
        finally:
            for each in first, second:
                await each.close()


async def listening(*storages: PostgresStorage) -> None:
    """Open them, and outlast the moment at which each wakes all its waiters because it has only begun to listen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notifier, "LATE", 0.0)
        woken = Signal().after(patch, notifier.Notifier, "_wake")
        for each in storages:
            await each.open()
            assert each._notifier is not None
            last = each._notifier._last
            last.update(dict.fromkeys(last, math.inf))  # it keeps its channels
        await woken.until(lambda: woken.sent >= len(storages), "the wake-up after listening began")


def watched(storage: PostgresStorage, *topics: str) -> asyncio.Task[set[str]]:
    return asyncio.create_task(storage.watch(topics, LONG))


async def test_no_function_notifies(pair: tuple[PostgresStorage, PostgresStorage]) -> None:
    """A commit that notifies holds a lock of the whole server until it is on disk."""
    schema = pair[0]._address.schema
    text = "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace AND prosrc ~* 'notify\\s*\\('"
    assert support.admin().execute(text, (schema,)).fetchall() == []


async def test_follow_up_jobs_wake_another_process(pair: tuple[PostgresStorage, PostgresStorage]) -> None:
    first, second = pair
    await first.enqueue([job("a")])
    [row] = (await first.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))).records
    watch = watched(second, "queue:next")
    ended = watched(second, "job:a")
    await first.settle([structs.replace(done(row), followups=(job("b", queue="next"),))])
    assert await watch == {"queue:next"}
    assert await ended == {"job:a"}


async def test_close_sends_the_remaining_hints(pair: tuple[PostgresStorage, PostgresStorage]) -> None:
    """Also the hints of calls that came while another hint was being sent."""
    first, second = pair
    watches = [watched(second, f"queue:{name}") for name in "abc"]
    await asyncio.sleep(0)
    for name in "abc":
        await first.enqueue([job(name, queue=name)])
    await first.close()
    assert [await watch for watch in watches] == [{f"queue:{name}"} for name in "abc"]
    await first.open()


async def test_a_hint_that_fails_does_not_fail_the_call(pair: tuple[PostgresStorage, PostgresStorage]) -> None:
    """The call also wakes the waiters of its own process at once."""
    first, _ = pair
    assert first._notifier is not None
    assert first._notifier._line is not None
    pid = first._notifier._line.raw.info.backend_pid
    watch = watched(first, "queue:default")
    await asyncio.sleep(0)
    support.admin().execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    await first.enqueue([job("a")])
    assert await watch == {"queue:default"}


async def test_nothing_is_sent_where_no_process_listens(pair: tuple[PostgresStorage, PostgresStorage]) -> None:
    """The endings of a worker send no hint while no process waits for a result."""
    first, second = pair
    for each in first, second:
        assert each._notifier is not None
        each._notifier._last["ends"] = -1_000.0  # as if the time without a waiter were over
        each._notifier._change.set()
    channel = (first._notifier._channels["ends"],)
    await until(lambda: support.admin().execute(LISTENED, channel).fetchone() == (0,), "no session that listens")
    sent: list[object] = []
    first._notifier.publish = sent.append  # type: ignore[method-assign, assignment, union-attr]
    await first.enqueue([job("a")])
    [row] = (await first.claim(Claim(worker="w#1", queues=(("default", 1),), limit=1))).records
    await first.settle([done(row)])
    assert sent == [["queue:default"]]


# --- users' transactions


async def test_a_hint_comes_after_the_users_commit(
    pair: tuple[PostgresStorage, PostgresStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, and not after a rollback; from a thread without an event loop, by a storage that is not open."""
    first, second = pair
    looked = Signal().after(monkeypatch, UserCommits, "_publish")
    closed = PostgresStorage(support.url_of(first._address.schema))
    watch = watched(second, "queue:undone", "queue:default")
    with psycopg.connect(support.postgres.url()) as undone, psycopg.connect(support.postgres.url()) as user:
        await asyncio.to_thread(at_once, closed.within(undone).enqueue([job("b", queue="undone")]))
        await asyncio.to_thread(at_once, closed.within(user).enqueue([job("a")]))
        undone.rollback()
        await looked.again("looks at both transactions", times=2)
        later = watched(second, "queue:later")
        await first.enqueue([job("c", queue="later")])
        assert await later == {"queue:later"}  # hints arrive in the order in which they were sent
        assert not watch.done()
        user.commit()
        assert await watch == {"queue:default"}
    await closed.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(durable=True, settings=("max_prepared_transactions=4",)) as made:
        yield made


async def test_a_prepared_commit_sends_its_hint(server: Postgres) -> None:
    """The user's transaction may be prepared; the hint comes after COMMIT PREPARED."""
    url = server.database()
    storage = PostgresStorage(url)
    await listening(storage)
    watch = watched(storage, "queue:default")
    with psycopg.connect(url) as user:
        user.tpc_begin(user.xid(1, "shop", "jobs"))
        await storage.within(user).enqueue([job("a")])
        user.tpc_prepare()
        assert await storage.get(["a"]) == [None]
        assert not watch.done()
        user.tpc_commit()
    assert await watch == {"queue:default"}
    await storage.close()


async def test_slow_commits_wait_side_by_side(server: Postgres) -> None:
    """Each waits for its own flush, here of a standby that is down, and for no other."""
    url = server.database()
    storages = [PostgresStorage(f"{url}?pool=1") for _ in range(CALLS)]
    released, numbers = asyncio.Event(), count()

    async def until_released(storage: PostgresStorage) -> None:
        """Enqueue until the test has ended: a commit waits only after the server has noticed that the standby is
        missing."""
        while not released.is_set():
            await storage.enqueue([job(f"j{next(numbers)}", queue="slow")])

    try:
        await listening(*storages)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
            admin.execute("SELECT pg_reload_conf()")
            calls = [asyncio.create_task(until_released(each)) for each in storages]
            try:
                wanted = [("IPC", "SyncRep")] * CALLS
                await until(lambda: admin.execute(WAITS).fetchall() == wanted, "calls that wait for the standby")
                watch = watched(storages[0], "queue:slow")
            finally:
                released.set()
                admin.execute("SET synchronous_commit = off")
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")
                await asyncio.gather(*calls)
        assert await watch == {"queue:slow"}
    finally:
        for each in storages:
            await each.close()
