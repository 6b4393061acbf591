"""Translates SQLite's errors into Treadle's, so that a caller can tell a full disk from a bug."""

from __future__ import annotations

import errno
import sqlite3

from treadle.core.errors import Locked, NotADatabase, StorageError, StorageFull, StorageUnavailable
from treadle.storage.sqlite.lock_holders import writer_of

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY})
FOREIGN = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


def translated(error: BaseException, path: str) -> BaseException:
    """The error to raise for this one. Only errors of SQLite and of the operating system are translated."""
    if isinstance(error, StorageError):
        return error
    translation: StorageError
    if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode"):
        code = error.sqlite_errorcode & 0xFF
        if code in BUSY:
            pid, program = writer_of(path)
            translation = Locked(path, f"the write lock of the file ({error})", pid=pid, application=program)
        elif code in FULL:
            translation = StorageFull(f"{path}: {error}; nothing of the call was stored")
        elif code in FOREIGN:
            translation = NotADatabase(f"{path}: {error}")
        elif code in (sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR):
            translation = StorageError(f"{path}: {error}")
        else:
            translation = StorageUnavailable(f"{path}: {error}")
    elif isinstance(error, OSError):
        if error.errno in NO_ROOM:
            translation = StorageFull(f"{path}: {error}")
        elif error.errno == errno.ENAMETOOLONG:
            translation = NotADatabase(f"{error.filename or path}: {error.strerror}; give another file")
        else:
            translation = StorageUnavailable(f"{path}: {error}")
    else:
        return error
    translation.__cause__ = error
    return translation
