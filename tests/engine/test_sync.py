"""`app.sync`: the same from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.engine.kit import work
from treadle import App, JobUnknown, StorageError
from treadle.errors import NestedTransaction


@pytest.fixture(params=["memory://", "sqlite:///{}/jobs.db?synchronous=normal"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(str(request.param).format(tmp_path))
    yield app
    app.sync.close()


def test_enqueue_look_and_wait_without_a_loop(plain: App) -> None:
    @plain.task(inline=True)
    async def double(n: int) -> int:
        return n * 2

    job = plain.sync.enqueue(double.job(4))
    assert plain.sync.result(job, timeout=timedelta(seconds=10)) == 8
    jobs = plain.sync.enqueue([double.job(1), double.job(2)])
    assert [plain.sync.result(each, timeout=10) for each in jobs] == [2, 4]
    assert plain.sync.call(plain.jobs.get(job)).attempt == 1
    with pytest.raises(JobUnknown):
        plain.sync.call(plain.jobs.get("nobody"))


def test_many_threads_at_once(plain: App) -> None:
    @plain.task(inline=True)
    def double(n: int) -> int:
        return n * 2

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: plain.sync.result(plain.sync.enqueue(double.job(n)), 20), range(40)))
    assert answers == [n * 2 for n in range(40)]


async def test_inside_the_running_loop_of_another_thread(plain: App) -> None:
    @plain.task
    async def t() -> None: ...

    first = plain.sync.enqueue(t.job())
    assert await asyncio.to_thread(plain.sync.enqueue, t.job()) != first


async def test_a_call_on_its_own_loop_is_an_error_and_no_deadlock(app: App) -> None:
    @app.task
    async def t() -> None: ...

    await t.enqueue()
    with pytest.raises(NestedTransaction, match="await it"):
        app.sync.enqueue(t.job())


async def test_a_task_in_a_thread_enqueues_on_the_loop_of_its_worker(app: App) -> None:
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    def parent() -> int:
        return app.sync.result(app.sync.enqueue(child.job(1)), timeout=10)

    async with work(app):
        assert await (await parent.enqueue()).result(timeout=10) == 2


def test_closing_ends_the_thread_and_whoever_waits(plain: App) -> None:
    @plain.task
    async def t() -> None: ...

    job = plain.sync.enqueue(t.job())
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            plain.sync.result(job)
        except BaseException as error:
            ended.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    plain.sync.close()
    waiter.join(10)
    assert not waiter.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name == "treadle-sync"]
    plain.sync.close()


def test_it_can_be_used_again_after_closing(plain: App) -> None:
    @plain.task
    async def t() -> None: ...

    first = plain.sync.enqueue(t.job())
    plain.sync.close()
    assert plain.sync.call(plain.jobs.get(first)).job.id == first.id


def test_after_a_fork_it_says_so_instead_of_hanging(plain: App) -> None:
    @plain.task
    async def t() -> None: ...

    plain.sync.enqueue(t.job())
    portal = plain.sync
    thread, gone = portal._thread, threading.Thread()  # a fork takes no other thread along
    portal._thread, plain._is_open = gone, False
    try:
        with pytest.raises(StorageError, match="forked"):
            portal.enqueue(t.job())
    finally:
        portal._thread, plain._is_open = thread, True
