"""Calls that are repeated count up to a bound: none of them calls `stats`, which reads every row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kit import Spy
from treadle import App
from treadle.admin.explain import MOST_AHEAD, Facts, explain
from treadle.admin.storage_move import _running
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Presence, Record
from treadle.core.query_model import Glance, Query
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.shows import shows


@pytest.fixture
def spy(clock: HandClock) -> Spy:
    return Spy(MemoryStorage(clock))


async def filled(spy: Spy, clock: HandClock) -> tuple[App, list[Record]]:
    """An app whose storage has a running, a queued and a blocked job."""
    app = App(storage=spy, clock=clock)

    @app.task(name="t", limits=["one"])
    async def t() -> None: ...

    await app.limits.set(Limit("one", slots=1))
    await app.enqueue(t.job() for _ in range(3))
    await app.storage.heartbeat(Presence(worker="w", queues=("default",), tasks=("t",), slots=4), [], 30)
    await app.storage.claim(Claim(worker="w#1", limit=1))
    rows = list((await app.storage.find(Query(order="oldest"))).records)
    spy.calls.clear()
    return app, rows


LOOKS: dict[str, Callable[[App, str], Awaitable[Any]]] = {
    "explain": lambda app, id: app.jobs.explain(id),
    "position": lambda app, id: app.jobs.position(id),
    "a list of jobs": lambda app, id: app.jobs.list(),
    "a list that finds nothing": lambda app, id: app.jobs.list(task="no.such"),
    "the limits": lambda app, id: app.limits.list(),
    "the schedules": lambda app, id: app.schedules.list(),
    "the queues": lambda app, id: app.queues.glance(),
    "the running jobs of a move": lambda app, id: _running(app.storage),
}


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_does_not_count_every_row(spy: Spy, clock: HandClock, name: str) -> None:
    app, rows = await filled(spy, clock)
    async with app:
        for row in rows:
            await LOOKS[name](app, row.id)
    assert spy.calls
    assert spy.calls["stats"] == 0


async def test_the_events_of_all_processes_do_not_count_every_row(spy: Spy, clock: HandClock) -> None:
    app, _ = await filled(spy, clock)
    async with app:
        events = app.events(everywhere=True)
        first = asyncio.ensure_future(anext(events))
        await spy.until(lambda: spy.calls["watch"], "the feed watches")
        await app.enqueue(app.tasks["t"].job())
        assert (await first).name == "enqueued"
        await events.aclose()
    assert spy.calls["glance"] >= 1
    assert spy.calls["stats"] == 0


@shows("`explain` says that at least 10,000 jobs are ahead where it counts no further")
async def test_more_jobs_are_ahead_than_are_counted(spy: Spy, clock: HandClock) -> None:
    app, rows = await filled(spy, clock)
    async with app:
        seen = Glance(at=clock(), workers=(Presence(worker="w", queues=("default",), tasks=("t",), slots=4),))
        assert "behind 10,000+ jobs in queue 'default'" in explain(
            Facts(row=rows[1], ahead=MOST_AHEAD, glance=seen, now=clock())
        )
        assert "behind 9,999 jobs in queue" in explain(
            Facts(row=rows[1], ahead=MOST_AHEAD - 1, glance=seen, now=clock())
        )


async def test_a_position_is_counted_up_to_a_bound(spy: Spy, clock: HandClock) -> None:
    app = App(storage=spy, clock=clock)

    @app.task(name="plain")
    async def plain() -> None: ...

    async with app:
        *_, last = await app.enqueue(plain.job() for _ in range(6))
        assert await app.jobs.position(last) == 5
        assert await app.jobs.position(last, most=3) == 3
        with pytest.raises(ValueError, match="at least 1"):
            await app.jobs.position(last, most=0)
