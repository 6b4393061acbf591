"""The server's errors as the library's, by their SQLSTATE, whichever driver told them.

Without it a caller could not tell a server that is away from one that is full, nor what may be tried again.
"""

from __future__ import annotations

from typing import Final

import psycopg

from treadle.errors import NotADatabase, StorageDenied, StorageError, StorageFull, StorageUnavailable
from treadle.storage.transfer import MoveState, decode_mark
from treadle.storage.transfer import refusal as shut

# Two transactions in each other's way: one of them was undone and may be repeated at once.
AGAIN: Final = frozenset({"40001", "40P01"})
# What this connection knows is out of date (a migrated table, a prepared statement the server forgot, a primary that
# became a standby), or it is about to be cut: the next one will do better.
STALE: Final = frozenset({"26000", "42P05", "25006", "57P01", "57P02", "57P03", "57P05"})
# Our functions or tables are not there (any more): opening anew makes them.
MISSING: Final = frozenset({"42883", "42P01", "42703", "3F000"})

# A mark of a move is in the way (functions/carry.sql); the message is the mark.
MARKED: Final = "TR002"

_FULL: Final = frozenset({"53100"})
# Neither a wrong password nor a missing database (28, 3D) is an outage: waiting does not cure them.
_AWAY_CLASSES: Final = ("08", "40", "53", "57", "58", "XX")
_AWAY: Final = frozenset({"25006", "25P03", "26000", "42P05", "55P03"})
_ADVICE: Final = {
    "08P01": "behind a pooler that lends connections out, add ?prepare=off",
    "22P05": "give Treadle a database with ENCODING 'UTF8'",
    "25006": "this server is a standby or read-only; name the primary, or add target_session_attrs=read-write",
    "26000": "behind a pooler that lends connections out, add ?prepare=off",
    "28000": "is the role right?",
    "28P01": "is the password right?",
    "3D000": "create the database first",
    "42501": "the role lacks a right on the schema; see the guide on PostgreSQL",
    "42P05": "behind a pooler that lends connections out, add ?prepare=off",
    "53300": "fewer or smaller pools (?pool=), a pooler, or a higher max_connections",
    "55P03": "somebody else's open transaction holds a row",
    "57014": "the call took longer than ?timeout= allows",
}


class Said(Exception):
    """What the server said of a statement. Stays within this folder."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(code, message)

    @property
    def stale(self) -> bool:
        return self.code in STALE or (self.code == "0A000" and "cached plan" in self.message)


class Cut(Exception):
    """The connection broke. Stays within this folder."""


def mark_of(error: BaseException) -> MoveState | None:
    """The mark because of which a verb was not done; of an error as callers are told it."""
    code, message = _said(error.__cause__)
    return decode_mark(message) if code == MARKED else None


def code_of(error: BaseException) -> str | None:
    """The SQLSTATE, whichever driver told it."""
    return _said(error)[0]


def _said(error: BaseException | None) -> tuple[str | None, str]:
    """SQLSTATE and message, whichever driver told it."""
    if isinstance(error, Said):
        return error.code, error.message
    if isinstance(error, psycopg.Error):
        return error.diag.sqlstate, error.diag.message_primary or str(error)
    code = getattr(error, "sqlstate", None)
    return (code if isinstance(code, str) else None), str(error)


def refusal(code: str, message: str, where: str) -> StorageError:
    """The error a caller is told for what the server said."""
    if code == MARKED:
        return shut(decode_mark(message), where)
    advice = _ADVICE.get(code)
    words = f"{where}: {message.strip()} [{code}]" + (f"; {advice}" if advice else "")
    if code in _FULL:
        return StorageFull(f"{words}; nothing of the call was stored")
    if code in _AWAY or code.startswith(_AWAY_CLASSES) or (code == "0A000" and "cached plan" in message):
        return StorageUnavailable(words)
    if code.startswith("28") or code == "42501":
        return StorageDenied(words)
    return NotADatabase(words) if code == "3D000" else StorageError(words)


def translated(error: BaseException, where: str) -> BaseException:
    """The error a caller is told; others than the drivers' and the system's stay as they are."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, Cut):
        return StorageUnavailable(f"{where}: {error}")
    code, message = _said(error)
    if code is not None:
        return refusal(code, message, where)
    if isinstance(error, psycopg.OperationalError):
        return StorageUnavailable(f"{where}: {str(error).strip()}")
    if isinstance(error, (OSError, EOFError)):
        return StorageUnavailable(f"{where}: {str(error) or type(error).__name__}")
    return error
