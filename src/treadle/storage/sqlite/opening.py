"""Opening the file: is it ours, is it new, may it be written, and the three connections to it.

Without it a wrong file would be found by the first statement, and a new one would not survive a power cut.
"""

from __future__ import annotations

import os
import pathlib
import sqlite3
from typing import NamedTuple

from treadle import clock
from treadle.errors import BadUrl, NotADatabase, StorageUnavailable
from treadle.storage.sqlite.gather import Gathering
from treadle.storage.sqlite.lockfile import WAIT, LockFile
from treadle.storage.sqlite.migrate import check, migrate


class Opened(NamedTuple):
    """One connection to write, one for short looks, one for long ones; no lock where nothing can be written."""

    db: sqlite3.Connection
    look: sqlite3.Connection
    search: sqlite3.Connection
    lock: LockFile | None
    read_only: bool


def open_file(path: str, synchronous: str, now: clock.Clock, shared: bool = False) -> Opened:
    """Open, make or migrate it, under the lock. For a thread: it may wait for another process that does the same."""
    folder = os.path.dirname(path)
    if path.endswith(":memory:"):
        raise BadUrl("SQLite's :memory: cannot be shared by two connections; use memory://")
    if not os.path.isdir(folder):
        raise NotADatabase(f"the folder {folder} does not exist; make it, or name another file")
    try:
        lock = LockFile(path + "-lock")
    except OSError:
        if not os.path.exists(path):
            raise
        return _open_to_look(path, None)
    lock.lock()
    try:
        opened = _connect(path, synchronous, now, lock, shared)
    except BaseException as error:
        lock.unlock()
        lock.close()
        # Left to SQLite to find out: to open the file here and close it would drop the locks of everybody who has it
        # open in this process, and what they commit would be lost.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            raise NotADatabase(f"{path} is not a SQLite database, or it is encrypted; name another file") from error
        raise
    lock.unlock()
    return opened


def _connect(path: str, synchronous: str, now: clock.Clock, lock: LockFile, shared: bool) -> Opened:
    fresh = not os.path.exists(path) or not os.path.getsize(path)
    db = new_connection(path)
    try:
        check(db, path, shared)
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # before the first table, or VACUUM would be needed: lets prune give a great backlog's pages back
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StorageUnavailable(f"{path}: its file system cannot do write-ahead logging")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        migrate(db, path, now(), shared)
        db.execute("PRAGMA busy_timeout = 0")
        opened = Opened(db, new_connection(path), new_connection(path), lock, False)
    except sqlite3.OperationalError as error:
        db.close()
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise
        return _open_to_look(path, lock)
    except BaseException:
        db.close()
        raise
    if fresh:
        _sync_folder(os.path.dirname(path))
    return opened


def _open_to_look(path: str, lock: LockFile | None) -> Opened:
    """Nothing can be written here: whoever asks is told at the first write."""
    # where nobody has the file open there is no log, and SQLite could not make one to read it as usual
    how = "mode=ro" if os.path.exists(path + "-wal") else "mode=ro&immutable=1"
    uri = f"{pathlib.Path(path).as_uri()}?{how}"
    db = new_connection(uri)
    check(db, path)
    return Opened(db, new_connection(uri), new_connection(uri), lock, True)


def new_connection(path: str, kind: type[sqlite3.Connection] = Gathering) -> sqlite3.Connection:
    db = sqlite3.connect(
        path, timeout=WAIT, isolation_level=None, check_same_thread=False, cached_statements=256,
        uri=path.startswith("file:"), factory=kind,
    )  # fmt: skip
    try:
        db.execute("PRAGMA cache_size = -32768")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.execute("PRAGMA foreign_keys = OFF")
    except BaseException:
        db.close()
        raise
    return db


def _sync_folder(folder: str) -> None:
    """So that the file is still in its folder after the power failed."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
