"""`app.testing()` for code that enqueues in its own transactions, and for synchronous tests."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy
from django.db import connections, transaction
from django.test import TestCase
from django.utils.connection import ConnectionProxy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.django_alias import django_alias
from tests.servers import postgres
from tests.testing.kit import a_given
from treadle import App, BadOption, BadSession, Key, KeyHeld, Task, Unsupported
from treadle.testing import Testing
from treadle.testing.sync_app import SyncTesting

Send = Task[[str], str, Any]


@pytest.fixture
def app() -> App:
    return App("postgresql://nobody@127.0.0.1:1/nowhere")  # a test does not connect to it


@pytest.fixture
def send(app: App) -> Send:
    @app.task(name="send")
    async def send(to: str) -> str:
        return to

    return send


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """A database without jobs; they are in memory."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield engine
    engine.dispose()


class Case(NamedTuple):
    """A user's database, and `app.testing()` on a storage in which its transactions can store jobs."""

    testing: Callable[[], Testing]
    engine: sqlalchemy.Engine


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def case(request: pytest.FixtureRequest, app: App, engine: sqlalchemy.Engine, tmp_path: Path) -> Iterator[Case]:
    if request.param == "memory":
        yield Case(app.testing, engine)
    elif request.param == "sqlite":
        yield Case(partial(app.testing, storage=f"sqlite:///{tmp_path / 'shop.db'}?shared=true"), engine)
    else:
        with a_given("postgres", tmp_path) as given:
            server = sqlalchemy.create_engine(postgres.url().replace("postgresql:", "postgresql+psycopg:"))
            yield Case(partial(app.testing, storage=given), server)
            server.dispose()


def names(t: Any) -> list[str]:
    return [call.args[0] for call in t.enqueued("send")]


async def test_a_session_stores_its_jobs_when_it_commits(app: App, send: Send, case: Case) -> None:
    """In order with the other statements of the transaction; none of one that is rolled back or closed."""
    async with case.testing() as t:
        with Session(case.engine) as session:
            first = await app.enqueue(send.job("ada"), within=session)
            await app.enqueue(send.options(after=first).job("bob"), within=session)
            assert names(t) == []
            session.commit()
            assert names(t) == ["ada", "bob"]
            assert first.created
            await app.enqueue(send.job("eve"), within=session)
            session.rollback()
            await app.enqueue(send.job("cy"), within=session)
            session.commit()
            await app.enqueue(send.job("closed"), within=session)
        assert names(t) == ["ada", "bob", "cy"]
        assert await t.drain() == 3
        assert await first.result(timeout=0) == "ada"


async def test_savepoints_of_a_session(app: App, send: Send, case: Case) -> None:
    """Jobs after a savepoint are gone when it is rolled back. A savepoint that is released commits nothing yet."""
    async with case.testing() as t:
        with Session(case.engine) as session, session.begin():
            await app.enqueue(send.job("outer"), within=session)
            with contextlib.suppress(KeyError), session.begin_nested():
                await app.enqueue(send.job("lost"), within=session)
                raise KeyError
            with session.begin_nested():
                await app.enqueue(send.job("kept"), within=session)
            assert names(t) == []
        assert names(t) == ["outer", "kept"]


async def test_other_sessions_of_sqlalchemy(app: App, send: Send, engine: sqlalchemy.Engine) -> None:
    """Scoped and asynchronous sessions, and connections with savepoints."""
    async with app.testing() as t:
        scoped = scoped_session(sessionmaker(engine))
        await app.enqueue(send.job("scoped"), within=scoped)
        scoped.commit()
        scoped.remove()
        with engine.connect() as connection:
            with pytest.raises(BadSession, match="not in a transaction"):
                await app.enqueue(send.job("none"), within=connection)
            with connection.begin():
                await app.enqueue(send.job("connection"), within=connection)
                nested = connection.begin_nested()
                with connection.begin_nested():
                    await app.enqueue(send.job("lost"), within=connection)
                nested.rollback()
            with connection.begin() as outer:
                await app.enqueue(send.job("lost too"), within=connection)
                outer.rollback()
        nowhere = create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")  # no statement connects to it
        async with AsyncSession(nowhere) as session:
            await app.enqueue(send.job("async"), within=session)
            await session.commit()
        await nowhere.dispose()
        assert names(t) == ["scoped", "connection", "async"]


async def test_the_error_of_a_held_key_is_raised_where_the_job_is_enqueued(app: App, send: Send, case: Case) -> None:
    """The error is not delayed to the commit; a key of the same transaction counts."""
    once = send.options(key=Key("k", conflict="raise"))
    async with case.testing() as t:
        with Session(case.engine) as session:
            await app.enqueue(once.job("ada"), within=session)
            with pytest.raises(KeyHeld):
                await app.enqueue(once.job("bob"), within=session)
            session.commit()
        assert names(t) == ["ada"]


async def test_a_connection_without_commit_notifications_is_refused(app: App, send: Send) -> None:
    """Such a connection is refused at once, and the error names an alternative."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        async with app.testing():
            with pytest.raises(Unsupported, match='within="at_once"'):
                await app.enqueue(send.job("ada"), within=db)
        async with app.testing(within="at_once") as t:
            await app.enqueue(send.job("ada"), within=db)
            assert names(t) == ["ada"]
    wrong: Any = "later"
    with pytest.raises(BadOption, match='expected "commit" or "at_once"'):
        app.testing(within=wrong)


# --- synchronous tests


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    with django_alias(tmp_path / "shop.db") as alias:
        yield alias


@pytest.fixture(params=["memory", "sqlite"])
def testing(request: pytest.FixtureRequest, app: App, tmp_path: Path) -> Callable[[], SyncTesting]:
    """In memory, and in the file of Django's database."""
    if request.param == "memory":
        return app.sync.testing
    return partial(app.sync.testing, storage=f"sqlite:///{tmp_path / 'shop.db'}?shared=true")


def test_plain_functions_run_in_the_thread_that_drains(app: App) -> None:
    """They use the connection that the test has open, may enqueue, and are retried on a clock moved by hand."""
    seen: list[tuple[str, threading.Thread]] = []

    @app.task(name="then")
    async def then() -> str:
        return "async"

    @app.task(name="plain")
    def plain(n: int) -> int:
        seen.append((f"plain {n}", threading.current_thread()))
        if len(seen) == 1:
            raise ValueError("once more")
        app.sync.enqueue(then.job())
        return n

    with app.sync.testing() as t:
        job = app.sync.enqueue(plain.job(7))
        assert t.drain() == 1
        t.advance(60)
        assert t.finish() == 0
        assert app.sync.result(job, timeout=0) == 7
        assert [call.record.state for call in t.enqueued(then)] == ["succeeded"]
        assert t.assert_enqueued(then).record.id == t.enqueued(then)[0].record.id
        t.assert_not_enqueued(plain, 8)
    assert seen == [("plain 7", threading.current_thread())] * 2
    assert app.url is not None, "afterwards the app is what it was"


def test_an_error_in_the_test_ends_it(app: App, send: Send) -> None:
    def fails() -> None:
        with app.sync.testing() as t:
            app.sync.enqueue(send.job("ada"))
            t.drain()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with app.sync.testing() as t:
        assert (names(t), t.drain()) == ([], 0)


def test_a_sync_test_reads_its_jobs(app: App, send: Send) -> None:
    with app.sync.testing() as t:
        job = send.enqueue_sync("ada")
        t.drain()
        assert t.jobs.get(job).state == "succeeded"
        assert [row.job.id for row in t.jobs.list().records] == [job.id]


def test_errors_of_tasks_are_raised_in_the_test(app: App) -> None:
    @app.task(name="bad")
    def bad() -> None:
        raise LookupError("no such mail")

    with app.sync.testing() as t:
        app.sync.enqueue(bad.job())
        with pytest.raises(LookupError, match="no such mail"):
            t.drain(raise_errors=True)


def test_a_test_case_of_django(app: App, alias: str) -> None:
    """Its one transaction is never committed: tasks in its thread see its rows, and its callbacks store the jobs."""

    @app.task(name="count")
    def count() -> int:
        with connections[alias].cursor() as cursor:
            return int(cursor.execute("SELECT count(*) FROM client").fetchone()[0])

    ran: list[int] = []

    class Shop(TestCase):
        databases = frozenset({alias})

        def test_it(self) -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute("INSERT INTO client VALUES ('ada')")
            with app.sync.testing() as t:
                with self.captureOnCommitCallbacks(using=alias, execute=True), transaction.atomic(using=alias):
                    job = app.sync.enqueue(count.job(), within=connections[alias])
                    assert t.drain() == 0
                assert t.drain() == 1
                ran.append(app.sync.result(job, timeout=0))

    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE client (name TEXT)")
    Shop("test_it").debug()
    assert ran == [1]


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_of_django(
    app: App, send: Send, alias: str, commits: bool, testing: Callable[[], SyncTesting]
) -> None:
    with testing() as t:
        with pytest.raises(BadSession, match="atomic"):
            app.sync.enqueue(send.job("none"), within=connections[alias])
        with contextlib.suppress(KeyError), transaction.atomic(using=alias):
            app.sync.enqueue(send.job("ada"), within=connections[alias])
            assert names(t) == []
            if not commits:
                raise KeyError
        assert names(t) == (["ada"] if commits else [])
        assert t.drain() == len(names(t))


def test_the_connection_of_the_thread_is_the_connection(
    app: App, send: Send, alias: str, testing: Callable[[], SyncTesting]
) -> None:
    """Most Django code uses `django.db.connection`."""
    proxy = ConnectionProxy(connections, alias)
    with testing() as t:
        with transaction.atomic(using=alias):
            app.sync.enqueue(send.job("ada"), within=proxy)
        assert names(t) == ["ada"]


def test_a_job_that_was_rolled_back_holds_no_key(
    app: App, send: Send, alias: str, testing: Callable[[], SyncTesting]
) -> None:
    once = send.options(key=Key("k", conflict="raise"))
    with testing() as t, transaction.atomic(using=alias):
        with contextlib.suppress(KeyError), transaction.atomic(using=alias):
            app.sync.enqueue(once.job("lost"), within=connections[alias])
            raise KeyError
        app.sync.enqueue(once.job("ada"), within=connections[alias])
        with pytest.raises(KeyHeld):
            app.sync.enqueue(once.job("bob"), within=connections[alias])
        assert names(t) == []


def test_a_failed_assertion_names_jobs_that_wait_for_a_commit(app: App, send: Send, engine: sqlalchemy.Engine) -> None:
    with app.sync.testing() as t, Session(engine) as session:
        send.options(within=session).enqueue_sync("ada")
        with pytest.raises(AssertionError, match="1 more of this task wait for the commit of their within="):
            t.assert_enqueued(send, "ada")
        session.rollback()
        with pytest.raises(AssertionError, match=r"enqueued were: no jobs$"):
            t.assert_enqueued(send, "ada")
