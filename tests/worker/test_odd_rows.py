"""Rows stored without any check: workers continue in spite of them, and `treadle doctor --repair` removes them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.kit import Told
from treadle import App, Worker
from treadle.core.model import NewJob, State
from treadle.server.doctor import leftovers
from treadle.storage.contract import Storage

EVERY = {"name": "n", "timing": {"type": "every", "seconds": 1e-9}, "task": "t", "job": {"id": "i", "task": "t"}}
FOREIGN = NewJob(id="foreign", task="t", queue="treadle")
PROMISE = NewJob(id="promise", queue="treadle")
GARBAGE = NewJob(id="treadle:schedule:garbage", task="treadle.schedule", queue="treadle", payload="[]")
FAST = NewJob(
    id="treadle:schedule:fast",
    task="treadle.schedule",
    queue="treadle",
    key="treadle.schedule n",
    lease=5.0,
    payload=json.dumps(EVERY),
    labels=("schedule=n",),
)
REST = NewJob(id="rest", task="treadle.limit", queue="treadle", payload='{"limit":"mail","seconds":-1.0}')
NO_REST = NewJob(id="no-rest", task="treadle.limit", queue="treadle", payload='{"limit":"\\u0000","seconds":1e300}')
ELSEWHERE = NewJob(id="elsewhere", task="treadle.schedule", queue="default", delay=1e6)
ODD = (FOREIGN, PROMISE, GARBAGE, FAST, REST, NO_REST, ELSEWHERE)


async def test_a_worker_continues_despite_odd_rows(app: App, storage: Storage, told: Told) -> None:
    """Rests of limits that no call could have requested fail with the reason; an interval of a nanosecond makes no
    tick."""

    @app.task(name="t")
    async def t(n: int = 0) -> int:
        return n

    policies = [
        NewJob(id=f"p{n}", task="t", retry=text)
        for n, text in enumerate(
            ['{"timeout":-1.0}', '{"timeout":0}', '{"max_lost":-5}', "garbage", '{"retry":{"base":-1}}']
        )
    ]
    await app.open()
    await storage.enqueue(
        [*ODD, *policies, NewJob(id="flow", task="treadle.flow", payload="garbage", function_done=True)]
    )
    async with Worker(app, ["default"], poll=3600):
        async with asyncio.timeout(30):
            while not all(
                row is not None and row.state.final for row in await storage.get(["rest", "no-rest", "flow"])
            ):
                await storage.watch(("job:flow", "job:rest", "job:no-rest"), 0.05)
        assert await (await t.enqueue(7)).result(30) == 7
        for policy in policies:
            assert (await app._core.client.ended(policy.id, 30)).state is State.SUCCEEDED, policy.retry
    for id in ("rest", "no-rest"):
        row = await app.jobs.get(id)
        assert (row.state, row.reason) == (State.FAILED, "aborted")
        assert "limit" in (row.error or "")
    assert list((await app.jobs.list(label="schedule=n", queue="default")).records) == []
    assert [each.name for each in await app.schedules.list()] == ["n"]


async def test_doctor_finds_and_cancels_them(app: App, storage: Storage) -> None:
    await app.open()
    await app.schedules.upsert("sound", app.stub("t").job(), every=60)
    await storage.enqueue(
        [*ODD, NewJob(id="treadle:leader", task="treadle.leader", queue="treadle"), NewJob(id="user", task="t")]
    )
    [found] = [check async for check in leftovers.in_storage(app._core, repair=False)]
    assert (found.verdict, found.text.split(" ")[0]) == ("warn", str(len(ODD)))
    repaired = [check async for check in leftovers.in_storage(app._core, repair=True)]
    assert sorted(check.text.split(" ")[1].rstrip(":") for check in repaired) == sorted(job.id for job in ODD)
    assert {check.verdict for check in repaired} == {"ok"}
    [after] = [check async for check in leftovers.in_storage(app._core, repair=True)]
    assert after.verdict == "ok"
    assert {row.state for row in await storage.get([job.id for job in ODD]) if row} == {State.CANCELLED}
    assert [each.name for each in await app.schedules.list()] == ["sound"]
    assert [(await app.jobs.get(id)).state for id in ("treadle:leader", "user")] == [State.READY] * 2


@pytest.mark.parametrize(
    "payload", ["[]", "{}", '{"name": 7}', json.dumps({**EVERY, "timing": {"type": "cron", "line": "x"}})]
)
async def test_a_row_that_is_no_schedule_hides_no_other(app: App, storage: Storage, payload: str) -> None:
    await app.open()
    await app.schedules.upsert("sound", app.stub("t").job(), every=60)
    await storage.enqueue(
        [NewJob(id="x", task="treadle.schedule", queue="treadle", payload=payload, labels=("schedule=x",))]
    )
    assert [each.name for each in await app.schedules.list()] == ["sound"]
