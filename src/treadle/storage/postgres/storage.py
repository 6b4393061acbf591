"""Jobs in a schema of a PostgreSQL database; recreates our tables and functions if they are missing.

`functions/` decides everything about rows, on the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.core import defaults
from treadle.core.errors import StorageError
from treadle.core.model import NewJob, Record
from treadle.core.query_model import Page, Query
from treadle.storage.contract import Capabilities
from treadle.storage.optional_parts import Risk
from treadle.storage.postgres import address as urls
from treadle.storage.postgres import transfer
from treadle.storage.postgres.connection import Row, Value
from treadle.storage.postgres.contention import Contention
from treadle.storage.postgres.health import PostgresHealth, health
from treadle.storage.postgres.identity import IDENTITY, Identity, database_in, parameters
from treadle.storage.postgres.look_only import LookRunner, look_runner
from treadle.storage.postgres.migrate import migrate, schema_of
from treadle.storage.postgres.notifier import Notifier
from treadle.storage.postgres.pool import Pool, Runner, is_missing
from treadle.storage.postgres.risks import durability
from treadle.storage.postgres.statements import Statements
from treadle.storage.postgres.topics import Caller, Noted, take_noted
from treadle.storage.postgres.transaction import RunTransaction, TransactionParts, UserTransaction, begin
from treadle.storage.postgres.user_commits import UserCommits
from treadle.storage.postgres.vacuum import VacuumPacer
from treadle.storage.postgres.verbs import Verbs
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import Chunk, MoveState
from treadle.storage.value_checks import check_jobs


class _Renewed(Caller):
    """Runs statements over the pool. If our tables or functions are missing, it migrates once and repeats the
    statement."""

    def __init__(self, pool: Runner, address: urls.Address, publish: Callable[[Noted], None]) -> None:
        self._pool, self._address, self._publish = pool, address, publish

    async def call(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        rows = await self.run(text, values, often)
        noted = take_noted(rows)
        if noted is not None:
            self._publish(noted)
        return rows

    async def run(self, text: str, values: Sequence[Value], often: bool = True) -> list[Row]:
        try:
            return await self._pool.run(text, values, often)
        except StorageError as error:
            if not is_missing(error.__cause__):
                raise
        await migrate(self._address)
        return await self._pool.run(text, values, often)


class PostgresStorage(Verbs):
    """Jobs in one schema of a database, shared by any number of machines.

    url   postgresql:// or postgres://, as libpq reads it; in addition: schema= (treadle), pool= (5 connections),
          timeout= (15 s for a result), prepare= auto, on, or off (behind a pooler),
          listen= on, off, or host:port of the server itself
    now   a clock for tests; None: the server's own
    """

    # 32: a round trip costs a commit and twenty statements; measured in decisions/two-pumps.md
    capabilities = Capabilities(
        settle_claim=True,
        transactions=True,
        movable=True,
        marks=True,
        risks=True,
        one_trip_up_to=32,
        scan=defaults.SCAN_FAST,
    )

    def __init__(self, url: str, *, now: Callable[[], float] | None = None) -> None:
        self._address = urls.read(url)
        self._statements = Statements(self._address.schema)
        self._pool = Pool(self._address, self._statements)
        self._waiters = TopicWaiters()
        self._notifier: Notifier | None = None
        self._open = False
        self._sweeper = VacuumPacer(self._pool)
        self._identity = Identity(self._address)
        self._commits = UserCommits(self._address)
        self._parts = TransactionParts(
            self._address, self._statements, now, self._identity, self._commits.follow, self._publish
        )
        self._looking: LookRunner | None = None
        self._renewed = _Renewed(self._pool, self._address, self._publish)
        self._contention = Contention(
            self._address,
            self._statements,
            self._renewed,
            lambda runner: _Renewed(runner, self._address, self._publish),
        )
        super().__init__(self._renewed, now, self._sweeper)

    def _publish(self, noted: Noted) -> None:
        if self._notifier is not None:
            self._notifier.publish(noted.topics)

    async def open(self, look: bool = False) -> None:
        """Connect and migrate. Raises StorageUnavailable, NotADatabase, SchemaTooNew; StorageError if a privilege is
        missing; with `look` SchemaTooOld."""
        if self._open:
            return
        if look:
            self._runner = self._looking = await look_runner(self._pool, self._address)
            self._pool.open(look)
            self._open = True
            return
        await migrate(self._address)
        self._pool.open()
        self._contention.open()
        [row] = await self._pool.run(IDENTITY, parameters(self._address), often=False)
        self._identity.known = database_in(row).mark
        if self._address.notifier is not None:
            self._notifier = Notifier(self._address.notifier, self._address.schema, self._waiters)
            try:
                await self._notifier.open()
            except BaseException:  # cancelled: the next `open` makes another one
                notifier, self._notifier = self._notifier, None
                await notifier.close()
                raise
        self._open = True

    async def close(self) -> None:
        """Release all connections."""
        self._open = False
        self._runner, self._looking = self._renewed, None
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await notifier.close()
        await self._commits.close()
        await self._sweeper.close()
        await self._contention.close()
        self._pool.close()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        check_jobs(jobs)
        return await self._contention.enqueue(jobs, self._moment()) if jobs else []

    async def find(self, query: Query) -> Page:
        return await super().find(query) if self._looking is None else await self._looking.find(query)

    def within(self, session: Any) -> UserTransaction:
        """The verbs inside an open transaction of the user; `storage.user_session` lists the kinds of session. The
        storage need not be open."""
        return UserTransaction(session, self._parts)

    async def begin(self, sync: bool) -> RunTransaction:
        """A transaction for one run, on a connection of its own. Raises StorageUnavailable."""
        return await begin(self._parts, sync)

    async def oldest_open(self) -> float:
        [[age]] = await self._runner.run(transfer.OLDEST_OPEN, [])
        return float(age)

    async def read_mark(self) -> MoveState | None:
        return await transfer.read_mark(self._runner)

    async def set_mark(self, mark: MoveState) -> None:
        await transfer.set_mark(self._runner, mark, self._moment())

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        return await transfer.unload(self._runner, cursor, limit)

    async def load(self, load: Chunk, mark: MoveState) -> None:
        await transfer.load(self._runner, load, mark)

    async def schema(self) -> int | None:
        """The number of the schema; None: there is none yet. Raises NotADatabase, StorageUnavailable."""
        return await schema_of(self._address) or None

    async def health(self) -> PostgresHealth:
        """The state of the server, for `treadle doctor`."""
        return await health(self._pool, self._address.schema)

    async def risks(self) -> Sequence[Risk]:
        return tuple((await durability(self._pool, self._address.schema)).risks())

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        if self._notifier is None:
            return await self._waiters.wait(topics, timeout)
        return await self._notifier.wait(topics, timeout)
