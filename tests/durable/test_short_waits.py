"""Waits that take less time than a suspension and a wake: the run keeps its slot and its memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.durable.kit import Ledger
from tests.fixtures import KINDS, a_storage
from tests.kit import Told
from treadle import App, Retry, Worker, current
from treadle.durable.pending import Pending
from treadle.durable.short_waits import LONGEST, OF_ENTRY, ShortWaits
from treadle_testkit.shows import shows

SHORT = 0.004


@pytest.fixture(params=KINDS)
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    """An app on the clock of the machine."""
    with a_storage(request.param, tmp_path) as storage:
        async with App(storage=storage) as app:
            yield app


async def keys(app: App, job: Any) -> list[str]:
    return [name for name, _ in (await app.jobs.get(job)).checkpoints if not name.startswith("treadle:")]


@shows("a short sleep or wait is an entry like each other one, and the run continues in memory")
async def test_short_waits_of_a_coroutine_stay_in_its_run(live: App, ledger: Ledger) -> None:
    runs: list[int] = []

    @live.task
    async def loop() -> str:
        runs.append(1)
        here = current()
        await here.sleep(SHORT)
        one = await here.step("one", ledger.do, "one")
        with pytest.raises(TimeoutError):
            await here.wait_for("news", timeout=SHORT)
        await asyncio.gather(here.sleep(SHORT, name="a"), here.sleep(2 * SHORT, name="b"))
        winner, _ = await here.first(news=here.receive("more"), late=here.sleep(SHORT, name="late"))
        return f"{one} {winner} {await here.step('two', ledger.do, 'two')}"

    told = Told(live)
    async with Worker(live, concurrency=1):
        job = await loop.enqueue()
        assert await job.result(60) == "one 1 late two 1"
    assert len(runs) == 1
    assert "deferred" not in [event.name for event in told.events]
    order = ["sleep:sleep", "one", "wait:news", "sleep:a", "sleep:b", "sleep:late", "first", "two"]
    assert sorted(await keys(live, job)) == sorted(order)


async def test_short_waits_of_a_thread_stay_in_its_run(live: App, ledger: Ledger) -> None:
    runs: list[int] = []

    @live.task
    def loop() -> str:
        runs.append(1)
        here = current().sync
        here.sleep(SHORT)
        with pytest.raises(TimeoutError):
            here.wait_for("news", timeout=SHORT)
        return here.step("one", ledger.plain, "one")

    async with Worker(live, concurrency=1):
        job = await loop.enqueue()
        assert await job.result(60) == "one 1"
    assert len(runs) == 1
    assert sorted(await keys(live, job)) == sorted(["sleep:sleep", "wait:news", "one"])


async def test_a_step_whose_next_try_is_due_at_once_stays_in_its_run(live: App, ledger: Ledger) -> None:
    runs: list[int] = []
    retry = Retry(attempts=4, base=SHORT, factor=1, jitter=0)
    ledger.fail["one"] = ledger.fail["two"] = 2

    @live.task
    async def loop() -> str:
        runs.append(1)
        return await current().step.options(retry=retry)("one", ledger.do, "one")

    @live.task
    def thread() -> str:
        runs.append(1)
        return current().sync.step.options(retry=retry)("two", ledger.plain, "two")

    async with Worker(live, concurrency=2):
        jobs = await live.enqueue(loop.job(), thread.job())
        assert [await job.result(60) for job in jobs] == ["one 3", "two 3"]
    assert len(runs) == 2


async def test_a_worker_that_stops_does_not_wait_for_them(live: App) -> None:
    runs: list[int] = []

    @live.task
    async def loop() -> str:
        runs.append(1)
        if len(runs) == 1:
            stops.append(asyncio.create_task(worker.stop()))
            await stopping.wait()
        await current().sleep(SHORT)
        return "awake"

    stops: list[asyncio.Task[None]] = []
    stopping = asyncio.Event()
    live.on("worker.stopping")(lambda _: stopping.set())
    async with Worker(live, concurrency=1) as worker:
        job = await loop.enqueue()
        await stopping.wait()
        await stops[0]
    assert len(runs) == 1
    async with Worker(live, concurrency=1):
        assert await job.result(60) == "awake"
    assert len(runs) == 2


def test_a_wait_is_short_if_it_takes_less_than_a_wake() -> None:
    entries: dict[str, int] = {}

    def fits(seconds: float, keeps: bool = True) -> bool:
        run = SimpleNamespace(
            latest_moment=lambda: 100.0,
            checkpoints=SimpleNamespace(entries=entries),
            backend=SimpleNamespace(keeps=lambda _: keeps),
            run=None,
        )
        return ShortWaits(cast("Any", run)).fits(Pending(until=100.0 + seconds))

    assert fits(LONGEST - 0.001)
    assert not fits(LONGEST - 0.001, keeps=False)
    assert not fits(LONGEST + 0.001)
    entries.update({f"s#{n}": n for n in range(1_000)})
    assert fits(LONGEST + 1_000 * OF_ENTRY - 0.001)
    assert not fits(LONGEST + 1_000 * OF_ENTRY + 0.001)
