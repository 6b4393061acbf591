"""Every driver and framework whose transactions `within=` accepts, behind one interface, for tests that hold for all.

A synchronous driver is used in a plain thread without an event loop, as a web view does, and with `app.sync`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from typing import Any, NamedTuple, TypeVar
from unittest import mock
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import django
import psycopg
import psycopg2
from django.conf import settings
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from treadle import App
from treadle.storage.user_session import at_once

T = TypeVar("T")


class Using:
    """An open transaction of a driver. `given` is what users pass as `within=`; `begin` begins the next transaction,
    where that does not happen by itself."""

    def __init__(self, given: Any, execute: Callable[[str], Any], end: Any, sync: bool) -> None:
        self.given, self.sync = given, sync
        self._execute, self._commit, self._rollback = execute, end.commit, end.rollback
        self._begin: Callable[[], Any] = getattr(end, "begin_next", lambda: None)

    async def begin(self) -> None:
        await _done(self._begin())

    async def enqueue(self, app: App, *specs: Any, **options: Any) -> Any:
        if self.sync:
            return app.sync.enqueue(*specs, within=self.given, **options)
        return await app.enqueue(*specs, within=self.given, **options)

    async def execute(self, sql: str) -> None:
        await _done(self._execute(sql))

    async def commit(self) -> None:
        await _done(self._commit())

    async def rollback(self) -> None:
        await _done(self._rollback())


async def _done(found: Any) -> None:
    if asyncio.iscoroutine(found) or isinstance(found, Awaitable):
        await found


def sync_using(given: Any, execute: Any, end: Any = None) -> Using:
    return Using(given, execute, end or given, sync=True)


def async_using(given: Any, execute: Any, end: Any = None) -> Using:
    return Using(given, execute, end or given, sync=False)


# --- SQLite: `url` is the path of the file


@contextmanager
def by_sqlite3(url: str) -> Iterator[Using]:
    with closing(sqlite3.connect(url)) as raw:
        yield sync_using(raw, raw.execute)


@asynccontextmanager
async def by_aiosqlite(url: str) -> AsyncIterator[Using]:
    async with aiosqlite.connect(url) as raw:
        yield async_using(raw, raw.execute)


# --- PostgreSQL: `url` is that of the database


@contextmanager
def by_psycopg(url: str) -> Iterator[Using]:
    with closing(psycopg.connect(url)) as raw:
        yield sync_using(raw, lambda sql: raw.execute(sql.encode()))


@asynccontextmanager
async def by_async_psycopg(url: str) -> AsyncIterator[Using]:
    raw = await psycopg.AsyncConnection.connect(url)
    try:
        yield async_using(raw, lambda sql: raw.execute(sql.encode()))
    finally:
        await raw.close()


@contextmanager
def by_psycopg2(url: str) -> Iterator[Using]:
    with closing(psycopg2.connect(url)) as raw, raw.cursor() as cursor:
        yield sync_using(raw, cursor.execute)


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Using]:
    raw = await asyncpg.connect(url)
    try:
        transactions = AsyncpgTransactions(raw)
        await transactions.begin_next()
        yield async_using(raw, raw.execute, transactions)
    finally:
        await raw.close()


class AsyncpgTransactions:
    """One transaction after the other on a connection."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    async def begin_next(self) -> None:
        self._now = self._raw.transaction()
        await self._now.start()

    async def commit(self) -> None:
        await self._now.commit()

    async def rollback(self) -> None:
        await self._now.rollback()


async def with_codecs(raw: Any) -> None:
    """As web frameworks set them."""
    for kind in ("json", "jsonb"):
        await raw.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Using]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1, init=with_codecs) as pool, pool.acquire() as raw:
        transactions = AsyncpgTransactions(raw)
        await transactions.begin_next()
        yield async_using(raw, raw.execute, transactions)


# --- SQLAlchemy: `dialect` is the part of its URL before ://


def engine_url(dialect: str, url: str) -> str:
    return f"{dialect}:///{url}" if dialect.startswith("sqlite") else url.replace("postgresql:", f"{dialect}:", 1)


def by_alchemy(dialect: str, kind: str = "session") -> Callable[[str], AbstractContextManager[Using]]:
    @contextmanager
    def opened(url: str) -> Iterator[Using]:
        engine = create_engine(engine_url(dialect, url))
        try:
            if kind == "scoped":
                scoped = scoped_session(sessionmaker(engine))
                try:
                    yield sync_using(scoped, lambda sql: scoped.execute(text(sql)))
                finally:
                    scoped.remove()
            else:
                with engine.connect() if kind == "connection" else Session(engine) as given:
                    yield sync_using(given, lambda sql: given.execute(text(sql)))
        finally:
            engine.dispose()

    return opened


def by_async_alchemy(dialect: str, kind: str = "session") -> Callable[[str], AbstractAsyncContextManager[Using]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Using]:
        engine = create_async_engine(engine_url(dialect, url))
        try:
            if kind == "scoped":
                scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
                try:
                    yield async_using(scoped, lambda sql: scoped.execute(text(sql)))
                finally:
                    await scoped.remove()
            else:
                async with engine.connect() if kind == "connection" else AsyncSession(engine) as given:
                    yield async_using(given, lambda sql: given.execute(text(sql)))
        finally:
            await engine.dispose()

    return opened


# --- Django


def django_words(url: str) -> dict[str, Any]:
    if not url.startswith("postgresql:"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url}
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


def django_backend(engine: str, driver: str) -> Any:
    """Django's module of this backend. It chooses psycopg 3 if that can be imported, so for psycopg2 a second copy of
    the backend is imported without it."""
    if driver != "psycopg2":
        return importlib.import_module(f"{engine}.base")
    own = {name: module for name, module in sys.modules.items() if name.startswith(engine)}
    drivers = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "psycopg"}
    with mock.patch.dict(sys.modules):
        for name in (*own, *drivers):
            del sys.modules[name]
        sys.modules["psycopg"] = None  # type: ignore[assignment]  # importing it fails
        return importlib.import_module(f"{engine}.base")


class DjangoBlocks:
    """One `with transaction.atomic():` after the other."""

    def __init__(self, transaction: Any, alias: str) -> None:
        self._transaction, self._alias = transaction, alias

    def begin_next(self) -> None:
        self._block = self._transaction.atomic(using=self._alias)
        self._block.__enter__()

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        self._transaction.set_rollback(True, using=self._alias)
        self.commit()


def by_django(driver: str) -> Callable[[str], AbstractContextManager[Using]]:
    @contextmanager
    def opened(url: str) -> Iterator[Using]:
        if not settings.configured:
            settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
            django.setup()
        from django.db import connections, transaction

        alias, words = f"at {url}", django_words(url)
        connections.settings[alias] = connections.configure_settings({"default": {}, alias: words})[alias]
        made = django_backend(words["ENGINE"], driver).DatabaseWrapper(connections.settings[alias], alias)
        connections[alias] = made
        blocks = DjangoBlocks(transaction, alias)
        blocks.begin_next()

        def execute(sql: str) -> None:
            made.cursor().execute(sql)

        try:
            yield sync_using(made, execute, blocks)
        finally:
            if made.in_atomic_block:
                blocks.rollback()
            made.close()
            del connections[alias], connections.settings[alias]

    return opened


# --- the table


class Driver(NamedTuple):
    """name: of the driver and what is passed; connect: opens a transaction on a database."""

    name: str
    dialect: str
    connect: Callable[[str], AbstractContextManager[Using] | AbstractAsyncContextManager[Using]]

    def __str__(self) -> str:
        return self.name

    async def run(self, url: str, scenario: Callable[[Using], Awaitable[T]]) -> T:
        """Run the scenario in a transaction of this driver. It is rolled back unless the scenario commits."""
        opened = self.connect(url)
        if isinstance(opened, AbstractAsyncContextManager):
            async with opened as using:
                return await scenario(using)

        def in_thread() -> T:
            with self.connect(url) as using:  # type: ignore[union-attr]
                return at_once(scenario(using))  # type: ignore[arg-type]

        return await asyncio.to_thread(in_thread)


SQLITE = [
    Driver("sqlite3", "sqlite", by_sqlite3),
    Driver("aiosqlite", "sqlite", by_aiosqlite),
    Driver("Session on sqlite3", "sqlite", by_alchemy("sqlite")),
    Driver("scoped_session on sqlite3", "sqlite", by_alchemy("sqlite", "scoped")),
    Driver("AsyncSession on aiosqlite", "sqlite", by_async_alchemy("sqlite+aiosqlite")),
    Driver("AsyncConnection on aiosqlite", "sqlite", by_async_alchemy("sqlite+aiosqlite", "connection")),
    Driver("Django on sqlite3", "sqlite", by_django("sqlite3")),
]
POSTGRES = [
    Driver("psycopg", "postgresql", by_psycopg),
    Driver("async psycopg", "postgresql", by_async_psycopg),
    Driver("psycopg2", "postgresql", by_psycopg2),
    Driver("asyncpg", "postgresql", by_asyncpg),
    Driver("asyncpg pool", "postgresql", by_asyncpg_pool),
    Driver("Session on psycopg", "postgresql", by_alchemy("postgresql+psycopg")),
    Driver("Session on psycopg2", "postgresql", by_alchemy("postgresql+psycopg2")),
    Driver("AsyncSession on psycopg", "postgresql", by_async_alchemy("postgresql+psycopg")),
    Driver("AsyncSession on asyncpg", "postgresql", by_async_alchemy("postgresql+asyncpg")),
    Driver("async_scoped_session on asyncpg", "postgresql", by_async_alchemy("postgresql+asyncpg", "scoped")),
    Driver("Django on psycopg", "postgresql", by_django("psycopg")),
    Driver("Django on psycopg2", "postgresql", by_django("psycopg2")),
]
DRIVERS = [*SQLITE, *POSTGRES]
FEW = [each for each in DRIVERS if str(each) in ("sqlite3", "aiosqlite", "psycopg2", "asyncpg", "Django on psycopg")]
