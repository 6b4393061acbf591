"""A key-value store in one SQLite file, which survives the process.

Calls that arrive during a commit share the next one, so a thousand waiting callers cost one sync of the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from treadle.concurrency import forked_files, forks
from treadle.concurrency.forked_files import take_locks
from treadle.core import clock as clocks
from treadle.core.errors import StorageUnavailable
from treadle.core.private_files import make_file
from treadle.ports.changes import Change, Changes

WAIT: Final = 10.0  # s to wait for another process that writes
TABLE: Final = "CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value TEXT NOT NULL, ends REAL) WITHOUT ROWID"
INDEX: Final = "CREATE INDEX IF NOT EXISTS kv_ends ON kv (ends) WHERE ends IS NOT NULL"
EXPIRE: Final = "DELETE FROM kv WHERE ends <= ?"
GET: Final = "SELECT value FROM kv WHERE key = ?"
SET: Final = "REPLACE INTO kv VALUES (?, ?, ?)"
ADD: Final = "INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
DELETE: Final = "DELETE FROM kv WHERE key = ?"


class FileStore:
    """Keys in one file; see `file_store`."""

    def __init__(
        self,
        file: str | Path,
        *,
        clock: clocks.Clock = clocks.wall,
        alone: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._path, self._now, self.alone = Path(file), clock, alone
        self._db: sqlite3.Connection | None = None
        self._connection: sqlite3.Connection | None = None  # the same connection, set before it is prepared
        self._changes = Changes[sqlite3.Connection](str(self._path), self._step)

    async def get(self, key: str) -> str | None:
        return await self._changes.do(lambda db, now: _read(db, key))

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        await self._changes.do(lambda db, now: db.execute(SET, (key, value, _end(now, ttl))))

    async def delete(self, key: str) -> None:
        await self._changes.do(lambda db, now: db.execute(DELETE, (key,)))

    async def set_if_absent(self, key: str, value: str, ttl: float | None = None) -> bool:
        return await self._changes.do(lambda db, now: db.execute(ADD, (key, value, _end(now, ttl))).rowcount == 1)

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        def change(db: sqlite3.Connection, now: float) -> int:
            total = int(_read(db, key) or 0) + by
            db.execute(SET, (key, str(total), _end(now, ttl)))
            return total

        return await self._changes.do(change)

    async def now(self) -> float:
        return self._now()

    async def close(self) -> None:
        """Close the file. The next call opens it again."""
        await self._changes.idle()
        self._let_go()

    # --- one transaction at a time, in a thread

    async def _step(self, group: list[Change[sqlite3.Connection]]) -> None:
        try:
            answers = await self._changes.in_thread(lambda: self._commit([change.apply for change in group]))
        except StorageUnavailable:
            raise
        except Exception as error:
            if len(group) == 1:
                group[0].reply(error)
                return
            for change in group:  # nothing was stored, because one change failed: repeat each in its own transaction
                await self._step([change])
        else:
            for change, answer in zip(group, answers, strict=True):
                change.reply(answer)

    def _commit(self, changes: list[Callable[[sqlite3.Connection, float], Any]]) -> list[Any]:
        try:
            db = self._opened()
            db.execute("BEGIN IMMEDIATE")
            try:
                now = self._now()
                db.execute(EXPIRE, (now,))
                answers = [change(db, now) for change in changes]
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self._let_go()
            raise StorageUnavailable(f"the store {self._path.absolute()}: {error}") from error
        return answers

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            take_locks(str(self._path))
            make_file(self._path)
            with forks.opening:
                db = self._connection = sqlite3.connect(
                    self._path, timeout=WAIT, isolation_level=None, check_same_thread=False
                )
                forks.register(self)
            db.execute("PRAGMA journal_mode = wal")
            db.execute("PRAGMA synchronous = full")
            db.execute(TABLE)
            db.execute(INDEX)
            self._db = db
        return self._db

    def forked(self) -> None:
        """Drop the parent's connection unclosed: closing it in a child would undo the parent's transaction."""
        if self._connection is not None:
            forked_files.leave(self._connection, str(self._path))
        self._db = self._connection = None
        self._changes.forget()

    def _let_go(self) -> None:
        self._db = None
        if self._connection is not None:  # also if the file could be opened, but not read
            self._connection.close()
            self._connection = None


def _read(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute(GET, (key,)).fetchone()
    return None if row is None else str(row[0])


def _end(now: float, ttl: float | None) -> float | None:
    return None if ttl is None else now + ttl


def file_store(file: str | Path, *, clock: clocks.Clock = clocks.wall) -> FileStore:
    """Keys and values in the SQLite file `file`, which is created if missing. Several processes of one machine can open
    it. Changes are on disk when the call returns. Raises StorageUnavailable if the file cannot be opened or written.
    Not for network file systems."""
    return FileStore(file, clock=clock)
