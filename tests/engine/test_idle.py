"""A worker with little to do: how often it asks, what it hears meanwhile, and what a job leaves behind."""

from __future__ import annotations

import asyncio
import gc

from tests.engine.kit import Spy, Told
from treadle import App, Worker
from treadle.model import Claim, Claimed
from treadle.storage.contract import Storage


class Holding(Spy):
    """A storage whose answers to claims may be kept back."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.let = asyncio.Event()
        self.let.set()
        self.held = asyncio.Event()

    async def claim(self, ask: Claim) -> Claimed:
        answer = await super().claim(ask)
        if not self.let.is_set():
            self.held.set()
            await self.let.wait()
        return answer


async def test_one_new_job_is_asked_for_twice(app: App, spy: Spy) -> None:
    """Once when it was heard of, and once when it has ended; not by each pump, nor for each kind of queue."""

    @app.task
    async def t() -> None: ...

    async with Worker(app, poll=3600):
        await (await t.enqueue()).result(timeout=10)
        before = spy.calls["claim"]
        for _ in range(20):
            await (await t.enqueue()).result(timeout=10)
        assert spy.calls["claim"] - before <= 2 * 20 + 6


async def test_a_hint_is_not_lost_while_something_else_is_settled(storage: Storage) -> None:
    """It comes while one claim is under way, which will find nothing, and a job ends before that one is answered."""
    holding = Holding(storage)
    async with App(storage=holding) as app:
        began, go, told = asyncio.Event(), asyncio.Event(), Told(app)

        @app.task
        async def first() -> None:
            began.set()
            await go.wait()

        @app.task
        async def second() -> None: ...

        async with Worker(app, concurrency=10, poll=3600):
            await first.enqueue()
            await began.wait()
            await asyncio.sleep(0.05)  # the claims that follow a start are over: the worker is idle but for that job
            holding.let.clear()
            await app.stub("nobody's").enqueue()
            await holding.held.wait()  # the claim that this hint led to found nothing, and its answer is on its way
            job = await second.enqueue()
            heard = asyncio.create_task(storage.watch([f"job:{job.id}"], 0.2))
            await heard  # and so has the worker
            go.set()
            await told.until("succeeded")
            holding.let.set()
            await job.result(timeout=10)


async def test_a_job_leaves_nothing_to_the_garbage_collector(app: App, told: Told) -> None:
    """What only the collector can find is found some day by a full collection, which holds the loop."""

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
