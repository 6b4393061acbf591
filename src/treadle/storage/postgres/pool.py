"""The connections of one storage: a few, made when needed; and what is repeated when something was in the way.

Without it each verb would have an idea of its own of deadlocks, of connections that died while nobody looked, and of
how long to wait.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Final, Protocol

from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Connection, Row, Value, connect
from treadle.storage.postgres.errors import AGAIN, MISSING, Cut, Said, code_of, translated
from treadle.storage.postgres.statements import Statements

TRIES: Final = 8  # of a statement that met another transaction, each time after a longer pause
PAUSE: Final = 0.005  # s, the first of those pauses; about what the other one needs
CONNECT: Final = 15.0  # s until a connection stands, all hosts of the URL tried

# Functions are written for a new snapshot at each statement, whatever the database's default; the server gives up
# before we do, so that it holds no locks for a caller who has gone; and numbers travel with all of their digits.
# A pooler reports another process than the one that answers, and lends its sessions to others: nothing is set there.
SESSION: Final = (
    "SELECT set_config('default_transaction_isolation', 'read committed', false),"
    " set_config('statement_timeout', $1, false), set_config('idle_in_transaction_session_timeout', $1, false),"
    " set_config('extra_float_digits', '1', false) WHERE pg_backend_pid() = $2::int"
)


class Runner(Protocol):
    """What the verbs need: one statement of this folder, as a step of its own or in the user's transaction."""

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        """Its rows. `often`: it will be run again with this very text."""
        ...


class Pool:
    """Lines to the server, `address.pool` of them at most; whoever comes then waits for one."""

    def __init__(self, address: Address, statements: Statements) -> None:
        self._address, self._statements = address, statements
        self._free: list[Connection] = []
        self._lent: set[Connection] = set()
        self._places = asyncio.Semaphore(address.pool)
        self._closed = True

    def open(self) -> None:
        """For the running loop."""
        self._places = asyncio.Semaphore(self._address.pool)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for line in (*self._free, *self._lent):
            line.close()
        self._free.clear()
        self._lent.clear()

    async def connect(self) -> Connection:
        """A new line; the caller has it for itself."""
        address = self._address
        line = Connection(await connect(address.conninfo, CONNECT), address.prepare is not False)
        limit = f"{address.timeout * 1000:.0f}"
        try:
            own = address.prepare is not False and await line.run(
                SESSION, (limit, line.made.pgconn.backend_pid), address.timeout, often=False
            )
        except BaseException:
            line.close()
            raise
        if not own:
            line.is_lent(limit, bool(address.prepare))
        return line

    async def run_alone(self, text: str) -> list[Row]:
        """One statement that may take long or runs in no transaction block, over a connection of its own."""
        address = self._address
        line: Connection | None = None
        try:
            line = Connection(await connect(address.conninfo, CONNECT), False)
            return await line.run(self._statements.sent(text), [], address.timeout)
        except (Said, Cut, TimeoutError, OSError) as error:
            raise translated(error, address.shown) from error
        finally:
            if line is not None:
                line.close()

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        """One statement, as a transaction of its own. It may be run more than once: every verb may be repeated."""
        sent = self._statements.sent(text)
        for attempt in range(TRIES):
            try:
                return await self._once(sent, values, often)
            except (Said, Cut, TimeoutError, OSError) as error:
                if not isinstance(error, Said) or error.code not in AGAIN or attempt == TRIES - 1:
                    raise translated(error, self._address.shown) from error
            await asyncio.sleep(PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    async def _once(self, sent: str, values: Sequence[Value], often: bool) -> list[Row]:
        """Over a line that is there; if that turns out to be dead or out of date, over a new one."""
        limit = self._address.timeout + 1.0  # the server gives up first
        async with self._places:
            line = self._take()
            if line is not None:
                try:
                    return await self._over(line, sent, values, limit, often)
                except Cut:
                    self._drop_free()
                except Said as error:
                    if not error.stale:
                        raise
                    self._drop_free()
            return await self._over(await self.connect(), sent, values, limit, often)

    def _take(self) -> Connection | None:
        """One that stands, and is of this loop and this process."""
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
        except Said as error:
            if error.stale:
                line.close()
            raise
        finally:
            self._lent.discard(line)
            if self._closed:
                line.close()
            elif line.open:
                self._free.append(line)

    def _drop_free(self) -> None:
        """Those that idled beside a dead one are dead too, most likely."""
        for line in self._free:
            line.close()
        self._free.clear()


def is_missing(error: BaseException | None) -> bool:
    """Whether the server has not, or no longer, what we made there."""
    return error is not None and code_of(error) in MISSING
