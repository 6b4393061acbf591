"""Reads rows by id, pages and counts; changes nothing.

It reads along an index in steps and filters in Python. A page without filters reads only the rows it shows. A filter or
a count reads every row of the index (made, ended, or a queue), 500 at a time, so that other calls do not wait long. For
`stats` the server counts the rows, 1,000 at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from treadle.core.model import Count, Limit, LimitFacts, LimitUse, Page, Presence, Query, Record, State
from treadle.storage import queries
from treadle.storage.admission import counted, rule_for
from treadle.storage.limit_facts import Fact, gathered
from treadle.storage.redis.rows import STATES, decode_presence, decode_rule, pairs, record
from treadle.storage.row_rules import rank

STEP: Final = 500  # rows of one trip
TALLY: Final = 1_000  # rows counted in one trip: 2-3 ms of the server's time


class Reader(Protocol):
    """The methods of a storage that queries need."""

    async def call(self, verb: str, *words: Any) -> Any:
        """Run a script."""
        ...

    async def read(self, *words: Any) -> Any:
        """Run a command that changes nothing; the second word is a key, without the namespace."""
        ...


async def by_ids(db: Reader, ids: list[str]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for at in range(0, len(ids), STEP):
        some = await db.call("look", *ids[at : at + STEP])
        found.update((row.job.id, row) for row in pairs(_present(some)))
    return found


def _present(answer: list[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    for at in range(0, len(answer), 2):
        if answer[at]:
            kept += answer[at : at + 2]
    return kept


async def find(
    dbs: Sequence[Reader], query: Query, rows_of: Callable[[list[str]], Awaitable[dict[str, Record]]]
) -> Page:
    """A page over the rows of all these storages. `rows_of` reads rows by their ids."""
    cursor = None if query.cursor is None else queries.read_cursor(query.cursor, query.order)
    queue, mark = query.queue, None
    if query.ahead_of is not None:
        own = (await rows_of([query.ahead_of])).get(query.ahead_of)
        if own is None or own.queue_position is None:
            return Page(total=0 if query.count else None)
        mark = queries.sort_key(own, "queue")
        if queue is None:
            queue = own.job.queue
    if query.ids:
        rows = list((await rows_of(list(dict.fromkeys(query.ids)))).values())
        if mark is not None:
            rows = [row for row in rows if _is_ahead(row, mark)]
        return queries.find(rows, replace(query, ahead_of=None))
    found: list[Record] = []
    total, wanted = 0, max(query.limit, 0) + 1
    async for row in _merged([_stream(db, query, queue, None if query.count else cursor) for db in dbs], query.order):
        if mark is not None and not _is_ahead(row, mark):
            if query.order == "queue":
                break
            continue
        if not queries.matches(row, query):
            continue
        total += 1
        if len(found) < wanted and (cursor is None or _is_behind(row, query.order, cursor)):
            found.append(row)
        if not query.count and len(found) == wanted:
            break
    page = tuple(found[: max(query.limit, 0)])
    more = len(found) > len(page) and page
    return Page(page, queries.cursor_of(page[-1], query.order) if more else None, total if query.count else None)


async def _merged(streams: Sequence[AsyncIterator[Record]], order: str) -> AsyncIterator[Record]:
    """Merge streams that are in this order. A row that moved from one to another meanwhile appears once."""
    if len(streams) == 1:
        async for each in streams[0]:
            yield each
        return
    heads = [await anext(stream, None) for stream in streams]
    best = max if order == "newest" else min
    last: str | None = None
    while True:
        there = [number for number, head in enumerate(heads) if head is not None]
        if not there:
            return
        first = best(there, key=lambda number: queries.sort_key(heads[number], order))  # type: ignore[arg-type]
        row = heads[first]
        if row is not None and row.job.id != last:
            last = row.job.id
            yield row
        heads[first] = await anext(streams[first], None)


def _is_ahead(row: Record, mark: tuple[Any, ...]) -> bool:
    return row.queue_position is not None and row.job.queue == mark[0] and queries.sort_key(row, "queue") < mark


def _is_behind(row: Record, order: str, cursor: tuple[Any, ...]) -> bool:
    if order == "newest":
        return (row.created_at, row.job.id) < cursor
    if order == "ended":
        return (-(row.ended_at or 0.0), row.job.id) > (-cursor[0], cursor[1])
    return queries.sort_key(row, order) > cursor


async def _stream(db: Reader, query: Query, queue: str | None, cursor: tuple[Any, ...] | None) -> AsyncIterator[Record]:
    """The rows in the order of the query, after the cursor."""
    size = STEP if query.count or _filters(query) else min(STEP, max(query.limit, 0) + 1)
    if query.order == "queue":
        async for row in _lines(db, queue, cursor, size):
            yield row
        return
    index = "ended" if query.order == "ended" else "made"
    spot = None
    if cursor is not None:
        spot = (-cursor[0] if index == "ended" else cursor[0], cursor[1])
    async for row in walk(db, index, query.order == "newest", spot, size):
        yield row


def _filters(query: Query) -> bool:
    return bool(
        query.state
        or query.task is not None
        or query.queue is not None
        or query.root is not None
        or query.parent is not None
        or query.label is not None
        or query.before is not None
    )


async def _lines(db: Reader, queue: str | None, cursor: tuple[Any, ...] | None, size: int) -> AsyncIterator[Record]:
    queues = [queue] if queue is not None else sorted(each.decode() for each in await db.read("SMEMBERS", "lines"))
    for name in queues:
        if cursor is not None and name < cursor[0]:
            continue
        for step in [int(each) for each in await db.read("ZRANGE", f"lines:{name}", 0, -1)]:
            spot = None
            if cursor is not None and name == cursor[0]:
                if -step < cursor[1]:
                    continue
                if -step == cursor[1]:
                    spot = (cursor[2], cursor[3])
            async for row in walk(db, f"line:{step}:{name}", False, spot, size):
                yield row


async def walk(
    db: Reader, index: str, backwards: bool, spot: tuple[float, str] | None, size: int = STEP
) -> AsyncIterator[Record]:
    while True:
        at, id = ("", "") if spot is None else (repr(spot[0]), spot[1])
        if index == "ended":
            answer = await db.call("ended", size, at, id)
        else:
            answer = await db.call("walk", index, "1" if backwards else "", size, at, id)
        for n in range(0, len(answer), 4):
            if answer[n + 2]:
                yield record(answer[n + 2], answer[n + 3])
        if len(answer) < 4 * size:
            return
        spot = float(answer[-3]), answer[-4].decode()


# --- numbers


async def counts(db: Reader, now: float) -> tuple[Count, ...]:
    """Counts by queue, task and state. The server counts all rows, in steps."""
    found: dict[tuple[str, str, State], tuple[int, int, int, float]] = {}
    at, id = b"", b""
    while True:
        at, id, *told = await db.call("tally", TALLY, at, id)
        for n in range(0, len(told), 7):
            queue, task, state, jobs, line, blocked, first = told[n : n + 7]
            key = queue.decode(), task.decode(), STATES[state]
            before = found.get(key, (0, 0, 0, now))
            position = float(first) if first else now
            found[key] = before[0] + jobs, before[1] + line, before[2] + blocked, min(before[3], position)
        if not at:
            break
    return tuple(
        Count(
            queue=key[0],
            task=key[1],
            state=key[2],
            jobs=jobs,
            queued=line,
            blocked=blocked,
            oldest=max(0.0, now - first) if line else None,
        )
        for key, (jobs, line, blocked, first) in sorted(found.items())
    )


async def workers(db: Reader, now: float) -> tuple[Presence, ...]:
    found = (decode_presence(each) for each in (await db.read("HGETALL", "workers"))[1::2])
    return queries.workers(found, now)


async def limit_facts(db: Reader) -> dict[str, LimitFacts]:
    """The stored facts of each limit."""
    words, found = await db.read("HGETALL", "facts"), list[Fact]()
    for at in range(0, len(words), 2):
        kind, _, name = words[at].decode().partition(":")
        value = words[at + 1]
        is_rule = kind in ("set", "declared")
        until = float(value) if value and not is_rule else None
        found.append((name, kind, decode_rule(value) if is_rule else None, until))
    return gathered(found)


async def limits(db: Reader, use: bool = True) -> tuple[LimitUse, ...]:
    facts = await limit_facts(db)
    if not use:
        return queries.limit_uses(facts)
    rules = queries.acting_rules(facts)
    live, begun = [_numbers(await db.read("HGETALL", name)) for name in ("live", "begun")]
    used = {key: begun[key] if _keeps(rules, key) else live.get(key, 0) for key in begun}
    aside: dict[str, int] = {}
    for limit in [each.decode() for each in await db.read("SMEMBERS", "asides")]:
        aside[limit] = 0
        for queue in [each.decode() for each in await db.read("SMEMBERS", f"queues:{limit}")]:
            key = f"{len(limit.encode())}:{limit}:{queue}"
            for step in [each.decode() for each in await db.read("ZRANGE", f"asides:{key}", 0, -1)]:
                aside[limit] += await db.read("ZCARD", f"aside:{step}:{key}")
    return queries.limit_uses(facts, used, aside, await _rates(db, rules))


async def _rates(db: Reader, rules: dict[str, Limit]) -> dict[str, queries.RateUse]:
    keys = {key for name in ("spent", "bucket") for key in await db.read("HKEYS", name)}
    rated = sorted(key for key in keys if (rule := rule_for(rules, key.decode())) is not None and rule.rate)
    found = dict[str, queries.RateUse]()
    for at in range(0, len(rated), STEP):
        told = await db.call("rates", *rated[at : at + STEP])
        for n in range(0, len(told), 3):
            key = told[n].decode()
            rule = rule_for(rules, key)
            if rule is not None:
                opens = float(told[n + 2]) if told[n + 2] else None
                found[key] = counted(rule, float(told[n + 1])), opens
    return found


def _keeps(rules: dict[str, Limit], key: str) -> bool:
    rule = rule_for(rules, key)
    return rule is not None and rule.hold == "ended"


def _numbers(pairs: list[bytes]) -> dict[str, int]:
    return {pairs[n].decode(): int(pairs[n + 1]) for n in range(0, len(pairs), 2)}


def repeated_order(rows: list[Record], queues: tuple[tuple[str, int], ...]) -> list[Record]:
    """The jobs of a repeated claim, in the order in which the first call returned them."""
    order = {queue: -n for n, (queue, _) in enumerate(reversed(queues))}

    def spot(row: Record) -> tuple[float, ...]:
        position = row.queue_position if row.queue_position is not None else row.return_position
        return order.get(row.job.queue, 1), -rank(row.job), position or 0.0

    return sorted((row for row in rows if row.state is State.RUNNING), key=lambda row: (*spot(row), row.job.id))


def summed(told: Sequence[Sequence[Count]]) -> tuple[Count, ...]:
    """The sums of the counts of several shards."""
    found: dict[tuple[str, str, str], Count] = {}
    for each in (count for counts in told for count in counts):
        key = each.queue, each.task, each.state.value
        old = found.get(key)
        if old is not None:
            waits = [wait for wait in (old.oldest, each.oldest) if wait is not None]
            each = replace(
                each,
                jobs=old.jobs + each.jobs,
                queued=old.queued + each.queued,
                blocked=old.blocked + each.blocked,
                oldest=max(waits) if waits else None,
            )
        found[key] = each
    return tuple(sorted(found.values(), key=lambda each: (each.queue, each.task, each.state)))


def used(told: Sequence[Sequence[LimitUse]]) -> tuple[LimitUse, ...]:
    """The sums of the limit use of several shards."""
    found: dict[str, LimitUse] = {}
    for each in (use for uses in told for use in uses):
        old = found.get(each.key)
        if old is not None:
            opens = [at for at in (old.next_start, each.next_start) if at is not None]
            each = replace(
                each,
                used=old.used + each.used,
                blocked=old.blocked + each.blocked,
                starts=old.starts + each.starts,
                next_start=min(opens) if opens else None,
            )
        found[each.key] = each
    return tuple(found[key] for key in sorted(found))
