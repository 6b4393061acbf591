"""Handles enqueues that wait for another transaction's lock: finds which of their jobs wait, and for which transaction,
and gives them a connection to wait on.

A key or an id belongs to another open transaction until that ends, and that may be a user's, open for minutes. A call
that needs a locked one gives up after BRIEF ms. When it is repeated, it waits on a connection of its own, so that the
pool stays free for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from treadle.concurrency.spawn import mark_retrieved, started
from treadle.core.errors import Locked, StorageError
from treadle.core.model import NewJob, Record
from treadle.storage.postgres.address import Address
from treadle.storage.postgres.connection import Row, Value
from treadle.storage.postgres.enqueue import enqueue, locked_jobs
from treadle.storage.postgres.pool import Pool, Runner
from treadle.storage.postgres.statements import Statements
from treadle.storage.postgres.topics import Caller

SEATS: Final = 4  # connections on which calls wait; more calls take turns, BRIEF ms each
LOOK: Final = 0.05  # s of waiting after which a call looks who holds the lock
REMEMBER: Final = 10.0  # s for which a key or an id counts as locked after a call had to wait for it

# The transactions for which a process waits, directly or through others that wait. Behind a pooler the process is
# unknown: then the oldest transaction that has called Treadle, which holds the lock of `begin_call`. pid 0: a prepared
# one.
WHO: Final = """
WITH RECURSIVE ahead (pid) AS (
    SELECT unnest(pg_blocking_pids(%s::int))
    UNION SELECT unnest(pg_blocking_pids(a.pid)) FROM ahead a WHERE a.pid <> 0
)
(SELECT 1, a.pid, coalesce(s.application_name, ''), extract(epoch FROM clock_timestamp() - s.xact_start)::float8 AS age,
    coalesce(s.state, '')
FROM ahead a LEFT JOIN pg_stat_activity s ON s.pid = a.pid WHERE s.wait_event_type IS DISTINCT FROM 'Lock')
UNION ALL
(SELECT 2, s.pid, coalesce(s.application_name, ''), extract(epoch FROM clock_timestamp() - s.xact_start)::float8,
    coalesce(s.state, '')
FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND s.wait_event_type IS DISTINCT FROM 'Lock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended(%s::text || ' move', 0)
    AND l.pid <> pg_backend_pid() AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s::int))
ORDER BY 1, 4 DESC NULLS LAST LIMIT 1
"""

# The process of a transaction, its application, its age in s, and the state of its session.
Holder = tuple[int | None, str, float | None, str]
UNKNOWN: Final[Holder] = (None, "", None, "")


class Contention:
    """Stores jobs, and remembers the keys and ids at which calls waited, so that a repeated call waits apart.

    main  runs statements over the pool
    over  the same over another runner
    """

    def __init__(
        self, address: Address, statements: Statements, main: Caller, over: Callable[[Runner], Caller]
    ) -> None:
        self._main, self._over, self._schema = main, over, address.schema
        self._pool = Pool(replace(address, pool=SEATS), statements)
        self._locked: dict[str, float] = {}  # key or id -> the loop's time until which it counts as locked
        self._holders: dict[str, Holder] = {}  # key or id -> the transaction that holds it, if known
        self._timer: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[list[Row]]] = set()

    def open(self) -> None:
        self._pool.open()

    async def close(self) -> None:
        self._forget([])
        for look in tuple(self._looks):
            with suppress(StorageError):
                await look
        self._pool.close()

    async def enqueue(self, jobs: Sequence[NewJob], now: float | None) -> list[Record]:
        """The verb. Raises Locked with the jobs that wait, and, of a repeated call, the transaction that they wait
        for."""
        if self._locked and any(_name(job) in self._locked for job in jobs):
            return await self._wait(jobs, now)
        try:
            return await enqueue(self._main, jobs, now)
        except Locked as error:
            stuck = [job.id for job in jobs] if len(jobs) == 1 else await locked_jobs(self._main, jobs, now)
            stuck_jobs = [job for job in jobs if job.id in stuck]
            self._remember(stuck_jobs)
            raise Locked(error.where, in_words(error.what, stuck_jobs), stuck) from error

    async def _wait(self, jobs: Sequence[NewJob], now: float | None) -> list[Record]:
        look = _Look(self._main, self._schema, self._looks)
        try:
            stored = await enqueue(self._over(_Waiting(self._pool, look)), jobs, now)
        except Locked as error:
            locked = [job for job in jobs if _name(job) in self._locked]
            self._remember(locked)
            holder = self._known_holder(await look.holder(), locked)
            raise Locked(error.where, in_words(error.what, locked), [job.id for job in locked], *holder) from error
        self._forget(jobs)
        return stored

    def _known_holder(self, holder: Holder, jobs: Sequence[NewJob]) -> Holder:
        """The transaction that a look has found; if the look came too late, the transaction that an earlier look has
        found."""
        names = [_name(job) for job in jobs]
        if holder != UNKNOWN:
            self._holders |= dict.fromkeys(names, holder)
            return holder
        return next((self._holders[name] for name in names if name in self._holders), UNKNOWN)

    def _remember(self, jobs: Sequence[NewJob]) -> None:
        loop = asyncio.get_running_loop()
        self._locked |= dict.fromkeys(map(_name, jobs), loop.time() + REMEMBER)
        if self._timer is None and self._locked:
            self._timer = loop.call_later(REMEMBER, self._expire)

    def _expire(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        self._locked = {name: until for name, until in self._locked.items() if until > loop.time()}
        self._holders = {name: holder for name, holder in self._holders.items() if name in self._locked}
        if self._locked:
            self._timer = loop.call_at(min(self._locked.values()), self._expire)
        else:
            self._pool.drop_free()

    def _forget(self, jobs: Sequence[NewJob]) -> None:
        """Forget the keys and ids of these jobs, which are stored now. Without further locked names, the connections
        are closed."""
        for job in jobs:
            self._locked.pop(_name(job), None)
            self._holders.pop(_name(job), None)
        if not self._locked:
            self._pool.drop_free()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None


class _Waiting(Runner):
    """Runs statements on the connections for waiting calls."""

    def __init__(self, pool: Pool, look: _Look) -> None:
        self._pool, self._look = pool, look

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        try:
            return await self._pool.run(text, values, often, begun=self._look.later)
        finally:
            self._look.no_more()


class _Look:
    """Finds the transaction that holds up one call, while the call waits: afterwards the server no longer knows."""

    def __init__(self, main: Caller, schema: str, running: set[asyncio.Task[list[Row]]]) -> None:
        self._main, self._schema, self._running = main, schema, running
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[list[Row]] | None = None

    def later(self, pid: int) -> None:
        """The call is sent to this process of the server."""
        self._timer = asyncio.get_running_loop().call_later(LOOK, self._begin, pid)

    def no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, pid: int) -> None:
        self._task = started(self._main.run(WHO, [pid, self._schema, pid]))
        self._running.add(self._task)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[list[Row]]) -> None:
        self._running.discard(task)
        mark_retrieved(task)  # its error is not missed: the error of the call is raised anyway

    async def holder(self) -> Holder:
        if self._task is not None:
            with suppress(StorageError):
                for _, pid, application, age, state in await self._task:
                    if pid:
                        return pid, application, age, state
                    return None, "", None, "a prepared transaction: see pg_prepared_xacts"
        return UNKNOWN


def _name(job: NewJob) -> str:
    """The key or the id of a job, which another transaction may hold."""
    return job.id if job.key is None else job.key


def in_words(kind: str, jobs: Sequence[NewJob]) -> str:
    """The locked keys or ids, in words. Keys are named without the name of the task, which the engine has added."""
    names = [job.key.partition(" ")[2] or job.key if job.key is not None else job.id for job in jobs]
    if not names or not kind.startswith(("a key", "an id")):
        return kind
    word, cause = kind.split()[1], kind[kind.index(" (") :] if " (" in kind else ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the {word}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names[:3]))}{more}{cause}"
