"""The sessions that write to an outbox: every driver, SQLAlchemy and Django; those that cannot are refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.django_alias import django_alias
from tests.outbox.kit import Data, a_database, an_app, mail, relayed, stored
from tests.waiting import Signal
from treadle import App, BadSession
from treadle.outbox.relay import Relay
from treadle_testkit.shows import shows

SCHEMES = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


def url_for(data: Data, driver: str = "") -> str:
    scheme, colon, rest = data.url.partition(":")
    return (f"{scheme}+{driver}" if driver else SCHEMES[data.kind]) + colon + rest


@shows("psycopg, psycopg2 and asyncpg write jobs to an outbox, and so does SQLAlchemy over them")
async def test_each_driver_of_postgresql_writes_to_an_outbox(pg_app: tuple[App, Data]) -> None:
    app, data = pg_app
    async with await psycopg.AsyncConnection.connect(data.url) as db:
        await app.enqueue([mail(app, "psycopg"), mail(app, "å")], within=db)
    with closing(psycopg2.connect(data.url)) as old:
        await app.enqueue(mail(app, "psycopg2 ' \\"), within=old)
        old.commit()
    raw = await asyncpg.connect(data.url)
    try:
        async with raw.transaction():
            await app.enqueue(mail(app, "asyncpg"), within=raw)
    finally:
        await raw.close()
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(url_for(data, driver))
        async with AsyncSession(engine) as session:
            await app.enqueue(mail(app, f"async {driver}"), within=session)
            await session.commit()
        await engine.dispose()
    await relayed(app)
    assert len(await stored(app)) == 6


async def test_each_driver_of_sqlite_writes_to_an_outbox(tmp_path: Path, namespace: str) -> None:
    data = a_database("sqlite", tmp_path)
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        async with aiosqlite.connect(tmp_path / "shop.db") as db:
            await app.enqueue([mail(app, "a"), mail(app, "b")], within=db)
            await db.commit()
        engine = create_async_engine(url_for(data, "aiosqlite"))
        async with AsyncSession(engine) as session:
            await app.enqueue(mail(app, "c"), within=session)
            await session.commit()
        await engine.dispose()
        await relayed(app)
        assert len(await stored(app)) == 3


@shows("a job written to an outbox inside a savepoint vanishes with a roll-back to it")
async def test_a_session_with_savepoints(app: App, data: Data) -> None:
    engine = sqlalchemy.create_engine(url_for(data))
    with Session(engine) as session:
        await app.enqueue(mail(app, "kept"), within=session)
        nested = session.begin_nested()
        await app.enqueue(mail(app, "dropped"), within=session)
        nested.rollback()
        with session.begin_nested():
            await app.enqueue(mail(app, "released"), within=session)
        session.commit()
    with engine.begin() as connection:
        await app.enqueue(mail(app, "core"), within=connection)
    engine.dispose()
    await relayed(app)
    assert await stored(app) == ['["core"]', '["kept"]', '["released"]']


@pytest.mark.parametrize("data", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
@shows("a process whose app is open delivers its own jobs when SQLAlchemy reports the commit")
async def test_a_session_delivers_at_its_commit(
    app: App, data: Data, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No relay runs here. In a process whose app is not open, nothing happens at the commit."""
    delivered, engine = Signal().after(monkeypatch, Relay, "deliver"), sqlalchemy.create_engine(url_for(data))
    if not is_open:
        await app.close()
    with Session(engine) as session:
        await app.enqueue(mail(app, "dropped"), within=session)
        session.rollback()
        nested = session.begin_nested()
        await app.enqueue(mail(app, "dropped too"), within=session)
        nested.rollback()
        await app.enqueue(mail(app, "kept"), within=session)
        session.commit()
    engine.dispose()
    if is_open:
        await delivered.until(lambda: delivered.sent, "the delivery")
        assert await stored(app) == ['["kept"]']
    else:
        assert app._core.loop is None
        assert await stored(app) == []


@pytest.fixture
def django_on(tmp_path: Path) -> Iterator[str]:
    with django_alias(tmp_path / "shop.db") as alias:
        yield alias


@shows("a process whose app is open delivers its own jobs when Django's transaction commits")
async def test_a_commit_of_django_delivers_the_jobs_of_its_process(
    django_on: str, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_database("sqlite", tmp_path)
    app, delivered = an_app(data, namespace), Signal().after(monkeypatch, Relay, "deliver")
    assert app.outbox is not None
    await app.outbox.create()

    def view() -> None:
        connection = connections[django_on]
        try:
            with transaction.atomic(using=django_on):
                app.sync.enqueue(mail(app, "dropped"), within=connection)
                transaction.set_rollback(True, using=django_on)
            with transaction.atomic(using=django_on):
                app.sync.enqueue(mail(app, "kept"), within=connection)
            with pytest.raises(BadSession, match="atomic"):
                app.sync.enqueue(mail(app, "refused"), within=connection)
        finally:
            connection.close()

    async with app:
        await asyncio.to_thread(view)
        await delivered.until(lambda: delivered.sent, "the delivery")
        assert await stored(app) == ['["kept"]']


async def refused(app: App, given: Any, words: str) -> None:
    with pytest.raises(BadSession, match=words):
        await app.enqueue(mail(app, "ada"), within=given)


async def test_unusable_connections_are_refused(app: App, data: Data, tmp_path: Path) -> None:
    db = data.connect()
    db.close()
    await refused(app, db, "closed|Cannot operate")
    await refused(app, object(), "not supported")
    (tmp_path / "b").mkdir()
    other = a_database("postgresql" if data.kind == "sqlite" else "sqlite", tmp_path / "b")
    with closing(other.connect()) as foreign:
        await refused(app, foreign, "its database is .*the outbox")


@pytest.mark.parametrize("data", ["mysql"], indirect=True)
async def test_autocommit_on_mysql_is_refused(app: App, data: Data) -> None:
    parts = urlsplit(data.url)
    words: dict[str, Any] = {"host": "127.0.0.1", "port": parts.port, "user": "root", "database": parts.path[1:]}
    with closing(pymysql.connect(**words, autocommit=True, cursorclass=pymysql.cursors.DictCursor)) as db:
        await refused(app, db, "autocommit")
        db.begin()
        await app.enqueue(mail(app, "ada"), within=db)
        db.commit()
    assert await relayed(app) == 1


@shows("a session of another database than the outbox's, or one without its table, is refused at once")
async def test_a_session_of_another_database_is_refused(app: App, data: Data, tmp_path: Path, namespace: str) -> None:
    (tmp_path / "b").mkdir()
    other = a_database(data.kind, tmp_path / "b")
    with closing(other.connect()) as foreign:
        if data.kind == "sqlite":
            await refused(app, foreign, "a transaction cannot span two files")
        else:
            with pytest.raises(Exception, match="has no table treadle_outbox: run `treadle storage migrate --app"):
                await app.enqueue(mail(app, "ada"), within=foreign)
            cursor = foreign.cursor()
            cursor.execute("SELECT 1")  # the transaction can still be used
    second = an_app(other, namespace)
    assert second.outbox is not None
    await second.outbox.create()
    await second.outbox._close()
    with closing(other.connect()) as foreign:
        await refused(app, foreign, "another database|two files")


async def test_a_text_factory_of_the_users(tmp_path: Path, namespace: str) -> None:
    """The file is compared also if the user's texts are bytes."""
    data = a_database("sqlite", tmp_path)
    app = an_app(data, namespace)
    (tmp_path / "b").mkdir()
    other = a_database("sqlite", tmp_path / "b")
    for each in (app, an_app(other, namespace)):
        assert each.outbox is not None
        await each.outbox.create()
    with closing(other.connect()) as foreign:
        foreign.text_factory = bytes
        await refused(app, foreign, "cannot span two files")
        assert foreign.text_factory is bytes
    async with aiosqlite.connect(tmp_path / "b" / "shop.db") as async_foreign:
        async_foreign.text_factory = bytes
        await refused(app, async_foreign, "cannot span two files")
    with closing(data.connect()) as db:
        db.text_factory = bytes
        await app.enqueue(mail(app, "ada"), within=db)
        db.commit()
    assert len(data.run("SELECT 1 FROM treadle_outbox")) == 1


async def test_a_transaction_of_sqlite_that_reads_first(tmp_path: Path, namespace: str) -> None:
    """A relay commits every second, so this is common: the error says how to begin, and not that a lock is held."""
    data = a_database("sqlite", tmp_path)
    data.run("PRAGMA journal_mode = WAL")
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "ada"), within=db)
        db.rollback()
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM treadle_relay").fetchall()
        data.run("UPDATE treadle_relay SET until = 1")
        await refused(app, db, "begin with BEGIN IMMEDIATE")


@shows("a connection that encodes json in a way of its own writes jobs to an outbox")
async def test_codecs_of_the_users(pg_app: tuple[App, Data]) -> None:
    app, data = pg_app
    raw = await asyncpg.connect(data.url, statement_cache_size=0)
    try:
        for kind in ("json", "jsonb"):
            await raw.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with raw.transaction():
            first = await app.enqueue(mail(app, "a"), within=raw)
            assert await app._core.bound(raw).get([first.id, "nobody"]) != [None, None]
    finally:
        await raw.close()
    assert await relayed(app) == 1


async def test_a_database_that_was_created_again(data: Data, namespace: str) -> None:
    """A process keeps the mark of its database, which a restored backup or a test replaces."""
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "ada"), within=db)
    data.run("UPDATE treadle_relay SET mark = 'another'")
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "ada"), within=db)
