"""Events of all processes, read from rows, in the order in which they happened; the last one always arrives."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.fixtures import LASTING, a_url
from tests.kit import Spy, work
from treadle import App, Event, Retry
from treadle.storage import connect
from treadle.testing import HandClock
from treadle_testkit.shows import shows


@pytest.fixture(autouse=True)
def reads_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every change sends a hint."""
    monkeypatch.setattr("treadle.core.defaults.RESULT_POLL", 0.02)


@shows("`app.events(everywhere=True)` yields the events of each job in their order")
async def test_another_process_receives_the_events_of_a_job_in_order(app: App, spy: Spy, clock: HandClock) -> None:
    go = asyncio.Event()

    @app.task(name="f", retry=Retry(attempts=1))
    async def f(n: int) -> int:
        await go.wait()
        if n == 1:
            raise RuntimeError("one is odd")
        return n

    watcher = App(storage=spy, clock=clock)
    before = await f.enqueue(0)
    events = watcher.events(everywhere=True)
    found: list[Event] = []
    async with asyncio.timeout(30):
        first = asyncio.ensure_future(anext(events))
        await spy.until(lambda: spy.calls["watch"], "the feed's first wait")
        jobs = [before, *(await app.enqueue([f.job(1), f.job(2)]))]
        found.append(await first)
        async with work(app):
            ends = set[str]()
            while len(ends) < 3:
                event = await anext(events)
                found.append(event)
                if event.name in ("succeeded", "failed"):
                    ends.add(event.id)
                elif event.name == "started":
                    go.set()
    names = {job.id: [event.name for event in found if event.id == job.id] for job in jobs}
    assert [each[-1] for each in names.values()] == ["succeeded", "failed", "succeeded"]
    assert "enqueued" not in names[before.id]  # it was stored before the feed began
    for story in names.values():
        assert story == [name for name in ("enqueued", "started", "failed", "succeeded") if name in story]
    assert "one is odd" in str(next(event.error for event in found if event.name == "failed"))
    await events.aclose()  # type: ignore[attr-defined]


async def test_new_jobs_are_reported_after_the_clock_was_ahead(app: App, spy: Spy, clock: HandClock) -> None:
    """A job was created an hour ahead. The feed still reports jobs created before that time, each once."""

    @app.task(name="f")
    async def f(n: int) -> None: ...

    await f.enqueue(0)
    clock.advance(3_600)
    ahead = await f.enqueue(1)
    events = App(storage=spy, clock=clock).events(everywhere=True)
    first = asyncio.ensure_future(anext(events))
    async with asyncio.timeout(30):
        await spy.until(lambda: spy.calls["watch"], "the feed's first wait")
        clock.moment -= 3_600
        sent = [await f.enqueue(2), await f.enqueue(3)]
        told = [await first, await anext(events)]
        clock.advance(1)
        sent.append(await f.enqueue(4))
        told.append(await anext(events))
    assert [(event.name, event.id) for event in told] == [("enqueued", job.id) for job in sent]
    assert ahead.id not in {event.id for event in told}


ELSEWHERE = """
import asyncio, sys
from treadle import App
from treadle.testing import drain

app = App(sys.argv[1])

@app.task(name="f")
async def f(n: int) -> int:
    return n * 2

async def main() -> None:
    async with app:
        await f.options(id="from-elsewhere").enqueue(21)
        await drain(app)

asyncio.run(main())
"""


@shows("a listener receives the events of a job that another process stored and ran")
@pytest.mark.parametrize("kind", LASTING)
async def test_a_listener_gets_the_events_of_a_job_of_another_process(kind: str, tmp_path: Path) -> None:
    with a_url(kind, tmp_path) as url:
        async with App(storage=(spy := Spy(connect(url)))) as app:
            events, found = app.events(everywhere=True), list[Event]()
            first, mark = asyncio.ensure_future(anext(events)), app.task(name="mark")(anything)
            async with asyncio.timeout(30):
                await spy.until(lambda: spy.calls["watch"], "the feed's first wait")
                await mark.enqueue()
                found.append(await first)
                other = await asyncio.create_subprocess_exec(sys.executable, "-c", ELSEWHERE, url)
                while found[-1].name != "succeeded":
                    found.append(await anext(events))
                assert await other.wait() == 0
            assert found[-1].id == "from-elsewhere"
            assert {event.task for event in found} == {"mark", "f"}
            await events.aclose()  # type: ignore[attr-defined]


async def anything() -> None: ...
