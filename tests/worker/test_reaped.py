"""A job of a dead worker is claimed again: followers, and the worker that claims it, report the dead worker's name."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit import Spy, Told, work
from treadle import App, Event
from treadle.core.model import Claim
from treadle.testing import HandClock
from treadle_testkit.shows import shows


@shows("`reaped` names the dead worker when another one takes its job back")
async def test_the_worker_that_takes_a_job_back_names_the_dead_one(app: App, told: Told, clock: HandClock) -> None:
    """Once for each lease that expired, and not again when the job is retried."""

    @app.task(name="f")
    async def f() -> str:
        return "done"

    job = await f.enqueue()
    for name in ("dead", "dead-too"):
        [_] = (await app.storage.claim(Claim(worker=f"{name}#1", lease=10))).records
        clock.advance(11)
    async with work(app):
        await told.until("succeeded")
    assert [(event.worker, event.id, event.task, event.attempt) for event in told.of("reaped")] == [
        ("dead-too", job.id, "f", 1)
    ]
    assert told.names("reaped", "started", "succeeded") == ["reaped", "started", "succeeded"]


async def test_a_job_that_came_back_otherwise_had_no_dead_worker(app: App, told: Told, clock: HandClock) -> None:
    """A failed attempt settles the job, which ends the matter of its earlier lease."""

    @app.task(name="f")
    async def f() -> None:
        raise ValueError("no")

    await f.enqueue()
    await app.storage.claim(Claim(worker="dead#1", lease=10))
    clock.advance(11)
    async with work(app):
        await told.until("retrying")
        clock.advance(3_600)
        await told.until("retrying", 2)
    assert len(told.of("reaped")) == 1


async def test_the_event_precedes_the_next_claim_of_the_job(
    app: App, spy: Spy, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.core.defaults.RESULT_POLL", 0.02)  # claims of others send no hint

    @app.task(name="f")
    async def f() -> str:
        return "done"

    job = await f.enqueue()
    events = App(storage=spy, clock=clock).events(everywhere=True)
    found: list[Event] = []
    async with asyncio.timeout(30):
        first = asyncio.ensure_future(anext(events))
        await spy.until(lambda: spy.calls["watch"], "the feed's first wait")
        await app.storage.claim(Claim(worker="dead#1", lease=10))
        found.append(await first)
        clock.advance(11)
        await app.storage.claim(Claim(worker="other#1", tasks={}))
        found.append(await anext(events))
        async with work(app):
            while found[-1].name != "succeeded":
                found.append(await anext(events))
    assert [(event.name, event.worker) for event in found[:2]] == [("started", "dead"), ("reaped", "dead")]
    assert {event.id for event in found} == {job.id}
    assert [event.name for event in found].count("reaped") == 1
    await events.aclose()  # type: ignore[attr-defined]
