"""Versions of a task: a job with recorded steps keeps to the one with which it began, also in a mixed fleet."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from tests.worker.test_misfits import working
from treadle import App, BadOption, BadTask, Retry, UnknownVersion, Worker, current
from treadle.admin.code_check import Options, check_code
from treadle.admin.histories import histories
from treadle.storage.memory import MemoryStorage
from treadle.testing import drain, replay
from treadle_testkit.shows import shows


def release(app: App, ledger: Ledger, *versions: int) -> Any:
    """Register these versions of the task -> the last one."""
    task: Any = None
    if 1 in versions:

        @app.task(name="order", retry=AGAIN)
        async def first(number: int) -> str:
            here = current()
            await here.step("old", ledger.do, "old")
            await here.sleep(100)
            return "version 1"

        task = first
    if 2 in versions:

        @app.task(name="order", retry=AGAIN, version=2)
        async def second(number: int, currency: str = "EUR") -> str:
            here = current()
            await here.step("new", ledger.do, "new")
            await here.sleep(100)
            return f"version 2 in {currency}"

        task = second
    return task


@shows("a durable job keeps to the version of its task that it began with, and new jobs take the newest")
async def test_a_job_keeps_to_its_version(app: App, clock: Any, ledger: Ledger) -> None:
    first = await release(app, ledger, 1).enqueue(1)
    waiting = await app.tasks["order"].options(delay=50).enqueue(2)  # it has not begun
    await drain(app)
    second = await release(app, ledger, 2).enqueue(3)
    await drain(app)
    assert "keeps to version 2" in await app.jobs.explain(second)
    for _ in range(2):
        clock.advance(101)
        await drain(app)
    results = [await job.result(0) for job in (first, waiting, second)]
    assert results == ["version 1", "version 2 in EUR", "version 2 in EUR"]
    assert ledger.function_done == Counter(old=1, new=2)


async def test_a_restart_and_a_fork_of_a_version(app: App, clock: Any, ledger: Ledger) -> None:
    """A new round takes the newest version; a fork keeps to the one that has taken the steps it begins with."""
    job = await release(app, ledger, 2).enqueue(1)
    await drain(app)

    @app.task(name="order", retry=AGAIN, version=3)
    async def third(number: int) -> str:
        return "version 3"

    fork = await app.jobs.fork(job, from_step="sleep")
    again = await app.jobs.fork(job)
    clock.advance(101)
    for _ in range(2):
        await drain(app)
        clock.advance(101)
    results = [await one.result(0) for one in (job, fork, again)]
    assert results == ["version 2 in EUR", "version 2 in EUR", "version 3"]
    await app.jobs.rerun(job)
    await drain(app)
    assert await job.result(0) == "version 3"


async def test_arguments_that_only_the_old_version_reads(app: App, ledger: Ledger) -> None:
    @app.task(name="pay", retry=AGAIN)
    async def old(amount: int) -> str:
        return "old"

    job = await old.enqueue(1)

    @app.task(name="pay", retry=AGAIN, version=2)
    async def new(amount: int, currency: str) -> str:
        return "new"

    later = await new.enqueue(1, "EUR")
    await drain(app)
    assert [await one.result(0) for one in (job, later)] == ["old", "new"]


@shows("a job whose version this code lacks fails with what to do, if no other worker has it")
async def test_a_version_that_this_code_lacks(app: App, clock: Any, ledger: Ledger) -> None:
    job = await release(app, ledger, 1).enqueue(1)
    await drain(app)
    async with App(storage=app.storage, clock=clock) as later:
        release(later, ledger, 2)
        report = await check_code(later._core, Options())
        assert [(one.kind, one.subject, one.jobs) for one in report.findings] == [("task", "order", 1)]
        assert "version 1" in report.findings[0].what
        exported = [history async for history in histories(app._core, {}, None)]
        with pytest.raises(UnknownVersion, match="began with version 1"):
            await replay(later, exported)
        clock.advance(101)
        await drain(later)
        assert "UnknownVersion: job" in await error_of(later, job)
        assert (await later.jobs.get(job)).attempt == 1


@shows("in a fleet of two releases, each runs the jobs that began with its version or its steps")
@pytest.mark.parametrize("numbered", [True, False])
async def test_two_releases_side_by_side(ledger: Ledger, numbered: bool) -> None:
    """Without numbers, the source files of the two differ: a job that began with other steps waits as well."""
    storage, began = MemoryStorage(), asyncio.Event()
    old, new = App(storage=storage), App(storage=storage)

    @old.task(name="order", retry=Retry(attempts=1))
    async def first() -> str:
        here = current()
        await here.step("old", ledger.do, "old")
        began.set()
        await here.sleep(0.2)
        return "old"

    async def second() -> str:
        here = current()
        await here.step("new", ledger.do, "new")
        return "new"

    if not numbered:
        second.__module__ = "tests.durable.kit"  # another source file
    later = new.task(name="order", retry=Retry(attempts=1), version=2 if numbered else 1)(second)
    async with old, new:
        async with working(Worker(old, poll=0.05)):
            jobs = [await first.enqueue() for _ in range(3)]
            await began.wait()
        async with working(Worker(new, poll=0.05), Worker(old, poll=0.05)):
            jobs.append(await later.enqueue())
            async with asyncio.timeout(60):
                results = [await job.result() for job in jobs]
        rows = await storage.get([job.id for job in jobs])
    assert set(results) <= {"old", "new"}
    assert results[0] == "old"
    assert {row.attempt for row in rows if row is not None} == {1}
    assert ledger.function_done["old"] == results.count("old")


async def test_versions_that_cannot_be(app: App) -> None:
    async def work() -> None: ...

    def heavy() -> None: ...

    async def together(items: list[int]) -> list[int]:
        return items

    for wrong in (0, True, "2"):
        with pytest.raises(BadOption, match="version"):
            app.task(name="work", version=wrong)(work)  # type: ignore[arg-type]
    with pytest.raises(BadTask, match="no versions"):
        app.task(name="heavy", kind="process", version=2)(heavy)
    app.batch(name="together")(together)
    with pytest.raises(BadTask, match="no versions"):
        app.task(name="together", version=2)(work)
    app.task(name="work", version=2)(work)
    with pytest.raises(BadTask, match="already registered"):
        app.task(name="work", version=2)(together)
