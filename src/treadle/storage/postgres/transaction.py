"""The verbs inside a transaction: the user's own, over any driver or framework, or one begun for a run.

No code here commits or notifies inside a user's transaction; its hints are sent when the server reports it committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar, cast

import psycopg

from treadle.core.errors import BadSession, Locked, StorageError
from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.storage.driver_sessions import ServerSession, Session
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Row, Value, connect, connect_in_thread
from treadle.storage.postgres.contention import in_words
from treadle.storage.postgres.enqueue import WITHIN, enqueue
from treadle.storage.postgres.errors import Cut, ServerError, translated
from treadle.storage.postgres.health import OPEN
from treadle.storage.postgres.identity import IDENTITY, Identity, database_in, parameters
from treadle.storage.postgres.migrate import migrate
from treadle.storage.postgres.pool import CONNECT, is_missing
from treadle.storage.postgres.rows import from_json
from treadle.storage.postgres.statements import Statements
from treadle.storage.postgres.topics import Caller, Noted, take_noted
from treadle.storage.postgres.verbs import Verbs
from treadle.storage.user_session import is_async, session_of
from treadle.storage.value_checks import check_jobs

T = TypeVar("T")
LEAST: Final = 0.04  # s: a transaction that another one has waited for is at least as old
UNDO: Final = 5.0  # s to roll back a transaction; then its connection is closed

# The first lock on a table lets a session see functions that were created after its transaction began.
FRESH: Final = "SELECT count(*) FROM {schema}.function_set"


class TransactionParts(NamedTuple):
    """The parts of a storage that its transactions use."""

    address: Address
    statements: Statements
    now: Callable[[], float] | None
    identity: Identity
    follow: Callable[[Noted], None]  # publishes the topics of a user's transaction once that has committed
    publish: Callable[[Noted], None]  # publishes the topics of one that has committed


class _Joined(Caller):
    """Runs our statements on the user's session."""

    def __init__(
        self, given: Any, session: ServerSession, parts: TransactionParts, noted: Callable[[Noted], None]
    ) -> None:
        self.session, self._given, self._parts, self._noted = session, given, parts, noted

    async def call(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        rows = await self.run(text, values, often)
        noted = take_noted(rows)
        if rows and rows[0][0] is None and rows[0][-1] is not None:
            self._refuse(rows[0][-1])
        if noted is not None:
            self._noted(noted)
        return rows

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        try:
            return await self.session.run(self._parts.statements.sent(text), values)
        except Exception as error:
            ours = translated(error, self._parts.address.shown)
            if ours is error:
                raise
            raise ours from error

    def _refuse(self, more: str) -> None:
        """Raise the error that `enqueue_within` returned."""
        if more.startswith('["isolation"'):
            raise unfit(self._given, from_json(more)[1])
        if more.startswith('["failed"'):
            error = ServerError(*from_json(more)[1:])
            raise translated(error, self._parts.address.shown) from error


def unfit(given: object, isolation: str) -> BadSession:
    """The error for a transaction that keeps an old snapshot, in which a job would wait for jobs that have ended
    since."""
    return BadSession(
        f"a {type(given).__name__}",
        f"its isolation is {isolation}, and jobs need read committed; set that for the transaction",
    )


class UserTransaction:
    """The verbs inside a session of the user. None of their errors aborts the transaction."""

    def __init__(self, given: Any, parts: TransactionParts, noted: Callable[[Noted], None] | None = None) -> None:
        self._given, self._parts, self._noted = given, parts, noted or parts.follow

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        """One round trip, and one more on the first call of a connection."""
        check_jobs(jobs)
        if not jobs:
            return []
        parts = self._parts
        joined = await self._join()
        now = None if parts.now is None else parts.now()
        if joined.session.encoding != "UTF8":
            return await self._do(joined, lambda _: enqueue(joined, jobs, now, WITHIN))
        if not parts.identity.is_verified(joined.session.identity):
            await self._verify(joined, writes=True)
        try:
            return await self._renewed(joined, lambda: enqueue(joined, jobs, now, WITHIN), saved=False)
        except Locked as error:
            raise await self._with_holder(joined, error, jobs) from error

    async def _with_holder(self, joined: _Joined, error: Locked, jobs: Sequence[NewJob]) -> Locked:
        """The error, which names the other transaction if only one has been open for long enough. The wait is over, so
        the server no longer knows which one it was."""
        rows = await joined.run(OPEN, [self._parts.address.schema])
        open_for_long = [row for row in rows if row[0] is None or row[2] is None or row[2] > LEAST]
        holder = open_for_long[0] if len(open_for_long) == 1 else (None, "", None, "")
        stuck = jobs if len(jobs) == 1 else ()
        return Locked(error.where, in_words(error.what, stuck), [job.id for job in stuck], *holder)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._do(await self._join(), lambda verbs: verbs.settle(outcomes))

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._do(await self._join(), lambda verbs: verbs.get(ids), writes=False)

    async def _join(self) -> _Joined:
        session = await session_of(self._given, "postgresql", "this PostgreSQL storage")
        return _Joined(self._given, cast("ServerSession", session), self._parts, self._noted)

    async def _do(self, joined: _Joined, act: Callable[[Verbs], Awaitable[T]], writes: bool = True) -> T:
        """A verb in a savepoint."""
        encoding = await self._verify(joined, writes)
        return await self._renewed(
            joined, lambda: _in_savepoint(joined.session, encoding, lambda: act(Verbs(joined, self._parts.now)))
        )

    async def _renewed(self, joined: _Joined, act: Callable[[], Awaitable[T]], saved: bool = True) -> T:
        """The result of `act`. If our functions are missing, they are created, and it is repeated. `saved`: it has a
        savepoint, so an error that the server raises leaves the transaction intact."""
        parts = self._parts
        try:
            return await act()
        except StorageError as error:
            if not is_missing(error.__cause__):
                raise
            parts.identity.forget(joined.session.identity)
            if not saved and not isinstance(error.__cause__, ServerError):
                raise StorageError(
                    f"{error}; newer versions of Treadle have replaced the functions of this one: roll back, and "
                    "repeat the transaction"
                ) from error
        await renew(parts.address, is_async(self._given))
        await joined.run(FRESH, [])
        return await act()

    async def _verify(self, joined: _Joined, writes: bool) -> str:
        """The encoding of the connection. Raises BadSession if jobs cannot be stored there."""
        parts, identity = self._parts, joined.session.identity
        [row] = await joined.run(IDENTITY, parameters(parts.address))
        database = database_in(row)
        if not parts.identity.is_verified(identity):
            waits, kind = is_async(self._given), f"a {type(self._given).__name__}"
            await parts.identity.check(database, joined.session.place, waits, kind)
            if not database.has_functions:
                await renew(parts.address, waits)
                await joined.run(FRESH, [])
            parts.identity.remember(identity)
        if writes and database.isolation not in ("read committed", "read uncommitted"):
            raise unfit(self._given, database.isolation)
        return database.encoding


async def _in_savepoint(session: Session, encoding: str, act: Callable[[], Awaitable[T]]) -> T:
    await session.run("SAVEPOINT treadle")
    try:
        answer = await _in_utf8(session, encoding, act)
    except BaseException:
        with contextlib.suppress(Exception):  # if the connection is gone, so is the transaction
            await session.run("ROLLBACK TO SAVEPOINT treadle")
            await session.run("RELEASE SAVEPOINT treadle")
        raise
    await session.run("RELEASE SAVEPOINT treadle")
    return answer


async def _in_utf8(session: Session, encoding: str, act: Callable[[], Awaitable[T]]) -> T:
    """Sets UTF-8 for one verb: in another encoding our texts would be garbled or refused. If that fails, the savepoint
    restores the user's encoding."""
    if encoding == "UTF8":
        return await act()
    await session.run("SET LOCAL client_encoding = 'UTF8'")
    answer = await act()
    await session.run(f"SET LOCAL client_encoding = '{encoding}'")
    return answer


class RunTransaction:
    """A transaction of ours, begun for one run: `raw` is psycopg's AsyncConnection, or a Connection for a thread."""

    alone = False

    def __init__(self, raw: Any, parts: TransactionParts) -> None:
        self.raw, self._parts = raw, parts
        self.bound = UserTransaction(raw, parts, self._note)
        self._noted: Noted | None = None  # what the last call noted, which includes the notes of earlier calls
        self._over = self._undone = False

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
            raise translated(error, self._parts.address.shown) from error
        if self._noted is not None:
            self._parts.publish(self._noted)

    async def roll_back(self) -> None:
        if self._over:
            return
        self._over = self._undone = True
        if isinstance(self.raw, psycopg.AsyncConnection):
            await self._end()
        else:
            await asyncio.shield(asyncio.to_thread(self._end_in_thread))

    async def close(self) -> None:
        """The connection is used only once, so session settings end with it."""
        await self.roll_back()
        if not self._undone:  # otherwise the roll-back closes it
            self.raw.pgconn.finish()

    async def _end(self) -> None:
        """Roll back, and close the connection. A statement in progress holds the connection's lock, so it is cancelled
        first. If this is cancelled, the server rolls back when it sees the closed connection."""
        try:
            with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
                async with asyncio.timeout(UNDO):
                    if self.raw.lock.locked():
                        await self.raw.cancel_safe(timeout=UNDO)
                    await self.raw.rollback()
            async with self.raw.lock:
                pass
        finally:
            self.raw.pgconn.finish()

    def _end_in_thread(self) -> None:
        try:
            with contextlib.suppress(psycopg.Error, OSError):
                if self.raw.lock.locked():
                    self.raw.cancel_safe(timeout=UNDO)
                self.raw.rollback()
        finally:
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


async def begin(parts: TransactionParts, sync: bool) -> RunTransaction:
    address = parts.address
    try:
        if sync:
            connection: Any = await asyncio.to_thread(connect_in_thread, address.conninfo)
        else:
            connection = await connect(address.conninfo, CONNECT)
            await connection.set_autocommit(False)
    except (Cut, ServerError, OSError, psycopg.Error) as error:
        raise translated(error, address.shown) from error
    await _set_isolation(connection, sync)
    return RunTransaction(connection, parts)


async def _set_isolation(connection: Any, sync: bool) -> None:
    level = psycopg.IsolationLevel.READ_COMMITTED
    if sync:
        connection.isolation_level = level
    else:
        await connection.set_isolation_level(level)
