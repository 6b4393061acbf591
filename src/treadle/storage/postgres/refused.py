"""The SQLSTATE of a connection that the server refused, whatever the language of its messages.

libpq gives programs the text of such an error and keeps its code, and `lc_messages` of the server chooses the language
of the text. The code is in the text if libpq makes verbose errors, which can be set on a connection only after it was
started. So the connection is tried a second time.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
import selectors
import sys
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import pq

from treadle.core.clock import monotonic

SECOND_TRY: Final = 5.0  # s that the second connection may take; the first one has just been answered
FROM_SERVER: Final = ":  "  # libpq puts a colon and two spaces after the severity of an error that a server has sent
UNCLEAR: Final = "08P01"  # older PgBouncers report each refusal with it

_VERBOSE: Final = 2  # PQERRORS_VERBOSE
_CODE: Final = re.compile(r":  ([0-9A-Z]{5}): ")
_NO_PASSWORD: Final = "no password supplied"
_ENGLISH: Final = (  # the code, and texts that an error with it has
    ("28000", ("role", "does not exist")),
    ("28000", ("role", "is not permitted to log in")),
    ("28000", ("pg_hba.conf",)),
    ("42501", ("permission denied for database",)),
    ("3D000", ("database", "does not exist")),
    ("28P01", ("password authentication failed",)),
    ("28P01", (_NO_PASSWORD,)),
    ("53300", ("too many clients",)),
    ("53300", ("remaining connection slots",)),
    ("53300", ("too many connections",)),
)


def code_of_refusal(error: psycopg.Error, conninfo: str) -> str | None:
    """The SQLSTATE of an error that psycopg raised for this connection; None: no server has refused it, or the second
    connection was not refused. Blocks the thread, for 5 seconds at most.

    Without access to libpq, as on Windows, and behind a pooler that reports no code of its own, the code is derived
    from the English text.
    """
    if error.sqlstate:
        return error.sqlstate
    if error.pgconn is not None and error.pgconn.needs_password:
        return "28P01"
    text = str(error)
    code = _second_try(conninfo) if FROM_SERVER in text else None
    return code_in_english(text) or code if code in (None, UNCLEAR) else code


def code_in_english(text: str) -> str | None:
    """The SQLSTATE that this text of a refusal belongs to; None: an unknown text."""
    return next((code for code, parts in _ENGLISH if all(part in text for part in parts)), None)


def _second_try(conninfo: str) -> str | None:
    """The SQLSTATE in the verbose error of another connection."""
    set_verbosity = _verbosity()
    if set_verbosity is None:
        return None
    try:
        connection = pq.PGconn.connect_start(conninfo.encode())
    except psycopg.Error:
        return None
    try:
        pointer: int | None = connection.pgconn_ptr  # type: ignore[attr-defined]  # documented, but not in psycopg's Protocol
        set_verbosity(pointer, _VERBOSE)
        _wait(connection, monotonic() + SECOND_TRY)
        codes = _CODE.findall(connection.error_message.decode("utf-8", "replace"))
        return codes[-1] if codes else None
    except (psycopg.Error, OSError):
        return None
    finally:
        connection.finish()


def _wait(connection: pq.abc.PGconn, end: float) -> None:
    """Connect, until that succeeds or fails, or until the time has come."""
    events = {pq.PollingStatus.READING: selectors.EVENT_READ, pq.PollingStatus.WRITING: selectors.EVENT_WRITE}
    while (
        connection.status != pq.ConnStatus.BAD
        and (event := events.get(pq.PollingStatus(connection.connect_poll()))) is not None
    ):
        with selectors.DefaultSelector() as selector:  # a new one each time: libpq changes the socket between hosts
            selector.register(connection.socket, event)
            if not selector.select(max(0.0, end - monotonic())):
                return


@functools.cache
def _verbosity() -> Callable[[int | None, int], int] | None:
    """PQsetErrorVerbosity of the libpq that psycopg uses: psycopg has no call for it. None: it is not found there.

    The symbols of an extension module include those of the libraries that it was linked with.
    """
    path = sys.modules[pq.PGconn.__module__].__file__ if pq.__impl__ != "python" else ctypes.util.find_library("pq")
    try:
        function = ctypes.CDLL(path).PQsetErrorVerbosity
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function
