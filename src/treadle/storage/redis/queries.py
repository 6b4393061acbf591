"""Pages of rows; changes nothing.

A page is read along sorted sets, in the order of the query, and filtered in Python; `plans.py` chooses the sets. A
filter that no set serves reads every row of an index (made, ended, due, or a queue), or as many as `Query.scan` allows.
If few jobs can match, this module reads and sorts all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.model import Record
from treadle.core.query_model import Page, Query
from treadle.storage import queries
from treadle.storage.redis import plans
from treadle.storage.redis.counts import Sizes, sizes
from treadle.storage.redis.reading import Reader, by_ids, running, walk

Key: TypeAlias = tuple[Any, ...]
ALL: Final = 400  # so few rows are all read, even if a page along a larger set might read fewer
RowsOf: TypeAlias = Callable[[list[str], bool], Awaitable[dict[str, Record]]]


async def find(dbs: Sequence[Reader], query: Query, rows_of: RowsOf) -> Page:
    """A page over the rows of all these storages. `rows_of` reads rows by their ids."""
    if query.cursor is not None:
        queries.read_cursor(query.cursor, query.order)
    mark = None
    if query.ahead_of is not None:
        own = (await rows_of([query.ahead_of], False)).get(query.ahead_of)
        if own is None or own.queue_position is None or query.queue not in (None, own.job.queue):
            return queries.find([], replace(query, ahead_of=None))
        mark = queries.sort_key(own, "queue")
        query = replace(query, ahead_of=None, queue=own.job.queue)
    looking = Looking(dbs, query, plans.kinds_of(query) if mark is None else plans.kinds_of(query) & {"queued"}, mark)
    if query.ids:
        rows = list((await rows_of(list(dict.fromkeys(query.ids)), query.whole)).values())
        return looking.page_of(rows)
    return await looking.page()


class Few(NamedTuple):
    """Rows that are few enough to read all of them for one page."""

    jobs: int
    read: Callable[[], Awaitable[list[Record]]]


class Looking(Struct):
    """One call of `find`.

    kinds   the kinds of jobs that can match
    mark    only the jobs queued before this spot
    known_sizes   of each storage, once they were read
    """

    dbs: Sequence[Reader]
    query: Query
    kinds: frozenset[str]
    mark: Key | None
    known_sizes: list[Sizes] | None = None

    async def page(self) -> Page:
        query = self.query
        if not self.kinds:
            return self.page_of([])
        total = await self._known_total() if query.count else None
        is_listed = plans.has_own_label(query) or (query.limit == 0 and total is not None)
        few = None if is_listed else await self._few()
        if few is not None and (few.jobs <= ALL or (query.count and total is None) or not await self._lie_close(few)):
            return self.page_of(await few.read())
        if query.count and total is None:
            total = await self._counted()
        if query.limit == 0:
            return Page((), None, total, None if query.scan is None else 0)
        cursor = None if query.cursor is None else queries.read_cursor(query.cursor, query.order)
        matching, rows_read, last = list[Record](), 0, None
        async for row in self._rows(cursor):
            if few is not None and rows_read == few.jobs:
                return self.page_of(await few.read())  # too many others lie between them
            if rows_read == query.scan or (query.scan is not None and len(matching) == query.limit):
                assert last is not None
                moment = queries.moment_of(last, query.order)
                return Page(tuple(matching), queries.cursor_of(last, query.order), total, rows_read, moment)
            rows_read, last = rows_read + 1, row
            if not self._matches(row):
                continue
            if len(matching) == query.limit:
                return Page(tuple(matching), queries.cursor_of(matching[-1], query.order), total)
            matching.append(row)
        return Page(tuple(matching), None, total, None if query.scan is None else rows_read)

    def page_of(self, rows: Sequence[Record]) -> Page:
        """The page, if no other rows can match."""
        return queries.find([row for row in rows if self._is_ahead(row)], self.query)

    def _is_ahead(self, row: Record) -> bool:
        if self.mark is None:
            return True
        is_there = row.queue_position is not None and row.job.queue == self.mark[0]
        return is_there and queries.sort_key(row, "queue") < self.mark

    def _matches(self, row: Record) -> bool:
        return queries.matches(row, self.query) and self._is_ahead(row)

    # --- few rows

    async def _sizes(self) -> list[Sizes]:
        if self.known_sizes is None:
            queue = self.query.queue
            names = [] if queue is None else plans.names_of(self.kinds - {plans.OTHER}, queue)
            self.known_sizes = [await sizes(db, names) for db in self.dbs]
        return self.known_sizes

    async def _few(self) -> Few | None:
        """All rows that can match, if they are few and no set has their order; otherwise None."""
        query, kinds = self.query, self.kinds
        if query.order == "queue" or (query.order == "ended" and kinds == {"failed"}):
            return None
        if plans.is_system(query) and (jobs := await self._stored("system")) <= plans.FEW:
            return Few(jobs, lambda: self._members(["system:"]))
        if plans.OTHER in kinds or (query.order == "due" and not (query.state or query.ready or query.queue)):
            return None
        known_sizes = await self._sizes()
        jobs = plans.jobs_in(known_sizes, kinds, query.queue)
        if query.order != "started" and jobs > plans.FEW:
            return None
        return Few(jobs, lambda: self._of_kinds(known_sizes))

    async def _lie_close(self, few: Few) -> bool:
        """Whether a page along the set of all jobs probably reads fewer rows, as few other jobs lie between these."""
        if self.query.order not in plans.CREATED:
            return False
        return (self.query.limit + 1) * await self._stored("made") < few.jobs * few.jobs

    async def _stored(self, name: str) -> int:
        return sum([await db.read("ZCARD", name) for db in self.dbs])

    async def _of_kinds(self, known_sizes: list[Sizes]) -> list[Record]:
        query, kinds = self.query, self.kinds
        names = [
            name
            for queue in plans.queues_in(known_sizes, kinds, query.queue)
            for name in plans.names_of(kinds - {"running"}, queue)
        ]
        rows = {row.job.id: row for row in await self._members(names)} if names else {}
        for db, size in zip(self.dbs, known_sizes, strict=True) if "running" in kinds else ():
            jobs = plans.jobs_in([size], frozenset({"running"}), query.queue)
            rows |= {row.job.id: row async for row in running(db, query.queue, jobs, query.whole)}
        return list(rows.values())

    async def _members(self, names: Sequence[str]) -> list[Record]:
        rows: dict[str, Record] = {}
        for db in self.dbs:
            rows |= await by_ids(db, await db.call("members", *names), self.query.whole)
        return list(rows.values())

    # --- many rows

    async def _known_total(self) -> int | None:
        """The number of jobs that match, if it is known without reading them; at most `scan`."""
        query, known = self.query, None
        if not plans.is_simple(query):
            return None
        if self.mark is not None:
            if self.kinds == {"queued"}:
                arguments = [self.mark[0], -self.mark[1], repr(self.mark[2]), self.mark[3]]
                known = sum([await db.call("count_ahead", *arguments) for db in self.dbs])
        elif plans.has_all(self.kinds, query.order):
            known = plans.jobs_in(await self._sizes(), self.kinds, query.queue)
        elif query.order in plans.CREATED and not (query.state or query.ready or query.queue):
            known = await self._stored("made")
        return known if known is None or query.scan is None else min(known, query.scan)

    async def _counted(self) -> int:
        """The number of rows that match; with `scan`, among the first ones."""
        total = rows_read = 0
        async for row in self._rows(None):
            if rows_read == self.query.scan:
                break
            rows_read += 1
            total += self._matches(row)
        return total

    async def _rows(self, cursor: Key | None) -> AsyncIterator[Record]:
        """The rows in the order of the query, after the cursor, up to the last that can match."""
        query = self.query
        lists: tuple[str, ...] = ()
        if query.order != "queue":
            is_failed_list = query.order == "ended" and self.kinds == {"failed"} and query.queue is not None
            queues = [query.queue or ""] if is_failed_list else []
            if not is_failed_list and plans.OTHER not in self.kinds and (query.state or query.ready):
                queues = plans.queues_in(await self._sizes(), self.kinds, query.queue)
            lists = plans.lists_of(query, self.kinds, queues)
        async for row in _merged([self._stream(db, lists, cursor) for db in self.dbs], query.order):
            if query.order == "queue" and not self._is_ahead(row):
                return
            if query.order == "newest" and query.since is not None and row.created_at < query.since:
                return
            if query.order == "oldest" and query.before is not None and row.created_at >= query.before:
                return
            yield row

    async def _stream(self, db: Reader, lists: tuple[str, ...], cursor: Key | None) -> AsyncIterator[Record]:
        query = self.query
        every = plans.is_simple(query) and (query.order == "queue" or plans.has_kind_only(query, lists))
        most = query.limit + 1 if every else None
        if query.scan is not None:
            most = query.scan + 1 if most is None else min(most, query.scan + 1)
        if query.order == "queue":
            async for row in _lines(db, query, cursor, most):
                yield row
            return
        spot = None if cursor is None else (cursor[0], cursor[1])
        if query.order == "ended":
            spot = None if spot is None else (-spot[0], spot[1])
        elif query.order == "newest" and query.before is not None:
            spot = min(spot or (query.before, ""), (query.before, ""))
        elif query.order == "oldest" and query.since is not None:
            spot = max(spot or (query.since, ""), (query.since, ""))
        async for row, score in walk(db, lists, query.order == "newest", spot, most, query.whole):
            moment = queries.moment_of(row, query.order)
            if moment is not None and score in (moment, -moment):  # otherwise an obsolete entry
                yield row


async def _merged(streams: Sequence[AsyncIterator[Record]], order: str) -> AsyncIterator[Record]:
    """Merge streams that are in this order. A row that moved from one to another meanwhile appears once."""
    if len(streams) == 1:
        async for record in streams[0]:
            yield record
        return
    heads = [await anext(stream, None) for stream in streams]
    best = max if order == "newest" else min
    last: str | None = None
    while True:
        numbers = [number for number, head in enumerate(heads) if head is not None]
        if not numbers:
            return
        first = best(numbers, key=lambda number: queries.sort_key(heads[number], order))  # type: ignore[arg-type]
        row = heads[first]
        if row is not None and row.job.id != last:
            last = row.job.id
            yield row
        heads[first] = await anext(streams[first], None)


async def _lines(db: Reader, query: Query, cursor: Key | None, most: int | None) -> AsyncIterator[Record]:
    queues = (
        [query.queue]
        if query.queue is not None
        else sorted(entry.decode() for entry in await db.read("SMEMBERS", "lines"))
    )
    for name in queues:
        if cursor is not None and name < cursor[0]:
            continue
        for step in [int(entry) for entry in await db.read("ZRANGE", f"lines:{name}", 0, -1)]:
            spot = None
            if cursor is not None and name == cursor[0]:
                if -step < cursor[1]:
                    continue
                if -step == cursor[1]:
                    spot = (cursor[2], cursor[3])
            async for row, _ in walk(db, (f"line:{step}:{name}",), False, spot, most, query.whole):
                yield row
