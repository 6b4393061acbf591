"""Jobs that `rerun` and `fork` refuse, and that stay as they are."""

from __future__ import annotations

import pytest

from treadle import App, Retry, Stale, State, current
from treadle.policy.pauses import is_paused
from treadle.testing import HandClock, drain


async def test_an_open_child_out_of_reach_is_refused_before_anything_changes(app: App) -> None:
    @app.task(queue="theirs", retry=Retry(attempts=1))
    async def child() -> None:
        await current().sleep(1_000)

    @app.task(queue="mine", retry=Retry(attempts=1))
    async def parent() -> None:
        await current().call(child.job())

    job = await parent.enqueue()
    await drain(app)
    before = await app.jobs.get(job)
    assert before.state is State.WAITING
    with pytest.raises(Stale, match="an unfinished child of it is in a queue that this caller has no right to"):
        await app.jobs.within(("mine",)).rerun(job)
    after = await app.jobs.get(job)
    assert (after.state, after.version, is_paused(after)) == (before.state, before.version, False)
    await app.jobs.rerun(job)


@pytest.mark.parametrize("waits", ["delay", "after"])
async def test_a_job_that_has_not_begun_does_not_run_again(app: App, clock: HandClock, waits: str) -> None:
    ran = list[str]()

    @app.task
    async def note(name: str) -> None:
        ran.append(name)

    first = await note.options(delay=100).enqueue("first")
    job = first if waits == "delay" else await note.options(after=first).enqueue("second")
    for act in (app.jobs.rerun, app.jobs.fork):
        with pytest.raises(Stale, match="it has not begun: there is nothing to run again"):
            await act(job)
    await drain(app)
    assert ran == []
    clock.advance(101)
    await drain(app)
    assert ran == (["first"] if waits == "delay" else ["first", "second"])
    await app.jobs.rerun(job)
    await app.jobs.rerun(job)
    await drain(app)
    assert len(ran) == (2 if waits == "delay" else 3)
