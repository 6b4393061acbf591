"""Opens the file: checks that it is Treadle's and writable, creates or migrates it, and makes the connections to it.

A new file is synced to disk with its folder, so that it survives a power failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from treadle.concurrency.forked_files import take_locks
from treadle.core import clock
from treadle.core.errors import BadUrl, NotADatabase, SchemaTooOld, StorageDenied, StorageUnavailable
from treadle.core.private_files import make_file, share
from treadle.storage.sqlite.bulk_read import Gathering
from treadle.storage.sqlite.lockfile import WAIT, LockFile, held, patiently
from treadle.storage.sqlite.migrate import check, migrate, newest

log = logging.getLogger("treadle.storage.sqlite")


class Opened(NamedTuple):
    """The connections: one to write, one for short reads, one for long reads.

    unwritable  why this process can only read the file; "" if it can write
    still       the connections see the file as it was when they were opened: it had no log then
    """

    db: sqlite3.Connection
    look: sqlite3.Connection
    search: sqlite3.Connection
    lock: LockFile | None
    unwritable: str = ""
    still: bool = False


def open_file(path: str, synchronous: str, now: clock.Clock, shared: bool = False) -> Opened:
    """Open the file; create or migrate it under the lock. Run this in a thread: it may wait for another process that
    does so.

    A file that has our schema is opened without the lock: a process in the middle of a transaction of its own database
    connection may open it.
    """
    folder = _folder_of(path)
    take_locks(path)
    why = _unwritable(path, folder)
    if why and not os.path.exists(path):
        raise StorageDenied(f"{path} cannot be created: {why}")
    if why:
        return look_at_file(path, shared, why)
    return _named(path, lambda: _open_to_write(path, synchronous, now, shared))


def look_at_file(path: str, shared: bool = False, why: str = "it was opened only to be read") -> Opened:
    """Open the file for reading only: nothing is created or written. Raises SchemaTooOld, SchemaTooNew, NotADatabase.

    why  the reason that the first write raises
    """
    _folder_of(path)
    take_locks(path)
    if not os.path.exists(path):
        raise SchemaTooOld(0, newest(), path)
    return _named(path, lambda: _open_to_look(path, None, why, shared))


def _folder_of(path: str) -> str:
    folder = os.path.dirname(path)
    if path.endswith(":memory:"):
        raise BadUrl("SQLite's :memory: cannot be shared by two connections; use memory://")
    if not os.path.isdir(folder):
        raise NotADatabase(f"the folder {folder} does not exist; create it, or give another file")
    if os.path.isdir(path):
        raise NotADatabase(f"{path} is a folder; give the path of a file, such as {os.path.join(path, 'jobs.db')}")
    return folder


def _named(path: str, act: Callable[[], Opened]) -> Opened:
    try:
        return act()
    except sqlite3.Error as error:
        # Only SQLite may find this out. Opening and closing the file here would drop the locks of every connection that
        # this process has to it, and their commits would be lost.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            raise NotADatabase(f"{path} is not a SQLite database, or it is encrypted; give another file") from error
        raise


def _unwritable(path: str, folder: str) -> str:
    """Why this process cannot write to the database; "" if it can."""
    for place in (folder, path, path + "-lock"):
        if os.path.exists(place) and not os.access(
            place, os.W_OK, effective_ids=os.access in os.supports_effective_ids
        ):
            user = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
            return f"{place} is not writable for {user}; grant write access to the file and its folder"
    return ""


def _open_to_write(path: str, synchronous: str, now: clock.Clock, shared: bool) -> Opened:
    if not os.path.exists(path) and os.path.exists(path + "-lock"):
        log.warning("%s was deleted with its jobs: its lock file is still there; a new file is made", path)
    make_file(path)  # SQLite gives its log the mode of the file

    def prepare(db: sqlite3.Connection) -> None:
        if not _is_ready(db, path, shared):
            _make(db, path, now, lock, shared)
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA busy_timeout = 0")

    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(contextlib.closing(LockFile(path + "-lock")))
        try:
            opened = Opened(*_connections(path, prepare), lock)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            opened = _open_to_look(path, lock, str(error), shared)
        stack.pop_all()
    return opened


def _connections(
    path: str, prepare: Callable[[sqlite3.Connection], object]
) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
    """Open three connections. `prepare` runs on the first before the others are opened. If one fails, none stays
    open."""
    with contextlib.ExitStack() as stack:
        db = stack.enter_context(contextlib.closing(new_connection(path)))
        prepare(db)
        look = stack.enter_context(contextlib.closing(new_connection(path)))
        search = stack.enter_context(contextlib.closing(new_connection(path)))
        stack.pop_all()
    return db, look, search


def _is_ready(db: sqlite3.Connection, path: str, shared: bool) -> bool:
    """Whether the file can be used without writing to it first."""
    return check(db, path, shared) == newest() and bool(db.execute("PRAGMA journal_mode").fetchone()[0] == "wal")


def _make(db: sqlite3.Connection, path: str, now: clock.Clock, lock: LockFile, shared: bool) -> None:
    """Create our schema in a new file, or migrate an older one."""
    if not patiently(lock):
        raise held(lock)
    try:
        fresh = not os.path.getsize(path)
        check(db, path, shared)  # another process may have created it meanwhile
        if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # This must precede the first table; later it would need a VACUUM. It lets prune release the pages of a
            # large backlog.
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise StorageUnavailable(
                    f"{path}: its file system does not support write-ahead logging; put the file on a local disk"
                )
        migrate(db, path, now(), shared)
        share(lock.path, path)
        if fresh:
            log.info("%s is new and empty; programs with another folder or in another container have their own", path)
            _sync_folder(os.path.dirname(path))
    finally:
        lock.unlock()


def _open_to_look(path: str, lock: LockFile | None, why: str, shared: bool) -> Opened:
    """Open the file for reading only; the first write raises."""
    uri, still = read_only_uri(path)

    def checked(db: sqlite3.Connection) -> None:
        schema = check(db, path, shared)
        if schema < newest():
            raise SchemaTooOld(schema, newest(), path)

    return Opened(*_connections(uri, checked), lock, why, still)


def read_only_uri(path: str) -> tuple[str, bool]:
    """The URI with which SQLite reads the file and creates none, and whether that shows the file as it is now."""
    # If no process has the file open, it has no log. SQLite would create an empty one to read the file as usual, which
    # changes the folder, and fails in one that is read-only.
    still = not any(os.path.exists(path + end) for end in ("-wal", "-journal"))
    return f"{pathlib.Path(path).absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}", still


def new_connection(path: str, kind: type[sqlite3.Connection] = Gathering) -> sqlite3.Connection:
    db = sqlite3.connect(
        path,
        timeout=WAIT,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=path.startswith("file:"),
        factory=kind,
    )
    try:
        db.execute("PRAGMA cache_size = -32768")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.execute("PRAGMA foreign_keys = OFF")
    except BaseException:
        sqlite3.Connection.close(db)  # the class may refuse to be closed by its user
        raise
    return db


def _sync_folder(folder: str) -> None:
    """Sync the folder, so that it still lists the file after a power failure."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
