"""Bounded queues as an app sees them: calls that are refused or shed others, workflows, schedules and the outbox."""

from __future__ import annotations

import logging

import pytest

from treadle import App, BadOption, Limit, QueueFull, chain, flow
from treadle.core.model import State
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


async def test_a_full_queue_refuses_calls(app: App) -> None:
    """Many jobs in one call are stored all or none, and a workflow with them."""

    @app.task(queue="mail")
    async def send(to: str) -> str:
        return to

    app.limits.declare(Limit("queue:mail", max_waiting=2))
    await app.limits.store()
    await send.enqueue("a")
    with pytest.raises(QueueFull) as caught:
        await app.enqueue([send.options(priority=1).job("b"), send.job("c")])
    assert (caught.value.queue, caught.value.waiting, caught.value.asked) == ("mail", 1, 2)
    assert "queue 'mail' has no room for 2 jobs: 1 wait, max_waiting is 2" in str(caught.value)
    with pytest.raises(QueueFull):
        await flow(send.job("b"), send.job("c")).enqueue()
    assert len((await app.jobs.list()).records) == 1
    chained = await chain(send.job("b"), send.job("x"), pass_result=False).enqueue()  # the second waits for the first
    await drain(app)
    assert await chained.result(timeout=5) == "x"


async def test_odd_bounds_are_refused(app: App) -> None:
    for rule in (
        Limit("api", max_waiting=1),
        Limit("queue:q", max_waiting=0),
        Limit("queue:q", when_full="drop_oldest"),
    ):
        with pytest.raises(BadOption):
            app.limits.declare(rule)
        with pytest.raises(BadOption):
            await app.limits.set(rule)
    with pytest.raises(BadOption, match="expected one of 'refuse', 'drop_oldest', 'drop_lowest'"):
        await app.limits.set(Limit("queue:q", max_waiting=5, when_full="newest"))  # type: ignore[arg-type]


@shows("a tick that a full queue refuses is counted, logged, and the schedule continues", area="Limits")
async def test_a_refused_tick_is_counted_and_the_schedule_continues(
    app: App, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="reports")
    async def report() -> None: ...

    await app.limits.set(Limit("queue:reports", max_waiting=1))
    await app.schedules.upsert("often", report.job(), every=60, catch_up="all")
    await app.queues.pause("reports")
    clock.advance(61)
    await drain(app)
    [shown] = await app.schedules.list()
    assert (shown.refused, shown.error) == (0, None)
    clock.advance(60)
    with caplog.at_level(logging.WARNING, "treadle"):
        await drain(app)
    [shown] = await app.schedules.list()
    assert shown.refused == 1
    assert "queue 'reports' has no room" in (shown.error or "")
    assert "a tick was refused" in caplog.text
    await app.limits.set(Limit("queue:reports", max_waiting=1, when_full="drop_oldest"))
    clock.advance(60)
    await drain(app)
    [shown] = await app.schedules.list()
    assert (shown.refused, shown.error) == (1, None)
    states = sorted(found.state for found in (await app.jobs.list(queue="reports")).records)
    assert states == [State.CANCELLED, State.READY]
