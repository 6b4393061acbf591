"""A durable job that does not succeed is cleaned up after: its undos run, and its function continues where it ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger
from tests.kit import Told, work
from treadle import Abort, App, JobCancelled, JobExpired, JobFailed, Key, Retry, Stale, State, current, current_batch
from treadle.admin.acts import Acts
from treadle.admin.code_check import Options, check_code
from treadle.admin.histories import histories
from treadle.core.model import Claim
from treadle.policy.cleanups import cleanup_id, is_cleanup
from treadle.testing import HandClock, drain, replay
from treadle_testkit.shows import shows

ONCE = Retry(attempts=1)
DAY = 86_400


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
        here = current().sync
        for what in ("flight", "hotel"):
            here.on_undo(self.do, f"cancel {what}")
            here.step(f"book:{what}", self.do, f"book {what}")
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
    """Only the ending of the job does: the next attempt continues behind the booked flight."""
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
        current().on_undo(object)
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


async def forever() -> None:
    await asyncio.Event().wait()


async def abort() -> None:
    raise Abort("no")


@pytest.mark.parametrize("then", [forever, abort])
async def test_undos_run_after_a_timeout_and_an_abort(app: App, ledger: Ledger, then: Any) -> None:
    """The code between the steps, which made the job fail, runs in the cleanup, too."""
    trip = Trip(app, ledger, then=then, timeout=0.5)
    job = await trip.task.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert trip.log == UNDONE


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


@pytest.mark.parametrize("when", ["asleep", "waiting", "retrying"])
async def test_jobs_that_are_cancelled_by_a_filter_are_cleaned_up_after(
    app: App, clock: HandClock, ledger: Ledger, when: str
) -> None:
    """The rows of a page have no steps."""

    async def fail() -> None:
        raise ValueError("later")

    then = {"asleep": sleeping, "waiting": waiting, "retrying": fail}[when]
    reserved = Reserved(app, ledger, sleeping if when == "retrying" else then)

    @app.task(name="retried", retry=Retry(attempts=2, base=600))
    async def retried() -> None:
        await current().step("reserve", ledger.do, "reserve")
        try:
            await current().sleep(DAY)
        except JobCancelled:
            await current().step("release", ledger.do, "release")
            await current().step("tell", ledger.do, "tell")
            raise
        finally:
            await then()

    task = retried if when == "retrying" else reserved.task
    await task.enqueue()
    await drain(app)
    assert await app.jobs.cancel(task=task.name) == 1
    await drain(app)
    assert ledger.function_done == RELEASED


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
    with pytest.raises(Stale, match="only force=True cancels it"):
        await app.jobs.cancel((await cleanup(app, job)).job.id)
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


async def test_a_forced_cancellation_counts_the_cleanup_of_a_job_that_has_ended(app: App, ledger: Ledger) -> None:
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    named = list[tuple[str, str | None]]()
    acts = Acts(app._core.client, app.jobs._storage, note=lambda row, reason: named.append((row.id, reason)))
    assert await acts.cancel([await app.jobs.get(job)], tree=True, named=True, force=True) == 1
    assert (cleanup_id(job.id, 0), None) in named
    assert await app.jobs.cancel(job, force=True) == 0
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


@shows("the undos of a running job that is cancelled wait until its run has ended")
async def test_undos_wait_for_the_run_that_was_cancelled(app: App, told: Told, ledger: Ledger) -> None:
    """The cleanup is stored before, so the cancellation queues it at once, while the thread still runs."""
    began, log, loop = asyncio.Event(), list[str](), asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(began.set)
        assert current().wait(60)
        log.append("booked")

    @app.task(retry=ONCE)
    async def t() -> None:
        current().on_undo(log.append, "undone")
        await current().step("slow", slow)
        await current().step("more", log.append, "more")

    async with work(app):
        job = await t.enqueue()
        await began.wait()
        await app.jobs.cancel(job)
        await told.until("succeeded", id=cleanup_id(job.id, 0))
    assert log == ["booked", "undone"]


async def cancelled_in_a_dead_worker(app: App, clock: HandClock, ledger: Ledger) -> Trip:
    """A trip that was cancelled while a worker had it, which died with 30 s of its lease left."""
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.enqueue()
    await drain(app)
    clock.advance(DAY + 1)
    storage = await app._core.open()
    assert (await storage.claim(Claim(worker="gone#1", lease=30.0))).records
    await app.jobs.cancel(job)
    return trip


async def test_the_cleanup_of_a_worker_that_died_begins_after_its_lease(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    trip = await cancelled_in_a_dead_worker(app, clock, ledger)
    await drain(app)
    assert trip.log == UNDONE[:2]
    clock.advance(60)
    await drain(app)
    assert trip.log == UNDONE


async def test_a_clock_that_is_set_back_does_not_hold_up_a_cleanup(app: App, clock: HandClock, ledger: Ledger) -> None:
    trip = await cancelled_in_a_dead_worker(app, clock, ledger)
    clock.advance(-DAY / 2)
    await drain(app)
    assert trip.log == UNDONE[:2]
    clock.advance(31)
    await drain(app)
    assert trip.log == UNDONE


# --- a retry of the job


@shows("a job that is retried after its undos ran takes its steps again")
async def test_a_retried_job_does_not_believe_in_steps_that_were_undone(app: App, ledger: Ledger) -> None:
    keys = list[str]()
    trip = Trip(app, ledger, then=lambda: current().step("key", lambda: keys.append(current().step_key())))
    ledger.fail["book hotel"] = 1
    job = await trip.task.enqueue()
    await drain(app)
    assert await app.jobs.retry(job) == 1
    await drain(app)
    assert await job.result(0) == "booked"
    assert trip.log == [*UNDONE, "book flight", "book hotel"]
    assert keys == [f"{job.id}@1:key"]  # a provider must not take it for the call that was undone


async def test_a_retried_job_that_fails_again_is_undone_again(app: App, ledger: Ledger) -> None:
    trip = Trip(app, ledger)
    ledger.fail["book hotel"] = 2
    job = await trip.task.enqueue()
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    assert trip.log == [*UNDONE, *UNDONE]
    assert (await cleanup(app, job, 1)).state is State.SUCCEEDED


async def test_a_job_whose_cleanup_did_nothing_continues_behind_its_steps(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> str:
        await current().step("a", ledger.do, "a")
        await current().sleep(DAY)
        return await current().step("b", ledger.do, "b")

    job = await t.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    assert ledger.function_done == {"a": 1}
    assert (await app.jobs.get(job)).state is State.READY


@pytest.mark.parametrize("state", ["ready", "failed"])
async def test_a_job_is_not_retried_before_its_cleanup_has_succeeded(
    app: App, clock: HandClock, ledger: Ledger, state: str
) -> None:
    trip = Trip(app, ledger)
    ledger.fail["book hotel"] = 1
    ledger.fail["cancel flight"] = 5 if state == "failed" else 1
    job = await trip.task.enqueue()
    for _ in range(6 if state == "failed" else 1):
        await drain(app)
        clock.advance(600)
    with pytest.raises(Stale, match=r"its cleanup has .* \(treadle:cleanup:"):
        await app.jobs.retry(job)
    assert await app.jobs.retry(task="trip") == (1 if state == "failed" else 0)
    await drain(app)
    assert await app.jobs.retry(job) == 1
    await drain(app)
    assert await job.result(0) == "booked"


@shows("a job that failed because of a child, and was undone, does not revive when the child is retried")
async def test_a_child_of_an_undone_job_is_not_retried(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def child() -> None:
        await ledger.do("child")

    trip = Trip(app, ledger)

    @app.task(retry=ONCE)
    async def parent() -> Any:
        current().on_undo(ledger.do, "undo")
        await current().step("a", ledger.do, "a")
        return child.job()

    ledger.fail["child"] = 1
    job = await parent.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert (row.state, row.reason) == (State.FAILED, "children")
    assert ledger.function_done["undo"] == 1
    with pytest.raises(Stale, match="was undone"):
        await app.jobs.retry(job)
    assert await app.jobs.retry(task="child") == 0
    assert trip.log == []


async def test_a_wait_of_a_new_round_receives_its_signal_again(app: App, ledger: Ledger) -> None:
    """As in a rerun of the job."""

    @app.task(retry=ONCE)
    async def t() -> str:
        here = current()
        answer = await here.wait_for("go")
        here.on_undo(ledger.do, "undo")
        await here.step("a", ledger.do, "a")
        return str(answer)

    job = await t.enqueue()
    await app.jobs.signal(job, "go", "first")
    ledger.fail["a"] = 1
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "first"
    assert ledger.function_done == {"a": 2, "undo": 1}


# --- what the function meets in its cleanup


async def test_a_loop_that_swallows_the_ending_does_not_continue_its_work(app: App, ledger: Ledger) -> None:
    """`except Exception` catches the ending, too. Outside of its handler no step runs."""

    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        await here.sleep(DAY)
        for number in range(5):
            try:
                await here.step(f"pay:{number}", ledger.do, f"pay {number}")
            except Exception:
                await here.step(f"note:{number}", ledger.do, "note")

    job = await t.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert set(ledger.function_done) <= {"note"}


async def test_tasks_of_a_handler_may_take_steps(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        try:
            await asyncio.gather(*(here.step(f"s{n}", ledger.do, f"s{n}") for n in range(3)))
            await here.sleep(DAY)
            await asyncio.gather(*(here.step(f"t{n}", ledger.do, f"t{n}") for n in range(3)))
        finally:
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(release(n))

    async def release(number: int) -> None:
        await current().step(f"release:{number}", ledger.do, f"release {number}")

    job = await t.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {name: 1 for n in range(3) for name in (f"s{n}", f"release {n}")}
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_a_failed_job_with_tasks_is_read_for_its_undos(app: App, ledger: Ledger) -> None:
    """A TaskGroup wraps the exception that ends the function at the first step that was not recorded."""

    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        here.on_undo(ledger.do, "undo")
        await here.step("a", ledger.do, "a")
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(part(number))

    async def part(number: int) -> None:
        await current().step(f"part:{number}", ledger.do, f"part {number}")

    ledger.fail["part 0"] = ledger.fail["part 1"] = 1
    job = await t.enqueue()
    await drain(app)
    row = await cleanup(app, job)
    assert (row.state, row.error) == (State.SUCCEEDED, None)
    assert ledger.function_done == {"a": 1, "part 0": 1, "part 1": 1, "undo": 1}


async def test_a_branch_that_the_ending_has_not_reached_takes_no_step(app: App, ledger: Ledger) -> None:
    """One branch raises the ending to the function, which cleans up while the other branch still replays its steps."""

    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        await here.step("begin", ledger.do, "begin")
        try:
            await asyncio.gather(branch("a", 1), branch("b", 3))
        finally:
            await here.step("release", ledger.do, "release")

    async def branch(name: str, steps: int) -> None:
        for number in range(steps):
            await current().step(f"{name}:{number}", ledger.do, f"{name}{number}")
        if name == "a":
            await asyncio.sleep(0)
        await current().step(f"{name}:last", hang if name == "a" else ledger.do, *([] if name == "a" else ["b last"]))

    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    began = asyncio.Event()
    job = await t.enqueue()
    async with work(app, grace=0):
        await began.wait()
    ran_before = ledger.function_done["b last"]
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done["release"] == 1
    assert ledger.function_done["b last"] == ran_before


async def test_a_handler_may_sleep_and_retry_its_step_but_not_wait(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t() -> None:
        here = current()
        try:
            await here.sleep(DAY)
        except JobCancelled:
            await here.sleep(60, name="pause")
            await here.step.options(retry=Retry(attempts=3, base=5))("release", ledger.do, "release")
            try:
                await here.wait_for("go")
            finally:
                await here.step("last", ledger.do, "last")

    job = await t.enqueue()
    await drain(app)
    ledger.fail["release"] = 1
    await app.jobs.cancel(job)
    for _ in range(3):
        await drain(app)
        clock.advance(61)
    row = await cleanup(app, job)
    assert (row.state, row.attempt) == (State.SUCCEEDED, 1)
    assert ledger.function_done == {"release": 2, "last": 1}


async def test_a_sleep_that_would_be_over_by_now_still_raises_the_ending(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    """The job was cancelled while it slept, and no worker was there for two days."""
    reserved = Reserved(app, ledger, sleeping)
    job = await reserved.task.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    clock.advance(2 * DAY)
    await drain(app)
    assert ledger.function_done == RELEASED


async def test_the_cleanup_sees_the_id_and_the_arguments_of_the_job(app: App, ledger: Ledger) -> None:
    seen = list[Any]()

    @app.task(retry=ONCE)
    async def t(order: int) -> None:
        here = current()
        seen.append((here.id, here.step_key("a"), order))
        if order < 2:
            await here.restart(order + 1)
        await here.sleep(DAY)

    job = await t.enqueue(1)
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert seen[0] == (job.id, f"{job.id}:a", 1)
    assert seen[1:] == [(job.id, f"{job.id}@1:a", 2)] * (len(seen) - 1)


@shows("a restart drops the undos of its round")
async def test_undos_end_with_their_round(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t(number: int) -> None:
        here = current()
        here.on_undo(ledger.do, f"undo {number}")
        await here.step("a", ledger.do, f"a{number}")
        if number < 3:
            await here.restart(number + 1)
        raise Abort("the last one")

    await t.enqueue(1)
    await drain(app)
    assert {name for name in ledger.function_done if name.startswith("undo")} == {"undo 3"}


async def test_a_job_that_lost_its_workers_is_undone(app: App, clock: HandClock, ledger: Ledger) -> None:
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.options(max_lost=1).enqueue()
    await drain(app)
    clock.advance(DAY)
    storage = await app._core.open()
    [row] = (await storage.claim(Claim(worker="gone#1", lease=10.0))).records
    assert row.job.id == job.id
    clock.advance(11)
    await drain(app)
    assert (await app.jobs.get(job)).reason == "lost"
    assert trip.log == UNDONE


async def test_the_history_is_kept_until_the_undos_have_run(app: App, clock: HandClock, ledger: Ledger) -> None:
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.options(keep=0, keep_failed=0).enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    clock.advance(30 * DAY)
    storage = await app._core.open()
    assert await storage.prune(100) == 0
    await drain(app)
    assert trip.log == UNDONE
    clock.advance(30 * DAY)
    assert await storage.prune(100) == 2


async def test_a_transaction_in_a_cleanup_raises_the_ending(app: App, ledger: Ledger) -> None:
    committed = list[str]()

    @app.task(retry=ONCE)
    async def t() -> None:
        await current().step("a", ledger.do, "a")
        if current().record.job.id.startswith("treadle:"):
            async with current().transaction():
                committed.append("again")
        await current().sleep(DAY)

    job = await t.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert committed == []
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_batches_have_no_undos(app: App) -> None:
    @app.batch(size=2, max_wait=0, retry=ONCE)
    async def many(numbers: list[int]) -> list[int]:
        current_batch()[0].on_undo(print)
        return numbers

    job = await many.enqueue(1)
    await drain(app)
    assert "a job of a batch has no undos" in ((await app.jobs.get(job)).error or "")


async def test_explain_names_the_cleanup_and_what_it_cleans_up_after(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    trip = Trip(app, ledger, then=sleeping)
    job = await trip.task.options(expires=5 * DAY).enqueue()
    await drain(app)
    own = cleanup_id(job.id, 0)
    assert f"to clean up after job {job.id}, which has not ended" in await app.jobs.explain(own)
    ledger.fail["cancel hotel"] = 5
    await app.jobs.cancel(job)
    assert f"Its cleanup is job {own} (ready)" in await app.jobs.explain(job)
    for _ in range(5):
        await drain(app)
        clock.advance(600)
    assert f"Its cleanup {own} has failed (ValueError: cancel hotel)" in await app.jobs.explain(job)
    assert f"cleans up after job {job.id} (cancelled)" in await app.jobs.explain(own)
    await app.jobs.retry(own)
    await drain(app)
    assert f"Its cleanup {own} has ended." in await app.jobs.explain(job)


async def test_an_undo_behind_the_last_step_runs_if_the_outcome_is_refused(app: App, ledger: Ledger) -> None:
    """The storage refuses a child whose id belongs to a job of another task; the function has returned."""

    @app.task
    async def other() -> None: ...

    @app.task(retry=ONCE)
    async def t() -> Any:
        await current().step("a", ledger.do, "a")
        current().on_undo(ledger.do, "undo")
        return other.options(id="taken").job()

    @app.task
    async def owner(number: int) -> None: ...

    await owner.options(id="taken").enqueue(1)
    job = await t.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert ledger.function_done == {"a": 1, "undo": 1}


async def test_a_check_of_the_code_and_an_export_pass_over_cleanups(app: App, clock: HandClock, ledger: Ledger) -> None:
    """A cleanup has no arguments, and only a part of a history."""

    @app.task(retry=ONCE)
    async def t(order: int) -> None:
        here = current()
        here.on_undo(ledger.do, "undo")
        await here.step("a", ledger.do, "a")
        await here.sleep(DAY)

    job = await t.enqueue(1)
    await drain(app)
    ledger.fail["undo"] = 1
    await app.jobs.cancel(job)
    await drain(app)
    assert (await cleanup(app, job)).state is State.READY
    assert (await check_code(app._core, Options())).findings == []
    exported = [history async for history in histories(app._core, {})]
    assert [history.id for history in exported] == [job.id]
    await replay(app, exported)


@shows("steps that were undone are not taken over by a rerun or a fork of their job")
async def test_undone_steps_are_not_taken_over(app: App, ledger: Ledger) -> None:
    trip = Trip(app, ledger)

    async def no_room() -> None:
        raise Abort("no room")

    trip.then = no_room
    job = await trip.task.enqueue()
    await drain(app)
    assert trip.log == UNDONE
    with pytest.raises(Stale, match="undone"):
        await app.jobs.rerun(job, from_step="book:hotel")
    with pytest.raises(Stale, match="undone"):
        await app.jobs.fork(job, from_step="book:hotel")
    with pytest.raises(Stale, match="Treadle's own"):
        await app.jobs.rerun(cleanup_id(job.id, 0))
    trip.then = None
    await app.jobs.rerun(job)
    await drain(app)
    assert trip.log == [*UNDONE, "book flight", "book hotel"]
    assert await job.result(0) == "booked"


# --- steps and waits that are requested together


@pytest.mark.parametrize("partner", ["failing", "between tries", "sleep", "call"])
async def test_nothing_of_a_job_runs_again_next_to_a_finished_step(app: App, ledger: Ledger, partner: str) -> None:
    """The order in which steps are requested is not that in which they end."""

    @app.task(retry=ONCE)
    async def slow() -> None:
        await current().sleep(DAY)

    async def trip() -> None:
        here = current()
        here.on_undo(ledger.plain, "undo")
        ledger.fail["charge"] = 9
        first: Any = {
            "failing": lambda: here.step("charge", ledger.do, "charge"),
            "between tries": lambda: here.step.options(retry=Retry(base=DAY))("charge", ledger.do, "charge"),
            "sleep": lambda: here.sleep(DAY),
            "call": lambda: here.call(slow.job()),
        }[partner]()
        await asyncio.gather(first, here.step("book", ledger.do, "book"))
        await here.step("behind", ledger.do, "behind")

    job = await app.task(retry=ONCE)(trip).enqueue()
    await drain(app)
    charged = ledger.function_done.get("charge", 0)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "undo": 1, **({"charge": charged} if charged else {})}
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_a_race_of_waits_is_replayed(app: App, clock: HandClock, ledger: Ledger) -> None:
    async def trip() -> None:
        here = current()
        await here.first(a=here.wait_for("a"), b=here.wait_for("b"), late=here.sleep(60))
        here.on_undo(ledger.plain, "refund")
        await here.step("charge", ledger.do, "charge")
        await here.sleep(DAY)

    job = await app.task(retry=ONCE)(trip).enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"charge": 1, "refund": 1}


async def _cut_by_time() -> None:
    async with current().timeout(60):
        await current().wait_for("go")


async def _cut_by_a_group() -> None:
    async def fail() -> None:
        raise TimeoutError

    async with asyncio.TaskGroup() as group:
        group.create_task(_of(current().wait_for("go")))
        group.create_task(_of(current().step("fail", fail)))


async def _of(waiting: Any) -> None:
    await waiting


@pytest.mark.parametrize("cut", [_cut_by_time, _cut_by_a_group])
async def test_a_wait_that_was_cut_off_is_replayed(app: App, clock: HandClock, ledger: Ledger, cut: Any) -> None:
    async def trip() -> None:
        here = current()
        here.on_undo(ledger.plain, "undo")
        try:
            await cut()
        except* TimeoutError:
            here.on_undo(ledger.plain, "refund")
            await here.step("charge", ledger.do, "charge")
        await here.sleep(DAY)

    await _cancelled_later(app, clock, app.task(retry=ONCE)(trip))
    assert ledger.function_done == {"charge": 1, "refund": 1, "undo": 1}


async def test_a_wait_in_a_thread_that_was_cut_off_is_replayed(app: App, clock: HandClock, ledger: Ledger) -> None:
    def trip() -> None:
        here = current()
        try:
            with here.sync.timeout(60):
                here.sync.wait_for("go")
        except TimeoutError:
            here.on_undo(ledger.plain, "refund")
            here.sync.step("charge", ledger.plain, "charge")
        here.sync.sleep(DAY)

    await _cancelled_later(app, clock, app.task(retry=ONCE)(trip))
    assert ledger.function_done == {"charge": 1, "refund": 1}


async def _cancelled_later(app: App, clock: HandClock, task: Any) -> None:
    """Run a job of the task until it sleeps behind its time limit, cancel it, and clean up."""
    job = await task.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert (await cleanup(app, job)).state is State.SUCCEEDED


# --- jobs that run again, and limits


async def test_a_retry_after_a_cleanup_keeps_the_arguments_of_the_last_restart(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def t(number: int) -> int:
        here = current()
        if number < 2:
            await here.step("before", ledger.do, "before")
            await here.restart(number + 1)
        here.on_undo(ledger.do, "undo")
        await here.step("a", ledger.do, f"a {number}")
        return number

    job = await t.enqueue(1)
    ledger.fail["a 2"] = 1
    await drain(app)
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == 2
    assert ledger.function_done == {"before": 1, "a 2": 2, "undo": 1}


async def test_children_whose_endings_are_recorded_do_not_run_again(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def child(number: int) -> int:
        await current().step("begin", ledger.do, f"child {number}")
        await current().sleep(number * DAY)
        if number == 1:
            raise ValueError("no")
        return number

    @app.task(retry=ONCE)
    async def parent() -> None:
        here = current()
        async for done in here.as_completed([child.job(1), child.job(2)]):
            try:
                done.result()
            except JobFailed:
                await here.step("note", ledger.do, "note")
                await here.step("use", ledger.do, "use")

    job = await parent.enqueue()
    ledger.fail["use"] = 1
    await drain(app)
    clock.advance(1.5 * DAY)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    await app.jobs.retry(job)
    for _ in range(3):
        await drain(app)
        clock.advance(DAY)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done["child 1"] == ledger.function_done["note"] == 1


async def test_a_time_limit_in_a_thread_cancels_the_children(app: App, clock: HandClock) -> None:
    @app.task(name="slow")
    async def slow() -> None:
        await current().sleep(10 * DAY)

    @app.task(retry=ONCE)
    def parent() -> str:
        here = current().sync
        try:
            with here.timeout(60):
                here.call(slow.job())
        except TimeoutError:
            return "late"
        return "over"

    job = await parent.enqueue()
    await drain(app)
    clock.advance(61)
    await drain(app)
    assert await job.result(0) == "late"
    [child] = [row for row in (await app.jobs.list(task="slow")).records if not is_cleanup(row.job)]
    assert child.state is State.CANCELLED


async def test_a_pause_by_filter_leaves_cleanups(app: App, ledger: Ledger) -> None:
    reserved = Reserved(app, ledger, sleeping)
    job = await reserved.task.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    assert await app.jobs.pause(task="reserve") == 0
    await drain(app)
    assert ledger.function_done == RELEASED


async def test_a_race_with_a_message_in_a_cleanup_raises_the_ending(app: App, ledger: Ledger) -> None:
    async def trip() -> None:
        here = current()
        here.on_undo(ledger.plain, "undo")
        try:
            await here.sleep(DAY)
        finally:
            await here.first(a=here.wait_for("a"), b=here.receive("b"))

    job = await app.task(retry=ONCE)(trip).enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"undo": 1}
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_a_time_limit_in_a_handler_passes(app: App, clock: HandClock, ledger: Ledger) -> None:
    async def trip() -> None:
        here = current()
        try:
            async with here.timeout(2 * DAY):
                await here.sleep(DAY)
        finally:
            try:
                async with here.timeout(60):
                    await here.sleep(30 * DAY, name="grace")
            except TimeoutError:
                await here.step("late", ledger.do, "late")

    job = await app.task(retry=ONCE)(trip).enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    clock.advance(61)
    await drain(app)
    assert ledger.function_done == {"late": 1}
    assert (await cleanup(app, job)).state is State.SUCCEEDED


async def test_the_version_that_registered_an_undo_cleans_up(app: App, ledger: Ledger) -> None:
    """No step is recorded: the first one has failed."""

    async def first() -> None:
        current().on_undo(ledger.do, "undo of 1")
        await current().step("book", ledger.do, "book")

    async def second() -> None:
        current().on_undo(ledger.do, "undo of 2")

    ledger.fail["book"] = 1
    job = await app.task(name="trip", retry=Retry(attempts=5, base=600))(first).enqueue()
    await drain(app)
    app.task(name="trip", version=2)(second)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"book": 1, "undo of 1": 1}
