"""Pages that look at a bounded number of rows, kinds of ready jobs, and the orders by due time and by start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from treadle.core.errors import BadOption
from treadle.core.limit_model import Limit
from treadle.core.model import Record
from treadle.core.query_model import Order, Query
from treadle.storage import queries
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    advance_due,
    claim,
    claim_ids,
    enqueue_system_rows,
    ids,
    job,
    jobs,
    run,
)
from treadle_testkit.shows import shows

ORDERS: tuple[Order, ...] = ("newest", "oldest", "ended", "queue", "due", "started")
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"state": (READY,)},
    {"state": (RUNNING,)},
    {"state": (WAITING,)},
    {"state": (FAILED,)},
    {"state": (SUCCEEDED, CANCELLED)},
    {"state": (RUNNING, FAILED)},
    {"ready": "queued"},
    {"ready": "scheduled"},
    {"ready": "blocked"},
    {"ready": "queued", "state": (RUNNING,)},
    {"queue": "a"},
    {"queue": "a", "state": (RUNNING,)},
    {"queue": "a", "ready": "scheduled"},
    {"queue": "none"},
    {"task": "mail"},
    {"task": "mail", "state": (FAILED,), "queue": "b"},
    {"task": "none"},
    {"queue": "treadle"},
    {"task": "treadle.own"},
    {"task": "treadle.none"},
    {"label": "red"},
    {"root": "a00"},
    {"parent": "a00"},
    {"ids": ("a00", "b03", "later-1", "none")},
)


async def fill(storage: Storage, clock: HandClock) -> list[Record]:
    """Store jobs of every kind, many with equal times, and return all rows."""
    await storage.set_limits([Limit("shut", slots=0)])
    stored: list[str] = []

    async def store(*new: Any) -> None:
        await storage.enqueue(list(new))
        stored.extend(new_job.id for new_job in new)
        clock.advance(0.25)

    for queue in "ab":
        await store(
            *(
                job(
                    f"{queue}{n:02}",
                    queue=queue,
                    task=("mail", "fax")[n % 2],
                    priority=n % 3,
                    labels=("red",) if n % 4 == 0 else (),
                    root="a00" if queue == "b" and n < 3 else None,
                    parent="a00" if queue == "b" and n < 3 else None,
                )
                for n in range(9)
            )
        )
    await store(*(job(f"later-{n}", queue="ab"[n % 2], task="mail", delay=30 + 10 * (n // 2)) for n in range(6)))
    own = jobs("own-1 own-2 own-3", queue="treadle", task="treadle.own", delay=45)
    await enqueue_system_rows(storage, *own)
    stored.extend(new_job.id for new_job in own)
    await store(*jobs("aside-1 aside-2", queue="a", limits=(("shut", 1),), priority=5), job("promise", task=""))
    await store(job("fan", queue="b", after=("later-0",), wait_timeout=500.0), job("dies", queue="b", deadline=80.0))
    await run(storage, "a00", "b00", "a03")
    clock.advance(1)
    await run(storage, "a06", "b03", to=FAILED)
    await run(storage, "b06", to=CANCELLED)
    await claim(storage, 2, "a", "b")
    clock.advance(1)
    await claim(storage, 1, "a", "b", lease=60.0)
    return [row for row in await storage.get(stored) if row is not None]


async def walk(storage: Storage, query: Query, rows: int) -> list[Record]:
    """All rows, page by page, with what holds for each page."""
    records: list[Record] = []
    cursors: set[str | None] = {None}
    reached: float | None = None
    while True:
        page = await storage.find(query)
        assert len(page.records) <= query.limit
        assert page.total is None
        assert page.scanned is not None
        assert len(page.records) <= page.scanned <= min(query.scan or rows, rows)
        records += page.records
        if page.cursor is None:
            assert page.scanned_to is None
            return records
        assert page.cursor not in cursors, "the page continues where it began"
        cursors.add(page.cursor)
        if query.order == "queue":
            assert page.scanned_to is None
        else:
            assert page.scanned_to is not None
            moments = [queries.moment_of(row, query.order) for row in page.records]
            reached = in_order([reached, *moments, page.scanned_to], query.order)
        query = structs.replace(query, cursor=page.cursor)


def in_order(moments: list[float | None], order: str) -> float:
    known = [moment for moment in moments if moment is not None]
    assert known == sorted(known, reverse=order in ("newest", "ended"))
    return known[-1]


@shows("pages that look at a bounded number of rows show each matching row once")
@pytest.mark.parametrize("order", ORDERS)
async def test_more_bounded_pages_show_each_row_once(storage: Storage, clock: HandClock, order: Order) -> None:
    """They do so in the page's order, under every filter and bound, as pages without a bound do."""
    rows = await fill(storage, clock)
    moment = rows[10].created_at
    for filters in (*FILTERS, {"since": moment}, {"before": moment}, {"since": moment, "before": moment + 0.5}):
        query = Query(order=order, limit=100, **filters)
        expected = ids(queries.find(rows, query).records)
        assert ids((await storage.find(query)).records) == expected, f"{filters}"
        for limit, scan in ((100, 1), (4, 5), (2, 40), (50, 1000)):
            bounded = structs.replace(query, limit=limit, scan=scan)
            assert ids(await walk(storage, bounded, len(rows))) == expected, f"{filters}, {limit} of {scan}"


async def test_more_a_bounded_page_ends_with_the_rows(storage: Storage) -> None:
    """The last page has no cursor, even if it is just full or the bound is just reached."""
    await storage.enqueue(jobs("a b c"))
    page = await storage.find(Query(limit=3, scan=3))
    assert (ids(page.records), page.cursor, page.scanned) == (["c", "b", "a"], None, 3)
    page = await storage.find(Query(limit=9, scan=3))
    assert (page.cursor, page.scanned, page.scanned_to) == (None, 3, None)
    assert (await storage.find(Query(limit=2, scan=9))).cursor is not None
    assert (await storage.find(Query(limit=9, scan=2))).cursor is not None
    assert (await storage.find(Query(limit=3))).scanned is None


async def test_more_bounded_pages_with_equal_times(storage: Storage, clock: HandClock) -> None:
    """Rows of one call, one claim and one due time: the cursor is between two of them."""
    await storage.enqueue([job(f"j{n}", delay=5) for n in range(7)])
    assert ids(await walk(storage, Query(order="due", scan=2, limit=9), 7)) == [f"j{n}" for n in range(7)]
    clock.advance(5)
    assert len(await claim(storage, 7)) == 7
    assert ids(await walk(storage, Query(order="started", scan=2, limit=9), 7)) == [f"j{n}" for n in range(7)]
    assert ids(await walk(storage, Query(order="due", scan=3, limit=1), 7)) == [f"j{n}" for n in range(7)]


async def test_more_a_total_is_counted_up_to_a_bound(storage: Storage) -> None:
    """It counts among the first `scan` rows, whatever the cursor; with `limit` 0 there are no rows."""
    await storage.enqueue([job(f"j{n}", task="xy"[n % 2]) for n in range(9)])
    query = Query(task="x", limit=0, count=True, order="oldest")
    for scan, total in ((1, 1), (4, 2), (9, 5), (100, 5), (None, 5)):
        page = await storage.find(structs.replace(query, scan=scan))
        assert (page.total, page.records, page.cursor) == (total, (), None)
    first = await storage.find(Query(order="oldest", limit=2, scan=6, count=True))
    assert (ids(first.records), first.total) == (["j0", "j1"], 6)
    second = await storage.find(Query(order="oldest", limit=2, scan=6, count=True, cursor=first.cursor))
    assert (ids(second.records), second.total) == (["j2", "j3"], 6)


@shows("the number of jobs queued ahead of a job is counted up to a bound")
async def test_more_ahead_of_counts_up_to_a_bound(storage: Storage) -> None:
    await storage.enqueue([*jobs("a b c d"), job("high", priority=5), job("else", queue="other"), job("late", delay=5)])
    for id, scan, ahead in (("d", 100, 4), ("d", 4, 4), ("d", 3, 3), ("high", 3, 0), ("late", 3, 0), ("none", 3, 0)):
        page = await storage.find(Query(ahead_of=id, order="queue", limit=0, count=True, scan=scan))
        assert (page.total, page.records) == (ahead, ())
    assert ids(await walk(storage, Query(ahead_of="c", order="queue", scan=2), 7)) == ["high", "a", "b"]


async def test_more_kinds_of_ready_jobs(storage: Storage, clock: HandClock) -> None:
    """Queued, scheduled or blocked, as the job moves between them; other states are none of these."""
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a"), job("b", delay=5), *jobs("c d", limits=(("one", 1),)), job("p", task="")])

    async def shown() -> list[str]:
        kinds: tuple[Any, ...] = ("queued", "scheduled", "blocked")
        pages = [await storage.find(Query(ready=kind, order="oldest", count=True)) for kind in kinds]
        assert [page.total for page in pages] == [len(page.records) for page in pages]
        return [" ".join(ids(page.records)) for page in pages]

    assert await shown() == ["a c d", "b", ""]
    assert await claim_ids(storage, 9) == ["a", "c"]
    assert await shown() == ["", "b", "d"]
    clock.advance(5)
    await advance_due(storage)
    assert await shown() == ["b", "", "d"]
    assert ids((await storage.find(Query(ready="queued", state=(RUNNING,)))).records) == []


async def test_more_created_since_includes_the_instant_itself(storage: Storage, clock: HandClock) -> None:
    """The instant itself is included; with `before` it is not."""
    await storage.enqueue(jobs("a"))
    clock.advance(10)
    await storage.enqueue(jobs("b"))
    clock.advance(10)
    await storage.enqueue(jobs("c"))
    for since, before, expected in ((0, 99, "abc"), (10, 20, "b"), (10, 99, "bc"), (20.5, 99, ""), (20, 10, "")):
        start = clock() - 20
        query = Query(order="oldest", since=start + since, before=start + before, count=True)
        page = await storage.find(query)
        assert ("".join(ids(page.records)), page.total) == (expected, len(expected))


async def test_more_pages_show_the_earliest_due_first(storage: Storage, clock: HandClock) -> None:
    """Order "due": unfinished jobs with a due time, also leases, deadlines and waits that end."""
    await storage.enqueue(
        [
            job("c", delay=30),
            job("a", delay=10),
            job("b", delay=10),
            job("dies", deadline=20),
            job("fan", after=("c",), wait_timeout=15),
            job("queued"),
            job("promise", task=""),
        ]
    )
    assert await claim_ids(storage, 1, lease=5) == ["dies"]
    await storage.enqueue([job("done")])
    await run(storage, "done")
    assert ids((await storage.find(Query(order="due"))).records) == ["dies", "a", "b", "fan", "c"]
    assert ids((await storage.find(Query(order="due", ready="scheduled", limit=2))).records) == ["a", "b"]
    clock.advance(10)
    assert ids((await storage.find(Query(order="due"))).records) == ["dies", "a", "b", "fan", "c"]


async def test_more_pages_show_the_longest_running_first(storage: Storage, clock: HandClock) -> None:
    """Order "started": running jobs by their last start, equal starts by id."""
    await storage.enqueue(jobs("a b c d e"))
    await claim(storage, 2)
    clock.advance(1)
    await claim(storage, 2, lease=90)
    assert ids((await storage.find(Query(order="started"))).records) == ["a", "b", "c", "d"]
    await run(storage, "e")
    clock.advance(31)
    await advance_due(storage)
    assert ids((await storage.find(Query(order="started"))).records) == ["c", "d"]
    await claim(storage, 1)
    assert ids((await storage.find(Query(order="started", count=True))).records) == ["c", "d", "a"]


@pytest.mark.parametrize("order", ORDERS)
async def test_more_a_bounded_cursor_belongs_to_its_order(storage: Storage, order: Order) -> None:
    """It works with and without `scan`, and with no other order."""
    await storage.enqueue(jobs("a b c", deadline=99))
    if order == "ended":
        await run(storage, "a", "b", "c")
    elif order == "started":
        await claim(storage, 3)
    page = await storage.find(Query(order=order, limit=1, scan=2))
    rest = await storage.find(Query(order=order, limit=9, cursor=page.cursor))
    assert sorted(ids([*page.records, *rest.records])) == ["a", "b", "c"]
    for other in ORDERS:
        if other != order:
            with pytest.raises(BadOption):
                await storage.find(Query(order=other, scan=2, cursor=page.cursor))
