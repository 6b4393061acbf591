"""A worker that is stopped: by a deadline, by one of its own jobs, from another loop, with its event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.kit import nothing_left
from treadle import App, Worker
from treadle.core.model import State


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
