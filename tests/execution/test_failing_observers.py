"""Listeners and `judged` hooks that raise, on every event and for every ending: the jobs end as they would without."""

from __future__ import annotations

import logging

import pytest

from tests.execution.run_endings import CASES, RETRY, SIZES
from tests.kit import work
from treadle import App, Event, Middleware, RunOutcome
from treadle.core.events import NAMES
from treadle.execution.context import Context
from treadle_testkit.shows import shows


class Stop(BaseException):
    """Not an Exception, as those that test frameworks and event loops raise."""


@pytest.mark.parametrize("name", CASES)
@shows("listeners and `judged` hooks that raise, on every event, change the end of no job")
async def test_a_failing_observer_changes_the_end_of_no_job(name: str, caplog: pytest.LogCaptureFixture) -> None:
    app, heard = App("memory://", retry=RETRY, sizes=SIZES), set[str]()

    def raises(event: Event) -> None:
        heard.add(event.name)
        raise Stop(event.name)

    async def raises_later(event: Event) -> None:
        raise SystemExit(event.name)

    app.on(*NAMES)(raises)
    app.on("*")(raises_later)

    @app.middleware
    class Broken(Middleware):
        def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
            raise Stop(outcome.name)

    make, calls = CASES[name]
    spec = make(app)
    async with app, work(app):
        [job] = await app.enqueue([spec])
        row = await job.ended(30)
    last = calls[-1].split()
    state, reason = ("failed", last[1]) if last[0] in ("failed", "expired") else ("succeeded", None)
    assert (row.state, row.reason) == (state, reason)
    assert heard >= {"worker.started", "enqueued", last[0], "worker.stopping", "worker.stopped"}
    logged = [each for each in caplog.records if each.name == "treadle" and each.levelno == logging.ERROR]
    assert {each.exc_info[0] for each in logged if each.exc_info} == {Stop, SystemExit}
