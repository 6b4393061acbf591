"""Reading jobs: by id, in pages, and as counts. Also opening and closing: law 13."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from treadle.core.errors import BadOption, StorageError
from treadle.core.limit_model import Limit
from treadle.core.model import Presence
from treadle.core.query_model import Count, Query
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    back,
    beat,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    ids,
    job,
    jobs,
    renewal,
    row,
    run,
    settle,
    state,
)
from treadle_testkit.conformance.run import Connect
from treadle_testkit.shows import shows


async def walk(storage: Storage, query: Query) -> list[str]:
    """All walked, page by page; every page but the last is full."""
    walked: list[str] = []
    while True:
        page = await storage.find(query)
        walked += ids(page.records)
        if page.cursor is None:
            return walked
        assert len(page.records) == query.limit
        query = structs.replace(query, cursor=page.cursor)


async def find_ids(storage: Storage, **options: Any) -> list[str]:
    return ids((await storage.find(Query(**options))).records)


async def test_more_get_returns_rows_in_the_order_of_its_ids(storage: Storage) -> None:
    """None if there is no row; an id given twice is returned twice."""
    await storage.enqueue(jobs("a b"))
    records = await storage.get(["b", "none", "a", "b"])
    assert [record and record.job.id for record in records] == ["b", None, "a", "b"]


async def test_more_reading_advances_no_rows(storage: Storage, clock: HandClock) -> None:
    """get, find and stats show the stored rows, even if leases have expired and jobs are due."""
    await storage.enqueue([job("a"), job("b", delay=10), job("c", deadline=10, delay=99)])
    await claim_one(storage, lease=5)
    before = await storage.get(["a", "b", "c"])
    clock.advance(11)
    assert await storage.get(["a", "b", "c"]) == before
    assert set(await find_ids(storage, state=(READY,))) == {"b", "c"}
    assert sorted((count.state.value, count.jobs) for count in (await storage.stats()).counts) == [
        ("ready", 2),
        ("running", 1),
    ]
    assert await storage.get(["a", "b", "c"]) == before


@shows("the pages of a list contain each row once")
@pytest.mark.parametrize("order", ["newest", "oldest", "ended", "queue"])
@pytest.mark.parametrize("size", [1, 3, 7, 50])
async def test_more_pages_show_each_row_once(storage: Storage, clock: HandClock, order: Any, size: int) -> None:
    """Jobs of one call have equal times, but pages follow a unique order."""
    for batch in "xyz":
        await storage.enqueue([job(f"{batch}{n}", queue="q" + "ab"[n % 2], priority=n % 3) for n in range(7)])
        clock.advance(0.1)
    if order == "ended":
        for batch in "zyx":
            await run(storage, *[f"{batch}{n}" for n in range(7)])
    names = [f"{batch}{n}" for batch in "xyz" for n in range(7)]
    expected = {
        "newest": names[::-1],
        "oldest": names,
        "ended": names,
        "queue": sorted(names, key=lambda id: (int(id[1]) % 2, -(int(id[1]) % 3), id)),
    }
    if order == "ended":
        clock.advance(1)
    assert await walk(storage, Query(order=order, limit=size)) == expected[order]


async def test_more_pages_show_the_latest_ending_first(storage: Storage, clock: HandClock) -> None:
    """Order "ended": latest ending first, equal times by id, without unfinished jobs."""
    await storage.enqueue(jobs("a b c d e"))
    await run(storage, "d", "b")
    clock.advance(1)
    await run(storage, "c", to=FAILED)
    assert await find_ids(storage, order="ended") == ["c", "b", "d"]


async def test_more_pages_show_jobs_in_queue_order(storage: Storage, clock: HandClock) -> None:
    """Order "queue": queue by queue, the queued jobs in claim order; other jobs are left out."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([job("blocked", limits=(("shut", 1),)), job("later", delay=9), job("p", task="")])
    assert await claim_ids(storage, 9) == []
    await storage.enqueue([job("b", queue="z"), job("c"), job("d", priority=4), job("e", aging=5.0, priority=2)])
    assert await find_ids(storage, order="queue") == ["d", "e", "c", "b"]
    assert await find_ids(storage, order="queue", queue="default", limit=2) == ["d", "e"]


@shows("`ahead_of` finds the queued jobs before a job")
async def test_more_ahead_of_finds_the_jobs_before_a_job(storage: Storage, clock: HandClock) -> None:
    """`ahead_of`: the jobs queued before this one in its queue; none if it is not queued or does not exist."""
    await storage.enqueue([*jobs("a b c"), job("high", priority=5), job("else", queue="other"), job("later", delay=5)])
    assert await find_ids(storage, ahead_of="c", order="queue") == ["high", "a", "b"]
    assert await find_ids(storage, ahead_of="c", order="queue", queue="default") == ["high", "a", "b"]
    page = await storage.find(Query(ahead_of="c", count=True, limit=1))
    assert (page.total, len(page.records)) == (3, 1)
    for id in ("high", "else", "later", "none"):
        assert await find_ids(storage, ahead_of=id) == []


async def test_more_ahead_of_finds_the_jobs_before_a_job_among_lanes(storage: Storage, clock: HandClock) -> None:
    """It compares queue positions, so later jobs of a lane come after earlier ones of other lanes."""
    await storage.enqueue([*jobs("a0 a1 a2", lane="a"), *jobs("b0 b1", lane="b")])
    assert await find_ids(storage, ahead_of="b1", order="queue") == ["a0", "b0", "a1"]


async def test_more_filters_narrow_a_page(storage: Storage, clock: HandClock) -> None:
    """Each field filters by itself, and together all must match."""
    await storage.enqueue(
        [
            job("a", task="mail", queue="x", labels=("red", "blue")),
            job("b", task="mail", queue="y", labels=("blue",), root="a", parent="a"),
            job("c", task="fax", queue="x", root="a", parent="b"),
        ]
    )
    clock.advance(10)
    await storage.enqueue([job("d", task="fax", queue="y", labels=("re",))])
    await run(storage, "d")

    async def found(**options: Any) -> str:
        return "".join(await find_ids(storage, order="oldest", **options))

    assert await found() == "abcd"
    assert await found(task="mail") == "ab"
    assert await found(queue="y") == "bd"
    assert await found(label="blue") == "ab"
    assert await found(label="re") == "d"
    assert await found(root="a") == "abc"
    assert await found(root="d") == "d"
    assert await found(parent="a") == "b"
    assert await found(state=(SUCCEEDED,)) == "d"
    assert await found(state=(READY, SUCCEEDED), task="fax") == "cd"
    assert await found(ids=("d", "b", "none")) == "bd"
    assert await found(before=clock()) == "abc"
    assert await found(before=clock() - 10) == ""
    assert await found(task="mail", queue="y", label="blue", root="a", parent="a", state=(READY,), ids=("b",)) == "b"
    assert await found(task="mail", queue="x", label="red", root="b") == ""


async def test_more_all_that_match_are_counted(storage: Storage) -> None:
    """With `count`, every page has the total; otherwise nothing is counted."""
    await storage.enqueue([job(f"j{n}", task="xy"[n % 2]) for n in range(9)])
    first = await storage.find(Query(task="x", limit=2, count=True))
    assert (len(first.records), first.total) == (2, 5)
    second = await storage.find(Query(task="x", limit=2, count=True, cursor=first.cursor))
    assert (len(second.records), second.total) == (2, 5)
    assert (await storage.find(Query(task="x"))).total is None
    assert (await storage.find(Query(task="none", count=True))).total == 0


async def test_more_a_page_that_is_just_full_is_the_last(storage: Storage) -> None:
    """There is no cursor to an empty page."""
    await storage.enqueue(jobs("a b c"))
    assert (await storage.find(Query(limit=3))).cursor is None
    assert (await storage.find(Query(limit=2))).cursor is not None


@shows("rows that come or go between two pages do not repeat or hide others")
async def test_more_changes_between_pages_hide_and_repeat_no_row(storage: Storage, clock: HandClock) -> None:
    """Rows stored or deleted between two pages cause no repeated and no missing rows."""
    await storage.enqueue([job(f"j{n}", keep=60) for n in range(6)])
    await run(storage, *[f"j{n}" for n in range(6)])
    first = await storage.find(Query(order="oldest", limit=3))
    await storage.enqueue(jobs("a-new-one"))
    clock.advance(60)
    assert await storage.prune(3) == 3
    second = await storage.find(Query(order="oldest", limit=3, cursor=first.cursor, before=clock()))
    assert len(ids(first.records)) == 3
    assert not set(ids(first.records)) & set(ids(second.records))
    assert {"j3", "j4", "j5"} <= {*ids(first.records), *ids(second.records)} | {"a-new-one", "j0", "j1", "j2"}


@pytest.mark.parametrize("cursor", ["", "zz", "00", "5b5d", "not a cursor", "5b226f6c64657374225d"])
async def test_more_an_invalid_cursor_is_refused(storage: Storage, cursor: str) -> None:
    """An invalid cursor raises BadOption instead of returning a wrong page."""
    await storage.enqueue(jobs("a b c"))
    with pytest.raises(BadOption):
        await storage.find(Query(cursor=cursor))


async def test_more_a_cursor_of_another_order_is_refused(storage: Storage) -> None:
    """A cursor works only with its own order."""
    await storage.enqueue(jobs("a b c"))
    page = await storage.find(Query(order="oldest", limit=1))
    with pytest.raises(BadOption):
        await storage.find(Query(order="newest", cursor=page.cursor))


async def test_more_records_of_a_page_are_whole(storage: Storage) -> None:
    """find returns the same records as get."""
    await storage.enqueue([job("a", payload="[1]", labels=("l",), headers=(("h", "1"),), limits=(("x", 1),))])
    await claim_one(storage)
    assert list((await storage.find(Query())).records) == await storage.get(["a"])


async def test_more_counts_by_queue_task_and_state(storage: Storage, clock: HandClock) -> None:
    """The number of jobs, how many are queued and blocked, and the age of the first queued one."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([*jobs("a b", queue="x"), job("c", queue="x", task="u"), job("p", task="", queue="x")])
    await storage.enqueue(
        [job("blocked", queue="x", limits=(("shut", 1),), priority=9), job("later", queue="x", delay=99)]
    )
    clock.advance(7)
    assert await claim_ids(storage, 1, "x") == ["a"]
    shown = {(count.queue, count.task, count.state): count for count in (await storage.stats()).counts}
    assert shown == {
        ("x", "t", READY): Count(queue="x", task="t", state=READY, jobs=3, queued=1, blocked=1, oldest=7.0),
        ("x", "t", RUNNING): Count(queue="x", task="t", state=RUNNING, jobs=1),
        ("x", "u", READY): Count(queue="x", task="u", state=READY, jobs=1, queued=1, oldest=7.0),
        ("x", "", WAITING): Count(queue="x", task="", state=WAITING, jobs=1),
    }


async def test_more_counts_follow_every_step(storage: Storage) -> None:
    """They count each job once, under its state at that moment."""
    await storage.enqueue(jobs("a b c d"))

    async def shown() -> dict[str, int]:
        return {count.state.value: count.jobs for count in (await storage.stats()).counts}

    assert await shown() == {"ready": 4}
    a, b, c = await claim(storage, 3)
    assert await shown() == {"ready": 1, "running": 3}
    await settle(storage, done(a), failed(b), back(c, 60))
    assert await shown() == {"ready": 2, "succeeded": 1, "failed": 1}


async def test_law13_a_second_open_or_close_changes_nothing(storage: Storage) -> None:
    """The same holds for close; a closed storage can be opened again."""
    await storage.open()
    await storage.enqueue(jobs("a"))
    await storage.open()
    assert await claim_ids(storage) == ["a"]
    await storage.close()
    await storage.close()
    await storage.open()


@pytest.mark.parametrize("busy", [False, True])
async def test_law13_a_close_that_is_cancelled_leaves_a_storage_that_can_be_opened(
    storage: Storage, busy: bool
) -> None:
    """At whichever await close is cancelled, and with a call in flight."""
    for turns in range(8):
        calls = [asyncio.create_task(storage.enqueue(jobs(f"a{turns}")))] if busy else []
        closing = asyncio.create_task(storage.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, *calls, return_exceptions=True)
        await storage.close()
        await storage.open()
        assert ids(await storage.enqueue(jobs(f"b{turns}"))) == [f"b{turns}"]


async def test_law13_a_read_in_flight_answers_or_raises_when_the_storage_is_closed(storage: Storage) -> None:
    """At whichever await of the reads the storage is closed: nothing else than the library's errors leaves them."""
    for turns in range(8):
        await storage.enqueue([job(f"{turns}-{number}") for number in range(300)])
        reads = [storage.find(Query(limit=300)), storage.find(Query(limit=300)), storage.stats()]
        calls = [asyncio.ensure_future(read) for read in (*reads, storage.get([f"{turns}-1"] * 300))]
        for _ in range(turns):
            await asyncio.sleep(0)
        await storage.close()
        for end in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(end, StorageError) or not isinstance(end, BaseException), (turns, end)
        await storage.open()


async def test_law13_a_storage_opened_to_be_read_answers_the_same(storage: Storage, durable: bool) -> None:
    """A second such open does nothing, and afterwards the storage can be opened to be used."""
    if not durable:
        pytest.skip("this storage is not durable")
    await storage.enqueue([job("a", key="k"), job("b", after=("a",)), job("c", delay=60)])
    await claim_one(storage)
    before = await storage.get(["a", "b", "c"]), await storage.find(Query(order="oldest")), await storage.stats()
    await storage.close()
    await storage.open(look=True)
    await storage.open(look=True)
    assert (
        await storage.get(["a", "b", "c"]),
        await storage.find(Query(order="oldest")),
        await storage.stats(),
    ) == before
    await storage.close()
    await storage.open()
    assert ids(await storage.enqueue([job("d")])) == ["d"]


@shows(
    "rows, dependencies, keys, limits and checkpoints survive closing and opening a durable storage", area="Storages"
)
async def test_law13_acknowledged_rows_are_kept_over_a_reopening(storage: Storage, durable: bool) -> None:
    """Rows, edges, keys, limits and checkpoints outlive the connection."""
    if not durable:
        pytest.skip("this storage is not durable")
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", key="k"), job("b", after=("a",)), *jobs("c d", limits=(("one", 1),), queue="q")])
    a, c = await claim_one(storage), await claim_one(storage, "q")
    await beat(storage, renewal(a, checkpoints=(("s", "1"),), note="half"))
    before = await storage.get(["a", "b", "c", "d"])
    await storage.close()
    await storage.open()
    assert await storage.get(["a", "b", "c", "d"]) == before
    assert ids(await storage.enqueue([job("x", key="k")])) == ["a"]
    assert await claim_ids(storage, 9, "q") == []
    await settle(storage, done(a), done(c))
    assert await claim_ids(storage, 9) == ["b"]
    assert await claim_ids(storage, 9, "q") == ["d"]


async def test_law13_acknowledged_rows_are_visible_to_another_connection(storage: Storage, connect: Connect) -> None:
    """At once, in both directions."""
    other = await connect()
    await storage.enqueue(jobs("a b"))
    a = await claim_one(other)
    assert await row(storage, "a") == a
    await settle(storage, done(a))
    assert await state(other, "a") is SUCCEEDED
    await storage.set_limits([Limit("queue", slots=0)])
    assert await claim_ids(other) == []
    await storage.heartbeat(Presence(worker="w"), [], 30)
    assert [worker.worker for worker in (await other.stats()).workers] == ["w"]
