"""Tasks of a run at locks, semaphores, events and queues that other tasks of the run hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kit import Told, work
from treadle import App, State, current
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

pytestmark = pytest.mark.usefixtures("tasks")

Program = Callable[[Callable[[int], Any]], Awaitable[list[int]]]


async def semaphore(call: Callable[[int], Any]) -> list[int]:
    gate = asyncio.Semaphore(2)

    async def both(first: Any, second: Any) -> int:
        async with gate:
            return sum(await asyncio.gather(first, second))

    pairs = [(call(page), call(page + 1)) for page in (0, 2, 4, 6)]
    return list(await asyncio.gather(*(both(*pair) for pair in pairs)))


async def lock_without_a_block(call: Callable[[int], Any]) -> list[int]:
    lock = asyncio.Lock()

    async def both(first: Any, second: Any) -> int:
        await lock.acquire()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(first), group.create_task(second)]
            return sum(task.result() for task in tasks)
        finally:
            lock.release()

    pairs = [(call(page), call(page + 1)) for page in (0, 2, 4)]
    return list(await asyncio.gather(*(both(*pair) for pair in pairs)))


async def lock_behind_a_lock(call: Callable[[int], Any]) -> list[int]:
    outer, inner = asyncio.Lock(), asyncio.Lock()
    calls = [call(page) for page in range(5)]

    async def one(lock: asyncio.Lock, page: int) -> int:
        async with lock:
            return int(await calls[page])

    async def holds_inner() -> int:
        async with inner:
            return sum(await asyncio.gather(calls[0], calls[1]))

    async def holds_outer() -> int:
        async with outer:
            return await one(inner, 2)

    return list(await asyncio.gather(holds_inner(), holds_outer(), one(outer, 3), one(outer, 4)))


async def queue_that_a_group_fills(call: Callable[[int], Any]) -> list[int]:
    queue = asyncio.Queue[int]()

    async def produce(calls: list[Any]) -> None:
        queue.put_nowait(sum(await asyncio.gather(*calls)))

    async def consume() -> int:
        return await queue.get()

    _, taken = await asyncio.gather(produce([call(1), call(2)]), consume())
    return [taken]


async def pool_of_workers(call: Callable[[int], Any]) -> list[int]:
    """Nothing awaits the workers, and they have used no durable code themselves."""
    queue, sums = asyncio.Queue[tuple[Any, Any]](), dict[int, int]()

    async def one(wait: Any) -> int:
        return int(await wait)

    async def worker() -> None:
        while True:
            first, second = await queue.get()
            total = sum(await asyncio.gather(one(first), one(second)))
            sums[total] = total
            queue.task_done()

    for page in (0, 2, 4):
        queue.put_nowait((call(page), call(page + 1)))
    workers = [asyncio.create_task(worker()) for _ in range(2)]
    await queue.join()
    for task in workers:
        task.cancel()
    return sorted(sums)


async def condition(call: Callable[[int], Any]) -> list[int]:
    ready, values = asyncio.Condition(), list[int]()

    async def tell(calls: list[Any]) -> None:
        async with ready:
            values.extend(await asyncio.gather(*calls))
            ready.notify_all()

    async def hear() -> int:
        async with ready:
            await ready.wait_for(lambda: values)
        return sum(values)

    _, heard = await asyncio.gather(tell([call(1), call(2)]), hear())
    return [heard]


PROGRAMS = [
    (semaphore, [10, 50, 90, 130]),
    (lock_without_a_block, [10, 50, 90]),
    (lock_behind_a_lock, [10, 20, 30, 40]),
    (queue_that_a_group_fills, [30]),
    (pool_of_workers, [10, 50, 90]),
    (condition, [30]),
]


@shows("a lock that is held by a task which awaits tasks does not keep the run in its slot")
@pytest.mark.parametrize(("program", "result"), PROGRAMS, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_lock_of_a_task_that_awaits_others(app: App, program: Program, result: list[int]) -> None:
    """There is one slot, so the children run only if the run leaves it."""

    @app.task
    async def fetch(page: int) -> int:
        return page * 10

    @app.task
    async def boss() -> list[int]:
        return await program(lambda page: current().call(fetch.job(page)))

    job = await boss.enqueue()
    await drain(app, concurrency=1)
    assert await job.result(0) == result


@shows("a branch at an event which code outside of the run sets is not cut off by the waits of others")
async def test_an_event_that_no_task_of_the_run_sets(app: App, told: Told) -> None:
    """The function refers to the event, but it continues only when the branch at the event has."""
    ready, begun = asyncio.Event(), asyncio.Event()
    heard: list[str] = []

    @app.task
    async def boss() -> str:
        event, lock = ready, asyncio.Lock()

        async def hear() -> None:
            async with lock:
                begun.set()
                await event.wait()
                await current().step("heard", heard.append, "heard")

        async def waits(wait: Any) -> None:
            async with lock:
                await wait

        await asyncio.gather(hear(), waits(current().sleep(60, name="behind")), current().sleep(60))
        return "done"

    async with work(app, concurrency=1):
        job = await boss.enqueue()
        await begun.wait()
        assert (await app.jobs.get(job)).state is State.RUNNING
        ready.set()
        await told.until("deferred", id=job.id)
    assert heard == ["heard"]


async def test_a_race_of_asyncio_in_a_worker_that_nothing_awaits_is_refused(app: App, clock: HandClock) -> None:
    @app.task
    async def boss() -> None:
        queue = asyncio.Queue[Any]()

        async def worker() -> None:
            waits = await queue.get()
            await asyncio.wait(map(asyncio.ensure_future, waits), return_when=asyncio.FIRST_COMPLETED)
            queue.task_done()

        task = asyncio.create_task(worker())
        queue.put_nowait([current().sleep(60), current().sleep(90)])
        try:
            await queue.join()
        finally:
            task.cancel()

    job = await boss.enqueue()
    await drain(app)
    row = await app.jobs.get(job)
    assert row.state is State.FAILED
    assert "current().first" in (row.error or "")
