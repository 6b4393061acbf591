"""Workers measure their jobs: every ending is counted once, and storing the numbers never disturbs a job."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.kit import Spy, Told, work
from treadle import App, Defer, Retry, Worker
from treadle.core.model import Claim
from treadle.metrics import Totals
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle.worker import maintenance
from treadle.worker.maintenance import MetricsFolder
from treadle_testkit.shows import shows


async def totals(app: App) -> dict[str, Totals]:
    return await app.metrics.totals("task")


@shows("a worker stores how many of its jobs ended and how, also of its last seconds")
async def test_every_ending_is_counted(app: App, told: Told, clock: HandClock) -> None:
    @app.task(name="ok")
    async def ok(n: int) -> int:
        return n

    @app.task(name="bad", retry=Retry(attempts=2, base=0.0))
    async def bad() -> None:
        raise ValueError("no")

    @app.task(name="later")
    async def later() -> None:
        raise Defer(3_600)

    await app.enqueue([*(ok.job(n) for n in range(30)), bad.job(), later.job()])
    async with work(app):
        await told.until("succeeded", 30)
        await told.until("failed")
        await told.until("deferred")
    found = await totals(app)
    counts = {name: (each.succeeded, each.failed, each.retried, each.other) for name, each in found.items()}
    assert counts == {"ok": (30, 0, 0, 0), "bad": (0, 1, 1, 0), "later": (0, 0, 0, 1)}
    assert found["ok"].sampled


async def test_run_and_wait_are_measured(app: App, clock: HandClock) -> None:
    @app.task(name="slow")
    async def slow() -> None:
        clock.advance(5)

    job = await slow.enqueue()
    clock.advance(40)
    async with work(app):
        await job.ended(timeout=10)
    found = (await totals(app))["slow"]
    assert found.run.p50 == pytest.approx(5, rel=0.12)
    assert found.wait.p50 == pytest.approx(40, rel=0.12)


async def test_a_job_of_a_dead_worker_is_counted_as_retried(app: App, clock: HandClock) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    job = await f.enqueue()
    await app.storage.claim(Claim(worker="dead#1", lease=10))
    clock.advance(11)
    async with work(app):
        await job.ended(timeout=10)
    found = (await totals(app))["f"]
    assert (found.succeeded, found.retried) == (1, 1)


async def test_batches_and_inline_jobs_are_counted_and_treadles_own_are_not(app: App) -> None:
    @app.task(name="single")
    async def single(n: int) -> None: ...

    @app.cron("0 3 * * *", name="nightly")
    async def nightly() -> None: ...

    @app.batch(name="many", size=10, max_wait=0.01)
    async def many(items: list[int]) -> list[int]:
        return items

    job = await single.options(inline=True).enqueue(1)
    await job.ended(timeout=10)
    await app._core.inline.stop()
    async with work(app):
        for each in await app.enqueue([many.job(n) for n in range(5)]):
            await each.ended(timeout=10)
    assert {name: each.succeeded for name, each in (await totals(app)).items()} == {"single": 1, "many": 5}


async def test_without_metrics_nothing_is_stored(app: App, spy: Spy) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    job = await f.enqueue()
    async with work(app, metrics=False):
        await job.ended(timeout=10)
    assert spy.calls["store_metrics"] == 1  # the mark of the storage, see `admin.emptied`
    assert await totals(app) == {}


async def test_an_idle_worker_stores_nothing(app: App, spy: Spy) -> None:
    async with work(app):
        await spy.until(lambda: spy.calls["claim"] > 2, "claims")
    assert spy.calls["store_metrics"] == 1  # the mark of the storage, see `admin.emptied`


@shows("metrics that cannot be stored are logged once and stored later; jobs are not affected")
async def test_a_storage_that_refuses_metrics_disturbs_no_job(
    clock: HandClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(MemoryStorage):
        refuses, stored = True, asyncio.Event()
        tries = 0

        async def store_metrics(self, rows: object, remove: object = ()) -> None:  # type: ignore[override]
            self.tries += 1
            if self.refuses:
                raise RuntimeError("it has no place for metrics")
            await super().store_metrics(rows, remove)  # type: ignore[arg-type]
            self.stored.set()

    monkeypatch.setattr("treadle.core.defaults.METRICS_EVERY", 0.01)
    storage = Refusing(clock)
    async with App(storage=storage, clock=clock) as app:

        @app.task(name="f")
        async def f() -> str:
            return "done"

        async with work(app):
            for _ in range(3):
                assert await (await f.enqueue()).result(timeout=10) == "done"
            storage.refuses = False
            await f.enqueue()
            async with asyncio.timeout(30):
                await storage.stored.wait()
        assert (await totals(app))["f"].succeeded == 4
    said = [record for record in caplog.records if "could not store metrics" in record.getMessage()]
    assert len(said) <= 1
    assert all(record.levelno == logging.WARNING for record in said)


@shows("minutes of all workers become ten minutes, then hours, and are deleted after 90 days")
async def test_the_leader_folds_old_metrics(
    app: App, clock: HandClock, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PAUSE", 0)

    @app.task(name="f")
    async def f() -> None: ...

    for name in ("one", "two"):
        job = await f.enqueue()
        async with Worker(app, name=name, poll=0.01):
            await job.ended(timeout=10)
    rows = await app.storage.read_metrics(0, clock() + 60)
    assert {row.source.partition("#")[0] for row in rows} == {"one", "two"}
    folder, spans = MetricsFolder(app.storage, lambda: True), list[list[tuple[float, str]]]()
    for pause in (2.5 * 3_600, 4 * 86_400, 91 * 86_400):
        clock.advance(pause)
        await folder.once()
        rows = await app.storage.read_metrics(0, clock() + 60)
        spans.append([(row.span, row.source) for row in rows])
        if rows:
            found = await app.metrics.totals("task", since=0, until=clock() + 60)
            assert found["f"].succeeded == 2
    assert spans == [[(600.0, "")], [(3_600.0, "")], []]


async def test_jobs_on_both_sides_of_a_minute_are_counted(app: App, told: Told, clock: HandClock) -> None:
    @app.task(name="f")
    async def f() -> None:
        clock.advance(60)

    start = clock()
    # One job at a time: then no claim is on its way while the clock moves, which would claim the next job in the old
    # minute.
    async with work(app, concurrency=1):
        for number in range(1, 4):
            await f.enqueue()
            await told.until("succeeded", number)  # the worker counts before it emits; the storage knows earlier
    found = await app.metrics.read(since=start - 60, until=clock() + 60, step=60)
    assert [n for n in found.succeeded if n] == [1, 1, 1]


async def test_a_worker_that_is_started_again_under_its_name_replaces_nothing(app: App) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    for _ in range(2):
        async with work(app, name="w"):
            await (await f.enqueue()).ended(timeout=10)
    assert (await totals(app))["f"].succeeded == 2
