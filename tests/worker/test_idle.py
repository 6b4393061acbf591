"""A worker with little to do: how often it claims, how it reacts to hints, and what a job leaves behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence

import pytest

from tests.kit import Spy, Told
from tests.waiting import turn
from treadle import App, Worker
from treadle.core import defaults
from treadle.core.model import Claim, Claimed, NewJob, Record
from treadle.storage.contract import Capabilities, Storage
from treadle.storage.optional_parts import Post
from treadle_testkit.shows import shows


class Holding(Spy):
    """A storage that holds the answer to one claim."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.next = False  # hold the next claim
        self.held, self.let, self.heard = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        told = await super().watch(topics, timeout)
        if any(topic.startswith("queue:") for topic in told):
            self.heard.set()  # a test that waits for it continues after the worker, which continues in this very step
        return told

    async def claim(self, ask: Claim) -> Claimed:
        answer = await super().claim(ask)
        if self.next:
            self.next = False
            self.held.set()
            await self.let.wait()
        return answer

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return None  # these tests are about hints, so there is no hand-off

    async def hold_one(self, app: App) -> None:
        """Wait until a claim that found nothing is being held."""
        self.next = True
        await app.stub("nobody's").enqueue()
        async with asyncio.timeout(30):
            await self.held.wait()


class Dear(Spy):
    """A storage with expensive trips: counts those that brought jobs while another was in progress."""

    capabilities = Capabilities(one_trip_up_to=8)
    slow = 5  # turns of the loop that a claim takes at least: another one has begun by then

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.under_way = self.most = 0

    async def claim(self, ask: Claim) -> Claimed:
        self.under_way += 1
        try:
            answer = await super().claim(ask)
            await turn(self.slow)
            if answer.records:
                self.most = max(self.most, self.under_way)
            return answer
        finally:
            self.under_way -= 1

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        return None


@shows("a worker runs one job after another with two claims each and no pause in between")
async def test_one_new_job_causes_two_claims(app: App, spy: Spy) -> None:
    """Once after its hint, and once after it has ended; not by each dispatcher, and not for each kind of queue."""

    @app.task
    async def t() -> None: ...

    async with Worker(app, poll=3600):
        await (await t.enqueue()).result(timeout=30)
        before = spy.calls["claim"]
        for _ in range(20):
            await (await t.enqueue()).result(timeout=30)
        assert spy.calls["claim"] - before <= 2 * 20 + 6


async def test_a_notification_during_a_claim_causes_another_claim_at_once(storage: Storage) -> None:
    """That claim finds nothing, and its answer may take long."""
    holding = Holding(storage)
    async with App(storage=holding) as app:

        @app.task
        async def t() -> int:
            return 1

        async with Worker(app, concurrency=10, poll=3600):
            await (await t.enqueue()).result(timeout=30)
            await holding.hold_one(app)
            for _ in range(3):
                assert await (await t.enqueue()).result(timeout=30) == 1
            holding.let.set()
            assert await (await t.enqueue()).result(timeout=30) == 1


@pytest.mark.parametrize(("concurrency", "trips"), [(8, 1), (9, 2)])
async def test_a_worker_of_few_slots_makes_one_slow_round_trip_at_a_time(
    storage: Storage, concurrency: int, trips: int
) -> None:
    dear = Dear(storage)
    async with App(storage=dear) as app:

        @app.task
        async def t() -> None: ...

        jobs = await app.enqueue([t.job() for _ in range(60)])
        async with Worker(app, concurrency=concurrency, poll=3600):
            for job in jobs:
                await job.result(timeout=30)
        assert dear.most == trips


async def test_a_notification_during_the_only_claim_causes_a_claim_after_it(storage: Storage) -> None:
    """If no other dispatcher may claim, that claim still finds nothing, and then there is no reason to wait."""
    holding = Holding(storage)
    async with App(storage=holding) as app:

        @app.task
        async def t() -> int:
            return 1

        async with Worker(app, concurrency=1, poll=3600):
            await (await t.enqueue()).result(timeout=30)
            await holding.hold_one(app)
            async with asyncio.timeout(30):
                holding.heard.clear()
                job = await t.enqueue()
                await holding.heard.wait()
            holding.let.set()
            assert await job.result(timeout=30) == 1


async def test_a_job_that_ends_during_a_claim_is_settled_at_once(storage: Storage) -> None:
    holding = Holding(storage)
    async with App(storage=holding) as app:
        began, go = asyncio.Event(), asyncio.Event()

        @app.task
        async def t() -> int:
            began.set()
            await go.wait()
            return 1

        async with Worker(app, concurrency=10, poll=3600):
            job = await t.enqueue()
            await began.wait()
            await holding.hold_one(app)
            go.set()
            assert await job.result(timeout=30) == 1
            holding.let.set()


@pytest.mark.slow
async def test_a_job_leaves_nothing_to_the_garbage_collector(app: App, told: Told) -> None:
    """Objects that only the collector can free are freed by a full collection, which holds the loop."""

    @app.task(keep=0)
    async def t(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async with Worker(app):
        await app.enqueue([t.job(0)])
        await told.until("succeeded")
        gc.collect()
        gc.disable()
        try:
            await app.enqueue([t.job(n) for n in range(300)])
            await told.until("succeeded", 301)
            assert gc.collect() < 300
        finally:
            gc.enable()


async def test_treadles_own_jobs_are_claimed_once_the_queues_are_empty(app: App, spy: Spy, told: Told) -> None:
    """While jobs flow, not every claim asks for them. A claim that finds nothing has therefore not looked for all
    jobs."""
    spy.deaf = True

    @app.task
    async def own() -> None: ...

    @app.task
    async def t(n: int) -> None:
        if not n:
            await app.storage.enqueue([NewJob(id="own", task=own.name, queue=defaults.SYSTEM_QUEUE)])

    await app.enqueue(t.job(n) for n in (3, 2, 1, 0))
    async with Worker(app, ["default"], concurrency=1, poll=3600):
        await told.until("succeeded", 5)
