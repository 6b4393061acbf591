"""Pipelines on the hand clock: runs are found by their values until they are pruned, and the pipelines of a community's
access control share their queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle import App, Limit, Retry, UnknownJob
from treadle.contrib.pipeline import Pipeline, Step
from treadle.core.model import State
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

DAY = 86_400.0


async def prune(app: App) -> None:
    while await app.storage.prune(100):
        pass


@shows("`find` never returns another run for one that was deleted, purged or pruned")
async def test_runs_are_found_right_after_purge_and_expiry(app: App, clock: HandClock) -> None:
    p = Pipeline("p", [Step("a", retry=Retry(attempts=1)), Step("b")], labels=["user", "roles"], app=app)

    @p.handler("a")
    async def a(bad: bool = False) -> None:
        if bad:
            raise ValueError("no")

    @p.handler("b")
    async def b() -> None: ...

    p.complete()
    old = await p.start(user=1, roles=["x", "y"])
    failed = await p.start(user=1, roles=["y"], bad=True)
    await drain(app)
    clock.advance(DAY - 10)
    young = await p.start(user=1, roles=["y"])
    await drain(app)
    assert await p.find(user=1) == [young, failed, old]
    clock.advance(20)
    await prune(app)
    assert await p.find(user=1) == [young, failed]  # the oldest is pruned; no other run has its values
    assert await p.find(roles="x") == []
    assert await p.find(roles="y") == [young, failed]
    assert (await p.find(user=1))[0].id == young.id
    with pytest.raises(UnknownJob):
        await old.state()
    assert (await failed.state()).state is State.FAILED
    assert await app.dead.purge(task="p.a") == 1
    clock.advance(61)
    await prune(app)
    assert await p.find(user=1) == [young]
    await young.delete()
    clock.advance(61)
    await prune(app)
    assert await p.find(user=1) == []
    assert (await app.jobs.list()).records == ()


def community(app: App, said: list[tuple[str, Any]]) -> dict[str, Pipeline]:
    """Access for one user, status updates for a whole guild, messages and snapshots; two queues are shared."""
    shared: dict[str, Any] = {"retry": Retry(attempts=10, base=1)}
    reward = Step("manage-reward", children=["discord"], limits=[], **shared)
    access = Pipeline(
        "access",
        [
            Step("preparation"),
            Step("access-check", children=["discord"], **shared),
            Step("access-logic"),
            reward,
            Step("access-result"),
        ],
        labels=["userId", "roleIds", "guildId"],
        app=app,
    )
    status = Pipeline(
        "status-update",
        [
            Step("preparation", queue="status-preparation"),
            Step("bulk-access-check", children=["bulk"]),
            Step("access-check", children=["discord"], priority_shift=1, **shared),
            Step("bulk-access-logic", priority_shift=-1),
            Step("bulk-update-membership"),
            Step("manage-reward", children=["discord"], priority_shift=1, **shared),
            Step("status-update-result", priority_shift=-1),
        ],
        labels=["roleIds", "guildId"],
        app=app,
    )
    messages = Pipeline("messaging", [Step("send-message", limits=["discord:{guildId}"])], labels=["guildId"], app=app)
    points = Pipeline("points", [Step("points-snapshot", retry=Retry(attempts=11))], labels=["guildId"], app=app)
    for pipeline in (access, status, messages, points):
        for step in pipeline.steps.values():
            handle(pipeline, step, said)
        pipeline.complete()
    return {each.name: each for each in (access, status, messages, points)}


def handle(pipeline: Pipeline, step: Step, said: list[tuple[str, Any]]) -> None:
    if not step.children:

        @pipeline.handler(step.name)
        async def run(**fields: Any) -> dict[str, Any]:
            said.append((f"{pipeline.name}.{step.name}", fields))
            return {f"{step.name}-done": True}

    for child in step.children:
        handle_child(pipeline, f"{step.name}:{child}", said)


def handle_child(pipeline: Pipeline, name: str, said: list[tuple[str, Any]]) -> None:
    @pipeline.handler(name)
    async def part(**fields: Any) -> str:
        said.append((f"{pipeline.name}.{name}", fields))
        return f"{name} of {fields['guildId']}"


@shows("two pipelines share a queue, and each run keeps to its own pipeline")
async def test_the_shapes_of_a_community_share_their_queues(app: App, clock: HandClock) -> None:
    said: list[tuple[str, Any]] = []
    all_ = community(app, said)
    update = await all_["status-update"].start(guildId=7, roleIds=[1, 2])
    enter = await all_["access"].start(userId=62, guildId=7, roleIds=[1])
    await drain(app)
    ended = await update.result(timeout=0)
    assert [each["result"] for each in ended["access_check_results"]] == ["access-check:discord of 7"]
    assert ended["status-update-result-done"] is True
    assert (await enter.result(timeout=0))["access-result-done"] is True
    assert await all_["access"].find(userId=62) == [enter]
    assert await all_["status-update"].find(roleIds=2, guildId=7) == [update]
    rows = [row async for row in app.jobs.iterate(queue="access-check:discord")]
    assert {(row.job.task, row.job.priority) for row in rows} == {
        ("access.access-check:discord", -1),
        ("status-update.access-check:discord", -2),
    }
    [last] = [row async for row in app.jobs.iterate(task="status-update.status-update-result")]
    assert last.job.priority == -1
    figures = await all_["status-update"].stats()
    assert figures["access-check:discord"].queue == "access-check:discord"


@shows("an urgent run passes the runs of another pipeline on a shared queue")
async def test_an_urgent_run_passes_many_runs_on_a_shared_queue(app: App) -> None:
    said: list[tuple[str, Any]] = []
    all_ = community(app, said)
    await app.queues.pause("access-check:discord")
    for guild in range(5):
        await all_["status-update"].start(guildId=guild)
    await drain(app)
    await all_["access"].start(userId=1, guildId=99)
    await drain(app)
    said.clear()
    await app.queues.resume("access-check:discord")
    await drain(app)
    checks = [fields["guildId"] for name, fields in said if name.endswith("access-check:discord")]
    assert checks[0] == 99
    assert sorted(checks) == [0, 1, 2, 3, 4, 99]


@shows("a rate named after a field of the run holds for each value by itself")
async def test_messages_keep_to_the_rate_of_their_guild(app: App, clock: HandClock) -> None:
    said: list[tuple[str, Any]] = []
    all_ = community(app, said)
    await app.limits.set(Limit("discord", rate=5, per=5))
    for n in range(12):
        await all_["messaging"].start(guildId=1 if n < 9 else 2, text=f"hello {n}")
    await drain(app)
    assert sorted(fields["guildId"] for _, fields in said) == [1] * 5 + [2] * 3
    clock.advance(5)
    await drain(app)
    assert len(said) == 12


@shows("`run.delete()` cancels and removes the run with its children and its next step")
async def test_a_run_is_deleted_with_its_children_and_its_next_step(app: App, clock: HandClock) -> None:
    p = Pipeline("p", [Step("check", children=["a"]), Step("logic")], app=app)
    began = asyncio.Event()

    @p.handler("check")
    async def check() -> dict[str, Any]:
        return {"children": {"a": [{"part": part} for part in range(3)]}}

    @p.handler("check:a")
    async def a(part: int) -> None:
        began.set()
        await asyncio.Event().wait()

    @p.handler("logic")
    async def logic() -> None:
        raise AssertionError("the run was deleted")

    async with p.worker(poll=0.01, concurrency=1, grace=0.1):
        run = await p.start()
        async with asyncio.timeout(30):
            await began.wait()  # one child runs, two wait for its slot, the next step waits for all
        rows = (await app.jobs.list(workflow=run.id, limit=100)).records
        assert sorted(row.job.task for row in rows) == ["p.check", "p.check:a", "p.check:a", "p.check:a", "p.logic"]
        await run.delete()
    rows = (await app.jobs.list(workflow=run.id, limit=100)).records
    assert {row.state for row in rows} == {State.CANCELLED}
    clock.advance(61)
    assert await app.storage.prune(10) == 5
    assert not (await app.jobs.list(workflow=run.id, limit=100)).records
