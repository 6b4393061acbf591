"""The verbs inside a transaction: the user's own, over any driver or framework, or one begun for a run.

No code here commits or notifies inside a user's transaction; its hints are sent when the server reports it committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

import psycopg

from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.errors import BadSession, StorageError
from treadle.storage.driver_sessions import Session
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Row, Value, connect
from treadle.storage.postgres.errors import Cut, Said, translated
from treadle.storage.postgres.identity import IDENTITY, Identity, marked
from treadle.storage.postgres.migrate import migrate
from treadle.storage.postgres.pool import CONNECT, is_missing
from treadle.storage.postgres.statements import Statements
from treadle.storage.postgres.topics import Caller, Noted, take_noted
from treadle.storage.postgres.verbs import Verbs
from treadle.storage.user_session import is_async, session_of

T = TypeVar("T")
UNDO: Final = 5.0  # s to roll back a transaction; then its connection is closed

# The first lock on a table lets a session see functions that were created after its transaction began.
FRESH: Final = "SELECT count(*) FROM {schema}.function_set"


class Home(NamedTuple):
    """The parts of a storage that its transactions use."""

    address: Address
    statements: Statements
    now: Callable[[], float] | None
    identity: Identity
    follow: Callable[[Noted], None]  # publishes the topics of a user's transaction once that has committed
    publish: Callable[[Noted], None]  # publishes the topics of one that has committed


class _Joined(Caller):
    """Runs our statements on the user's session."""

    def __init__(self, session: Session, home: Home, noted: Callable[[Noted], None]) -> None:
        self._session, self._home, self._noted = session, home, noted

    async def call(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        rows = await self.run(text, values, often)
        noted = take_noted(rows)
        if noted is not None:
            self._noted(noted)
        return rows

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        try:
            return await self._session.run(self._home.statements.sent(text), values)
        except Exception as error:
            told = translated(error, self._home.address.shown)
            if told is error:
                raise
            raise told from error


class Inside:
    """The verbs inside a session of the user. Each is a savepoint, so an error of ours does not abort the
    transaction."""

    def __init__(self, given: Any, home: Home, noted: Callable[[Noted], None] | None = None) -> None:
        self._given, self._home, self._noted = given, home, noted or home.follow

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        return await self._do(lambda verbs: verbs.enqueue(jobs))

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._do(lambda verbs: verbs.settle(outcomes))

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._do(lambda verbs: verbs.get(ids), writes=False)

    async def _do(self, act: Callable[[Verbs], Awaitable[T]], writes: bool = True) -> T:
        home = self._home
        try:
            session = await session_of(self._given, "postgresql", "this PostgreSQL storage")
            joined = _Joined(session, home, self._noted)
            encoding = await self._check(joined, writes)
            try:
                answer = await self._once(session, encoding, lambda: act(Verbs(joined, home.now)))
            except StorageError as error:
                if not is_missing(error.__cause__):
                    raise
                await renew(home.address, is_async(self._given))
                await joined.run(FRESH, [])
                answer = await self._once(session, encoding, lambda: act(Verbs(joined, home.now)))
        except Exception as error:
            told = translated(error, home.address.shown)
            if told is error:
                raise
            raise told from error
        return answer

    async def _once(self, session: Session, encoding: str, act: Callable[[], Awaitable[T]]) -> T:
        await session.run("SAVEPOINT treadle")
        try:
            answer = await self._in_utf8(session, encoding, act)
        except BaseException:
            with contextlib.suppress(Exception):  # if the connection is gone, so is the transaction
                await session.run("ROLLBACK TO SAVEPOINT treadle")
                await session.run("RELEASE SAVEPOINT treadle")
            raise
        await session.run("RELEASE SAVEPOINT treadle")
        return answer

    async def _in_utf8(self, session: Session, encoding: str, act: Callable[[], Awaitable[T]]) -> T:
        """Sets UTF-8 for one verb: in another encoding our texts would be garbled or refused. If that fails, the
        savepoint restores the user's encoding."""
        if encoding == "UTF8":
            return await act()
        await session.run("SET LOCAL client_encoding = 'UTF8'")
        answer = await act()
        await session.run(f"SET LOCAL client_encoding = '{encoding}'")
        return answer

    async def _check(self, joined: _Joined, writes: bool) -> str:
        """The encoding of the connection. Raises BadSession if jobs cannot be stored there."""
        identity, waits, given = self._home.identity, is_async(self._given), f"a {type(self._given).__name__}"
        wanted = await identity.get(waits)
        [row] = await joined.run(IDENTITY, [marked(self._home.address)])
        # with client_encoding SQL_ASCII the driver returns bytes
        found, isolation, encoding, _ = (each.decode() if isinstance(each, bytes) else each for each in row)
        if found is not None and found != wanted:
            wanted = await identity.again(waits)
        if found is None or found != wanted:
            where = f"schema {self._home.address.schema!r} of {self._home.address.shown}"
            raise BadSession(given, f"it is a transaction of another database; the jobs are in {where}")
        if writes and isolation not in ("read committed", "read uncommitted"):
            # its statements would keep an old snapshot, and make a job wait for jobs that have ended since
            raise BadSession(
                given,
                f"its isolation is {isolation}, and jobs need read committed; set that for the transaction",
            )
        return str(encoding)


class RunTransaction:
    """A transaction of ours, begun for one run: `raw` is psycopg's AsyncConnection, or a Connection for a thread."""

    alone = False

    def __init__(self, raw: Any, home: Home) -> None:
        self.raw, self._home = raw, home
        self.bound = Inside(raw, home, self._note)
        self._noted: Noted | None = None  # of the last call, which includes those of earlier calls
        self._over = False

    def _note(self, noted: Noted) -> None:
        self._noted = noted

    async def commit(self) -> None:
        self._over = True
        try:
            if isinstance(self.raw, psycopg.AsyncConnection):
                await self.raw.commit()
            else:
                await asyncio.to_thread(self.raw.commit)
        except psycopg.Error as error:
            raise translated(error, self._home.address.shown) from error
        if self._noted is not None:
            self._home.publish(self._noted)

    async def roll_back(self) -> None:
        if self._over:
            return
        self._over = True
        if isinstance(self.raw, psycopg.AsyncConnection):
            await self._end()
        else:
            await asyncio.to_thread(self._end_in_thread)

    async def close(self) -> None:
        await self.roll_back()
        self.raw.pgconn.finish()  # the connection is used only once, so session settings end with it

    async def _end(self) -> None:
        """Roll back, and make the connection unusable. A statement in progress holds the connection's lock, so it is
        cancelled first."""
        with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
            async with asyncio.timeout(UNDO):
                if self.raw.lock.locked():
                    await self.raw.cancel_safe(timeout=UNDO)
                await self.raw.rollback()
        async with self.raw.lock:
            self.raw.pgconn.finish()

    def _end_in_thread(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            if self.raw.lock.locked():
                self.raw.cancel_safe(timeout=UNDO)
            self.raw.rollback()
        with self.raw.lock:
            self.raw.pgconn.finish()


async def renew(address: Address, waits: bool) -> None:
    """Create our functions again, over a connection of our own: newer versions keep only the latest few sets. `waits`:
    there is an event loop to wait on."""
    if waits:
        await migrate(address)
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, migrate(address)).result()


async def begin(home: Home, sync: bool) -> RunTransaction:
    address = home.address
    try:
        if sync:
            made: Any = await asyncio.to_thread(psycopg.connect, address.conninfo, prepare_threshold=None)
        else:
            made = await connect(address.conninfo, CONNECT)
            await made.set_autocommit(False)
    except (Cut, Said, OSError, psycopg.Error) as error:
        raise translated(error, address.shown) from error
    await _set_isolation(made, sync)
    return RunTransaction(made, home)


async def _set_isolation(made: Any, sync: bool) -> None:
    level = psycopg.IsolationLevel.READ_COMMITTED
    if sync:
        made.isolation_level = level
    else:
        await made.set_isolation_level(level)
