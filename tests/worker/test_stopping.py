"""A worker that is stopped: by a deadline, by one of its own jobs, from another loop, with its event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

import pytest

from tests.kit import nothing_left
from tests.waiting import Signal
from treadle import App, Retry, Worker
from treadle.core.model import State
from treadle.storage.memory import MemoryStorage
from treadle.testing.faults import Fault, Faulty
from treadle.testing.shows import shows


async def test_a_stop_that_is_cancelled_leaves_nothing_running(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    worker = Worker(app, grace=60)
    await worker.start()
    job = await forever.enqueue()
    await begun.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(worker.stop(), 0.01)
    await nothing_left(before)
    assert worker.running == []
    assert (await app.jobs.get(job)).state is State.READY  # released: another worker need not wait for its lease
    await worker.stop()
    await worker.start()
    await worker.stop(0)


async def test_a_job_that_stops_its_own_worker(app: App) -> None:
    @app.task
    async def shut_down() -> str:
        await worker.stop()
        return "stopped"

    @app.task
    def shut_down_in_a_thread() -> str:
        app.sync.call(worker.stop())
        return "stopped"

    before = asyncio.all_tasks()
    for task in (shut_down, shut_down_in_a_thread):
        worker = Worker(app, grace=60)
        await worker.start()
        job = await task.enqueue()
        assert await job.result(30) == "stopped"
        await worker.stop()
        await nothing_left(before)


async def test_a_run_that_is_cancelled_stops(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    running = asyncio.create_task(Worker(app, grace=60).run())
    job = await forever.enqueue()
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await nothing_left(before)
    assert (await app.jobs.get(job)).state is State.READY


async def test_a_stop_from_another_loop(app: App) -> None:
    @app.task
    async def t() -> None: ...

    worker = Worker(app)
    await worker.start()
    stopper = threading.Thread(target=lambda: asyncio.run(worker.stop()))
    stopper.start()
    await asyncio.to_thread(stopper.join, 30)
    assert not stopper.is_alive()
    await worker.start()
    await worker.stop()


@shows("an idle worker stops within seconds while its storage is away, whatever its grace is")
@pytest.mark.parametrize("how", ["before", "lost"])
async def test_an_idle_worker_stops_while_the_storage_is_away(how: Literal["before", "lost"]) -> None:
    is_away, failed = False, Signal()

    def fault(verb: str, call: int) -> Fault | None:
        if is_away:
            failed.send()
            return Fault(how, verb, call)
        return None

    app = App(storage=Faulty(MemoryStorage(), fault))

    @app.task
    async def t() -> None: ...

    worker = Worker(app, grace=3600, poll=0.01)
    await worker.start()
    await (await t.enqueue()).result(30)
    is_away = True
    await failed.until(lambda: worker.health().storage_away is not None, "the outage")
    await worker.stop()  # it waited for grace and lease
    is_away = False
    await app.close()


async def test_jobs_of_a_lost_claim_are_released_by_a_stop_after_the_outage() -> None:
    """The dispatcher that pauses after a failed call tries again at once when the worker stops."""
    is_away, failed = True, Signal()

    def fault(verb: str, call: int) -> Fault | None:
        if is_away and verb in ("claim", "settle_claim"):
            failed.send()
            return Fault("lost", verb, call)
        return None

    app = App(storage=Faulty(MemoryStorage(), fault))

    @app.task
    async def t() -> None: ...

    async with app:
        job = await t.enqueue()
        worker = Worker(app, grace=3600, recovery=Retry(base=3600.0))
        await worker.start()
        await failed.until(lambda: worker.health().storage_away is not None, "the outage")
        is_away = False
        await worker.stop()
        assert (await app.jobs.get(job)).state is State.READY
