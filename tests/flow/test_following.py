"""Events of all processes, read from rows; the order of the story is kept, and its end is always told."""

from __future__ import annotations

import asyncio

from tests.engine.kit import Spy, work
from treadle import App, Event, Retry
from treadle.testing import HandClock


async def test_another_process_sees_what_becomes_of_jobs(app: App, spy: Spy, clock: HandClock) -> None:
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
        while spy.calls["watch"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
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
    assert "enqueued" not in names[before.id]  # it was there before
    for story in names.values():
        assert story == [name for name in ("enqueued", "started", "failed", "succeeded") if name in story]
    assert "one is odd" in str(next(event.error for event in found if event.name == "failed"))
    await events.aclose()  # type: ignore[attr-defined]
