"""Batch tasks when calls of the storage fail or lose their answers: every item ends once, with its own result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle import App, Retry, State, Worker
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.faults import Fault, Faulty, before, bursts, lost, twice
from treadle_testkit.shows import shows

AT_ONCE = Retry(base=0.001, max=0.001)


@pytest.fixture(params=["memory", "sqlite"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    return connect(url, now=HandClock())


async def play(storage: Faulty, workers: int) -> None:
    """Run 40 items in batches by key; every fourth one fails, alone."""
    app, ran = App(storage=storage, random=lambda: 0.0), Counter[int]()

    @app.batch(size=5, max_wait=0.005, by=lambda n: n % 2, retry=Retry(attempts=2, base=0))
    async def double(numbers: list[int]) -> list[int | Exception]:
        assert len({n % 2 for n in numbers}) == 1
        ran.update(numbers)
        await asyncio.sleep(0)
        return [ValueError(n) if n % 4 == 0 and ran[n] == 1 else 2 * n for n in numbers]

    async with app:
        specs = [double.job(n) for n in range(40)]
        crew = [Worker(app, concurrency=4, poll=0.01, recovery=AT_ONCE, grace=5) for _ in range(workers)]
        for worker in crew:
            await worker.start()
        while True:
            try:
                jobs = await app.enqueue(specs)
                break
            except ConnectionError:
                continue
        rows = [await job.ended(30) for job in jobs]
        for worker in crew:
            await worker.stop()
    assert [(row.state, row.result) for row in rows] == [(State.SUCCEEDED, str(2 * n)) for n in range(40)]
    assert [(row.attempt, row.lost) for row in rows] == [(2 if n % 4 == 0 else 1, 0) for n in range(40)]
    assert ran == {n: 2 if n % 4 == 0 else 1 for n in range(40)}


@shows("each item of a batch runs as often as it should when a storage call fails, loses its answer or is repeated")
@pytest.mark.parametrize("how", [before, lost, twice])
@pytest.mark.parametrize("call", range(1, 9))
async def test_jobs_end_once_although_one_call_fails(
    inner: Storage, call: int, how: Callable[..., list[Fault]]
) -> None:
    async with asyncio.timeout(30):
        await play(Faulty(inner, how("settle_claim", call)), 1)


@shows("each item of a batch runs as often as it should during bursts of storage errors")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(6))
async def test_items_run_as_often_as_they_should_during_bursts_of_errors(
    inner: Storage, seed: int, workers: int
) -> None:
    async with asyncio.timeout(60):
        await play(Faulty(inner, bursts(seed, verbs=("settle_claim", "heartbeat"))), workers)
