"""Storages with their servers, and every way in which a server can be unavailable and return.

To test another storage in outages, write its stage here and name it in `STAGES`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import itertools
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, LiteralString

import psycopg
import pytest
from msgspec.structs import replace

from tests.servers import postgres, valkey
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey
from treadle_testkit.proxy import Proxy

_numbers = itertools.count()

Doing = Callable[[], Awaitable[Any]]


class Stage:
    """The server of one storage, behind a proxy if it is reached over a network.

    shared     the server is used by all tests of this process, so the only outages are the proxy's
    url        through the proxy: what the test's app uses
    direct     past the proxy: to read what is stored while the proxy blocks everything
    outages    name -> (how it begins, how it ends)
    """

    name: ClassVar[str]
    ways: ClassVar[tuple[str, ...]]  # the names of its outages
    patience: ClassVar[tuple[str, ...]]  # the constants for the seconds that a call may take
    url: str
    direct: str
    proxy: Proxy
    outages: dict[str, tuple[Doing, Doing]]
    server: Any = None

    def __init__(self, shared: bool = False) -> None: ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def kill_server(self) -> None:
        """kill -9, then start the server again with its data."""
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    def impatient(self, storage: Any, seconds: float) -> None:
        """From now on, calls of this open storage wait this long for an answer. Call `be_patient` first."""

    def check(self) -> None:
        """Check that the data is whole, if the storage can tell."""


class RedisStage(Stage):
    name = "redis"
    ways = ("refused", "black hole", "killed", "frozen", "replica", "full")
    patience = ("treadle.storage.redis.pool.TIMEOUT", "treadle.storage.redis.topology.CONNECT")

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        server = self.server = valkey.shared() if shared else Valkey(fsync="always")
        self.proxy = Proxy("127.0.0.1", server.port)
        self.direct = f"{server.url}?ns=stage-{os.getpid()}-{next(_numbers)}"
        self.url = self.direct.replace(str(server.port), str(self.proxy.port), 1)
        self.outages = {
            "refused": (self.proxy.refuse, self.proxy.accept),
            "black hole": (_at_once(self.proxy.swallow), _at_once(self.proxy.flow)),
            "killed": (aside(server.kill), aside(server.start)),
            "frozen": (aside(server.freeze), aside(server.thaw)),
            "replica": (aside(server.do, "REPLICAOF", "127.0.0.1", 1), aside(server.do, "REPLICAOF", "NO", "ONE")),
            "full": (
                aside(server.do, "CONFIG", "SET", "maxmemory", 1),
                aside(server.do, "CONFIG", "SET", "maxmemory", 0),
            ),
        }

    def impatient(self, storage: Any, seconds: float) -> None:
        storage._pool._drop_idle()  # each connection keeps the timeout with which it was made

    async def open(self) -> None:
        if not self.shared:
            await asyncio.to_thread(self.server.start)
        await self.proxy.accept()

    async def close(self) -> None:
        await self.proxy.close()
        if not self.shared:
            await asyncio.to_thread(self.server.close)


class ShardsStage(RedisStage):
    """Calls over several shards can be cut anywhere; the outages are those of one shard."""

    name = "redis-shards"
    ways = ("refused", "killed", "full")

    def __init__(self, shared: bool = False) -> None:
        super().__init__(shared)
        self.direct, self.url = f"{self.direct}&shards=3", f"{self.url}&shards=3"


class PostgresStage(Stage):
    name = "postgres"
    ways = ("refused", "black hole", "killed", "restarted", "read-only", "full", "locked")
    patience = ("treadle.storage.postgres.address.TIMEOUT", "treadle.storage.postgres.pool.CONNECT")

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self.server = postgres.shared() if shared else self._server()
        self.proxy = Proxy("127.0.0.1", self.server.port)
        self._holder: psycopg.Connection[Any] | None = None
        self.outages = {
            "refused": (self.proxy.refuse, self.proxy.accept),
            "black hole": (_at_once(self.proxy.swallow), _at_once(self.proxy.flow)),
            "killed": (aside(self.server.kill), aside(self.server.start)),
            "restarted": (aside(self.server.stop), aside(self.server.start)),
            "read-only": (aside(self._set, "on"), aside(self._set, "off")),
            "full": (aside(self._do, *FULL), aside(self._do, NO_LONGER_FULL)),
            "locked": (aside(self._hold), aside(self._let_go)),
        }

    async def open(self) -> None:
        if not self.server.running:
            await asyncio.to_thread(self.server.start)
        self.direct = await asyncio.to_thread(self.server.database)
        self.url = self.direct.replace(str(self.server.port), str(self.proxy.port), 1)
        await self.proxy.accept()

    async def close(self) -> None:
        await self.proxy.close()
        self._let_go()

    def impatient(self, storage: Any, seconds: float) -> None:
        storage._pool._address = replace(storage._pool._address, timeout=seconds)

    def _server(self) -> Postgres:
        return _durable_postgres()

    def _do(self, *statements: LiteralString) -> None:
        with psycopg.connect(self.direct, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def _set(self, how: Literal["on", "off"]) -> None:
        """Make the server behave like a primary that became a standby."""
        value: LiteralString = "on" if how == "on" else "off"
        self._do(f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()")

    def _hold(self) -> None:
        """Begin another transaction that does not end, so that calls run into their time limit.

        A client behind a half-open connection may have left a transaction that holds the table for ever. The server's
        `idle_in_transaction_session_timeout` would end it; here it is ended at once.
        """
        self._holder = psycopg.connect(self.direct)
        try:
            self._holder.execute("SET lock_timeout = '5s'")
            self._holder.commit()
            self._holder.execute(TABLE_LOCK)
        except psycopg.errors.LockNotAvailable:
            self._holder.rollback()
            self._do(END_IDLE_TRANSACTIONS)
            self._holder.execute(TABLE_LOCK)

    def _let_go(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.close()


@functools.cache
def _durable_postgres() -> Postgres:
    """One server for all outages and kills of this process, because creating one takes seconds. After a crash it syncs
    its file system at once, instead of a thousand files one by one."""
    made = Postgres(durable=True, settings=("recovery_init_sync_method=syncfs",))
    atexit.register(made.close)
    return made


TABLE_LOCK: LiteralString = "LOCK TABLE treadle.job IN ACCESS EXCLUSIVE MODE"
END_IDLE_TRANSACTIONS: LiteralString = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE state = 'idle in transaction' AND datname = current_database()"
)

# A full disk, simulated for one statement: a real one would affect the whole machine.
FULL: tuple[LiteralString, ...] = (
    "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END$$",
    "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON treadle.job EXECUTE FUNCTION full_disk()",
)
NO_LONGER_FULL: LiteralString = "DROP FUNCTION full_disk() CASCADE"


class SqliteStage(Stage):
    """No server, but another process that writes and does not end."""

    name = "sqlite"
    ways = ("locked",)
    patience = ("treadle.storage.sqlite.lockfile.WAIT",)

    def __init__(self, shared: bool = False) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="treadle-stage-")
        path = Path(self.folder.name, "jobs.db")
        self.path = path
        self.url, self.direct = f"sqlite:///{path}?synchronous=normal", f"sqlite:///{path}"
        self.writer = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        begin, end = (functools.partial(self.writer.execute, each) for each in ("BEGIN IMMEDIATE", "ROLLBACK"))
        self.outages = {"locked": (aside(begin), _at_once(end))}

    async def close(self) -> None:
        self.writer.close()
        self.folder.cleanup()

    def check(self) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


STAGES: tuple[type[Stage], ...] = (RedisStage, ShardsStage, PostgresStage, SqliteStage)
SERVED: tuple[type[Stage], ...] = (RedisStage, PostgresStage)  # those that are reached over a network
OUTAGES = [(stage, way) for stage in STAGES for way in stage.ways]


def aside(do: Callable[..., Any], *words: Any) -> Doing:
    """A blocking function as a coroutine function that runs it in a thread."""
    return lambda: asyncio.to_thread(do, *words)


def _at_once(do: Callable[[], Any]) -> Doing:
    async def done() -> None:
        do()

    return done


def be_patient(kind: type[Stage], monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Calls wait this long for an answer, instead of their usual time."""
    for name in kind.patience:
        monkeypatch.setattr(name, seconds)


@contextlib.asynccontextmanager
async def staged(kind: type[Stage], shared: bool = False) -> AsyncIterator[Any]:
    """A stage for one test."""
    stage = kind(shared)
    try:
        await stage.open()
        yield stage
    finally:
        await stage.close()
