"""`within=` does the same on every driver and framework, by an app that nobody has opened."""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.drivers import DRIVERS, FEW, POSTGRES, Driver, Using
from tests.storage.postgres import support
from treadle import (
    App,
    BadSession,
    IdTaken,
    KeyHeld,
    StorageError,
    UnknownUpstream,
    Worker,
    chain,
    flow,
)
from treadle.storage.postgres.statements import revision
from treadle.tasks.options import Key
from treadle_testkit.shows import shows

OUR_FUNCTIONS = """
SELECT 'DROP FUNCTION ' || string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
WHERE p.pronamespace = 'treadle'::regnamespace AND right(p.proname, 8) = %s
"""
MANY = 1_500  # jobs of one call
QUOTES = 'it\'s a \\ "quote" with $1, %s, ?1 and ü'


class Site(NamedTuple):
    """A web process and a worker.

    url   what the driver connects to
    app   of the web process; not open
    look  of the worker; open
    own   the table of the user
    """

    url: str
    app: App
    look: App
    own: str

    async def stored(self) -> list[str]:
        return sorted(row.job.payload for row in (await self.look.jobs.list(limit=500)).records)

    def own_rows(self) -> int:
        query = f"SELECT count(*) FROM {self.own}"
        if self.url.startswith("postgresql:"):
            [(found,)] = support.admin().execute(query.encode()).fetchall()
        else:
            with closing(sqlite3.connect(self.url)) as db:
                [(found,)] = db.execute(query).fetchall()
        return int(found)


def with_task(url: str) -> App:
    app = App(url)

    @app.task(name="send")
    def send(to: str) -> str:
        return to

    return app


@functools.cache
def another_database() -> str:
    return support.postgres.database()


@pytest.fixture(params=DRIVERS, ids=str)
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


@pytest.fixture
def place(driver: Driver, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """The URL of the driver, that of Treadle, and the user's table."""
    if driver.dialect == "sqlite":
        path = tmp_path / "app.db"
        yield str(path), f"sqlite:///{path}?shared=true&synchronous=normal", "own"
        return
    with support.a_schema() as schema:
        support.admin().execute(f"DROP TABLE IF EXISTS own_{schema}".encode())
        yield support.postgres.url(), support.url_of(schema), f"own_{schema}"
        support.admin().execute(f"DROP TABLE own_{schema}".encode())


@pytest.fixture
async def site(place: tuple[str, str, str]) -> AsyncIterator[Site]:
    theirs, ours, own = place
    async with with_task(ours) as look:
        create = f"CREATE TABLE {own} (name TEXT)"
        if theirs.startswith("postgresql:"):
            support.admin().execute(create.encode())
        else:
            with closing(sqlite3.connect(theirs)) as db:
                db.execute(create)
        app = with_task(ours)
        yield Site(theirs, app, look, own)
        assert app._core.loop is None  # no call has opened it
        await app.close()
        await app._core.storage.close()


def spec(app: App, to: str, **options: Any) -> Any:
    return app.tasks["send"].options(**options).job(to)


async def every_kind_of_call(site: Site, using: Using) -> None:
    app = site.app
    await using.execute(f"INSERT INTO {site.own} VALUES ('x')")
    one = await using.enqueue(app, spec(app, QUOTES))
    assert one.created
    many = await using.enqueue(app, [spec(app, "many", queue="bulk") for _ in range(MANY)])
    assert len({job.id for job in many}) == MANY
    held = await using.enqueue(app, spec(app, "keyed", key="order", priority=3, labels=("x",)))
    assert (await using.enqueue(app, spec(app, "again", key="order"))) == held
    await using.enqueue(app, spec(app, "after", limits=("smtp",)), after=[one])
    await using.enqueue(app, flow(spec(app, "leaf")))
    await using.enqueue(app, chain(spec(app, "first"), app.tasks["send"].options(pass_result=True).job()))
    named = [spec(app, "named", id="order-1"), spec(app, "named", id="order-1")]
    assert [job.created for job in await using.enqueue(app, named)] == [True, False]


@shows("`within=` stores jobs on every driver in the user's commit, or none after a rollback")
async def test_every_kind_of_call_commits_or_vanishes(site: Site, driver: Driver) -> None:
    async def undone(using: Using) -> None:
        await every_kind_of_call(site, using)
        await using.rollback()

    async def stored(using: Using) -> None:
        await every_kind_of_call(site, using)
        await using.commit()

    await driver.run(site.url, undone)
    assert (await site.stored(), site.own_rows()) == ([], 0)
    await driver.run(site.url, stored)
    found = await site.look.jobs.list(queue="default", state="ready")
    assert sorted(row.job.payload for row in found.records) == sorted(
        [f'["{text}"]' for text in ("first", "keyed", "leaf", "named")] + [spec(site.app, QUOTES).new.payload]
    )
    assert (await site.look.jobs.list(limit=0, count=True, queue="bulk")).total == MANY
    assert site.own_rows() == 1


@pytest.mark.parametrize("driver", FEW, ids=str, indirect=True)
async def test_a_handle_waits_for_the_result_later(site: Site, driver: Driver) -> None:
    """In the web process: it opens the app then, and not before."""
    kept = []

    async def scenario(using: Using) -> None:
        kept.append(await using.enqueue(site.app, spec(site.app, "ada")))
        assert site.app._core.loop is None
        await using.commit()

    async with Worker(site.look):
        await driver.run(site.url, scenario)
        assert await kept[0].result(30) == "ada"
    await site.app.close()


async def test_errors_and_savepoints_leave_the_transaction_usable(site: Site, driver: Driver) -> None:
    async def scenario(using: Using) -> None:
        app = site.app
        await using.execute(f"INSERT INTO {site.own} VALUES ('x')")
        await using.enqueue(app, spec(app, "kept", key="k", id="id-1"))
        with pytest.raises(KeyHeld):
            await using.enqueue(app, [spec(app, "no"), spec(app, "no", key=Key("k", conflict="raise"))])
        with pytest.raises(UnknownUpstream):
            await using.enqueue(app, [spec(app, "no")], after=["nobody"], wait_timeout=None)
        with pytest.raises(IdTaken):
            await using.enqueue(app, [spec(app, "no"), spec(app, "other arguments", id="id-1")])
        await using.execute("SAVEPOINT here")
        await using.enqueue(app, spec(app, "undone"))
        await using.execute("ROLLBACK TO SAVEPOINT here")
        await using.enqueue(app, spec(app, "after the savepoint"))
        await using.execute("RELEASE SAVEPOINT here")
        await using.commit()

    await driver.run(site.url, scenario)
    assert await site.stored() == ['["after the savepoint"]', '["kept"]']
    assert site.own_rows() == 1


@pytest.mark.parametrize("driver", FEW, ids=str, indirect=True)
async def test_nothing_is_opened_in_the_web_process(site: Site, driver: Driver) -> None:
    """No event loop and no thread of ours on SQLite; on PostgreSQL one thread that looks for the commits, with one
    connection, and none with `?listen=off`."""
    before = set(threading.enumerate())

    async def scenario(using: Using) -> None:
        app = with_task(site.app._core.url + ("&listen=off" if driver.dialect == "postgresql" else ""))
        await using.enqueue(app, spec(app, "ada"))
        ours = [each.name for each in set(threading.enumerate()) - before if each.name.startswith("treadle")]
        assert ours == []
        assert app._core.loop is None
        await using.commit()

    await driver.run(site.url, scenario)
    assert await site.stored() == ['["ada"]']


async def test_another_database_is_refused_by_name(site: Site, driver: Driver, tmp_path: Path) -> None:
    if driver.dialect == "postgresql":
        url = another_database()
        name = url.rpartition("/")[2]
    else:
        url = name = str(tmp_path / "other.db")

    async def scenario(using: Using) -> None:
        with pytest.raises(BadSession, match=name):
            await using.enqueue(site.app, spec(site.app, "ada"))

    await driver.run(url, scenario)
    assert await site.stored() == []


@pytest.mark.parametrize("driver", POSTGRES, ids=str, indirect=True)
async def test_transactions_that_cannot_store_jobs(site: Site, driver: Driver) -> None:
    """Of a connection that was used before, so that nothing is checked by a statement of its own."""

    async def refused(using: Using, words: str, kind: type[Exception] = BadSession) -> None:
        with pytest.raises(kind, match=words):
            await using.enqueue(site.app, spec(site.app, "ada"))

    async def aborted(using: Using) -> None:
        await using.enqueue(site.app, spec(site.app, "undone"))
        with pytest.raises(Exception, match="nonsense"):
            await using.execute("SELECT nonsense")
        await refused(using, "fail|abort", (BadSession, StorageError))  # type: ignore[arg-type]

    async def read_only(using: Using) -> None:
        await using.execute("SET TRANSACTION READ ONLY")
        await refused(using, "read-only", StorageError)
        await using.execute("SELECT 1")  # it is intact

    async def old_snapshot(using: Using) -> None:
        await using.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await refused(using, "repeatable read.*read committed")
        await using.execute("SELECT 1")

    for scenario in (aborted, read_only, old_snapshot):
        await driver.run(site.url, scenario)
    assert await site.stored() == []


@pytest.mark.parametrize("driver", POSTGRES[2:4], ids=str)
async def test_the_database_can_be_dropped_at_once(driver: Driver) -> None:
    """As Django's test runner drops its own, with no call that closes the app."""
    url = support.postgres.database()
    async with with_task(url):
        pass
    app = with_task(url)

    async def scenario(using: Using) -> None:
        await using.enqueue(app, spec(app, "ada"))
        await using.rollback()

    await driver.run(url, scenario)
    support.admin().execute(f"DROP DATABASE {url.rpartition('/')[2]}".encode())  # it waits 5 s for other sessions
    await app._core.storage.close()


def test_a_connection_to_the_database_of_the_url_is_enough() -> None:
    """No other connection is made: psycopg is the driver of both, so its connections are counted."""
    made = []
    real = psycopg.connect
    with pytest.MonkeyPatch.context() as patch, support.a_schema() as schema:
        maker = with_task(support.url_of(schema))
        maker.sync.call(maker.open())
        maker.sync.close()
        app = with_task(support.url_of(schema, listen="off"))
        with real(support.postgres.url()) as theirs:
            patch.setattr(psycopg, "connect", lambda *a, **k: made.append(a) or real(*a, **k))
            app.sync.enqueue(spec(app, "ada"), within=theirs)
            assert made == []
        with real(support.postgres.url().replace("127.0.0.1", "localhost")) as theirs:  # it compares the two
            app.sync.enqueue(spec(app, "eve"), within=theirs)


async def test_functions_that_were_replaced_while_a_connection_was_in_use() -> None:
    """Newer versions keep four sets of functions. The transaction is lost, the next one makes them again."""
    url = support.postgres.database()
    async with with_task(url) as look:
        app = with_task(url)
        with closing(psycopg.connect(url)) as theirs:
            await app.enqueue(spec(app, "ada"), within=theirs)
            theirs.commit()
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("DELETE FROM treadle.function_set")
                [(drop,)] = admin.execute(OUR_FUNCTIONS, (revision(),)).fetchall()
                admin.execute(drop)
            with pytest.raises(StorageError, match="roll back, and repeat the transaction"):
                await app.enqueue(spec(app, "lost"), within=theirs)
            theirs.rollback()
            await app.enqueue(spec(app, "eve"), within=theirs)
            theirs.commit()
        await app._core.storage.close()
        assert sorted(row.job.payload for row in (await look.jobs.list()).records) == ['["ada"]', '["eve"]']


async def test_a_restored_copy_in_another_database() -> None:
    """A restored dump in another database has the same mark, and is another database."""
    url, copy = support.postgres.database(), support.postgres.database()
    for each in (url, copy):
        async with with_task(each):
            pass
    with psycopg.connect(url) as one, psycopg.connect(copy, autocommit=True) as two:
        [(mark,)] = one.execute("SELECT obj_description('treadle.migration'::regclass)").fetchall()
        two.execute(f"COMMENT ON TABLE treadle.migration IS '{mark}'".encode())
    app = with_task(url)
    with psycopg.connect(copy) as theirs, pytest.raises(BadSession, match="another database"):
        await app.enqueue(spec(app, "ada"), within=theirs)
    await app._core.storage.close()
