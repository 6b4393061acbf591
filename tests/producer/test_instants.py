"""`run_at`, `deadline`, `delay` and `expires` of a producer whose clock is wrong, on every storage and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fixtures import KINDS, a_storage
from tests.served import memory_url
from treadle import App
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

HOUR = 3_600.0


@pytest.fixture
def clock() -> HandClock:
    """The storage's clock."""
    return HandClock()


@pytest.fixture(params=[*KINDS, "http"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> Iterator[Storage]:
    if request.param == "http":
        yield HttpStorage(memory_url(clock, elsewhere=True))
    else:
        with a_storage(request.param, tmp_path, clock) as storage:
            yield storage


def at(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


@pytest.mark.parametrize("wrong", [-HOUR, HOUR])
@shows("a start time and a deadline are instants, also if the clock of the producer is an hour wrong")
async def test_the_clock_of_the_storage_decides(storage: Storage, clock: HandClock, wrong: float) -> None:
    now = clock.moment
    async with App(storage=storage, clock=HandClock(now + wrong)) as producer:

        @producer.task(name="t")
        async def t(n: int) -> None: ...

        with_options = t.options(run_at=at(now + 600), deadline=at(now + 900))
        alone = await with_options.enqueue(1)
        many = await producer.enqueue([with_options.job(2), t.options(run_at=at(now - 5)).job(3)])
        spans = await t.options(delay=600, expires=900).enqueue(4)
        rows = [await producer.jobs.get(job) for job in (alone, many[0], spans)]
    for row in rows:
        assert row is not None
        assert row.due_at == pytest.approx(now + 600)
        assert row.deadline_at == pytest.approx(now + 900)
    async with App(storage=storage, clock=clock) as producer:
        past = await producer.jobs.get(many[1])
        assert past is not None
        assert past.queue_position == pytest.approx(now)


async def test_a_task_returns_jobs_for_an_instant(tmp_path: Path, clock: HandClock) -> None:
    """The jobs of a workflow are stored by a worker, whose clock may be wrong as well."""
    now = clock.moment
    with a_storage("memory", tmp_path, clock) as storage:
        async with App(storage=storage, clock=HandClock(now + HOUR)) as app:

            @app.task
            async def child() -> None: ...

            @app.task
            async def parent() -> object:
                return child.options(run_at=at(now + 600)).job()

            await parent.enqueue()
            await drain(app)
            [row] = [row async for row in app.jobs.iterate(status="scheduled")]
    assert row.due_at == pytest.approx(now + 600)
