"""Translates errors of the server into the library's, by SQLSTATE, whichever driver reported them.

Callers can thus distinguish a server that is unavailable from one that is full, and know what may be retried.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from treadle.core.errors import Locked, NotADatabase, StorageDenied, StorageError, StorageFull, StorageUnavailable
from treadle.storage.transfer import MoveState, decode_mark
from treadle.storage.transfer import refusal as shut

# Conflicts of two transactions: the server rolled one back, and it may be repeated at once.
AGAIN: Final = frozenset({"40001", "40P01"})
# A prepared statement that a changed table has made invalid. The server reports it with a code that it uses for other
# errors as well, and with a message in its own language; only the name of its routine is always the same.
OLD_PLAN: Final = "0A000, cached plan"
_OLD_PLAN: Final = ("0A000", "RevalidateCachedQuery")
# This connection is out of date (a migrated table, a prepared statement that the server forgot, a primary that became a
# standby), or the server is about to close it: a new connection helps.
STALE: Final = frozenset({"26000", "42P05", "25006", "57P01", "57P02", "57P03", "57P05", OLD_PLAN})
# Our functions or tables are missing: migrating creates them again.
MISSING: Final = frozenset({"42883", "42704", "42P01", "42703", "3F000"})

# The mark of a move forbids the verb (functions/move.sql); the message is the mark.
MARKED: Final = "TR002"

_FULL: Final = frozenset({"53100"})
# Another transaction is in the way: it holds a lock for longer than this call waits, or each waits for the other.
_LOCKED: Final = AGAIN | {"55P03"}
# The row that a lock protects, by the name of the table or index in the context of the error.
_HELD: Final = re.compile(r"\b(holder|job_pkey|job|ended)\b")
_WHAT: Final = {"holder": "a key", "job_pkey": "an id", "job": "the row of a job", "ended": "the row of an ended job"}
# A wrong password and a missing database (28, 3D) are not outages: waiting does not fix them.
_AWAY_CLASSES: Final = ("08", "40", "53", "57", "58", "XX")
_AWAY: Final = frozenset({"25006", "25P03", "26000", "42P05", OLD_PLAN})
_ADVICE: Final = {
    "08P01": "if a pooler shares the connections, add ?prepare=off",
    "22P05": "give Treadle a database with ENCODING 'UTF8'",
    "25006": "this server is a standby or read-only; give the primary's URL, or add target_session_attrs=read-write",
    "26000": "if a pooler shares the connections, add ?prepare=off",
    "28000": "check the role in the URL",
    "28P01": "check the password in the URL",
    "3D000": "create the database first",
    "42501": "the role lacks a right on the schema; see the guide on PostgreSQL",
    "42P05": "if a pooler shares the connections, add ?prepare=off",
    "53300": "use fewer or smaller pools (?pool=), a pooler, or a higher max_connections",
    "57014": "the call took longer than ?timeout= allows",
}


class ServerError(Exception):
    """An error that the server returned for a statement. Not used outside this folder."""

    def __init__(self, code: str, message: str, context: str = "") -> None:
        self.code, self.message, self.context = code, message, context
        super().__init__(code, message)

    @property
    def stale(self) -> bool:
        return self.code in STALE


class Cut(Exception):
    """The connection broke. Not used outside this folder."""


def mark_of(error: BaseException) -> MoveState | None:
    """The mark that forbade a verb, from an error as callers see it; None: another error."""
    code, message, _ = _parts_of(error.__cause__)
    return decode_mark(message) if code == MARKED else None


def code_of(error: BaseException) -> str | None:
    """The SQLSTATE, whichever driver reported it."""
    return _parts_of(error)[0]


def _parts_of(error: BaseException | None) -> tuple[str | None, str, str]:
    """SQLSTATE, message and context, whichever driver reported them."""
    if isinstance(error, ServerError):
        return error.code, error.message, error.context
    if isinstance(error, psycopg.Error):
        code, diag = error.diag.sqlstate, error.diag
        message = diag.message_primary or str(error)
        return code and distinct(code, diag.source_function), message, diag.context or ""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # asyncpg, psycopg2
    of_psycopg2 = getattr(error, "diag", None)
    routine = getattr(of_psycopg2, "source_function", None) or getattr(error, "server_source_function", None)
    message = getattr(of_psycopg2, "message_primary", None) or str(error)
    context = getattr(of_psycopg2, "context", None) or getattr(error, "context", None) or ""
    return (distinct(code, routine) if isinstance(code, str) else None), message, context


def distinct(code: str, routine: str | None) -> str:
    """The SQLSTATE of an error that this routine of the server raised; OLD_PLAN for an invalid prepared statement."""
    return OLD_PLAN if (code, routine) == _OLD_PLAN else code


def refusal(code: str, message: str, where: str, context: str = "") -> StorageError:
    """The error that a caller gets for an error of the server."""
    if code == MARKED:
        return shut(decode_mark(message), where)
    if code in _LOCKED:
        match = _HELD.search(context.partition("\n")[0])
        what = _WHAT[match[1]] if match else "a lock"
        return Locked(where, what if code == "55P03" else f"{what} ({message.strip()} [{code}])")
    advice = _ADVICE.get(code)
    text = f"{where}: {message.strip()} [{code}]" + (f"; {advice}" if advice else "")
    if code in _FULL:
        return StorageFull(f"{text}; nothing of the call was stored")
    if code in _AWAY or code.startswith(_AWAY_CLASSES):
        return StorageUnavailable(text)
    if code.startswith("28") or code == "42501":
        return StorageDenied(text)
    return NotADatabase(text) if code == "3D000" else StorageError(text)


def translated(error: BaseException, where: str) -> BaseException:
    """Returns the error that a caller gets for an error of a driver or a connection, and any other error unchanged."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, Cut):
        return StorageUnavailable(f"{where}: {error}")
    code, message, context = _parts_of(error)
    if code is not None:
        return refusal(code, message, where, context)
    if isinstance(error, psycopg.OperationalError) or _is_psycopg2_outage(error):
        return StorageUnavailable(f"{where}: {str(error).strip()}")
    if isinstance(error, (OSError, EOFError)):
        return StorageUnavailable(f"{where}: {str(error) or type(error).__name__}")
    return error


def _is_psycopg2_outage(error: BaseException) -> bool:
    """Whether psycopg2, which is not imported here, reports that the connection is gone."""
    return any(
        kind.__module__ == "psycopg2" and kind.__name__ in ("OperationalError", "InterfaceError")
        for kind in type(error).__mro__
    )
