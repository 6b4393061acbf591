"""`current().patched`: jobs that have passed a point keep to the old code, all others take the new one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.durable.kit import AGAIN, Ledger, error_of
from treadle import App, Retry, State, current, current_batch
from treadle.admin.code_check import Options, Patch, check_code
from treadle.admin.histories import histories
from treadle.testing import drain, replay
from treadle_testkit.shows import shows


class Deploy:
    """Whether the new code runs."""

    done = False


def here_of(kind: str) -> Any:
    return current() if kind == "async" else current().sync


def tasks(app: App, ledger: Ledger, deploy: Deploy, old: Any, new: Any) -> dict[str, Any]:
    """One task for each kind, whose code is a generator of steps: `old` before the deploy, `new` after it."""

    async def in_loop(n: int) -> list[str]:
        here = current()
        for name in (new if deploy.done else old)(here, n):
            if name.startswith("sleep"):
                await here.sleep(100, name=name)
            else:
                await here.step(name, ledger.do, name)
        return sorted(ledger.function_done.elements())

    def in_thread(n: int) -> list[str]:
        here = current().sync
        for name in (new if deploy.done else old)(here, n):
            if name.startswith("sleep"):
                here.sleep(100, name=name)
            else:
                here.step(name, ledger.plain, name)
        return sorted(ledger.function_done.elements())

    return {"async": app.task(name="a", retry=AGAIN)(in_loop), "thread": app.task(name="t", retry=AGAIN)(in_thread)}


@shows("`patched` keeps a job that has passed the point on its old code, and gives all others the new code")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("passed", [True, False])
async def test_a_job_keeps_to_the_code_with_which_it_passed_the_point(
    app: App, clock: Any, ledger: Ledger, kind: str, passed: bool
) -> None:
    deploy = Deploy()

    def old(here: Any, n: int) -> Any:
        yield "first"
        if not passed:
            yield "sleep"
        yield "old"
        if passed:
            yield "sleep"
        yield "last"

    def new(here: Any, n: int) -> Any:
        yield "first"
        if not passed:
            yield "sleep"
        if here.patched("change"):
            yield "new"
        else:
            yield "old"
        if passed:
            yield "sleep"
        yield "last"

    task = tasks(app, ledger, deploy, old, new)[kind]
    job = await task.enqueue(1)
    await drain(app)
    deploy.done = True
    clock.advance(101)
    await drain(app)
    assert await job.result(0) == sorted(["first", "last", "old" if passed else "new"])
    names = [(step.name, step.kind) for step in (await app.jobs.history(job)).steps]
    assert (("patched:change", "patch") in names) is not passed


@shows("a patch in a loop is decided once for the whole job")
async def test_a_loop_does_not_change_its_code_half_way(app: App, clock: Any, ledger: Ledger) -> None:
    deploy = Deploy()

    def old(here: Any, n: int) -> Any:
        for number in range(4):
            yield f"work {number}"
            yield f"sleep {number}"

    def new(here: Any, n: int) -> Any:
        for number in range(4):
            yield f"better {number}" if here.patched("better") else f"work {number}"
            yield f"sleep {number}"

    task = tasks(app, ledger, deploy, old, new)["async"]
    first = await task.enqueue(1)
    for _ in range(2):
        await drain(app)
        clock.advance(101)
    deploy.done = True
    second = await task.enqueue(2)
    for _ in range(6):
        await drain(app)
        clock.advance(101)
    assert [(await app.jobs.get(job)).state for job in (first, second)] == [State.SUCCEEDED] * 2
    assert ledger.function_done == Counter(
        {f"{what} {number}": 1 for what in ("work", "better") for number in range(4)}
    )


@shows("a patch in a branch that has begun keeps to the old code")
@pytest.mark.parametrize("begun", [True, False])
async def test_a_patch_in_branches(app: App, clock: Any, ledger: Ledger, begun: bool) -> None:
    deploy = Deploy()

    @app.task(retry=AGAIN)
    async def both() -> None:
        here = current()

        async def branch(name: str) -> None:
            if deploy.done and here.patched("branches"):
                await here.step(f"{name} new", ledger.do, f"{name} new")
            await here.step(name, ledger.do, name)

        await here.step("first", ledger.do, "first")
        if not begun:
            await here.sleep(100)
        await asyncio.gather(branch("a"), branch("b"))
        await here.sleep(100, name="end")

    job = await both.enqueue()
    await drain(app)
    deploy.done = True
    for _ in range(2):
        clock.advance(101)
        await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    new = {} if begun else {"a new": 1, "b new": 1}
    assert ledger.function_done == Counter({"first": 1, "a": 1, "b": 1, **new})


async def test_a_marker_is_stored_before_the_next_effect(app: App, ledger: Ledger) -> None:
    """A later run of older code, as after a rollback, finds it and reads the history."""
    seen: list[list[str]] = []

    @app.task(retry=AGAIN)
    async def work() -> bool:
        here = current()
        patched = here.patched("change")
        assert here.patched("change") is patched

        async def effect() -> None:
            stored = await app.jobs.get(current().id)
            seen.append([name for name, _ in stored.checkpoints])

        await here.step("effect", effect)
        return patched

    job = await work.enqueue()
    await drain(app)
    assert await job.result(0) is True
    assert seen == [["patched:change"]]


async def test_code_without_the_patch_reads_the_history(app: App, clock: Any, ledger: Ledger) -> None:
    """The patch is removed when all jobs take the new code; a rollback of a job before the point is possible, too."""
    removed = False

    @app.task(retry=Retry(attempts=1))
    async def work() -> None:
        here = current()
        await here.step("first", ledger.do, "first")
        if removed or here.patched("change"):
            await here.step("new", ledger.do, "new")
        await here.sleep(100)
        await here.step("last", ledger.do, "last")

    job = await work.enqueue()
    await drain(app)
    removed = True
    clock.advance(101)
    await drain(app)
    assert (await app.jobs.get(job)).state is State.SUCCEEDED
    assert ledger.function_done == Counter(first=1, new=1, last=1)


async def test_a_patch_needs_a_name_and_a_function_of_its_own(app: App) -> None:
    @app.task(retry=AGAIN)
    async def wrong() -> None:
        current().patched("a#b")

    @app.batch(size=1, max_wait=0, retry=AGAIN)
    async def together(items: list[int]) -> list[bool]:
        return [here.patched("change") for here in current_batch()]

    for task, why in ((wrong, "without '#'"), (together, "one code for all its jobs")):
        job = await (task.enqueue() if task is wrong else task.enqueue(1))  # type: ignore[call-arg, arg-type]
        await drain(app)
        assert why in await error_of(app, job)


@shows("`treadle storage check` counts the unfinished jobs that may need the old code of a patch")
async def test_a_check_counts_jobs_of_the_old_code(app: App, clock: Any, ledger: Ledger) -> None:
    deploy = Deploy()

    @app.task(name="work", retry=AGAIN)
    async def work() -> None:
        here = current()
        await here.step("first", ledger.do, "first")
        if deploy.done and here.patched("change"):
            await here.step("new", ledger.do, "new")
        await here.sleep(100)

    first = await work.enqueue()
    await drain(app)
    deploy.done = True
    await work.enqueue()
    await drain(app)
    report = await check_code(app._core, Options())
    assert (report.findings, report.patches) == (
        [],
        [Patch(task="work", name="change", old=1, new=1, example=first.id)],
    )
    clock.advance(101)
    await drain(app)
    assert (await check_code(app._core, Options())).patches == [Patch(task="work", name="change")]


async def test_a_replay_takes_the_code_of_its_history(app: App, clock: Any, ledger: Ledger) -> None:
    deploy = Deploy()

    @app.task(name="work", retry=AGAIN)
    async def work() -> None:
        here = current()
        await here.step("first", ledger.do, "first")
        if deploy.done and here.patched("change"):
            await here.step("new", ledger.do, "new")
        await here.step("last", ledger.do, "last")
        await here.sleep(100)

    await work.enqueue()
    await drain(app)
    deploy.done = True
    await work.enqueue()
    await drain(app)
    exported = [history async for history in histories(app._core, {"state": "ready"}, None)]
    taken = [replayed.taken for replayed in await replay(app, exported)]
    assert sorted(taken) == [("first", "last", "sleep:sleep"), ("first", "new", "last", "sleep:sleep")]
