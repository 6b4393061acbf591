"""The storage passed to a test: it must be empty, the test removes what it stored, and synchronous code can read it.

A storage that is not empty at the beginning is left unchanged, so no test deletes data that it did not store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from treadle.admin import delete_now, stopped
from treadle.core.clock import Clock
from treadle.core.defaults import MAX_COUNT
from treadle.core.errors import BadOption, TreadleError
from treadle.core.limit_model import Declare, Limit, LimitUse, Resume
from treadle.core.model import Record, State
from treadle.core.query_model import Query
from treadle.core.ranges import LONGEST, OWN
from treadle.core.redaction import shown
from treadle.storage import connect, pages
from treadle.storage.contract import Storage

T = TypeVar("T")

Given = str | Callable[[Clock], Storage]
MEMORY: Final = "memory://"
MARK: Final = f"{OWN}testing"  # limit that no job names, stored while a test runs
AFTER: Final = LONGEST + 86_400.0  # seconds after the test when all rate windows and the shortest retention are over
GROUP: Final = 500  # rows in one call
PASSES: Final = 10  # passes over the jobs to cancel, as a cancelled job may create others
SHOWN: Final = 5  # names in a message
LATE: Final = 1.0  # seconds a row may be later than the test's clock, because storages round times
UNFINISHED: Final = (State.WAITING, State.READY, State.RUNNING)
EMPTY: Final = "give a storage that is made for tests: a new file, another ?schema= or another ?ns="


class NotEmpty(TreadleError):
    """A test's storage holds rows that the test did not store, or could not be emptied.

    `found` says which. Nothing else was removed.
    """

    def __init__(self, storage: str, found: str, advice: str) -> None:
        self.storage, self.found = storage, found
        super().__init__(f"{storage}: {found}; {advice}")


class StorageClock:
    """The test's clock as its storage reads it. It runs `ahead` while the test's rows are removed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead = 0.0  # s
        self.latest = 0.0  # the latest time of the test that a storage has read
        self.reads = 0

    def __call__(self) -> float:
        moment = self._clock()
        self.reads += 1
        self.latest = max(self.latest, moment)
        return moment + self.ahead


class GivenStorage:
    """The storage of one test, given as a URL or as a function from the clock to a storage.

    Raises BadOption for a storage that does not use the given clock.
    """

    def __init__(self, storage: Given, clock: Clock) -> None:
        source: object = storage
        if iscoroutinefunction(source):
            raise BadOption("storage", f"expected a plain function, found the coroutine function {source.__name__}")
        if not isinstance(source, str) and (not callable(source) or isinstance(source, type)):
            raise BadOption(
                "storage",
                "expected a URL or a function such as `lambda clock: compose(ports, now=clock)`, because "
                f"the storage must read the test's clock; found {source!r:.80}",
            )
        if isinstance(storage, str) and storage.startswith(("http://", "https://")):
            raise BadOption(
                "storage",
                f"{shown(storage)}: a Treadle server has its own clock, which a test cannot move; "
                "give the storage that the server uses",
            )
        self.clock, self._given = StorageClock(clock), storage
        self.name = shown(storage) if isinstance(storage, str) else "the storage of the test"
        self._number = secrets.randbelow(MAX_COUNT)

    def make(self) -> Storage:
        """Create a storage that reads the test's clock. It is not open yet."""
        return connect(self._given, now=self.clock) if isinstance(self._given, str) else self._given(self.clock)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Storage]:
        storage = self.make()
        await storage.open()
        try:
            yield storage
        finally:
            await storage.close()

    # --- the beginning

    async def begin(self) -> None:
        """Mark it as the storage of a test. Raises NotEmpty unless it is empty, and BadOption if it does not read the
        given clock; nothing is stored then."""
        async with self._opened() as storage:
            await self._check_clock(storage)
            if contents := await self._contents(storage):
                advice = f"a test removes only what it has made: {EMPTY}"
                raise NotEmpty(self.name, f"expected an empty storage, found {contents}", advice)
            await storage.set_limits([Declare(Limit(MARK, slots=self._number))])

    async def check(self, storage: Storage) -> None:
        """Check that this is the marked storage. Raises BadOption, NotEmpty."""
        mark = await self._mark(storage)
        if mark is None:
            raise BadOption(
                "storage",
                "expected a function whose storages share their jobs; found one that makes a separate storage at "
                "each call",
            )
        if mark != self._number:
            raise self._taken()

    def _taken(self) -> NotEmpty:
        advice = f"nothing was removed; use one storage per test: {EMPTY}"
        return NotEmpty(self.name, "another test has started on it meanwhile", advice)

    async def _mark(self, storage: Storage) -> int | None:
        """The number of the test that marked it last."""
        return next((use.rule.slots for use in await storage.limits(use=False) if use.key == MARK), None)

    async def _check_clock(self, storage: Storage) -> None:
        before = self.clock.reads
        await storage.stats()
        if self.clock.reads == before:
            raise BadOption(
                "storage",
                f"{type(storage).__name__} does not read the clock that it was given, so a test "
                "cannot move its time; pass the clock on: `lambda clock: compose(ports, now=clock)`",
            )

    async def _contents(self, storage: Storage) -> str:
        """A description of its contents; "" if it is empty."""
        page = await storage.find(Query(limit=SHOWN, count=True))
        rules = [use.key for use in await storage.limits(use=False)]
        workers = [presence.worker for presence in (await storage.stats()).workers]
        parts = []
        if page.records:
            shown_jobs = ", ".join(f"{row.job.id} of {row.job.task or 'Treadle'}, {row.state}" for row in page.records)
            parts.append(f"{page.total} job{'' if page.total == 1 else 's'} ({shown_jobs})")
        if MARK in rules:
            parts.append("the mark of a test that is running or was killed")
        if others := [name for name in rules if not name.startswith(OWN)]:
            parts.append(f"rules of the limits {', '.join(others[:SHOWN])}")
        elif rules and MARK not in rules:
            parts.append("the mark of a worker that stored its schedules and limits")
        if workers:
            parts.append(f"workers ({', '.join(workers[:SHOWN])})")
        return " and ".join(parts)

    # --- looking

    def rows(self, query: Query) -> list[Record]:
        """The rows that match a query. Any code may call it: another thread, with a storage and an event loop of its
        own, reads the rows while this one blocks."""
        return apart(self._rows(query))

    async def _rows(self, query: Query) -> list[Record]:
        async with self._opened() as storage:
            return await rows_of(storage, replace(query, whole=True))

    # --- the end

    async def clear(self) -> None:
        """Remove what the test stored. Raises NotEmpty, without removing anything, if another test or program used the
        storage meanwhile, and NotEmpty if something is left."""
        async with self._opened() as storage:
            mark = await self._mark(storage)
            if mark is None:  # the test itself emptied it
                return
            if mark != self._number:
                raise self._taken()
            everything = Query(order="oldest", limit=GROUP)
            self._check_own(await rows_of(storage, everything))
            await _cancel(storage)
            await _settle(storage, await rows_of(storage, everything), delete_now)
            for use in await storage.limits(use=False):
                await storage.set_limits(_removal(use))
            self.clock.ahead = AFTER
            try:
                while await storage.prune(GROUP):
                    pass
            finally:
                self.clock.ahead = 0.0
            if contents := await self._contents(storage):
                raise NotEmpty(self.name, f"after the test it still holds {contents}", "remove it, or " + EMPTY)

    def _check_own(self, rows: Sequence[Record]) -> None:
        others = [row.job.id for row in rows if row.created_at > self.clock.latest + LATE]
        if others:
            raise NotEmpty(
                self.name,
                f"another program stored jobs while the test ran ({', '.join(others[:SHOWN])})",
                f"nothing was removed, and the test may have run them; {EMPTY}",
            )


def _removal(use: LimitUse) -> list[Limit | Resume]:
    """The changes that remove everything stored for this limit."""
    resumed = [Resume(use.key, pause.why) for pause in use.pauses]
    has_rule = not use.pauses or use.behind is not None
    return [*resumed, Limit(use.key)] if has_rule else [*resumed]


async def rows_of(storage: Storage, query: Query) -> list[Record]:
    """All rows that match a query."""
    return [row async for row in each_row(storage, query)]


async def each_row(storage: Storage, query: Query) -> AsyncIterator[Record]:
    """The rows that match a query, read page by page."""
    async for page in pages(storage, query):
        for row in page.records:
            yield row


async def _cancel(storage: Storage) -> None:
    for _ in range(PASSES):
        rows = await rows_of(storage, Query(state=UNFINISHED, order="oldest", limit=GROUP))
        if not rows:
            return
        await _settle(storage, rows, stopped)


async def _settle(storage: Storage, rows: Sequence[Record], outcome_of: Callable[[Record], Any]) -> None:
    outcomes = [outcome for row in rows if (outcome := outcome_of(row)) is not None]
    for start in range(0, len(outcomes), GROUP):
        await storage.settle(outcomes[start : start + GROUP])


def apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop in a separate thread, and wait for it here."""
    with ThreadPoolExecutor(1, "treadle-testing-look") as threads:
        return threads.submit(asyncio.run, work).result()
