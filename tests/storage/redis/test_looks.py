"""How much a look at a storage reads: by what it shows, not by the rows there are; and the lists that make it so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.storage.redis.reads_kit import reads_of
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, NewJob, Outcome, Presence, State
from treadle.core.query_model import MetricsRow, Order, Query, QueueGlance
from treadle.storage.redis import RedisStorage
from treadle.storage.redis import storage as module
from treadle_testkit.conformance.kit import back, done, failed
from treadle_testkit.shows import shows

ROWS = 3_000
FAILED, RUNNING, SCHEDULED, WAITING = 30, 20, 10, 5


async def fill(storage: RedisStorage) -> None:
    """Many jobs that ended or are queued, and few of each other kind."""
    await storage.set_limits([Limit("shut", slots=0)])
    await storage.enqueue([NewJob(id=f"e{n:05}", task="t") for n in range(ROWS)])
    for turn in range(3):
        rows = (await storage.claim(Claim(worker=f"w#{turn}", limit=ROWS // 3))).records
        await storage.settle([failed(row) for row in rows[: FAILED // 3]])
        await storage.settle([done(row) for row in rows[FAILED // 3 :]])
    await storage.enqueue([NewJob(id=f"r{n:05}", task="t", queue="busy") for n in range(RUNNING)])
    await storage.claim(Claim(worker="w#r", queues=(("busy", 99),), limit=99, lease=1e6))
    await storage.enqueue([NewJob(id=f"q{n:05}", task="t", priority=n % 2) for n in range(ROWS)])
    await storage.enqueue([NewJob(id=f"s{n:05}", task="t", delay=1e5 + n, queue="later") for n in range(SCHEDULED)])
    await storage.enqueue([NewJob(id=f"w{n:05}", task="") for n in range(WAITING)])
    await storage.enqueue([NewJob(id="own", task="treadle.own", queue="treadle", delay=1e5, labels=("l",))])
    await storage.enqueue([NewJob(id="blocked", task="t", limits=(("shut", 1),), priority=9)])
    await storage.claim(Claim(worker="w#b", limit=1, tasks={"t": (1, 1e6)}))


@shows("looks at few jobs among many read few rows")
async def test_looks_read_what_they_show(storage: RedisStorage) -> None:
    """Two values of each row. A glance, a position and a count read none."""
    await fill(storage)
    looks: Sequence[tuple[Query, int, int]] = [
        (Query(state=(State.RUNNING,)), RUNNING + 1, 2 * (RUNNING + 1) + SCHEDULED + 1),
        (Query(order="started"), RUNNING + 1, 2 * (RUNNING + 1) + SCHEDULED + 1),
        (Query(order="started", queue="busy"), RUNNING, 2 * (RUNNING + 1) + SCHEDULED + 1),
        (Query(state=(State.FAILED,)), FAILED, FAILED),
        (Query(state=(State.FAILED,), order="ended", limit=99), FAILED, FAILED),
        (Query(state=(State.FAILED,), order="ended", queue="default", limit=7), 7, 8),
        (Query(state=(State.WAITING,)), WAITING, WAITING),
        (Query(ready="blocked"), 1, 1),
        (Query(ready="scheduled", order="due"), SCHEDULED + 1, SCHEDULED + 1),
        (Query(queue="treadle"), 1, 1),
        (Query(task="treadle.own", label="l"), 1, 1),
        (Query(task="none", scan=200), 0, 201),
        (Query(task="none", order="ended", scan=200), 0, 201),
        (Query(ahead_of="q02998", order="queue", limit=0, count=True), 0, 1),
        (Query(ready="queued", limit=0, count=True), 0, 0),
        (Query(limit=0, count=True), 0, 0),
    ]
    for query, shown, most in looks:
        found: list[int] = []
        async with reads_of(found):
            page = await storage.find(query)
        assert len(page.records) == shown, query
        assert sum(found) <= 2 * most, f"{query}: {found}"
    found = []
    async with reads_of(found):
        glance = await storage.glance()
        assert (await storage.find(Query(ahead_of="q02999", order="queue", limit=0, count=True))).total == ROWS // 2 - 2
        assert (await storage.find(Query(ready="queued", limit=0, count=True))).total == ROWS - 1
    assert sum(found) <= 2, "one row: the job itself"
    default = QueueGlance(
        name="default",
        queued=ROWS - 1,
        oldest=glance.queues[1].oldest,
        running=1,
        blocked=1,
        waiting=WAITING,
        failed=30,
    )
    assert glance.queues[1] == default


@pytest.mark.parametrize("plain", [True, False])
async def test_lists_follow_the_jobs(storage: RedisStorage, plain: bool) -> None:
    """Failed, reopened and pruned on the bulk path, and job by job."""
    more = {} if plain else {"failures_allowed": 1}
    await storage.enqueue([NewJob(id=f"j{n}", task="t", keep_failed=0.0, **more) for n in range(4)])
    rows = (await storage.claim(Claim(worker="w#1", limit=4))).records
    await storage.settle([failed(row) for row in rows[:3]])
    assert await storage.read("ZCARD", "of:failed:default") == 3
    [row] = await storage.get(["j0"])
    assert row is not None
    await storage.settle([back(row, 60.0)])
    assert [(each.scheduled, each.running, each.failed) for each in (await storage.glance()).queues] == [(1, 1, 2)]
    assert await storage.relist(correct=False) == []
    assert await storage.read("SMEMBERS", "of") != []
    storage._now = lambda: 4e9
    await storage.prune(99)
    assert await storage.relist(correct=False) == []
    assert await storage.read("ZCARD", "of:failed:default") == 0


async def test_lists_that_do_not_match_are_corrected(storage: RedisStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script was interrupted. Without `correct` nothing changes, and many rows are not
    read at all."""
    await storage.enqueue([NewJob(id=f"p{n}", task="") for n in range(3)])
    await storage.enqueue([NewJob(id="own", task="treadle.own", delay=50.0)])
    await storage.write("ZREM", "of:waiting:default", "p1")
    await storage.write("ZADD", "of:failed:mail", 1, "p1")
    await storage.write("ZADD", "of:failed:mail", 2, "gone")
    await storage.write("SADD", "of", "failed:mail")
    await storage.write("ZREM", "system", "own")
    wrong = [("failed:mail", 2, 0), ("system", 0, 1), ("waiting:default", 2, 3)]
    assert await storage.relist(correct=False) == wrong
    assert await storage.find(Query(state=(State.FAILED,), order="ended", queue="mail")) == (
        await storage.find(Query(state=(State.FAILED,)))
    ), "obsolete entries are not shown"
    monkeypatch.setattr(module, "RECOUNTED", 3)
    assert await storage.relist(correct=False) == []
    assert await storage.relist() == wrong
    assert await storage.relist() == []
    assert [each.waiting for each in (await storage.glance()).queues] == [3]


async def test_limits_and_workers_of_a_glance(storage: RedisStorage) -> None:
    """As those of `limits` and `stats`, with many partitions that block jobs."""
    await storage.set_limits([Limit("each", slots=1), Limit("pace", rate=1, per=60.0)])
    limits = [(("pace", 1),)] + [((f"each:{n // 2}", 1),) for n in range(40)]
    await storage.enqueue([NewJob(id=f"j{n:02}", task="t", limits=limit) for n, limit in enumerate(limits)])
    await storage.claim(Claim(worker="w#1", limit=99))
    await storage.heartbeat(Presence(worker="w"), [], 30.0)
    glance = await storage.glance()
    assert glance.limits == await storage.limits()
    assert sum(use.blocked for use in glance.limits) == 20
    assert [worker.worker for worker in glance.workers] == ["w"]


@pytest.mark.parametrize("order", ["newest", "oldest", "due", "ended"])
async def test_more_queues_than_a_step_merges_are_read(storage: RedisStorage, order: Order) -> None:
    """More queues than one step merges, or counts."""
    queues = 1_100 if order == "newest" else 70
    await storage.enqueue([NewJob(id=f"s{n:05}", task="t", delay=90.0 + n, queue=f"q{n}") for n in range(queues)])
    if order == "ended":
        await storage.settle([Outcome(id=f"s{n:05}", version=0, state=State.FAILED) for n in range(queues)])
    glance = await storage.glance()
    assert len(glance.queues) == queues
    assert sum(each.failed if order == "ended" else each.scheduled for each in glance.queues) == queues
    query = Query(order=order, limit=500, ready=None if order == "ended" else "scheduled")
    pages = [await storage.find(query)]
    while pages[-1].cursor:
        pages.append(await storage.find(Query(order=order, limit=500, ready=query.ready, cursor=pages[-1].cursor)))
    assert len({row.id for page in pages for row in page.records}) == queues


async def test_metrics_expire(storage: RedisStorage) -> None:
    """Where nothing is stored any more, nothing stays for longer than 91 days."""
    await storage.store_metrics([MetricsRow(at=0.0, span=60.0, source="w", data=b"x")])
    names = [f"metrics:{60.0!r}", f"metrics:{60.0!r}:data", "metrics"]
    assert [await storage.read("PEXPIRE", name, 91 * 86_400_000, "LT") > 0 for name in names] == [False] * 3


@pytest.mark.parametrize("others", [0, 2_000])
@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_pages_of_jobs_that_lie_close_read_few_rows_more_than_they_show(
    storage: RedisStorage, others: int, order: Order
) -> None:
    """An operator retries thousands of failed jobs page by page, and no page but one reads all that are left. That one
    meets the others, which lie before or behind: it gives up after as many rows as there are failed ones."""
    await storage.enqueue([NewJob(id=f"e{n:05}", task="t") for n in range(others + 1_000)])
    for turn in range(0, others + 1_000, 1_000):
        rows = (await storage.claim(Claim(worker=f"w#{turn}", limit=1_000))).records
        await storage.settle([done(row) if turn < others else failed(row) for row in rows])
    seen: list[str] = []
    read: list[int] = []
    cursor = None
    while cursor is not None or not seen:
        found: list[int] = []
        async with reads_of(found):
            page = await storage.find(Query(state=(State.FAILED,), order=order, limit=100, cursor=cursor))
        seen += [row.job.id for row in page.records]
        read.append(sum(found) // 2)  # two values of each row
        cursor = page.cursor
    expected = [f"e{n:05}" for n in range(others, others + 1_000)]
    assert seen == (expected if order == "oldest" else expected[::-1])
    *close, most = sorted(read)
    assert max(close) <= 400, "two steps of 200"
    assert most <= (2_200 if others else 400), "the rows of the other kind, then all failed ones"
