"""Children that no wait of their parent names any more end with it, however it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import Ledger
from tests.kit import Told, work
from treadle import App, JobFailed, Key, Retry, Stale, State, current
from treadle.policy.cleanups import cleanup_id, is_cleanup
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)
DAY = 86_400
LATE = 200 * DAY  # later than the deadline of a parent, which a child has otherwise


class Family:
    """A child that ends at once, one that sleeps for months, and parents that wait for the first of them only."""

    def __init__(self, app: App, ledger: Ledger) -> None:
        self.app, self.ledger = app, ledger
        self.quick = app.task(name="quick", retry=ONCE)(self._quick)
        self.slow = app.task(name="slow", retry=ONCE, expires=LATE)(self._slow)

    async def _quick(self) -> str:
        return self.ledger.plain("quick")

    async def _slow(self, number: int) -> None:
        here = current()
        try:
            await here.sleep(100 * DAY)
        finally:
            await here.step("close", self.ledger.plain, f"close {number}")

    async def left_loop(self) -> None:
        jobs = [self.slow.job(1), self.quick.job(), self.slow.job(2)]
        async for done in current().as_completed(jobs):
            assert done.index == 1
            return

    def left_loop_here(self) -> None:
        for done in current().sync.as_completed([self.slow.job(1), self.quick.job(), self.slow.job(2)]):
            assert done.index == 1
            return

    async def both(self) -> None:
        here = current()
        await asyncio.gather(here.call(self.slow.job(1)), here.call(self.quick.job()))

    async def failed_branch(self) -> None:
        """The other branches of `gather` wait on when it has raised the error of the first."""
        here = current()
        try:
            await asyncio.gather(
                here.step("no", self.no),
                here.call(self.slow.job(1)),
                here.map([self.slow.job(2)]),
                return_exceptions=False,
            )
        except ValueError:
            await here.step("caught", self.ledger.plain, "caught")

    def no(self) -> None:
        raise ValueError("no")

    async def kept(self) -> None:
        here = current()
        won, _ = await here.first(
            keep=True, a=here.call(self.slow.job(1)), b=here.call(self.quick.job()), c=here.map([self.slow.job(2)])
        )
        assert won == "b"

    async def states(self) -> list[State]:
        rows = (await self.app.jobs.list(task="slow", order="oldest")).records
        return [row.state for row in rows if not is_cleanup(row.job)]


@pytest.fixture
def family(app: App, ledger: Ledger) -> Family:
    return Family(app, ledger)


ENDINGS = (
    "succeeds",
    "fails",
    "cancelled",
    "cancelled by a filter",
    "forced",
    "expires",
    "superseded",
    "with its parent",
)


def parent_of(app: App, leave: Any, is_sync: bool, fails: bool) -> Any:
    """A task that leaves children, sleeps for a day, and ends."""

    async def parent() -> None:
        await leave()
        await current().sleep(DAY)
        if fails:
            raise RuntimeError("late")

    def parent_here() -> None:
        leave()
        current().sync.sleep(DAY)
        if fails:
            raise RuntimeError("late")

    return app.task(name="parent", retry=ONCE)(parent_here if is_sync else parent)


OPTIONS: dict[str, dict[str, Any]] = {"expires": {"expires": 2 * DAY}, "superseded": {"key": Key("k", "replace")}}


async def ended(app: App, clock: HandClock, family: Family, leave: Any, ending: str) -> None:
    """Run a job that leaves children and ends in this way. Its children are open until then."""
    task = parent_of(app, leave, leave == family.left_loop_here, ending == "fails")
    above = app.task(name="above", retry=ONCE)(task.job)
    root = await (above if ending == "with its parent" else task.options(**OPTIONS.get(ending, {}))).enqueue()
    await drain(app)
    assert await family.states() == [State.READY, State.READY]
    [job] = [row for row in (await app.jobs.list(task="parent")).records if not is_cleanup(row.job)]
    match ending:
        case "expires":
            await app.jobs.pause(job)
            clock.advance(2 * DAY + 1)
        case "superseded":
            other = await task.options(**OPTIONS[ending]).enqueue()
            await app.jobs.cancel(other, force=True)
        case "cancelled by a filter":
            await app.jobs.cancel(task="parent")
        case "cancelled" | "forced" | "with its parent":
            await app.jobs.cancel(root, force=ending == "forced")
        case _:
            clock.advance(DAY + 1)
    await drain(app)
    assert (await app.jobs.get(job)).state.final


@shows("children that no wait names any more are cancelled with their parent, however that ends")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("leave", ["left_loop", "left_loop_here", "failed_branch"])
async def test_left_children_end_with_their_parent(
    app: App, clock: HandClock, family: Family, leave: str, ending: str
) -> None:
    if ending == "superseded" and leave == "failed_branch":
        pytest.skip("a job that waits in its run is not superseded")
    await ended(app, clock, family, getattr(family, leave), ending)
    assert await family.states() == [State.CANCELLED, State.CANCELLED]
    closed = int(ending != "forced")
    assert (family.ledger.function_done["close 1"], family.ledger.function_done["close 2"]) == (closed, closed)


@shows("a child that lost a race with `keep=True` continues, however its parent ends")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_kept_children_continue(app: App, clock: HandClock, family: Family, ending: str) -> None:
    await ended(app, clock, family, family.kept, ending)
    assert await family.states() == [State.READY, State.READY]


async def test_children_that_are_left_alone_by_request(app: App, family: Family) -> None:
    """`tree=False` cancels the job only."""

    @app.task(retry=ONCE)
    async def parent() -> None:
        await family.left_loop()
        await current().sleep(DAY)

    job = await parent.enqueue()
    await drain(app)
    await app.jobs.cancel(job, tree=False)
    await drain(app)
    assert await family.states() == [State.READY, State.READY]


async def test_the_error_of_a_branch_that_leaves_the_function_ends_the_others(app: App, family: Family) -> None:
    """The first try of an attempt leaves the child to the next one; only the ending of the job ends it."""
    family.ledger.fail["fail"] = 2

    @app.task(retry=Retry(attempts=2, base=60))
    async def parent() -> None:
        here = current()
        await asyncio.gather(here.call(family.slow.job(1)), _later(here))

    async def _later(here: Any) -> None:
        await here.call(family.quick.job())
        await here.step("fail", family.ledger.plain, "fail")

    job = await parent.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).attempt == 1
    assert await family.states() == [State.READY]
    await app.jobs.run_now(job)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert await family.states() == [State.CANCELLED]
    assert family.ledger.function_done["close 1"] == 1


async def test_a_failed_child_ends_its_siblings_and_a_retry_calls_others(app: App, family: Family) -> None:
    family.ledger.fail["quick"] = 1

    job = await app.task(retry=ONCE)(family.both).enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert await family.states() == [State.CANCELLED]
    assert await app.jobs.retry(job) == 1
    await drain(app)
    assert await family.states() == [State.CANCELLED, State.READY]


async def test_a_job_that_has_left_no_open_child_has_no_cleanup(app: App, family: Family) -> None:
    @app.task(retry=ONCE)
    async def parent() -> None:
        here = current()
        async for done in here.as_completed([family.quick.job(), family.quick.job()]):
            done.result()
        await here.first(a=here.call(family.slow.job(1)), b=here.call(family.quick.job()))
        raise RuntimeError

    job = await parent.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, row.reason) == (State.FAILED, "error")
    assert [one for one in (await app.jobs.list(task=parent.name)).records if is_cleanup(one.job)] == []
    assert await family.states() == [State.CANCELLED]


@shows("the children of a round end when the job is run again or restarts")
@pytest.mark.parametrize("how", ["rerun", "restart"])
async def test_left_children_end_with_their_round(app: App, clock: HandClock, family: Family, how: str) -> None:
    @app.task(retry=ONCE)
    async def parent(again: bool = True) -> None:
        if not again:
            return
        here = current()
        await here.step("before", family.ledger.plain, "before")
        await family.left_loop()
        await here.sleep(DAY)
        await here.restart(False)

    job = await parent.enqueue()
    await drain(app)
    if how == "rerun":
        await app.jobs.rerun(job, from_step="before")
    else:
        clock.advance(DAY + 1)
    await drain(app)
    states = await family.states()
    assert states == [State.CANCELLED] * 2 + ([State.READY] * 2 if how == "rerun" else [])


async def test_a_running_parent_that_is_cancelled(app: App, told: Told, family: Family) -> None:
    began = asyncio.Event()

    @app.task(retry=ONCE, timeout=4)  # the cleanup awaits the event for half of it
    async def parent() -> None:
        await family.left_loop()
        began.set()
        await asyncio.Event().wait()

    async with work(app, lease=0.6):  # its next heartbeat finds the cancellation, and the clock stands still
        job = await parent.enqueue()
        await began.wait()
        await app.jobs.cancel(job)
        await told.until("succeeded", id=cleanup_id(job.id, 0))
    await drain(app)
    assert (family.ledger.function_done["close 1"], family.ledger.function_done["close 2"]) == (1, 1)


async def test_a_retry_waits_until_the_children_have_been_cancelled(app: App, family: Family) -> None:
    """A child that the next run awaits must not be cancelled because of the ending before."""
    family.ledger.fail["quick"] = 1

    job = await app.task(retry=ONCE)(family.both).enqueue()
    for error in (ValueError, JobFailed):
        with pytest.raises(error):
            await drain(app, raise_errors=True)
    assert (await app.jobs.get(job)).state is State.FAILED
    with pytest.raises(Stale, match="its cleanup has not ended"):
        await app.jobs.retry(job)


async def test_a_loop_that_was_left_behind_one_that_was_not(app: App, family: Family) -> None:
    """After a rerun the history has the endings of the first loop, whose children had ids of another round."""

    @app.task(name="fast", retry=ONCE)
    async def fast() -> None: ...

    @app.task(retry=ONCE)
    async def parent() -> None:
        here = current()
        async for done in here.as_completed([fast.job(), family.quick.job()]):
            done.result()
        await here.step("between", family.ledger.plain, "between")
        async for _ in here.as_completed([family.slow.job(1), family.quick.job()]):
            break
        await here.sleep(DAY)

    job = await parent.enqueue()
    await drain(app)
    await app.jobs.rerun(job, from_step="between")
    await drain(app)
    assert family.ledger.function_done["between"] == 2
    assert await family.states() == [State.CANCELLED, State.READY]
    await app.jobs.cancel(job)
    await drain(app)
    assert await family.states() == [State.CANCELLED, State.CANCELLED]
