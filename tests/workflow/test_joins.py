"""Joins under races and faults: every join starts, and only once; each workflow ends once and after its last job."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.kit import Spy, Told, work
from tests.worker.test_flaky import Flaky
from treadle import App, Flow, Retry, State, flow, gather
from treadle.core.model import CHILDREN, Claim, Outcome, Settled
from treadle.policy import judge
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.shows import shows


async def joins(app: App, many: int) -> None:
    """Run this many joins of two upstreams each, on two workers of eight slots."""
    ran: Counter[int] = Counter()

    @app.task(name="side")
    async def side(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @app.task(name="join")
    async def join(sides: list[int]) -> int:
        ran[sides[0]] += 1
        return sum(sides)

    async with work(app, concurrency=8), work(app, concurrency=8):
        flows = [gather(side.job(n), side.job(n)).into(join) for n in range(many)]
        jobs = await app.enqueue(flows)
        assert [await job.result(timeout=60) for job in jobs] == [2 * n for n in range(many)]
    assert ran == Counter(range(many))
    assert (await app.jobs.list(state=("waiting", "ready", "running"), limit=1)).records == ()


@shows("each of thirty jobs with two upstreams starts once while two workers run the upstreams")
@pytest.mark.parametrize("round_", range(2))
async def test_no_join_is_stranded(app: App, round_: int) -> None:
    await joins(app, 30)


@shows("each of three hundred jobs with two upstreams starts once, in twenty rounds")
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round_", range(20))
async def test_no_join_of_three_hundred_is_stranded(app: App, round_: int) -> None:
    await joins(app, 300)


async def is_final(app: App, id: str) -> bool:
    return (await app.jobs.get(id)).state.final


@shows("a workflow ends once while storage calls fail at random")
@pytest.mark.parametrize("seed", range(4))
async def test_a_workflow_ends_once_although_storage_calls_fail(seed: int) -> None:
    storage = Flaky(MemoryStorage(), random.Random(seed))
    async with App(storage=storage, random=lambda: 0.0) as app:
        told = Told(app)
        tries: Counter[int] = Counter()

        @app.task(name="child", retry=Retry(attempts=3, base=0.001))
        async def child(n: int) -> int:
            tries[n] += 1
            if n % 3 == 0 and tries[n] % 2:
                raise ValueError("again")
            return n

        @app.task(name="parent", reduce="sum")
        async def parent(n: int) -> Flow[int]:
            return flow(child.job(10 * n + each) for each in range(4))

        jobs = [await parent.enqueue(n) for n in range(8)]
        storage.well = False
        recovery = Retry(base=0.001, max=0.005, attempts=None)
        async with work(app, concurrency=3, recovery=recovery), work(app, concurrency=3, recovery=recovery):
            for job in jobs:
                await storage.until(lambda id=job.id: is_final(app, id), "the end of a workflow")  # type: ignore[misc]
            storage.well = True
        rows = [await app.jobs.get(job) for job in jobs]
    assert [row.value for row in rows] == [str(40 * n + 6) for n in range(8)]
    ends = Counter(event.id for event in told.of("workflow.ended"))
    assert set(ends) <= {job.id for job in jobs}
    assert set(ends.values()) == {1}


async def test_an_ending_interrupted_by_a_crash_is_finished_by_another_worker() -> None:
    clock = HandClock()
    async with App(storage=MemoryStorage(clock), clock=clock) as app:

        @app.task(name="child")
        async def child() -> int:
            return 7

        job = await flow(child.job()).enqueue()
        [claimed] = (await app.storage.claim(Claim(worker="w#1"))).records
        await app.storage.settle([judge.succeeded(claimed, "7")])
        [root] = (await app.storage.claim(Claim(worker="dies#1"))).records
        assert (root.job.task, root.function_done) == ("treadle.flow", True)
        clock.advance(60)
        told = Told(app)
        async with work(app):
            assert await job.result(timeout=30) == 7
        [late] = await app.storage.settle([judge.succeeded(root, "8")])
        assert late.status == "stale"
        assert len(told.of("workflow.ended")) == 1
        assert (await app.jobs.get(job)).state is State.SUCCEEDED


class RetriesMeanwhile(Spy):
    """An operator retries the failed child of a job after a worker has read it, and before that worker ends the job."""

    operator: App
    retried = False
    succeeds = False  # another worker runs the child before that

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        for out in outcomes:
            if out.reason == CHILDREN and not self.retried:
                self.retried = True
                assert await self.operator.jobs.retry(state="failed", task="late") == 1
                if self.succeeds:
                    await self._run(out.after[0])
        return await super().settle(outcomes)

    async def _run(self, id: str) -> None:
        for child in (await self.inner.claim(Claim(worker="other#1", ids=(id,), limit=1))).records:
            await self.inner.settle([judge.succeeded(child, "2")])  # unless the worker has claimed it before
        await self.until(lambda: is_final(self.operator, id), "the ending of the child")


@shows("a job does not fail because of a child that is retried while a worker ends the job")
@pytest.mark.parametrize("succeeds", [False, True])
async def test_a_child_is_retried_while_its_parent_ends(storage: Storage, succeeds: bool) -> None:
    spy = RetriesMeanwhile(storage)
    spy.succeeds = succeeds
    app = App(storage=spy, retry=Retry(attempts=1))
    told = Told(app)
    runs: Counter[str] = Counter()

    @app.task(name="late")
    async def late() -> int:
        runs["late"] += 1
        if runs["late"] == 1:
            raise ValueError("not yet")
        return 2

    @app.task(name="parent")
    async def parent() -> Flow[int]:
        runs["parent"] += 1
        return flow(late.job())

    async with app, App(storage=storage) as spy.operator, work(app):
        job = await parent.enqueue()
        assert await job.result(timeout=30) == 2
        assert (await app.jobs.get(job.id)).lost == 0
    assert runs["parent"] == 1
    ended = told.of("workflow.ended", job.id)
    assert [event.record.state for event in ended if event.record] == ["succeeded"]
