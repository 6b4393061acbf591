"""A durable job with several branches that ends without success: each branch cleans up, and each of its undos runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.durable.kit import Ledger
from tests.waiting import turn
from treadle import App, JobCancelled, JobFailed, Retry, State, current
from treadle.policy.cleanups import cleanup_id
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

pytestmark = pytest.mark.usefixtures("tasks")

ONCE = Retry(attempts=1)
DAY = 86_400


async def cleanup(app: App, job: Any) -> Any:
    return await app.jobs.get(cleanup_id(job.id, 0))


async def gathered(*branches: Any) -> None:
    await asyncio.gather(*branches)


async def grouped(*branches: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for branch in branches:
            group.create_task(branch)


async def grouped_and_inside(first: Any, *others: Any) -> None:
    """The first branch is the body of the group."""
    async with asyncio.TaskGroup() as group:
        for branch in others:
            group.create_task(branch)
        await first


async def nested(first: Any, *others: Any) -> None:
    await grouped(first, gathered(*others))


async def waited(*branches: Any) -> None:
    tasks = [asyncio.ensure_future(branch) for branch in branches]
    await asyncio.wait(tasks)
    for task in tasks:
        task.result()


TOGETHER = pytest.mark.parametrize("together", [gathered, grouped, grouped_and_inside, nested, waited])


@shows("each branch of a cancelled job runs its `finally` to the end, and the undos of all branches run behind them")
@TOGETHER
@pytest.mark.parametrize("pause", ["sleep", "wait", "step"])
async def test_each_branch_runs_its_finally_to_the_end(app: App, ledger: Ledger, together: Any, pause: str) -> None:
    log = list[str]()

    def do(what: str) -> None:
        log.append(what)
        ledger.plain(what)

    async def branch(name: str, turns: int) -> None:
        here = current()
        here.on_undo(do, f"undo {name}")
        await here.step(f"begin:{name}", do, f"begin {name}")
        await turn(turns)  # the others reach the end of the history earlier
        here.on_undo(do, f"undo more {name}")
        try:
            if pause == "sleep":
                await here.sleep(DAY, name=f"pause:{name}")
            elif pause == "wait":
                await here.wait_for(f"go:{name}")
            else:
                await here.step.options(retry=Retry(attempts=9, base=DAY))(f"fail:{name}", ledger.do, f"fail {name}")
        finally:
            await turn(turns)
            await here.step(f"close:{name}", do, f"close {name}")
            await turn(turns)
            await here.step(f"tell:{name}", do, f"tell {name}")

    @app.task(retry=ONCE)
    async def trip() -> None:
        try:
            await together(branch("a", 0), branch("b", 10), branch("c", 3))
        except* JobCancelled:
            await current().step("report", do, "report")
            raise

    ledger.fail["fail a"] = ledger.fail["fail b"] = ledger.fail["fail c"] = 9
    job = await trip.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    row = await cleanup(app, job)
    assert row.state is State.SUCCEEDED, row.error
    ended = {f"{what} {name}": 1 for what in ("begin", "close", "tell", "undo", "undo more") for name in "abc"}
    assert {what: count for what, count in ledger.function_done.items() if not what.startswith("fail")} == {
        **ended,
        "report": 1,
    }
    first_undo = min(at for at, what in enumerate(log) if what.startswith("undo"))
    assert set(log[first_undo:]) == {f"undo {name}" for name in "abc"} | {f"undo more {name}" for name in "abc"}
    for name in "abc":
        assert log.index(f"undo more {name}") < log.index(f"undo {name}")


@TOGETHER
async def test_the_undos_of_a_slower_branch_run_after_a_failure(app: App, ledger: Ledger, together: Any) -> None:
    """The job has failed by an error of one branch. Its cleanup reads all branches for their undos."""

    async def branch(name: str, turns: int) -> None:
        here = current()
        await here.step(f"begin:{name}", ledger.do, f"begin {name}")
        await turn(turns)
        here.on_undo(ledger.do, f"undo {name}")
        await here.step(f"work:{name}", ledger.do, f"work {name}")
        await here.step(f"fail:{name}", ledger.do, f"fail {name}")

    @app.task(retry=ONCE)
    async def trip() -> None:
        await together(branch("a", 0), branch("b", turns))

    turns = 0
    ledger.fail["fail a"] = ledger.fail["fail b"] = 1
    app.on("failed")(lambda _: slow())

    def slow() -> None:
        nonlocal turns
        turns = 5

    job = await trip.enqueue()
    await drain(app)
    assert (await app.jobs.get(job)).state is State.FAILED
    assert (await cleanup(app, job)).state is State.SUCCEEDED
    assert ledger.function_done["undo a"] == ledger.function_done["undo b"] == 1


async def test_a_branch_that_replays_in_its_own_time_is_waited_for(app: App, ledger: Ledger) -> None:
    """The branch awaits something between its steps that takes longer in the cleanup than the other branch needs."""
    slow = False

    async def quick() -> None:
        await current().step("quick", ledger.do, "quick")
        await current().sleep(DAY, name="quick")

    async def late() -> None:
        here = current()
        await here.step("late", ledger.do, "late")
        if slow:
            loop = asyncio.get_running_loop()
            reply = loop.create_future()
            loop.call_later(0.1, reply.set_result, None)
            await reply
        here.on_undo(ledger.do, "undo late")
        await here.step("more", ledger.do, "more")
        await here.sleep(DAY, name="late")

    @app.task(retry=ONCE)
    async def trip() -> None:
        await asyncio.gather(quick(), late())

    job = await trip.enqueue()
    await drain(app)
    slow = True
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"quick": 1, "late": 1, "more": 1, "undo late": 1}


async def test_a_branch_that_hangs_keeps_no_other_from_cleaning_up(
    app: App, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = False

    async def well() -> None:
        current().on_undo(ledger.do, "undo well")
        try:
            await current().sleep(DAY, name="well")
        finally:
            await current().step("close well", ledger.do, "close well")

    async def ill() -> None:
        here = current()
        here.on_undo(ledger.do, "undo ill")
        await here.step("begin", ledger.do, "begin")
        if hangs:
            await asyncio.Event().wait()
        try:
            await here.sleep(DAY, name="ill")
        finally:
            await here.step("close ill", ledger.do, "close ill")

    @app.task(retry=ONCE, timeout=1.0)
    async def trip() -> None:
        await asyncio.gather(well(), ill())

    job = await trip.enqueue()
    await drain(app)
    hangs = True
    await app.jobs.cancel(job)
    await drain(app)
    assert (await cleanup(app, job)).state is State.SUCCEEDED
    assert ledger.function_done == {"begin": 1, "close well": 1, "undo well": 1, "undo ill": 1}


@shows("a step in the `finally` of one branch that fails is tried again, and the steps of the others are not")
@TOGETHER
async def test_a_branch_whose_cleanup_fails_is_tried_again(
    app: App, clock: HandClock, ledger: Ledger, together: Any
) -> None:
    async def branch(name: str) -> None:
        here = current()
        here.on_undo(ledger.do, f"undo {name}")
        try:
            await here.sleep(DAY, name=name)
        finally:
            await here.step(f"close:{name}", ledger.do, f"close {name}")

    @app.task(retry=ONCE)
    async def trip() -> None:
        await together(branch("a"), branch("b"), branch("c"))

    job = await trip.enqueue()
    await drain(app)
    ledger.fail["close b"] = 1
    await app.jobs.cancel(job)
    await drain(app)
    assert (await cleanup(app, job)).state is State.READY
    clock.advance(60)
    await drain(app)
    row = await cleanup(app, job)
    assert (row.state, row.attempt) == (State.SUCCEEDED, 2), row.error
    assert ledger.function_done["close b"] == 2
    assert all(ledger.function_done[what] == 1 for what in ("close a", "close c", "undo a", "undo b", "undo c"))


@TOGETHER
async def test_branches_sleep_while_they_clean_up(app: App, clock: HandClock, ledger: Ledger, together: Any) -> None:
    """Also after the function has ended by the ending of another branch."""

    async def branch(name: str, grace: float) -> None:
        here = current()
        here.on_undo(ledger.do, f"undo {name}")
        try:
            await here.sleep(DAY, name=name)
        finally:
            if grace:
                await here.sleep(grace, name=f"grace:{name}")
            await here.step(f"close:{name}", ledger.do, f"close {name}")

    @app.task(retry=ONCE)
    async def trip() -> None:
        await together(branch("a", 0), branch("b", 60), branch("c", 30))

    job = await trip.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    for _ in range(3):
        await drain(app)
        clock.advance(31)
    await drain(app)
    row = await cleanup(app, job)
    assert row.state is State.SUCCEEDED, row.error
    assert ledger.function_done == {f"{what} {name}": 1 for what in ("close", "undo") for name in "abc"}


async def test_undos_keep_their_places_if_another_branch_is_faster(app: App, clock: HandClock, ledger: Ledger) -> None:
    """The first try of the cleanup has undone one branch. In the second, the other branch registers its undo first."""
    turns = {"a": 0, "b": 5}

    async def branch(name: str) -> None:
        here = current()
        await here.step(f"begin:{name}", ledger.do, f"begin {name}")
        await turn(turns[name])
        here.on_undo(ledger.do, f"undo {name}")
        await here.step(f"work:{name}", ledger.do, f"work {name}")
        await here.sleep(DAY, name=name)

    @app.task(retry=ONCE)
    async def trip() -> None:
        await asyncio.gather(branch("a"), branch("b"))

    job = await trip.enqueue()
    await drain(app)
    ledger.fail["undo a"] = 1
    await app.jobs.cancel(job)
    await drain(app)
    assert (await cleanup(app, job)).state is State.READY
    turns.update(a=5, b=0)
    clock.advance(60)
    await drain(app)
    row = await cleanup(app, job)
    assert row.state is State.SUCCEEDED, row.error
    assert (ledger.function_done["undo a"], ledger.function_done["undo b"]) == (2, 1)


@pytest.mark.parametrize("mark", ["publish", "timeout"])
@pytest.mark.parametrize("turns", [1, 5])
async def test_a_branch_that_ends_at_a_mark_waits_for_the_others(
    app: App, ledger: Ledger, mark: str, turns: int
) -> None:
    async def marked() -> None:
        here = current()
        await here.sleep(60, name="marked")
        if mark == "publish":
            await here.publish("status", "late")
        async with here.timeout(60):
            await here.sleep(DAY, name="more")

    async def slower() -> None:
        here = current()
        await here.step("begin", ledger.do, "begin")
        await turn(turns)
        here.on_undo(ledger.do, "undo")
        await here.step("work", ledger.do, "work")
        await here.sleep(DAY, name="slower")

    @app.task(retry=ONCE)
    async def trip() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(marked())
            group.create_task(slower())

    job = await trip.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert ledger.function_done == {"begin": 1, "work": 1, "undo": 1}


async def test_a_step_with_a_time_limit_of_asyncio_ends_with_its_job(app: App, ledger: Ledger) -> None:
    """Nothing is refused: the job has not waited in that block."""

    async def branch(name: str) -> None:
        here = current()
        here.on_undo(ledger.do, f"undo {name}")
        async with asyncio.timeout(60):
            await here.step(f"begin:{name}", ledger.do, f"begin {name}")
            await here.step(f"fail:{name}", ledger.do, f"fail {name}")

    @app.task(retry=Retry(attempts=2, base=DAY))
    async def trip() -> None:
        await asyncio.gather(branch("a"), branch("b"))

    ledger.fail["fail a"] = ledger.fail["fail b"] = 1
    job = await trip.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    row = await cleanup(app, job)
    assert row.state is State.SUCCEEDED, row.error
    assert ledger.function_done["undo a"] == ledger.function_done["undo b"] == 1


async def test_a_lock_between_branches_ends_with_its_job(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def trip() -> None:
        here, gate = current(), asyncio.Semaphore(1)

        async def branch(name: str) -> None:
            here.on_undo(ledger.do, f"undo {name}")
            async with gate:
                await here.step(f"begin:{name}", ledger.do, f"begin {name}")
                try:
                    await here.sleep(DAY, name=name)
                finally:
                    await here.step(f"close:{name}", ledger.do, f"close {name}")

        await asyncio.gather(branch("a"), branch("b"))

    job = await trip.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    row = await cleanup(app, job)
    assert row.state is State.SUCCEEDED, row.error
    assert ledger.function_done == {"begin a": 1, "close a": 1, "undo a": 1, "undo b": 1}


async def test_the_ending_is_that_of_the_job_in_each_branch(app: App, ledger: Ledger) -> None:
    seen = list[tuple[str, type[BaseException]]]()

    async def branch(name: str) -> None:
        try:
            await current().step(f"begin:{name}", ledger.do, f"begin {name}")
            await current().sleep(DAY, name=name)
        except BaseException as error:
            if current().record.job.id.startswith("treadle:"):
                seen.append((name, type(error)))
            raise

    @app.task(retry=ONCE)
    async def trip() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(branch(name))

    job = await trip.enqueue()
    await drain(app)
    await app.jobs.cancel(job)
    await drain(app)
    assert sorted(seen) == [(name, JobCancelled) for name in "abc"]
    assert JobFailed not in dict(seen).values()
