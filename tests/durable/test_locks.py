"""`current().lock(name)`: one job at a time has a lock, first come, first served, however the jobs before it end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from treadle import App, Retry, State, current
from treadle.admin.histories import histories
from treadle.cli import job_view
from treadle.testing import Endless, HandClock, drain, replay
from treadle.workflow.locks import IDLE, LOCK
from treadle_testkit.shows import shows

HOUR = 3600.0


class Account:
    """Jobs that each have the lock of an account for an hour. `inside` has those that are in the block."""

    def __init__(self, app: App, kind: str = "async") -> None:
        self.app, self.entered, self.numbers = app, list[str](), list[int]()
        run: Any = self._book if kind == "async" else self._book_in_thread
        self.book: Any = app.task(name="book", retry=AGAIN)(run)

    async def _book(self, who: str) -> None:
        here = current()
        async with here.lock("account:7") as number:
            await here.step("enter", self._enter, who, number)
            await here.sleep(HOUR)
            await here.step("leave", self._enter, f"-{who}", number)

    def _book_in_thread(self, who: str) -> None:
        here = current().sync
        with here.lock("account:7") as number:
            here.step("enter", self._enter, who, number)
            here.sleep(HOUR)
            here.step("leave", self._enter, f"-{who}", number)

    def _enter(self, who: str, number: int) -> None:
        self.entered.append(who)
        self.numbers.append(number)

    async def of(self, *names: str) -> list[Any]:
        """Jobs of these names, in that order."""
        jobs = []
        for name in names:
            jobs.append(await self.book.enqueue(name))
            await drain(self.app)
        return jobs


@shows("only one job at a time has a lock, in the order in which they came, and its number rises")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_one_job_after_the_other_has_the_lock(app: App, clock: HandClock, kind: str) -> None:
    account = Account(app, kind)
    jobs = await account.of("a", "b", "c")
    assert [(await app.jobs.get(job)).state for job in jobs] == [State.READY, State.WAITING, State.WAITING]
    for _ in range(4):
        clock.advance(HOUR)
        await drain(app)
    assert account.entered == ["a", "-a", "b", "-b", "c", "-c"]
    assert account.numbers[::2] == account.numbers[1::2]
    assert account.numbers[::2] == [account.numbers[0] + n for n in range(3)]
    assert [await job.result(0) for job in jobs] == [None] * 3


async def rows(app: App) -> list[Any]:
    """The open rows of locks."""
    found = (await app.jobs.list(task="treadle.flow", limit=500)).records
    return [row for row in found if row.id.startswith(LOCK) and not row.state.final]


@shows("a job has a lock until it has ended, whatever ends it, and one that waits gives its turn to the next")
@pytest.mark.parametrize("how", ["cancelled", "failed", "expired", "waiter cancelled"])
async def test_the_next_job_gets_the_lock_when_a_job_ends(app: App, clock: HandClock, how: str) -> None:
    entered = list[str]()

    @app.task(retry=Retry(attempts=1))
    async def book(who: str) -> None:
        async with current().lock("x"):
            entered.append(who)
            if who == "a" and how == "expired":
                await current().wait_for("never")
            await current().sleep(HOUR)
            if who == "a" and how == "failed":
                raise ValueError("in the block")

    deadline = datetime.fromtimestamp(clock.moment + HOUR, UTC)
    jobs = [await (book.options(deadline=deadline) if how == "expired" else book).enqueue("a")]
    await drain(app)
    for who in "bc":
        jobs.append(await book.enqueue(who))
        await drain(app)
    if how == "cancelled":
        await app.jobs.cancel(jobs[0])
    elif how == "waiter cancelled":
        await app.jobs.cancel(jobs[1])
    for _ in range(6):
        await drain(app)
        clock.advance(HOUR)
    await drain(app)
    assert list(dict.fromkeys(entered)) == (["a", "c"] if how == "waiter cancelled" else ["a", "b", "c"])
    assert (await app.jobs.get(jobs[2])).state is State.SUCCEEDED
    clock.advance(2 * IDLE)
    await drain(app)
    assert await rows(app) == []


async def test_an_error_that_is_caught_outside_leaves_the_lock(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task
    async def first() -> None:
        here = current()
        try:
            async with here.lock("x"):
                await here.step("fail", ledger.do, "fail")
        except ValueError:
            await here.sleep(HOUR)
        await here.step("end", ledger.do, "end")

    @app.task
    async def second() -> None:
        async with current().lock("x"):
            await current().step("second", ledger.do, "second")

    ledger.fail["fail"] = 1
    job = await first.enqueue()
    await drain(app)
    await second.enqueue()
    await drain(app)
    assert ledger.function_done == {"fail": 1, "second": 1}
    clock.advance(HOUR)
    await drain(app)
    assert ledger.function_done == {"fail": 1, "second": 1, "end": 1}
    assert (await app.jobs.get(job)).state is State.SUCCEEDED


async def test_an_error_that_leaves_the_function_keeps_the_lock_for_the_next_attempt(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    @app.task(retry=Retry(attempts=2, base=60, jitter=0))
    async def half(who: str) -> None:
        async with current().lock("x"):
            await current().step("begin", ledger.do, f"begin {who}")
            await current().step("end", ledger.do, f"end {who}")

    ledger.fail["end a"] = 1
    for who in ("a", "b"):
        await half.enqueue(who)
        await drain(app)
    assert "begin b" not in ledger.function_done
    clock.advance(60)
    await drain(app)
    assert ledger.function_done == {"begin a": 1, "end a": 2, "begin b": 1, "end b": 1}


async def test_a_loop_takes_a_lock_again_behind_those_who_wait(app: App, clock: HandClock) -> None:
    order = list[str]()

    @app.task
    async def turns(who: str) -> None:
        for _ in range(3):
            async with current().lock("x"):
                await current().step("act", order.append, who)
                await current().sleep(1)

    for who in "ab":
        await turns.enqueue(who)
    for _ in range(9):
        await drain(app)
        clock.advance(1)
    assert order == ["a", "b"] * 3


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_job_has_a_lock_once(app: App, kind: str) -> None:
    async def twice() -> None:
        async with current().lock("x"), current().lock("x"):
            pass

    def twice_in_thread() -> None:
        with current().sync.lock("x"), current().sync.lock("x"):
            pass

    job = await app.task(name="twice")(twice if kind == "async" else twice_in_thread).enqueue()
    await drain(app)
    assert "'x': this job has the lock" in await error_of(app, job)


async def test_a_restart_inside_of_a_lock_is_refused(app: App) -> None:
    @app.task
    async def again() -> None:
        async with current().lock("x"):
            await current().restart()

    job = await again.enqueue()
    await drain(app)
    assert "has the lock 'x': leave its block first" in await error_of(app, job)


async def test_a_time_limit_gives_up_the_turn(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task
    async def holds() -> None:
        async with current().lock("x"):
            await current().sleep(10 * HOUR)

    @app.task
    async def gives_up() -> str:
        here = current()
        try:
            async with here.timeout(HOUR), here.lock("x"):
                return "inside"
        except TimeoutError:
            await here.sleep(100 * HOUR)
        return "gave up"

    @app.task
    async def last() -> str:
        async with current().lock("x"):
            return "last"

    jobs = []
    for task in (holds, gives_up, last):
        jobs.append(await task.enqueue())
        await drain(app)
    clock.advance(HOUR)
    await drain(app)
    assert not (await app.jobs.get(jobs[2])).state.final
    clock.advance(9 * HOUR)
    await drain(app)
    assert await jobs[2].result(0) == "last"  # while the second one sleeps
    clock.advance(100 * HOUR)
    await drain(app)
    assert await jobs[1].result(0) == "gave up"


async def test_a_dead_job_that_is_retried_in_its_block_waits_for_the_lock_again(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    @app.task(retry=Retry(attempts=1))
    async def half(who: str) -> None:
        async with current().lock("x") as number:
            await current().step("begin", ledger.do, f"begin {who}")
            numbers.append((who, number))
            await current().sleep(HOUR)
            await current().step("end", ledger.do, f"end {who}")

    numbers = list[tuple[str, int]]()
    ledger.fail["end a"] = 1
    jobs = []
    for who in "ab":
        jobs.append(await half.enqueue(who))
        await drain(app)
    clock.advance(HOUR)
    await drain(app)
    await app.jobs.retry(jobs[0])
    await drain(app)
    assert (await app.jobs.get(jobs[0])).state is State.WAITING
    clock.advance(HOUR)
    await drain(app)
    assert [await job.result(0) for job in jobs] == [None, None]
    assert ledger.function_done == {"begin a": 1, "end a": 2, "begin b": 1, "end b": 1}
    of_a = [number for who, number in numbers if who == "a"]
    assert of_a[0] < dict(numbers)["b"] < of_a[-1]


async def test_a_job_that_is_retried_at_once_does_not_wait_for_itself(app: App, ledger: Ledger) -> None:
    """The row of its turn has not been ended yet by any worker."""

    @app.task(retry=Retry(attempts=1))
    async def fails() -> str:
        async with current().lock("x"):
            return await current().step("fail", ledger.do, "fail")

    ledger.fail["fail"] = 1
    job = await fails.enqueue()
    with pytest.raises(Endless):
        await drain(app, limit=1)
    assert (await app.jobs.get(job)).state is State.FAILED
    await app.jobs.retry(job)
    await drain(app)
    assert await job.result(0) == "fail 2"


async def test_the_numbers_rise_over_idle_days(app: App, clock: HandClock) -> None:
    numbers = list[int]()

    @app.task
    async def note() -> None:
        async with current().lock("x") as number:
            numbers.append(number)

    for pause in (0, 1, IDLE - 10, 3 * IDLE, 0):
        clock.advance(pause)
        await drain(app)
        await note.enqueue()
        await drain(app)
    assert numbers == sorted(set(numbers))
    assert numbers[1:3] == [numbers[0] + 1, numbers[0] + 2]
    clock.advance(2 * IDLE)
    await drain(app)
    assert await rows(app) == []


async def test_tasks_of_one_job_have_different_locks(app: App, clock: HandClock) -> None:
    order = list[str]()

    @app.task
    async def move(*names: str) -> None:
        async def with_lock(name: str) -> None:
            async with current().lock(name):
                await current().step(f"in:{name}", order.append, name)
                await current().sleep(60, name=name)

        await asyncio.gather(*map(with_lock, names))

    jobs = [await move.enqueue("a", "b"), await move.enqueue("b", "c")]
    for _ in range(4):
        await drain(app)
        clock.advance(60)
    assert [await job.result(0) for job in jobs] == [None, None]
    assert sorted(order) == ["a", "b", "b", "c"]


class Pair:
    """Jobs that take two locks, each in an order of its own."""

    def __init__(self, app: App) -> None:
        self.app, self.entered = app, list[str]()
        self.move: Any = app.task(name="move", retry=AGAIN)(self._move)

    async def _move(self, *names: str) -> None:
        here = current()
        async with here.lock(names[0]):
            await here.step("first", self.entered.append, names[0])
            await here.sleep(60)
            async with here.lock(names[1]):
                await here.step("both", self.entered.append, "".join(names))

    async def deadlocked(self, clock: HandClock) -> list[Any]:
        jobs = [await self.move.enqueue("a", "b"), await self.move.enqueue("b", "a")]
        await drain(self.app)
        clock.advance(60)
        await drain(self.app)
        assert self.entered == ["a", "b"]
        return jobs


@shows("`explain` says who has a lock, and names the circle in which jobs wait for each other's locks")
async def test_explain_names_the_owner_of_a_lock_and_a_deadlock(app: App, clock: HandClock) -> None:
    account = Account(app)
    a, b, c = await account.of("a", "b", "c")
    assert "It has the lock 'account:7'." in await app.jobs.explain(a)
    said = await app.jobs.explain(c)
    assert f"It waits for the lock 'account:7', which book {a.id} has, which is ready; 1 job before it waits" in said
    assert f"jobs explain {a.id}` says what that job waits for." in said
    [step] = [step for step in (await app.jobs.history(c)).steps if step.kind == "lock"]
    assert (step.name, step.value, step.done) == ("lock:account:7", None, False)
    [step] = [step for step in (await app.jobs.history(a)).steps if step.kind == "lock"]
    assert (step.value, step.done) == (account.numbers[0], False)
    shown = [dict(job_view.steps(await app.jobs.get(job)))["lock:account:7"] for job in (a, c)]
    assert shown == ["has the lock", "waits for the lock"]
    assert {job_view._name(row) for row in await rows(app)} == {"(lock account:7)"}
    said = {await app.jobs.explain(row) for row in await rows(app)}
    assert "It is the row of the lock 'account:7', which a job has." in said
    assert any(text.startswith(f"It is the turn of job {b.id} for the lock 'account:7': it ends") for text in said)
    for job in (b, c, a):
        await app.jobs.cancel(job)

    first, second = await Pair(app).deadlocked(clock)
    said = await app.jobs.explain(first)
    assert f"It waits for the lock 'b', which move {second.id} has" in said
    assert f"None of them can go on: move {second.id} waits for the lock 'a', up to this job." in said
    assert f"jobs cancel {second.id}` ends one." in said
    await app.jobs.cancel(second)
    await drain(app)
    assert (await app.jobs.get(first)).state is State.SUCCEEDED


async def test_a_rerun_gives_up_the_locks_that_the_job_has_no_entry_of(
    app: App, clock: HandClock, ledger: Ledger
) -> None:
    """From a step inside of the block it has the lock still; from one before, it waits behind the others."""

    @app.task(retry=AGAIN)
    async def book(who: str) -> None:
        here = current()
        await here.step("before", ledger.do, f"before {who}")
        async with here.lock("x"):
            await here.step("inside", ledger.do, f"inside {who}")
            await here.sleep(HOUR)

    jobs = []
    for who in "ab":
        jobs.append(await book.enqueue(who))
        await drain(app)
    await app.jobs.rerun(jobs[0], from_step="inside")
    await drain(app)
    assert ledger.function_done == {"before a": 1, "inside a": 2, "before b": 1}
    await app.jobs.rerun(jobs[0], from_step="before")
    await drain(app)
    assert ledger.function_done == {"before a": 2, "inside a": 2, "before b": 1, "inside b": 1}
    assert (await app.jobs.get(jobs[0])).state is State.WAITING
    for _ in range(2):
        clock.advance(HOUR)
        await drain(app)
    assert ledger.function_done["inside a"] == 3
    assert [await job.result(0) for job in jobs] == [None, None]


async def test_a_fork_inside_of_a_lock_waits_for_it(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def book() -> None:
        here = current()
        async with here.lock("x"):
            await here.step("inside", ledger.do, "inside")
            await here.sleep(HOUR)
            await here.step("later", ledger.do, "later")

    job = await book.enqueue()
    await drain(app)
    fork = await app.jobs.fork(job, from_step="sleep")
    await drain(app)
    assert (await app.jobs.get(fork)).state is State.WAITING
    for _ in range(2):
        clock.advance(HOUR)
        await drain(app)
    assert [await one.result(0) for one in (job, fork)] == [None, None]
    assert ledger.function_done == {"inside": 1, "later": 2}


async def test_a_cleanup_runs_without_the_lock_and_may_take_it(app: App, clock: HandClock, ledger: Ledger) -> None:
    @app.task(retry=AGAIN)
    async def book(who: str) -> None:
        here = current()
        try:
            async with here.lock("x"):
                await here.step("inside", ledger.do, f"inside {who}")
                await here.sleep(HOUR)
        finally:
            if who == "a":
                async with here.lock("x"):
                    await here.step("tidy", ledger.do, f"tidy {who}")

    jobs = []
    for who in "ab":
        jobs.append(await book.enqueue(who))
        await drain(app)
    await app.jobs.cancel(jobs[0])
    await drain(app)
    assert ledger.function_done == {"inside a": 1, "inside b": 1}
    clock.advance(HOUR)
    await drain(app)
    assert ledger.function_done == {"inside a": 1, "inside b": 1, "tidy a": 1}


async def test_a_history_with_locks_is_replayed(app: App, clock: HandClock) -> None:
    account = Account(app)
    await account.of("a", "b", "c")
    clock.advance(HOUR)
    await drain(app)
    before = list(account.entered)
    ended, asleep, waits = await replay(app, [one async for one in histories(app._core, {"task": "book"})])
    assert [one.stopped_at for one in (ended, asleep, waits)] == [None, "sleep:sleep", "lock:account:7"]
    assert account.entered == before


async def test_the_clock_of_a_test_does_not_wait_for_the_row_of_a_free_lock() -> None:
    app = App("memory://")

    @app.task
    async def book() -> None:
        async with current().lock("x"):
            await current().sleep(HOUR)

    async with app.testing() as t:
        before = t.clock()
        jobs = [await book.enqueue() for _ in range(2)]
        await t.finish()
        assert [await job.result(0) for job in jobs] == [None, None]
        assert t.clock() - before < 2 * HOUR + 1
