"""Searches of jobs by text, on every storage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.kit import Spy
from treadle import App, BadOption, Retry
from treadle.admin.failure_groups import key_of, read_key, signature
from treadle.core.model import Claim
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


def task(app: App) -> Any:
    @app.task(name="mail.send", queue="mail", retry=Retry(attempts=1))
    async def send(to: str, **more: object) -> None:
        if to == "bad":
            raise ValueError("mailbox 4711 is full")

    return send


async def texts(app: App, text: str, **filters: Any) -> list[str]:
    page = await app.jobs.list(search=text, limit=1_000, **filters)
    return [app.jobs.arguments(row)[0][0] for row in page.records]


@shows("`app.jobs.list(search=)` finds jobs by a text in their arguments, error, labels or key, on every storage")
async def test_jobs_are_found_by_their_texts(app: App) -> None:
    send = task(app)
    await send.enqueue("Zoë")
    await send.enqueue("bad")
    await send.options(labels={"tenant": "blue"}, key="order-7").enqueue("c")
    await send.enqueue("d", items=[{"sku": "A-1"}, Decimal("12.50")], at=datetime(2026, 11, 25, tzinfo=UTC), ok=True)
    await drain(app)
    for text, expected in {
        "ZOË": ["Zoë"],
        "4711": ["bad"],
        "tenant=BLUE": ["c"],
        "order-7": ["c"],
        "sku=a-1": ["d"],
        "12.50": ["d"],
        "ok=true": ["d"],
        "2026": ["d"],
        "mail.s": ["d", "c", "bad", "Zoë"],
        "ma*l": [],
        "\\": [],
    }.items():
        assert sorted(await texts(app, text)) == sorted(expected), text
    assert await texts(app, "mail.s", state="failed") == ["bad"]
    assert await texts(app, "mail.s", queue="other") == []


@shows("`app.jobs.list(worker=)` finds the jobs that one worker runs among those of all workers, on every storage")
async def test_the_jobs_of_a_worker_are_found_among_all(app: App) -> None:
    send = task(app)
    for name in ("a", "b", "c", "dora", "ewa"):
        await send.enqueue(name)
    for number, limit in enumerate((3, 2), 1):
        claim = Claim(worker=f"w{number}#1", queues=(("mail", 1),), tasks={"mail.send": (None, None)}, limit=limit)
        assert len((await app.storage.claim(claim)).records) == limit

    async def found(worker: str, **filters: Any) -> list[str]:
        page = await app.jobs.list(worker=worker, order="started", **filters)
        return sorted(app.jobs.arguments(row)[0][0] for row in page.records)

    assert await found("w1") == ["a", "b", "c"]
    assert await found("w2", status="running") == ["dora", "ewa"]
    assert await found("w2", search="dora") == ["dora"]
    assert await found("w") == []
    page = await app.jobs.list(worker="w2", order="started", scan=3)
    assert (page.records, page.scanned, page.cursor is None) == ((), 3, False)
    for wrong in ({"worker": ""}, {"worker": "w1", "state": "ready"}, {"worker": "w1", "count": True}):
        with pytest.raises(BadOption):
            await app.jobs.list(**wrong)  # type: ignore[arg-type]
    with pytest.raises(BadOption):
        await app.jobs.cancel(worker="w1")  # acts know no such filter


async def test_a_search_continues_by_its_cursor_in_any_order(app: App, clock: HandClock) -> None:
    send = task(app)
    for number in range(30):
        await send.options(delay=100 - number).enqueue("x" if number % 10 == 0 else "y", n=number)
        clock.advance(1)
    for order in ("newest", "oldest", "due"):
        found, cursor, scanned = [], None, 0
        while True:
            page = await app.jobs.list(search="n=0", scan=7, order=order, cursor=cursor)
            found += [app.jobs.arguments(row)[1]["n"] for row in page.records]
            scanned += page.scanned or 0
            assert (page.scanned or 0) <= 7
            cursor = page.cursor
            if cursor is None:
                break
        assert found == [0]
        assert scanned >= 30


async def test_no_call_reads_more_than_a_few_rows_at_once(app: App, spy: Spy) -> None:
    send = task(app)
    await app.enqueue([send.job(str(number)) for number in range(600)])
    spy.calls.clear()
    page = await app.jobs.list(search="nothing")
    assert (page.records, page.cursor) == ((), None)
    assert spy.calls["find"] >= 2


async def test_jobs_are_listed_by_status_and_time(app: App, clock: HandClock) -> None:
    send = task(app)
    await send.enqueue("now")
    clock.advance(10)
    middle = datetime.fromtimestamp(clock(), UTC)
    await send.options(delay=50).enqueue("later")
    assert [row.job.delay for row in (await app.jobs.list(status="scheduled")).records] == [50]
    assert [row.job.delay for row in (await app.jobs.list(status="queued")).records] == [0]
    assert (await app.jobs.list(status="running")).records == ()
    assert len((await app.jobs.list(since=middle)).records) == 1
    assert len((await app.jobs.list(since=middle - timedelta(seconds=10), before=middle)).records) == 1
    assert await app.jobs.cancel(status="scheduled") == 1
    assert await app.jobs.cancel(search="now") == 1


@pytest.mark.parametrize(
    "filters",
    [
        {"search": ""},
        {"search": "x" * 1_001},
        {"search": 7},
        {"search": "x", "count": True},
        {"scan": 0},
        {"scan": True},
        {"scan": 10, "count": True},
        {"status": "odd"},
        {"since": 5},
        {"serach": "x"},
    ],
)
async def test_impossible_filters_are_refused(filters: dict[str, Any]) -> None:
    async with App("memory://") as app:
        with pytest.raises(BadOption):
            await app.jobs.list(**filters)


async def test_failures_are_grouped_on_every_storage(app: App, clock: HandClock) -> None:
    send = task(app)
    for _ in range(3):
        await send.enqueue("bad")
        await drain(app)
        clock.advance(1)
    found = await app.dead.groups()
    [group] = found.groups
    assert (group.jobs, group.task, group.queue, group.signature) == (
        3,
        "mail.send",
        "mail",
        "ValueError: mailbox <n> is full",
    )
    assert (group.last - group.first, found.total, found.scanned, found.cursor) == (2, 3, 3, None)
    assert (sum(group.spark), group.spark[0], group.spark[-1]) == (3, 1, 1)
    row = await app.jobs.get(group.sample)
    assert key_of(row) == read_key(group.key)
    assert signature(row.error) == group.signature
    first = await app.dead.groups(scan=2)
    assert (first.scanned, first.total, first.cursor is None) == (2, 3, False)
    rest = await app.dead.groups(scan=2, cursor=first.cursor)
    assert (rest.scanned, rest.cursor) == (1, None)
    assert (await app.dead.groups(task="other")).groups == []
    for wrong in (0, 10_001, True, "x"):
        with pytest.raises(BadOption, match="scan"):
            await app.dead.groups(scan=wrong)  # type: ignore[arg-type]
    for key in ("", "%%", "abc", "W10"):
        with pytest.raises(BadOption, match="group"):
            read_key(key)
