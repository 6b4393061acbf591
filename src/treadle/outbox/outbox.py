"""`Outbox`, what users see of a transactional outbox: its settings, its tables, and the rows that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct

from treadle.core.errors import UNREADABLE, BadOption, StorageError
from treadle.core.model import NewJob
from treadle.outbox import address
from treadle.outbox.drivers import Database, Row, checked_mark
from treadle.outbox.relay import Relay
from treadle.outbox.rows import job_of
from treadle.outbox.table import Sent, Statements
from treadle.outbox.write import Checked, Written
from treadle.policy.retry import seconds

KEEP: Final = 3_600.0  # s; a relay that died comes back sooner
POLL: Final = 0.5  # s


class OutboxStats(Struct, frozen=True, kw_only=True):
    """The rows that wait for their delivery.

    rows      all of them, those that were given up included
    oldest    the age of the oldest in seconds, by the clock of its database; 0 without rows
    failing   rows whose last delivery was refused
    given_up  rows that no relay tries again before an operator retries them
    relay     the process that relays now; None: no process does
    storage   the storage that the last relay delivers to; None: it has no URL, or no relay has run
    """

    rows: int
    oldest: float
    failing: int
    given_up: int
    relay: str | None
    storage: str | None


class OutboxRow(Struct, frozen=True, kw_only=True):
    """A job that waits for its delivery.

    job     None: this Treadle cannot read it
    age     seconds since the enqueue
    next    seconds until the next try; 0: at once; None: it was given up
    error   why the last delivery was refused
    """

    id: str
    job: NewJob | None
    age: float
    tries: int
    next: float | None
    error: str | None

    @property
    def task(self) -> str:
        return "?" if self.job is None else self.job.task


class Found(NamedTuple):
    """A job that is in the outbox, or was.

    became  the id of the job that the storage returned for it; None: it was not delivered yet
    """

    became: str | None
    tries: int
    error: str | None


class Outbox:
    """A transactional outbox: `within=session` writes jobs as rows of your database, and a relay delivers them to the
    storage of the app after the commit.

    url     postgresql://, mysql://, mariadb:// or sqlite:///: the database with your data. A URL of SQLAlchemy will do:
            its driver is ignored
    schema  PostgreSQL: the schema of the two tables; None: the first of the search path
    keep    seconds for which the rows of these jobs stay after they ended, at least. A relay that died between a
            delivery and the delete must be replaced within this time, or a job that was pruned meanwhile runs twice
    poll    seconds between two looks for new rows
    notify  PostgreSQL: notify the relay at the commit. False for transactions that are committed in two phases, which
            cannot notify

    `treadle storage migrate --app MODULE:APP` creates the tables. Raises BadUrl and BadOption.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        keep: float | timedelta = KEEP,
        poll: float | timedelta = POLL,
        notify: bool = True,
    ) -> None:
        self._address = address.read(url, schema)
        self._least, self._poll, self._notify = seconds(keep, "keep"), seconds(poll, "poll"), notify
        if not self._poll:
            raise BadOption("poll", "expected more than 0 s")
        self._statements = Statements(self._address.dialect, schema, notify)
        self._database = Database(self._address)
        self._checked = Checked()
        self._kept = False  # whether an open app uses the connection

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._address.shown

    @property
    def schema(self) -> str | None:
        """The schema of its tables, if it was given."""
        return self._statements.schema

    # --- its tables

    def ddl(self) -> str:
        """The SQL that creates the tables, for a migration of your own."""
        return "".join(f"{statement};\n" for statement in self._statements.ddl())

    async def version(self) -> int | None:
        """The version of the tables; None: they do not exist, or only in part. Raises StorageError, also for tables of
        a newer Treadle."""
        if not await self._run(self._statements.exists()):
            return None
        rows = await self._run(self._statements.mark())
        return checked_mark(rows, self._address)[1] if rows else None

    async def create(self) -> bool:
        """Create the tables, or the missing part of them. Returns whether it did. Raises StorageError."""
        if await self.version() is not None:
            return False
        try:
            await asyncio.to_thread(self._database.run_once, [(text, ()) for text in self._statements.creation()])
        except StorageError:
            if await self.version() is None:
                raise
            return False  # another process created them meanwhile
        return True

    # --- its rows

    async def stats(self) -> OutboxStats:
        """Raises StorageError."""
        [(rows, oldest, given_up, failing, holder, rest, storage)] = await self._run(self._statements.counts())
        return OutboxStats(
            rows=int(rows),
            oldest=max(0.0, float(oldest or 0.0)),
            failing=int(failing),
            given_up=int(given_up),
            relay=holder if rest is not None and rest > 0 else None,
            storage=storage,
        )

    async def list(self, limit: int = 100, *, failing: bool = False) -> list[OutboxRow]:
        """The first rows in the order of their enqueue; `failing`: only those whose delivery was refused."""
        return [_listed(row) for row in await self._run(self._statements.listed(limit, failing))]

    async def undelivered(self, after: int = 0, limit: int = 1_000) -> Sequence[tuple[int, str, NewJob | None]]:
        """(number, id, job) of the rows after number `after` that were not delivered yet, those included that were
        given up; None: the row cannot be read. Only reads. Raises StorageError."""
        rows = await self._run(self._statements.undelivered(after, limit))
        return [(int(seq), id, _job(text)) for seq, id, text in rows]

    async def retry(self, *ids: str) -> int:
        """Deliver these jobs with the next page, together with the other jobs of their calls; without ids, all that
        were given up. Returns the number of rows."""
        return await self._act(ids, self._statements.again)

    async def delete(self, *ids: str) -> int:
        """Delete these jobs, together with the other jobs of their calls. They are never delivered, except those that
        a relay is delivering meanwhile. Without ids, all that were given up. Returns the number of rows."""
        return await self._act(ids, self._statements.delete)

    async def _act(self, ids: Sequence[str], act: Callable[[Sequence[int]], Any]) -> int:
        seqs = [seq for (seq,) in await self._run(self._statements.whole(ids or None))]
        if not seqs:
            return 0
        [(changed,)] = await self._run(act(seqs))  # fewer, if a relay has delivered some of them meanwhile
        return int(changed)

    async def _run(self, sent: Sent) -> Sequence[Row]:
        """Run one statement on the app's connection; if the app is not open, on a connection that is closed
        afterwards."""
        if self._kept:
            return await self._database.run(sent)
        [rows] = await asyncio.to_thread(self._database.run_once, [sent])
        return rows

    # --- for the app

    def _within(self, session: Any, committed: Callable[[Sequence[str]], None] | None) -> Written:
        return Written(session, self._database, self._statements, self._checked, committed)

    def _relay(self, storage: Callable[[], Any], lease: float | None = None, place: str | None = None) -> Relay:
        options: dict[str, Any] = {} if lease is None else {"lease": lease}
        self._kept = True  # until `_close`
        return Relay(
            self._database,
            self._statements,
            storage,
            keep=self._least,
            poll=self._poll,
            notify=self._notify,
            place=place,
            **options,
        )

    async def _find(self, id: str) -> Found | None:
        """A job in the outbox; None: it is not there."""
        self._kept = True
        rows = await self._database.run(self._statements.newest(id))
        return Found(rows[0][0], int(rows[0][1]), rows[0][2]) if rows else None

    async def _close(self) -> None:
        self._kept = False
        await self._database.close()

    def _forget(self) -> None:
        self._database.forget()
        self._checked = Checked()

    def __repr__(self) -> str:
        return f"Outbox({self.url!r})"


def check_outbox(outbox: object) -> Outbox:
    """The argument `outbox=` of an app. Raises BadOption."""
    if not isinstance(outbox, Outbox):
        raise BadOption("outbox", f"expected Outbox(url), found {outbox!r:.100}")
    return outbox


def _listed(row: Row) -> OutboxRow:
    id, text, age, tries, due, error = row
    return OutboxRow(
        id=id,
        job=_job(text),
        age=max(0.0, float(age)),
        tries=int(tries),
        next=None if due is None else max(0.0, float(due)),
        error=error,
    )


def _job(text: str) -> NewJob | None:
    try:
        return job_of(text)
    except UNREADABLE:
        return None
