"""One connection: one statement at a time, directly over libpq, with a limit on every wait.

A round trip costs 26 us of this process; with psycopg's asynchronous connection it costs 84 (measured). The limit also
applies when the server stops responding, whatever the system's own timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict

from treadle.core.redaction import without
from treadle.storage.postgres.errors import Cut, ServerError, distinct
from treadle.storage.postgres.refused import code_of_refusal

OLDEST: Final = 14  # the oldest PostgreSQL that we test with
ENCODINGS: Final = ("UTF8", "SQL_ASCII")  # encodings of a database that work; SQL_ASCII stores our bytes unchanged
PIPELINES: Final = 140_000  # the first libpq with pipeline mode: two statements in one round trip
LIMIT: Final = b"SELECT set_config('statement_timeout', $1, true), set_config('extra_float_digits', '1', true)"
CANCEL: Final = 2.0  # s to cancel a statement, on a connection of its own
KNOWN: Final = 200  # statements prepared on one connection; any further ones are sent as text
ERROR_FIELDS: Final = (
    pq.DiagnosticField.SQLSTATE,
    pq.DiagnosticField.MESSAGE_PRIMARY,
    pq.DiagnosticField.SOURCE_FUNCTION,
    pq.DiagnosticField.CONTEXT,
)
GOOD: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)

Row = tuple[Any, ...]
Value = str | float | int | bool | None


async def connect(conninfo: str, limit: float) -> psycopg.AsyncConnection[Any]:
    """A psycopg connection in autocommit mode. Raises Cut, ServerError."""
    try:
        async with asyncio.timeout(limit):
            connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise await asyncio.to_thread(_why_not, error, conninfo) from error
    except TimeoutError as error:
        raise Cut(f"no connection within {limit:g} s") from error
    version = connection.info.server_version // 10_000
    if version < OLDEST:
        await connection.close()
        raise ServerError("0A000", f"expected PostgreSQL {OLDEST} or newer, found {version}")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ENCODINGS and encoding is not None:
        name = connection.info.dbname
        await connection.close()
        raise ServerError(
            "0A000",
            f"the database {name!r} has the encoding {encoding}, which lacks most characters; create one for "
            "Treadle with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )
    return connection


def connect_in_thread(conninfo: str, autocommit: bool = False) -> psycopg.Connection[Any]:
    """A psycopg connection for code in threads. Raises Cut, ServerError."""
    try:
        return psycopg.connect(conninfo, autocommit=autocommit, prepare_threshold=None)
    except psycopg.Error as error:
        raise _why_not(error, conninfo) from error


def _why_not(error: psycopg.Error, conninfo: str) -> ServerError | Cut:
    """The error for a failed connection. Blocks the thread."""
    code = code_of_refusal(error, conninfo)
    reason = without(str(error).strip(), str(conninfo_to_dict(conninfo).get("password") or ""))
    return Cut(reason) if code is None else ServerError(code, reason)


class Connection:
    """A connection in use. Any error closes it, because a result may still be on its way."""

    def __init__(
        self,
        raw: psycopg.AsyncConnection[Any],
        prepare: bool,
        hear: Callable[[str, str], None] | None = None,
        cancels: bool = False,
    ) -> None:
        self.raw = raw
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        self.used = False  # whether a statement has succeeded on it
        self._pg = raw.pgconn
        self._fd = self._pg.socket
        self._prepare = prepare
        self._hear = hear  # gets channel and payload of each notification that another session sent
        self._cancels = cancels  # whether a statement that is given up is cancelled at the server
        self._limit: str | None = None  # ms: statement_timeout of each statement, if a pooler lends the session
        self._names: dict[str, bytes] = {}  # statement -> its name once prepared; empty: seen once
        self._numbers = itertools.count(1)
        self._answer: asyncio.Future[None] | None = None
        self._results: list[Any] = []
        self._lost: asyncio.Future[None] = self.loop.create_future()
        self._open = True
        self.loop.add_reader(self._fd, self._readable)

    def is_lent(self, limit: str, prepare: bool) -> None:
        """Used with a session that a pooler lends: the settings of a statement are sent in its own transaction, in the
        same round trip."""
        self._prepare = prepare
        if pq.version() >= PIPELINES:
            self._limit = limit
            self._pg.enter_pipeline_mode()

    @property
    def open(self) -> bool:
        return self._open

    async def lost(self) -> None:
        """Wait until the connection is closed or lost."""
        await asyncio.shield(self._lost)

    async def run(self, text: str, values: Sequence[Value], limit: float, often: bool = True) -> list[Row]:
        """One statement as a transaction of its own -> its rows. Raises Said, Cut, TimeoutError.

        `often`: worth preparing, from the second time on.
        """
        name = self._names.get(text)
        if name is None and often and self._prepare and len(self._names) < KNOWN:
            self._names[text] = b""
        elif name == b"":
            name = f"t{next(self._numbers)}".encode()
            await self._trip(lambda: self._pg.send_prepare(name, text.encode()), limit)
            self._names[text] = name
        packed = [_packed(value) for value in values]
        if name:
            sent = name
            result = await self._trip(lambda: self._pg.send_query_prepared(sent, packed, result_format=1), limit)
        else:
            result = await self._trip(lambda: self._pg.send_query_params(text.encode(), packed, result_format=1), limit)
        self.used = True
        if not result.ntuples:
            return []
        reader = Transformer(self.raw)
        reader.set_pgresult(result)
        return reader.load_rows(0, result.ntuples, tuple)

    async def _trip(self, send: Callable[[], None], limit: float) -> Any:
        if not self._open:
            raise Cut("the connection is closed")
        self._answer = self.loop.create_future()
        timer = self.loop.call_later(limit, self._overdue, limit)
        try:
            if self._limit is not None:
                self._pg.send_query_params(LIMIT, [self._limit.encode()])
            send()
            if self._limit is not None:
                self._pg.pipeline_sync()
            self._flush()
            await self._answer
        except psycopg.Error as error:
            self.close()
            raise Cut(str(error).strip()) from error
        except BaseException as error:
            try:
                if self._cancels and isinstance(error, (TimeoutError, asyncio.CancelledError)):
                    await self._cancel()
            finally:
                self.close()
            raise
        finally:
            timer.cancel()
            self._answer = None
        results, self._results = self._results, []
        for result in results:
            if result.status not in GOOD:
                code, message, routine, context = (_field(result, field) for field in ERROR_FIELDS)
                raise ServerError(distinct(code or "XX000", routine), message or "no message", context or "")
        return results[-1]

    async def _cancel(self) -> None:
        """Cancel the statement in progress. A server does not notice that its client is gone before it responds."""
        with contextlib.suppress(psycopg.Error, OSError):
            await self.raw.cancel_safe(timeout=CANCEL)

    # --- callbacks of the loop

    def _flush(self) -> None:
        if self._pg.flush():
            self.loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            if not self._pg.flush():
                self.loop.remove_writer(self._fd)
        except psycopg.Error as error:
            self._broken(error)

    def _readable(self) -> None:
        try:
            self._pg.consume_input()
            while (notification := self._pg.notifies()) is not None:
                if self._hear is not None and notification.be_pid != self._pg.backend_pid:
                    self._hear(notification.relname.decode(), notification.extra.decode())
            while self._answer is not None and not self._pg.is_busy():
                result = self._pg.get_result()
                if self._limit is not None and result is None:
                    continue  # the end of one statement; the round trip ends with the sync
                if result is None or result.status == pq.ExecStatus.PIPELINE_SYNC:
                    if not self._answer.done():
                        self._answer.set_result(None)
                    return
                self._results.append(result)
            if self._pg.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError(self._pg.get_error_message() or "the connection is closed")
        except psycopg.Error as error:
            self._broken(error)

    def _overdue(self, limit: float) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(TimeoutError(f"no answer within {limit:g} s"))

    def _broken(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Cut(str(error).strip()))
        self.close()

    # --- its end

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self.process != os.getpid():
            return  # a forked child must not send the end of its parent's session
        if not self.loop.is_closed():
            with contextlib.suppress(OSError, ValueError):
                self.loop.remove_reader(self._fd)
                self.loop.remove_writer(self._fd)
            if not self._lost.done():
                self._lost.set_result(None)
            if self._answer is not None and not self._answer.done():  # otherwise its caller would wait for its timeout
                self._answer.set_exception(Cut("the connection was closed"))
        self._pg.finish()


def _field(result: Any, field: pq.DiagnosticField) -> str | None:
    text: bytes | None = result.error_field(field)
    return None if text is None else text.decode(errors="replace")


def _packed(value: Value) -> bytes | None:
    """The value as text; the statement casts it."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return repr(value).encode()
