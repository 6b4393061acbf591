"""The relay's own connection to the database of an outbox, one statement at a time in a thread of its own.

Each statement is a transaction: the relay holds no lock of that database while it calls the storage of the jobs.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol, TypeVar

from treadle.concurrency import forks
from treadle.core.errors import (
    BadUrl,
    Locked,
    NotADatabase,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from treadle.outbox.address import ANSWER, CONNECT, Address
from treadle.outbox.table import SCHEMA, Sent

T = TypeVar("T")
Row = tuple[Any, ...]

LOCKED: Final = 10.0  # s to wait for the write lock of a SQLite file
COMMAND: Final = (
    "run `treadle storage migrate --app MODULE:APP`, or put the output of `treadle storage relay ddl` into a migration"
)
PROCESS: Final = "SELECT pg_backend_pid()"
FOUND_ROWS: Final = (
    2  # flag of MySQL's protocol: an UPDATE counts the rows that it found, even those that it did not change
)
# MySQL's error numbers
MISSING: Final = (1146, 1049)  # no such table, no such database
DENIED: Final = (1044, 1045, 1142, 1143, 1698)
FULL: Final = (1021, 1114)
WAITED: Final = (1205, 1213)  # a lock wait that took too long, a deadlock


class Connection(Protocol):
    """A connection of this process, in autocommit mode."""

    def run(self, text: str, values: Sequence[Any]) -> list[Row]:
        """Run one statement; return its rows, or for an UPDATE one row with the number of changed rows."""
        ...

    def close(self) -> None: ...


class Postgres:
    """Behind a pooler a session is lent to other programs as well. Nothing is set or prepared in it: with
    synchronous_commit = off the user's own commits could be lost."""

    def __init__(self, address: Address) -> None:
        import psycopg

        try:
            self._raw = psycopg.connect(address.target, autocommit=True, client_encoding="UTF8")
        except psycopg.Error as error:
            raise _refused(error, address) from error
        self._cursor = psycopg.RawCursor(self._raw)
        [(process,)] = self._cursor.execute(PROCESS).fetchall()
        self._lent = is_lent(process, self._raw)
        if self._lent:
            self._raw.prepare_threshold = None
        else:
            self._set(local=False)

    def _set(self, local: bool) -> None:
        # A delete that a crash undoes is repeated with its delivery, so no commit of the relay waits for the disk.
        # A table that was never analyzed seems to have few rows to deliver. The planner would read and sort all of them
        # for each page: 96 ms instead of 3 with 100,000 rows.
        self._cursor.execute(
            "SELECT set_config('statement_timeout', $1, $2), set_config('synchronous_commit', 'off', $2), "
            "set_config('enable_bitmapscan', 'off', $2)",
            (f"{ANSWER}s", local),
        )

    def run(self, text: str, values: Sequence[Any]) -> list[Row]:
        if not self._lent or text == "BEGIN" or self._raw.info.transaction_status.name != "IDLE":
            return self._run(text, values)
        with self._raw.transaction():
            self._set(local=True)
            return self._run(text, values)

    def _run(self, text: str, values: Sequence[Any]) -> list[Row]:
        cursor = self._cursor.execute(text, tuple(map(self._storable, values)))
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    def _storable(self, value: Any) -> Any:
        """Errors of a storage may have characters that a database in another encoding than UTF-8 lacks."""
        if not isinstance(value, str) or value.isascii() or self._encoding == "UTF8":
            return value
        return value.encode("ascii", "backslashreplace").decode()

    @property
    def _encoding(self) -> str | None:
        return self._raw.info.parameter_status("server_encoding")

    def close(self) -> None:
        self._raw.close()


class Sqlite:
    def __init__(self, address: Address) -> None:
        if not os.path.isfile(address.target):  # sqlite3 would create it
            raise NotADatabase(f"{address.database}: there is no such file; create your database first")
        self._raw = sqlite3.connect(address.target, timeout=LOCKED, isolation_level=None, check_same_thread=False)
        if self.run("PRAGMA journal_mode", ())[0][0] == "wal":
            # A delete that a crash undoes is repeated with its delivery. Without WAL this could damage the file.
            self.run("PRAGMA synchronous = NORMAL", ())

    def run(self, text: str, values: Sequence[Any]) -> list[Row]:
        cursor = self._raw.execute(text, tuple(values))
        return cursor.fetchall() if cursor.description is not None else [(cursor.rowcount,)]

    def close(self) -> None:
        self._raw.close()


class MySQL:
    def __init__(self, address: Address) -> None:
        options = {"connect_timeout": CONNECT, "autocommit": True, "charset": "utf8mb4", **address.target}
        options |= {"read_timeout": ANSWER, "write_timeout": ANSWER, "client_flag": FOUND_ROWS}
        try:
            import pymysql  # type: ignore[import-untyped]
        except ImportError as error:
            raise BadUrl(f"{address.database} needs a driver: pip install pymysql ({error})") from error
        self._raw: Any = pymysql.connect(**options)

    def run(self, text: str, values: Sequence[Any]) -> list[Row]:
        with self._raw.cursor() as cursor:
            cursor.execute(text, tuple(values))
            return list(cursor.fetchall()) if cursor.description is not None else [(cursor.rowcount,)]

    def close(self) -> None:
        self._raw.close()


def _refused(error: Any, address: Address) -> StorageError:
    """The error for a connection that psycopg could not open: its exception does not contain the server's error
    code."""
    from treadle.storage import code_of_refusal

    code = code_of_refusal(error, address.target)
    return _of_code(code or "", address.database, " ".join(str(error).split()))


def is_lent(process: int, raw: Any) -> bool:
    """Whether a pooler lends this session: the server's process is another one than was named while connecting."""
    return bool(process != raw.info.backend_pid)


KINDS: Final[dict[str, Callable[[Address], Connection]]] = {
    "postgresql": Postgres,
    "sqlite": Sqlite,
    "mysql": MySQL,
}


class Database:
    """The database of an outbox, as one process uses it. The connection is opened at its first use, and again after it
    was lost.

    Errors: StorageUnavailable, StorageDenied, StorageFull, and StorageError if the tables do not exist.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: Connection | None = None
        self.forget()

    def forget(self) -> None:
        """Drop connection and thread, which a forked child must not use."""
        if self._connection is not None:
            forks.leave(self._connection)  # garbage collection could write to the parent's socket
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._connection = None
        self._process = os.getpid()

    async def run(self, sent: Sent) -> list[Row]:
        """One statement, as a transaction of its own."""
        if self._process != os.getpid():
            self.forget()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "treadle-outbox")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.run_here, sent)

    def run_here(self, sent: Sent) -> list[Row]:
        """The same, in the calling thread."""
        with self._lock:
            text, values = sent
            try:
                if self._connection is None:
                    self._connection = KINDS[self.address.dialect](self.address)
                return self._connection.run(text, values)
            except StorageError:
                raise
            except Exception as error:
                ours = translated(error, self.address)
                if ours is None:
                    raise
                if isinstance(ours, StorageUnavailable):
                    self._drop()
                raise ours from error

    def run_once(self, statements: Sequence[Sent]) -> list[list[Row]]:
        """Run these on a connection that is closed afterwards. Blocks the thread."""
        alone = Database(self.address)
        try:
            return [alone.run_here(sent) for sent in statements]
        finally:
            alone._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    async def close(self) -> None:
        """Release the connection and the thread. A second call does nothing; `run` opens it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._drop)
            thread.shutdown(wait=False)
        else:
            self._drop()


def translated(error: Exception, address: Address) -> StorageError | None:
    """The error of a driver as one of ours; None: it is not an error of a database."""
    where, text = address.database, " ".join(str(error).split())
    module = type(error).__module__.partition(".")[0]
    if isinstance(error, sqlite3.Error):
        return _of_sqlite(error, where, text)
    if module in ("psycopg", "psycopg2", "asyncpg"):
        return _of_postgres(error, where, text)
    if module in ("pymysql", "MySQLdb"):
        return _of_mysql(error, where, text)
    return None


def missing(where: str) -> StorageError:
    """The error for tables that do not exist."""
    return StorageError(f"{where} has no table treadle_outbox: {COMMAND}")


def checked_mark(rows: Sequence[Row], address: Address) -> tuple[str, int]:
    """The mark of the database and the version of its tables. Raises StorageError without them, for example after a
    test that has emptied all tables, and for a newer version."""
    if not rows:
        raise StorageError(f"{address.database} has no row in its table treadle_relay: {COMMAND}")
    [(mark, version)] = rows
    if version > SCHEMA:
        raise StorageError(f"{address.database} has tables of version {version}, this Treadle knows up to {SCHEMA}")
    return str(mark), int(version)


def _of_sqlite(error: sqlite3.Error, where: str, text: str) -> StorageError:
    if "no such table: treadle_" in text or "no such table: main.treadle_" in text:
        return missing(where)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY):
        return StorageFull(f"{where}: {text}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Locked(where, f"the file ({text})")
    if code == sqlite3.SQLITE_NOTADB:
        return NotADatabase(f"{where}: {text}")
    if isinstance(error, sqlite3.OperationalError):
        return StorageUnavailable(f"{where}: {text}")
    return StorageError(f"{where}: {text}")


def _of_postgres(error: Exception, where: str, text: str) -> StorageError:
    return _of_code(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "", where, text)


def _of_code(state: str, where: str, text: str) -> StorageError:
    """The error for this SQLSTATE; "": the driver has found no server, or has lost it."""
    if state in ("42P01", "3F000"):
        return missing(where)
    if state == "3D000":
        return NotADatabase(f"{where}: {text}")
    if state.startswith("28") or state == "42501":
        return StorageDenied(f"{where}: {text.partition(' DETAIL')[0]}")
    if state.startswith("53") and state != "53300":
        return StorageFull(f"{where}: {text}")
    if state in ("40001", "40P01", "55P03"):
        return Locked(where, f"a lock ({text})")
    if not state or state[:2] in ("08", "57", "40", "55", "53"):
        return StorageUnavailable(f"{where}: {text}")
    return StorageError(f"{where}: {text}")


def _of_mysql(error: Exception, where: str, text: str) -> StorageError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if code in MISSING:
        return missing(where)
    if code in DENIED:
        return StorageDenied(f"{where}: {text}")
    if code in FULL:
        return StorageFull(f"{where}: {text}")
    if code in WAITED:
        return Locked(where, f"a lock ({text})")
    if type(error).__name__ in ("OperationalError", "InterfaceError"):
        return StorageUnavailable(f"{where}: {text}")
    return StorageError(f"{where}: {text}")


def raise_translated(error: Exception, address: Address) -> NoReturn:
    """Raise an error of the user's driver as one of ours, or as it is."""
    ours = translated(error, address)
    if ours is None:
        raise error
    raise ours from error
