"""SQLite files that a forked child has inherited open, and opens again for itself.

SQLite counts the locks that its process holds on a file, and a fork copies the count, but not the locks. So the SQLite
of the child would take none. When the parent then closes the file, it takes itself for the last process, and deletes
the log that the child writes to. The child therefore takes the two locks that SQLite keeps on an open file by itself.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from treadle.concurrency import forks
from treadle.core.errors import StorageError

SHARED: Final = 0x4000_0002, 510  # the bytes of the database that an open connection has locked, and their number
IN_USE: Final = 128, 1  # those of the log's index
CURE: Final = 'start the child as a new program (`multiprocessing` with "spawn"), or close the app before the fork'

Place = tuple[int, int]


class Inherited(NamedTuple):
    """A file at the fork."""

    log_index: Place | None
    is_written: bool  # a connection was in a transaction


_inherited: Final = dict[Place, Inherited]()
_locked: Final = dict[Place, int]()  # the process that has taken the locks of such a file


def leave(db: sqlite3.Connection, path: str) -> None:
    """In the child: never close this connection of the parent, and remember its file."""
    forks.leave(db)
    path = unquote(urlsplit(path).path) if path.startswith("file:") else path
    with suppress(sqlite3.Error):  # it was closed before the fork
        is_written, place = db.in_transaction, place_of(path)
        if place is not None:
            before = _inherited.get(place)
            is_written = is_written or (before is not None and before.is_written)
            _inherited[place] = Inherited(place_of(f"{path}-shm"), is_written)


def take_locks(path: str) -> None:
    """Call this before SQLite opens the file. Raises StorageError if the child cannot use it."""
    place = place_of(path) if _inherited else None
    if place is None or place not in _inherited or _locked.get(place) == os.getpid():
        return
    file = _inherited[place]
    if file.is_written:
        raise StorageError(f"{path}: this process was forked in the middle of a transaction; {CURE}")
    _lock(path, *SHARED)  # from here on no process deletes the log
    if file.log_index is None or place_of(f"{path}-shm") != file.log_index:
        raise StorageError(
            f"{path}: the parent of this process had it open at the fork, and has closed it since; {CURE}"
        )
    _lock(f"{path}-shm", *IN_USE)
    _locked[place] = os.getpid()


def _lock(path: str, start: int, count: int) -> None:
    """Lock bytes of a file until the process ends: closing any descriptor of it would release all its locks."""
    import fcntl

    fcntl.lockf(os.open(path, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH, count, start)


def place_of(path: str) -> Place | None:
    """Device and inode of the file that a path names. None: there is no file."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
