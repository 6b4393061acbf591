"""`within=`: jobs that are committed or rolled back with the user's own transaction, on every kind of session."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connections, transaction

from tests.django_alias import django_alias
from tests.waiting import Signal
from treadle import (
    App,
    BadOption,
    BadSession,
    IdTaken,
    JobSpec,
    KeyHeld,
    Middleware,
    StorageError,
    Unsupported,
    Worker,
    chain,
    flow,
)
from treadle.storage.sqlite import shared_transaction
from treadle.tasks.options import Key
from treadle_testkit.shows import shows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
async def app(path: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{path}?synchronous=normal&shared=true")

    @app.task
    async def send(to: str) -> str:
        return to

    async with app:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE client (name TEXT)")
        yield app


@pytest.fixture
def django_on(path: Path) -> Iterator[str]:
    with django_alias(path) as alias:
        yield alias


def spec(app: App, to: str, **options: Any) -> JobSpec[Any]:
    [task] = app.tasks.values()
    return task.options(**options).job(to)


async def stored(app: App) -> list[str]:
    return sorted(row.job.payload for row in (await app.jobs.list()).records)


def clients(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        found: int = db.execute("SELECT count(*) FROM client").fetchone()[0]
    return found


async def test_a_job_is_stored_with_the_commit_of_a_sqlite3_connection(app: App, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO client VALUES ('ada')")
        job = await app.enqueue(spec(app, "ada"), within=db)
        assert await stored(app) == []
        db.rollback()
        assert (await stored(app), clients(path)) == ([], 0)

        jobs = await app.enqueue([spec(app, "ada"), spec(app, "eve")], within=db)  # before any write of theirs
        db.execute("INSERT INTO client VALUES ('ada')")
        db.commit()
    assert (await stored(app), clients(path)) == (['["ada"]', '["eve"]'], 1)
    async with Worker(app):
        assert [await each.result(30) for each in jobs] == ["ada", "eve"]
    with pytest.raises(LookupError):
        await job.result(0)


@shows("a job that was enqueued after a savepoint vanishes with a roll-back to it")
async def test_a_job_rolled_back_to_a_savepoint_is_not_stored(app: App, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN")
        await app.enqueue(spec(app, "a"), within=db)
        db.execute("SAVEPOINT here")
        await app.enqueue(spec(app, "b"), within=db)
        db.execute("SAVEPOINT within")
        await app.enqueue(spec(app, "c"), within=db)
        db.execute("RELEASE within")
        db.execute("ROLLBACK TO here")
        await app.enqueue(spec(app, "d"), within=db)
        db.execute("COMMIT")
    assert await stored(app) == ['["a"]', '["d"]']


async def test_options_and_tasks_take_within(app: App, path: Path) -> None:
    [task] = app.tasks.values()
    stub = app.stub(task.name)
    with closing(sqlite3.connect(path)) as db:
        await task.options(within=db, delay=5).enqueue("a")
        await stub.options(within=db).options(priority=3).enqueue("b")
        await app.enqueue(spec(app, "c"), after=["nobody"], wait_timeout=5, within=db)
        assert await stored(app) == []
        db.commit()
    assert await stored(app) == ['["a"]', '["b"]', '["c"]']


async def test_flows_are_stored_whole(app: App, path: Path) -> None:
    """They are stored with their roots, by app.enqueue and by their own enqueue."""
    with closing(sqlite3.connect(path)) as db:
        await flow(spec(app, "a"), spec(app, "b")).enqueue(within=db)
        [task] = app.tasks.values()
        last = await chain(task.job("c"), task.options(pass_result=True).job()).enqueue(within=db)
        root = await app.enqueue(flow(spec(app, "e")), within=db)
        assert await stored(app) == []
        db.commit()
    assert len((await app.jobs.list()).records) == 8
    async with Worker(app):
        assert await last.result(30) == "c"
        assert await root.result(30) == "e"


@pytest.mark.parametrize("rows", [sqlite3.Row, lambda _, row: {"a": row}])
async def test_a_connection_with_its_own_row_and_text_factories(app: App, path: Path, rows: Any) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0.7)) as db:
        db.row_factory, db.text_factory = rows, bytes
        db.execute("BEGIN")
        await app.enqueue(spec(app, "ada", key=Key("k", conflict="raise")), within=db)
        with pytest.raises(KeyHeld, match="'k'"):
            await app.enqueue(spec(app, "eve", key=Key("k", conflict="raise")), within=db)
        db.execute("COMMIT")
        assert db.text_factory is bytes
        assert db.row_factory is rows
        assert list(sqlite3.Connection.cursor(db, sqlite3.Cursor).execute("PRAGMA busy_timeout")) != []
    assert await stored(app) == ['["ada"]']


async def test_within_a_taken_id_raises_and_created_is_true_for_new_jobs(app: App, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN")
        specs = [spec(app, "ada", id="order-1"), spec(app, "ada", id="order-1"), spec(app, "bob")]
        assert [job.created for job in await app.enqueue(specs, within=db)] == [True, False, True]
        with pytest.raises(IdTaken, match="other arguments"):
            await app.enqueue([spec(app, "joe"), spec(app, "eve", id="order-1")], within=db)
        db.execute("COMMIT")
    assert await stored(app) == ['["ada"]', '["bob"]']


async def test_a_view_of_django_stores_a_job_with_its_commit(app: App, path: Path, django_on: str) -> None:
    """A view runs in a plain thread: the connection belongs to that thread, and sqlite3 refuses to use it in any
    other."""

    def view(fails: bool) -> None:
        connection = connections[django_on]
        try:
            with transaction.atomic(using=django_on):
                connection.cursor().execute("INSERT INTO client VALUES ('ada')")
                app.sync.enqueue(spec(app, "ada"), within=connection)
                if fails:
                    raise ZeroDivisionError
            with pytest.raises(BadSession, match="atomic"):
                app.sync.enqueue(spec(app, "eve"), within=connection)
        finally:
            connection.close()

    await in_thread(lambda: view(fails=False))
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: view(fails=True))
    assert (await stored(app), clients(path)) == (['["ada"]'], 1)


async def in_thread(call: Any) -> Any:
    return await asyncio.to_thread(call)


async def test_from_a_plain_thread_on_its_own_connection(app: App, path: Path) -> None:
    """No other thread uses the connection, not even the app's loop or a portal's; middleware sees the call."""
    seen = []

    @app.middleware
    class Seen(Middleware):
        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            seen.append(threading.current_thread())
            return await proceed([each.changed(labels=("seen",)) for each in specs])

    def view() -> Any:
        with closing(sqlite3.connect(path)) as db:  # with check_same_thread
            job = app.sync.enqueue(spec(app, "ada"), within=db)
            many = app.sync.enqueue([spec(app, "eve")], within=db)
            db.commit()
            return threading.current_thread(), job, many

    thread, job, many = await in_thread(view)
    assert seen == [thread, thread]
    assert (await app.jobs.get(job)).job.labels == ("seen",)
    assert len(many) == 1


async def test_a_middleware_that_waits_cannot_in_a_plain_thread(app: App, path: Path) -> None:
    @app.middleware
    class Waits(Middleware):
        async def enqueue(self, specs: Any, proceed: Any) -> Any:
            await asyncio.sleep(0)
            return await proceed(specs)

    def view() -> None:
        with closing(sqlite3.connect(path)) as db, pytest.raises(BadSession, match="no event loop"):
            app.sync.enqueue(spec(app, "ada"), within=db)

    await in_thread(view)
    assert await stored(app) == []


@pytest.fixture
def closed(path: Path) -> Iterator[App]:
    """An app on a file that another process created."""
    maker = App(f"sqlite:///{path}")
    maker.sync.call(maker.open())
    maker.sync.close()
    app = App(f"sqlite:///{path}")

    @app.task
    def send(to: str) -> str:
        return to

    yield app
    app.sync.close()


def test_an_enqueue_within_needs_no_loop(closed: App, path: Path) -> None:
    """In a script or a view: nothing is opened, no thread starts, the jobs are stored in this thread."""
    before = set(threading.enumerate())
    with closing(sqlite3.connect(path)) as db:
        job = closed.sync.enqueue(spec(closed, "ada"), within=db)
        assert set(threading.enumerate()) <= before
        db.commit()
    assert closed._core.loop is None
    assert closed.sync.call(closed.jobs.get(job)).job.payload == '["ada"]'


async def test_the_app_need_not_be_open(closed: App, path: Path) -> None:
    [task] = closed.tasks.values()
    with closing(sqlite3.connect(path)) as db:
        await closed.enqueue(spec(closed, "ada"), within=db)
        await task.options(within=db).enqueue("eve")
        assert closed._core.loop is None
        db.commit()
    assert await stored(closed) == ['["ada"]', '["eve"]']
    await closed.close()


async def test_an_enqueue_within_creates_the_schema(path: Path) -> None:
    app = App(f"sqlite:///{path}?shared=true")
    app.task(name="send")(lambda to: to)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE client (name TEXT)")
        db.execute("INSERT INTO client VALUES ('ada')")
        with pytest.raises(StorageError, match="treadle storage migrate"):
            await app.enqueue(spec(app, "ada"), within=db)
        db.commit()
    assert clients(path) == 1


async def test_a_view_of_django_that_reads_first(app: App, path: Path, django_on: str) -> None:
    """Django begins deferred, so its snapshot may be out of date when it writes. The error names the setting that
    helps."""

    def view(connection: Any) -> None:
        with transaction.atomic(using=django_on):
            connection.cursor().execute("SELECT count(*) FROM client").fetchone()
            with closing(sqlite3.connect(path, timeout=0)) as other, contextlib.suppress(sqlite3.OperationalError):
                other.execute("INSERT INTO client VALUES ('eve')")
                other.commit()
            app.sync.enqueue(spec(app, "ada"), within=connection)

    def views() -> None:
        connection = connections[django_on]
        try:
            with pytest.raises(BadSession, match=r'"OPTIONS": \{"transaction_mode": "IMMEDIATE"\}'):
                view(connection)
            connection.close()
            if django.VERSION >= (5, 1):
                connection.settings_dict["OPTIONS"]["transaction_mode"] = "IMMEDIATE"
                view(connection)
        finally:
            connection.close()

    await in_thread(views)
    assert await stored(app) == (['["ada"]'] if django.VERSION >= (5, 1) else [])


# --- refused sessions


@shows("a connection that is closed, has another database or cannot lock is refused")
async def test_unusable_connections_are_refused(app: App, path: Path, tmp_path: Path) -> None:
    async def refused(given: Any, words: str) -> None:
        with pytest.raises(BadSession, match=words):
            await app.enqueue(spec(app, "ada"), within=given)

    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        await refused(db, "is in autocommit mode")
    await refused(db, "closed")
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        await refused(db, "two files")
    with closing(sqlite3.connect(":memory:")) as db:
        await refused(db, "in memory")
    await refused(object(), "SQLAlchemy")
    await refused("sqlite:///app.db", "builtins.str")
    with closing(sqlite3.connect(path)) as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM client").fetchone()
        await app.enqueue(spec(app, "meanwhile"))
        await refused(db, "BEGIN IMMEDIATE")
    assert await stored(app) == ['["meanwhile"]']


async def test_invalid_calls_within_a_transaction_are_refused(app: App, path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        with pytest.raises(BadOption, match="inline"):
            await app.enqueue(spec(app, "ada", inline=True), within=db)
        with pytest.raises(BadOption, match="call that enqueues"):
            spec(app, "ada", within=db)
        with pytest.raises(BadOption, match="None"):
            spec(app, "ada", within=None)
        with pytest.raises(BadOption, match="within"):
            app.task(name="x", within=db)(lambda: None)
        db.commit()
    assert await stored(app) == []
    memory = App("memory://")
    memory.task(name="send")(len)
    with (
        closing(sqlite3.connect(path)) as db,
        pytest.raises(Unsupported, match=r"give the app an Outbox\(url of your database\)") as told,
    ):
        await memory.enqueue(spec(memory, "ada"), within=db)
    assert told.value.storage == "MemoryStorage"
    await memory.close()


async def test_a_worker_waits_for_an_open_transaction_and_continues(
    app: App, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker claims during an open transaction of the user's; nothing is lost of either."""
    waits = Signal().around(monkeypatch, shared_transaction, "begin_patiently")
    async with Worker(app):
        with closing(sqlite3.connect(path)) as db:
            first = await app.enqueue(spec(app, "first"), within=db)
            second = asyncio.create_task(app.enqueue(spec(app, "second")))
            await waits.until(lambda: waits.sent, "a call that waits for the user's commit")
            assert not second.done()
            db.commit()
        assert await first.result(30) == "first"
        assert await (await second).result(30) == "second"


def test_a_file_with_tables_of_the_users(tmp_path: Path) -> None:
    """Only with ?shared=true, and only if no table name is taken."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE client (name TEXT)")
    for url, words in ((f"sqlite:///{path}", "shared=true"), (f"sqlite:///{path}?shared=perhaps", "true or false")):
        with pytest.raises(StorageError, match=words):
            open_and_close(url)
    open_and_close(f"sqlite:///{path}?shared=true")
    open_and_close(f"sqlite:///{path}")  # the file is Treadle's now, too
    taken = tmp_path / "taken.db"
    with closing(sqlite3.connect(taken)) as db:
        db.execute("CREATE TABLE worker (name TEXT)")
    with pytest.raises(StorageError, match="worker"):
        open_and_close(f"sqlite:///{taken}?shared=true")


def open_and_close(url: str) -> None:
    app = App(url)
    try:
        app.sync.call(app.open())
    finally:
        app.sync.close()
