"""Limits for users: pauses that keep the rule, limits paused after a 429, exact rates, lanes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.fixtures import KINDS, a_url
from tests.kit import Spy, Told, work
from tests.waiting import Signal
from treadle import App, BadOption, Defer, Limit, Retry
from treadle.core.model import State
from treadle.storage.contract import Storage
from treadle.testing import HandClock, drain
from treadle.worker.state import WorkerState
from treadle_testkit.shows import shows


async def rules(app: App) -> dict[str, tuple[int | None, int | None]]:
    return {use.rule.name: (use.rule.slots, use.rule.rate) for use in await app.limits.list()}


async def test_a_pause_keeps_the_limit_of_the_queue(app: App) -> None:
    await app.limits.set(Limit("queue:mail", slots=5, rate=100, per=60))
    await app.queues.pause("mail")
    await app.queues.pause("mail")  # repeating it changes nothing
    assert await rules(app) == {"queue:mail": (0, 100)}
    await app.queues.resume("mail")
    assert await rules(app) == {"queue:mail": (5, 100)}
    [use] = await app.limits.list()
    assert (use.rule.per, use.rule.how) == (60, "window")
    await app.queues.resume("mail")
    assert await rules(app) == {"queue:mail": (5, 100)}


async def test_a_pause_of_a_queue_without_a_limit_leaves_none(app: App) -> None:
    await app.queues.pause("mail")
    assert await rules(app) == {"queue:mail": (0, None)}
    await app.queues.resume("mail")
    assert await rules(app) == {}
    await app.limits.set(Limit("queue:mail", slots=0))  # paused by its own rule: resuming opens it too
    await app.queues.resume("mail")
    assert await rules(app) == {}


async def test_a_rule_set_during_a_pause_holds_after_it(app: App) -> None:
    await app.limits.set(Limit("queue:mail", slots=5))
    await app.queues.pause("mail")
    await app.limits.set(Limit("queue:mail", slots=2))
    assert await rules(app) == {"queue:mail": (0, None)}
    await app.queues.resume("mail")
    assert await rules(app) == {"queue:mail": (2, None)}
    await app.queues.pause("mail")
    await app.limits.set(Limit("queue:mail"))  # removed
    assert await rules(app) == {"queue:mail": (0, None)}
    await app.queues.resume("mail")
    assert await rules(app) == {}


@shows("starts before a pause count against the rate after the pause")
async def test_starts_before_a_pause_count_after_it(app: App, clock: HandClock) -> None:
    ran = []

    @app.task(name="f", limits=["api"])
    async def f() -> None:
        ran.append(clock.moment)

    await app.limits.set(Limit("api", rate=2, per=60))
    await app.enqueue([f.job() for _ in range(5)])
    await drain(app)
    await app.limits.pause("api")
    clock.advance(30)
    await app.limits.resume("api")
    await drain(app)
    assert len(ran) == 2
    clock.advance(31)
    await drain(app)
    assert len(ran) == 4


async def test_a_429_pauses_its_limit_on_every_worker_and_no_other(app: App, clock: HandClock) -> None:
    calls: list[tuple[str, int]] = []
    angry = [True]

    @app.task(name="send", limits=["smtp"])
    async def send(n: int) -> None:
        calls.append(("send", n))
        if angry[0]:
            raise Defer(30, limit="smtp")

    @app.task(name="other")
    async def other(n: int) -> None:
        calls.append(("other", n))

    await app.limits.set(Limit("smtp", slots=3))
    await app.enqueue([spec for n in range(5) for spec in (send.job(n), other.job(n))])
    await drain(app)
    refused = [n for name, n in calls if name == "send"]
    assert len(refused) < 5  # the jobs behind it were not even tried
    assert sorted(n for name, n in calls if name == "other") == [0, 1, 2, 3, 4]
    assert await rules(app) == {"smtp": (0, None)}
    assert [row.attempt async for row in app.jobs.iterate(task="send")] == [0] * 5  # nothing counts as an attempt
    angry[0] = False
    clock.advance(29)
    await drain(app)
    assert len([n for name, n in calls if name == "send"]) == len(refused)
    clock.advance(2)
    await drain(app)
    assert await rules(app) == {"smtp": (3, None)}
    assert {row.state async for row in app.jobs.iterate(task="send")} == {State.SUCCEEDED}


@shows("`Defer(limit=)` holds one partition of a limit and no other")
async def test_a_hold_of_a_partition_leaves_the_others(app: App, clock: HandClock) -> None:
    ran: list[str] = []
    angry = {"a"}

    @app.task(name="call", options=lambda tenant: {"limits": [f"tenant:{tenant}"]})
    async def call(tenant: str) -> None:
        ran.append(tenant)
        if tenant in angry:
            raise Defer(60, limit=f"tenant:{tenant}")

    await app.limits.set(Limit("tenant", slots=2))
    await app.enqueue([call.job(tenant) for tenant in ("a", "b", "a", "b", "a")])
    await drain(app)
    assert Counter(ran) == {"a": 1, "b": 2}
    angry.clear()
    clock.advance(61)
    await drain(app)
    assert Counter(ran) == {"a": 4, "b": 2}
    assert await rules(app) == {"tenant": (2, None)}


async def test_the_last_of_many_holds_decides_and_a_pause_outlasts_them(app: App, clock: HandClock) -> None:
    delays = iter((10, 100))

    @app.task(name="send", limits=["smtp"], queue="q")
    async def send() -> None:
        delay = next(delays, None)
        if delay:
            raise Defer(delay, limit="smtp")

    await send.options(limits=["smtp"]).enqueue()
    await drain(app)
    clock.advance(11)
    await drain(app)  # the job runs again and defers for longer
    assert await rules(app) == {"smtp": (0, None)}
    await app.limits.pause("smtp")  # an operator pauses it meanwhile
    clock.advance(101)
    await drain(app)
    assert await rules(app) == {"smtp": (0, None)}
    await app.limits.resume("smtp")
    assert await rules(app) == {}
    await drain(app)
    assert {row.state async for row in app.jobs.iterate(task="send")} == {State.SUCCEEDED}


async def test_resuming_does_not_end_a_hold(app: App, clock: HandClock) -> None:
    @app.task(name="send", limits=["smtp"], retry=Retry(attempts=1))
    async def send() -> None:
        raise Defer(50, limit="smtp")

    await send.enqueue()
    await drain(app)
    await app.limits.pause("smtp")
    await app.limits.resume("smtp")
    assert await rules(app) == {"smtp": (0, None)}


@pytest.mark.parametrize("limit", ["", 5, "treadle.x"])
def test_a_hold_of_an_invalid_limit_is_refused(limit: Any) -> None:
    with pytest.raises(BadOption, match="Defer"):
        Defer(5, limit=limit)


@shows("a limit that an operator sets wins over the limit that the code declares")
async def test_a_limit_of_an_operator_wins_over_a_declared_one(app: App, spy: Spy, clock: HandClock) -> None:
    app.limits.declare(Limit("queue:mail", slots=5))

    @app.task(name="one", concurrency=1)
    async def one() -> None: ...

    await drain(app)
    assert await rules(app) == {"queue:mail": (5, None), "task:one": (1, None)}
    await app.limits.set(Limit("task:one", slots=9))
    await drain(app)  # the same code starts again: the operator's rule stays
    assert (await rules(app))["task:one"] == (9, None)
    newer = App(storage=spy, clock=clock)
    newer.task(name="one", concurrency=2)(one.function)
    await newer._core.prepare()
    assert (await rules(app))["task:one"] == (9, None)  # another version of the code does not change it either
    await app.limits.set(Limit("task:one"))
    await newer._core.prepare()
    assert (await rules(app))["task:one"] == (2, None)
    for wrong in (0.5, -1, True, "two"):
        with pytest.raises(BadOption):
            app.task(name=f"w{wrong}", concurrency=wrong)(one.function)  # type: ignore[call-overload]


async def test_a_task_with_a_concurrency_keeps_its_policy(app: App) -> None:
    @app.task(name="first")
    async def first() -> int:
        return 4

    @app.task(name="double", concurrency=1, pass_result=True)
    async def double(x: int) -> int:
        return 2 * x

    before = await first.enqueue()
    job = await app.enqueue(double.job(), after=before)
    await drain(app)
    assert await job.result(timeout=0) == 8


@shows("`concurrency=` of a task holds over all workers")
async def test_the_concurrency_of_a_task_holds_over_all_workers_and_options(app: App) -> None:
    now, most, both = 0, 0, asyncio.Event()

    @app.task(name="narrow", concurrency=2)
    async def narrow() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 2:
            both.set()
        async with asyncio.timeout(30):
            await both.wait()
        await asyncio.sleep(0)
        now -= 1

    jobs = await app.enqueue([narrow.job(), *(narrow.options(limits=["x"], priority=n).job() for n in range(9))])
    async with work(app), work(app):
        for job in jobs:
            await job.result(timeout=30)
    assert most == 2


@shows("lanes take turns by their weights", area="Queue order and claims")
@pytest.mark.parametrize("weight", [3, 0.5])
async def test_lanes_take_turns_by_weight(app: App, clock: HandClock, weight: float) -> None:
    ran: list[str] = []

    @app.task(name="f")
    async def f(lane: str) -> None:
        ran.append(lane)

    heavy = f.options(lane=("heavy", weight))
    await app.enqueue([heavy.job("heavy") for _ in range(60)])
    await app.enqueue([f.options(lane="light").job("light") for _ in range(60)])
    await drain(app)
    counts = Counter(ran[:40])
    assert abs(counts["heavy"] / counts["light"] - weight) < 0.4
    assert Counter(ran) == {"heavy": 60, "light": 60}  # when one lane is empty, the other gets every turn


async def test_strict_order_of_a_lane(app: App, clock: HandClock) -> None:
    order: list[int] = []

    @app.task(name="book", retry=Retry(base=1, jitter=0))
    async def book(n: int) -> None:
        order.append(n)
        if order.count(n) == 1:
            raise RuntimeError("each fails once")

    await app.limits.set(Limit("account", slots=1, hold="ended"))
    await app.enqueue([book.options(lane="a", limits=["account:a"]).job(n) for n in range(4)])
    for _ in range(8):
        await drain(app)
        clock.advance(1)
    assert order == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("lane", ["", "x" * 10_240, ("a", 0), ("a", -1), ("a", "b"), ("a", 1, 2), 5, ("a", True)])
async def test_an_invalid_lane_is_refused(app: App, lane: Any) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    with pytest.raises(BadOption, match="lane") as caught:
        f.options(lane=lane).job()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "rule",
    [
        Limit("x", rate=0, per=0),
        Limit("x", rate=5, per=0),
        Limit("x", slots=-1),
        Limit("x", rate=-1),
        Limit("x", slots=1, how="strict"),
        Limit("x", slots=1, hold="never"),
        Limit("", slots=1),  # type: ignore[arg-type]
        Limit("x", rate=1, per=float("nan")),
        Limit("x", rate=1, burst=2),
        Limit("treadle.rule:x", slots=1),
        Limit("x", slots=10**9 + 1),
        Limit("x", rate=2**31),
        Limit("x", rate=1, how="bucket", burst=2**64),
        Limit("x", slots=1.5),
        Limit("x" * 300, slots=1),
        "x",  # type: ignore[arg-type]
    ],
)
async def test_an_invalid_rule_is_refused(app: App, rule: Any) -> None:
    with pytest.raises(BadOption):
        await app.limits.set(rule)
    with pytest.raises(BadOption):
        app.limits.declare(rule)


async def starts_of(
    app: App, storage: Storage, workers: int, rate: int, per: float, jobs: int
) -> dict[str, list[float]]:
    """Run the jobs of three partitions on many workers. Return when each job of a partition started, by the storage's
    clock."""

    @app.task(name="call", options=lambda tenant: {"limits": [f"tenant:{tenant}"]})
    async def call(tenant: str) -> None: ...

    await app.limits.set(Limit("tenant", rate=rate, per=per))
    sent = await app.enqueue([call.job(tenant) for _ in range(jobs) for tenant in ("a", "b", "c")])
    running = [work(app, concurrency=4) for _ in range(workers)]
    for worker in running:
        await worker.start()
    try:
        for job in sent:
            await job.result(timeout=60 + 2 * jobs * per / rate)
    finally:
        for worker in running:
            await worker.stop()
    found: dict[str, list[float]] = defaultdict(list)
    for row in [row async for row in app.jobs.iterate(task="call")]:
        assert row.started_at is not None
        found[row.job.limits[0][0]].append(row.started_at)
    return {key: sorted(starts) for key, starts in found.items()}


def most_in_any_window(starts: list[float], per: float) -> int:
    return max(sum(at <= each < at + per for each in starts) for at in starts)


@shows("workers keep to the rate of each group, and no group waits for another")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rate", "per", "jobs"),
    [(5, 0.4, 20), pytest.param(5, 5.0, 60, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
)
async def test_no_window_has_one_start_too_many(
    tmp_path: Any, kind: str, rate: int, per: float, jobs: int, request: pytest.FixtureRequest
) -> None:
    with a_url(kind, tmp_path) as url:
        async with App(url) as app:
            found = await starts_of(app, app.storage, 10, rate, per, jobs)
    for starts in found.values():
        assert len(starts) == jobs
        assert most_in_any_window(starts, per) <= rate
    # No partition waits for another: all ran at the same time.
    assert max(starts[0] for starts in found.values()) < min(starts[-1] for starts in found.values())


async def test_a_job_that_is_cancelled_by_hand_is_not_lost(
    app: App, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Signal().after(monkeypatch, WorkerState, "end")

    @app.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    job = await long.enqueue()
    async with work(app) as worker:
        await told.until("started")
        await app.jobs.cancel(job)
        await ends.until(lambda: not worker.running, "the end of the run")
    assert told.names("cancelled", "lost") == ["cancelled"]


@shows(
    "a job of the highest priority passes ten thousand others, and one of the lowest runs on an idle worker",
    area="Queue order and claims",
)
async def test_the_lowest_priority_starts_on_an_idle_worker_and_the_highest_passes_ten_thousand(app: App) -> None:
    ran = asyncio.Queue[int]()

    @app.task(name="f")
    async def f(priority: int) -> None:
        ran.put_nowait(priority)

    async with work(app):
        low = await f.options(priority=-32768).enqueue(-32768)
        await low.result(timeout=30)
    await app.enqueue([f.options(priority=-5).job(-5) for _ in range(10_000)])
    await f.options(priority=100).enqueue(100)
    async with work(app, concurrency=1):
        assert [await ran.get() for _ in range(2)] == [-32768, 100]


async def test_a_worker_that_starts_warns_of_a_limit_without_a_rule(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "treadle")

    @app.task(name="send", limits=["stmp", "smtp", "tenant:4"], queue="mail")
    async def send() -> None: ...

    await app.limits.set(Limit("smtp", slots=1), Limit("tenant", slots=1))
    async with work(app, queues=["mial"]):
        pass
    assert [each for each in caplog.messages if "stmp" in each] == [
        "task send: its limit 'stmp' has no rule, so it holds jobs back only while it is paused or rests; "
        "did you mean 'smtp'?"
    ]
    assert [each.partition(": ")[2] for each in caplog.messages if "mial" in each] == [
        "no task of this app uses the queue 'mial'; did you mean 'mail'?"
    ]
    assert not [each for each in caplog.messages if "tenant" in each]


@shows("an idle worker that does not poll starts a job of any priority", area="Workers")
@pytest.mark.parametrize("priority", [-32768, 0, 32767])
async def test_an_idle_worker_that_does_not_poll_starts_a_job_of_any_priority(
    app: App, spy: Spy, priority: int
) -> None:
    """The worker polls once an hour, so only the notification can start the job before the test times out."""

    @app.task(name="f")
    async def f() -> None: ...

    async with work(app, poll=3600):
        for _ in range(2):  # idle before its first job, and idle again after it
            await spy.until(lambda: spy.calls["claim"] and spy.calls["watch"], "the first claim and wait")
            before = spy.calls["claim"]
            await (await f.options(priority=priority).enqueue()).result(timeout=30)
            assert spy.calls["claim"] - before <= 4
