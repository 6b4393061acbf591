"""The connections of one storage, created on demand, and the retries of statements.

The pool retries after deadlocks and on dead idle connections, and limits every wait, so the verbs need not.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Connection, Row, Value, connect
from treadle.storage.postgres.errors import AGAIN, MISSING, Cut, ServerError, code_of, translated
from treadle.storage.postgres.statements import Statements

TRIES: Final = 8  # attempts of a statement that conflicts with another transaction, each after a longer pause
PAUSE: Final = 0.005  # s, the first of those pauses; about the duration of a transaction
CONNECT: Final = 15.0  # s to open a connection, including all hosts of the URL

# The functions need a new snapshot for each statement, whatever the default isolation of the database. The server times
# out before we do, so that it holds no locks for a caller that is gone. Numbers are sent with all their digits. Behind
# a pooler nothing is set here: its sessions are lent to others, and the process it reports is not the one that
# responds.
SESSION: Final = (
    "SELECT set_config('default_transaction_isolation', 'read committed', false),"
    " set_config('statement_timeout', $1, false), set_config('idle_in_transaction_session_timeout', $1, false),"
    " set_config('extra_float_digits', '1', false) WHERE pg_backend_pid() = $2::int"
)

# The settings of a session of a storage that is only read. Behind a pooler it is not set either; no statement that
# writes is sent.
READ_ONLY: Final = "SELECT set_config('default_transaction_read_only', 'on', false) WHERE pg_backend_pid() = $1::int"


class Runner(Protocol):
    """Runs a statement of this folder: as a transaction of its own, or in the user's transaction."""

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        """The rows of the statement. `often`: the same text will be run again."""
        ...


class Pool:
    """Connections to the server, at most `address.pool`; further callers wait for a free one."""

    def __init__(self, address: Address, statements: Statements) -> None:
        self._address, self._statements = address, statements
        self._free: list[Connection] = []
        self._lent: set[Connection] = set()
        self._places = asyncio.Semaphore(address.pool)
        self._closed = True
        self._look = False

    def open(self, look: bool = False) -> None:
        """Prepares the pool for the running loop. `look`: its transactions are read-only."""
        self._look = look
        self._places = asyncio.Semaphore(self._address.pool)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for line in (*self._free, *self._lent):
            line.close()
        self._free.clear()
        self._lent.clear()

    async def connect(self) -> Connection:
        """A new connection, for the caller alone."""
        address = self._address
        line, own = await self._connect(address.prepare is not False)
        if not own:
            line.is_lent(self._server_limit, bool(address.prepare))
        return line

    @property
    def _server_limit(self) -> str:
        return f"{self._address.timeout * 1000:.0f}"  # ms

    async def _connect(self, prepare: bool, cancels: bool = False) -> tuple[Connection, bool]:
        """A new connection, and whether the settings of SESSION are made on it."""
        address = self._address
        line = Connection(await connect(address.conninfo, CONNECT), prepare, cancels=cancels)
        try:
            own = address.prepare is not False and await line.run(
                SESSION, (self._server_limit, line.raw.pgconn.backend_pid), address.timeout, often=False
            )
            if own and self._look:
                await line.run(READ_ONLY, (line.raw.pgconn.backend_pid,), address.timeout, often=False)
        except BaseException:
            line.close()
            raise
        return line, bool(own)

    async def run_alone(self, text: str) -> list[Row]:
        """Runs a statement on a connection of its own: one that takes long, or that no transaction block allows. If it
        takes too long or is cancelled, it ends at the server too."""
        address = self._address
        line: Connection | None = None
        try:
            line, _ = await self._connect(prepare=False, cancels=True)
            return await line.run(self._statements.sent(text), [], address.timeout + 1.0)  # the server times out first
        except (ServerError, Cut, TimeoutError, OSError) as error:
            raise translated(error, address.shown) from error
        finally:
            if line is not None:
                line.close()

    async def run(
        self, text: str, values: Sequence[Value], often: bool = True, begun: Callable[[int], object] | None = None
    ) -> list[Row]:
        """One statement, as a transaction of its own. It may run more than once: every verb may be repeated.

        begun  is called with the server's process as the statement is sent
        """
        sent = self._statements.sent(text)
        for attempt in range(TRIES):
            try:
                return await self._once(sent, values, often, begun)
            except (ServerError, Cut, TimeoutError, OSError) as error:
                if not isinstance(error, ServerError) or error.code not in AGAIN or attempt == TRIES - 1:
                    raise translated(error, self._address.shown) from error
            await asyncio.sleep(PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    async def _once(
        self, sent: str, values: Sequence[Value], often: bool, begun: Callable[[int], object] | None
    ) -> list[Row]:
        """Uses an open connection if there is one; if that turns out to be dead or out of date, a new one."""
        limit = self._address.timeout + 1.0  # the server times out first
        async with self._places:
            line = self._take()
            if line is not None:
                if begun is not None:
                    begun(line.raw.pgconn.backend_pid)
                try:
                    return await self._over(line, sent, values, limit, often)
                except Cut:
                    self.drop_free()
                except ServerError as error:
                    if not error.stale:
                        raise
                    self.drop_free()
            line = await self.connect()
            if begun is not None:
                begun(line.raw.pgconn.backend_pid)
            return await self._over(line, sent, values, limit, often)

    def _take(self) -> Connection | None:
        """An idle connection that is open and belongs to this loop and this process."""
        loop, process = asyncio.get_running_loop(), os.getpid()
        while self._free:
            line = self._free.pop()
            if line.open and line.loop is loop and line.process == process:
                return line
            line.close()
        return None

    async def _over(self, line: Connection, sent: str, values: Sequence[Value], limit: float, often: bool) -> list[Row]:
        self._lent.add(line)
        try:
            return await line.run(sent, values, limit, often)
        except ServerError as error:
            if error.stale:
                line.close()
            raise
        finally:
            self._lent.discard(line)
            if self._closed:
                line.close()
            elif line.open:
                self._free.append(line)

    def drop_free(self) -> None:
        """Close the idle connections, for example because one died: the others are probably dead too."""
        for line in self._free:
            line.close()
        self._free.clear()


def is_missing(error: BaseException | None) -> bool:
    """Whether our tables, functions or types are missing on the server."""
    return error is not None and code_of(error) in MISSING
