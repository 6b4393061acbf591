"""A durable job that does not succeed is cleaned up after: its undos run, and its function goes on where it ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger
from tests.kit import Told, work
from treadle import Abort, App, JobCancelled, JobExpired, Key, Retry, State, current
from treadle.policy.cleanups import cleanup_id, is_cleanup
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)
DAY = 86_400


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


class Trip:
    """Books a flight and a hotel, each with its undo, and then does as the test says."""

    def __init__(self, app: App, ledger: Ledger, kind: str = "async", then: Any = None, **options: Any) -> None:
        self.ledger, self.then, self.log = ledger, then, list[str]()
        options = {"retry": ONCE, **options}
        self.task: Any = app.task(name="trip", **options)(self._async if kind == "async" else self._thread)

    def do(self, what: str) -> str:
        self.log.append(what)
        return self.ledger.plain(what)

    async def _async(self) -> str:
        here = current()
        for what in ("flight", "hotel"):
            here.on_undo(self.do, f"cancel {what}")
            await here.step(f"book:{what}", self.do, f"book {what}")
        if self.then is not None:
            await self.then()
        return "booked"

    def _thread(self) -> str:
        here = current()
        for what in ("flight", "hotel"):
            here.on_undo(self.do, f"cancel {what}")
            here.sync.step(f"book:{what}", self.do, f"book {what}")
        if self.then is not None:
            self.then()
        return "booked"


UNDONE = ["book flight", "book hotel", "cancel hotel", "cancel flight"]


async def cleanup(app: App, job: Any, reopenings: int = 0) -> Any:
    return await app.jobs.get(cleanup_id(job.id, reopenings))


# --- undos


@shows("the undos of a job that fails run in reverse, each once")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_undos_run_in_reverse_after_a_failure(app: App, ledger: Ledger, kind: str) -> None:
    trip = Trip(app, ledger, kind)
    ledger.fail["book hotel"] = 1
    job = await trip.task.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert trip.log == UNDONE
    row = await cleanup(app, job)
    assert (row.state, row.job.parent, row.job.queue) == (State.SUCCEEDED, job.id, (await app.jobs.get(job)).job.queue)
    assert [name for name, _ in row.checkpoints if not name.startswith("treadle:")] == ["undo:2:do", "undo:1:do"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_job_that_succeeds_undoes_nothing(app: App, ledger: Ledger, kind: str) -> None:
    trip = Trip(app, ledger, kind)
    job = await trip.task.enqueue()
    await drain(app)
    assert await job.result(0) == "booked"
    assert trip.log == ["book flight", "book hotel"]
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_an_attempt_that_fails_undoes_nothing(app: App, ledger: Ledger) -> None:
    """Only the ending of the job does: the next attempt goes on behind the booked flight."""
    trip = Trip(app, ledger, retry=AGAIN)
    ledger.fail["book hotel"] = 2
    job = await trip.task.enqueue()
    await drain(app)
    assert await job.result(0) == "booked"
    assert trip.log == ["book flight", "book hotel", "book hotel", "book hotel"]


async def test_an_undo_that_fails_is_tried_again_and_holds_up_no_other(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    trip = Trip(app, ledger)
    ledger.fail["book hotel"] = ledger.fail["cancel hotel"] = 1
    job = await trip.task.enqueue()
    await drain(app)
    assert trip.log == UNDONE
    assert (await cleanup(app, job)).state is State.READY
    clock.advance(10)
    await drain(app)
    assert trip.log == [*UNDONE, "cancel hotel"]
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_undos_that_cannot_be_done_are_a_dead_job_which_can_be_retried(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    trip = Trip(app, ledger)
    ledger.fail["book hotel"] = 1
    ledger.fail["cancel hotel"] = 5
    job = await trip.task.enqueue()
    for _ in range(6):
        await drain(app)
        clock.advance(600)
    row = await cleanup(app, job)
    assert (row.state, row.attempt) == (State.FAILED, 5)
    assert "cancel hotel" in row.error
    assert await app.jobs.retry(row.job.id) == 1
    await drain(app)
    assert (await cleanup(app, job)).state is State.SUCCEEDED
    assert ledger.function_done["cancel flight"] == 1
    assert ledger.function_done["cancel hotel"] == 6


async def test_an_undo_may_return_what_cannot_be_stored(app: App, ledger: Ledger) -> None:
    async def undo() -> object:
        ledger.plain("undo")
        return object()

    @app.task(retry=ONCE)
    async def t() -> None:
        current().on_undo(undo)
        current().on_undo(lambda: object())
        await current().step("a", ledger.do, "a")

    ledger.fail["a"] = 1
    job = await t.enqueue()
    await drain(app)
    row = await cleanup(app, job)
    assert row.state is State.SUCCEEDED, row.error
    assert ledger.function_done["undo"] == 1


# --- each ending


async def sleeping() -> None:
    await current().sleep(DAY)


async def waiting() -> None:
    await current().wait_for("go", timeout=DAY)


def sleeping_here() -> None:
    current().sync.sleep(DAY)


def waiting_here() -> None:
    current().sync.wait_for("go", timeout=DAY)


PAUSES = {("async", "sleep"): sleeping, ("async", "wait"): waiting}
PAUSES |= {("thread", "sleep"): sleeping_here, ("thread", "wait"): waiting_here}


@shows("the undos of a job run however it ends")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("pause", ["sleep", "wait"])
@pytest.mark.parametrize("ending", ["cancelled", "expired", "superseded", "cancelled with its parent"])
async def test_undos_run_after_each_ending(
    app: App, clock: HandClock, ledger: Ledger, kind: str, pause: str, ending: str
) -> None:
    then = PAUSES[kind, pause]
    trip = Trip(app, ledger, kind, then)
    if ending == "superseded" and pause == "wait":
        pytest.skip("a job that waits in its run is not superseded")

    @app.task
    async def parent() -> Any:
        return trip.task.job()

    match ending:
        case "expired":
            job = await trip.task.options(expires=2 * DAY).enqueue()
            await drain(app)
            clock.advance(2 * DAY + 1)  # no worker looked in between
        case "superseded":
            job = await trip.task.options(key=Key("k", "replace")).enqueue()
            await drain(app)
            other = await trip.task.options(key=Key("k", "replace")).enqueue()
            await app.jobs.cancel(other, force=True)
        case "cancelled":
            job = await trip.task.enqueue()
            await drain(app)
            await app.jobs.cancel(job)
        case _:
            above = await parent.enqueue()
            await drain(app)
            [row] = [row for row in (await app.jobs.list(task="trip")).records if not is_cleanup(row.job)]
            job = row
            await app.jobs.cancel(above)
    await drain(app)
    assert trip.log == UNDONE
    assert (await app.jobs.get(job)).state in (State.CANCELLED, State.FAILED)
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_undos_run_after_a_timeout_and_an_abort(app: App, ledger: Ledger) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def abort() -> None:
        raise Abort("no")

    for then in (forever, abort):
        trip = Trip(app, ledger, then=then, timeout=0.5)
        job = await trip.task.enqueue()
        await drain(app)
        assert (await app.jobs.get(job)).state is State.FAILED
        assert trip.log == UNDONE
        del app._core.tasks["trip"]


# --- except and finally


class Reserved:
    """Reserves, then pauses; releases in `finally` with two steps."""

    def __init__(self, app: App, ledger: Ledger, pause: Any, kind: str = "async", **options: Any) -> None:
        self.ledger, self.pause, self.caught = ledger, pause, list[Exception]()
        self.task: Any = app.task(name="reserve", retry=ONCE, **options)(
            self._async if kind == "async" else self._thread
        )

    async def _async(self) -> str:
        here = current()
        await here.step("reserve", self.ledger.do, "reserve")
        try:
            await self.pause()
            await here.step("use", self.ledger.do, "use")
        except (JobCancelled, JobExpired) as error:
            self.caught.append(error)
            raise
        finally:
            await here.step("release", self.ledger.do, "release")
            await here.step("tell", self.ledger.do, "tell")
        return "used"

    def _thread(self) -> str:
        here = current().sync
        here.step("reserve", self.ledger.plain, "reserve")
        try:
            self.pause()
            here.step("use", self.ledger.plain, "use")
        except (JobCancelled, JobExpired) as error:
            self.caught.append(error)
            raise
        finally:
            here.step("release", self.ledger.plain, "release")
            here.step("tell", self.ledger.plain, "tell")
        return "used"


RELEASED = {"reserve": 1, "release": 1, "tell": 1}


@shows("a job that is cancelled or expires while it sleeps or waits runs the steps in its `finally`, each once")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("pause", ["sleep", "wait"])
@pytest.mark.parametrize("ending", [JobCancelled, JobExpired])
async def test_the_wait_raises_the_ending(
    app: App, clock: HandClock, ledger: Ledger, kind: str, pause: str, ending: Any
) -> None:
    reserved = Reserved(app, ledger, PAUSES[kind, pause], kind)
    job = await reserved.task.options(expires=1.5 * DAY).enqueue()
    await drain(app)
    if ending is JobCancelled:
        await app.jobs.cancel(job)
    else:
        clock.advance(1.6 * DAY)
    await drain(app)
    assert ledger.function_done == RELEASED
    [caught] = reserved.caught
    assert (type(caught), caught.id) == (ending, job.id)  # type: ignore[attr-defined]
    row = await cleanup(app, job)
    assert (row.state, row.error) == (State.SUCCEEDED, None)


async def test_a_step_in_finally_that_fails_is_tried_again(app: App, clock: HandClock, ledger: Ledger) -> None:
    reserved = Reserved(app, ledger, sleeping)
    job = await reserved.task.enqueue()
    await drain(app)
    ledger.fail["tell"] = 2
    await app.jobs.cancel(job)
    for _ in range(3):
        await drain(app)
        clock.advance(60)
    assert ledger.function_done == {**RELEASED, "tell": 3}
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_a_forced_cancellation_cleans_nothing_up(app: App, ledger: Ledger) -> None:
    reserved, trip = Reserved(app, ledger, sleeping), Trip(app, ledger, then=sleeping)
    jobs = [await reserved.task.enqueue(), await trip.task.enqueue()]
    await drain(app)
    for job in jobs:
        assert await app.jobs.cancel(job, force=True) == 1
    await drain(app)
    assert ledger.function_done["release"] == 0
    assert trip.log == UNDONE[:2]
    assert (await cleanup(app, jobs[1])).state is State.CANCELLED


async def test_a_second_cancellation_changes_nothing(app: App, ledger: Ledger) -> None:
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.enqueue()
    await drain(app)
    assert [await app.jobs.cancel(job), await app.jobs.cancel(job)] == [1, 0]
    assert await app.jobs.cancel((await cleanup(app, job)).job.id) == 0
    assert await app.jobs.cancel(task="trip") == 0
    await drain(app)
    assert trip.log == UNDONE


async def test_a_cleanup_can_be_cancelled_by_force(app: App, ledger: Ledger) -> None:
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    assert await app.jobs.cancel((await cleanup(app, job)).job.id, force=True) == 1
    await drain(app)
    assert trip.log == UNDONE[:2]


# --- cancelled while it runs


@shows("a job that is cancelled in a step takes no further step in that run, and its `finally` runs in its cleanup")
async def test_a_running_job_is_cleaned_up_after_once_its_run_has_ended(app: App, told: Told, ledger: Ledger) -> None:
    began, seen = asyncio.Event(), list[BaseException]()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    reserved = Reserved(app, ledger, lambda: current().step("slow", slow))
    async with work(app):
        job = await reserved.task.enqueue()
        await began.wait()
        await app.jobs.cancel(job)
        await told.until("succeeded", id=cleanup_id(job.id, 0))
    assert ledger.function_done == RELEASED
    assert len(seen) == 1
    assert len(reserved.caught) == 1


@shows("the result of a step that ends after its job was cancelled is known to the cleanup")
async def test_a_step_in_a_thread_that_ends_late_is_known_to_the_cleanup(app: App, told: Told, ledger: Ledger) -> None:
    began, loop = asyncio.Event(), asyncio.get_running_loop()

    def slow() -> str:
        loop.call_soon_threadsafe(began.set)
        assert current().wait(60)
        return "ticket 7"

    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        await here.step("a", ledger.do, "a")
        ticket = await here.step("slow", slow)
        here.on_undo(ledger.do, f"undo {ticket}")
        await here.step("b", ledger.do, "b")

    async with work(app):
        job = await t.enqueue()
        await began.wait()
        await app.jobs.cancel(job)
        await told.until("succeeded", id=cleanup_id(job.id, 0))
    assert ledger.function_done == {"a": 1, "undo ticket 7": 1}
