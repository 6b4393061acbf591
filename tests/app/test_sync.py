"""`app.sync`: the calls of an app from plain threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.kit import work
from treadle import App, IdTaken, UnknownJob
from treadle.errors import EventLoopError, NestedTransaction, StorageUnavailable

pytestmark = pytest.mark.usefixtures("swept")


@pytest.fixture(params=["memory://", "sqlite:///{}/jobs.db?synchronous=normal"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(str(request.param).format(tmp_path))
    yield app
    app.sync.close()


def test_enqueue_read_and_wait_without_a_loop(plain: App) -> None:
    @plain.task(inline=True)
    async def double(n: int) -> int:
        return n * 2

    job = plain.sync.enqueue(double.job(4))
    assert plain.sync.result(job, timeout=timedelta(seconds=10)) == 8
    jobs = plain.sync.enqueue([double.job(1), double.job(2)])
    assert [plain.sync.result(each, timeout=30) for each in jobs] == [2, 4]
    assert plain.sync.call(plain.jobs.get(job)).attempt == 1
    with pytest.raises(UnknownJob):
        plain.sync.call(plain.jobs.get("nobody"))


def test_look_ups_and_acts_without_a_loop(plain: App) -> None:
    @plain.task(queue="mail")
    async def send(to: str) -> None: ...

    first, second = plain.sync.enqueue([send.job("ann"), send.job("bob")])
    jobs = plain.sync.jobs
    assert jobs.get(first).job.queue == "mail"
    assert [row.job.id for row in jobs.list(queue="mail", order="oldest").records] == [first.id, second.id]
    assert [row.job.id for row in jobs.iterate(queue="mail")] == [first.id, second.id]
    assert (jobs.position(second), jobs.handle(second.id).id) == (1, second.id)
    assert "no worker serves its queue" in jobs.explain(first)
    assert jobs.signals_of(first) == []
    jobs.signal(first, "paid", 5)
    assert jobs.cancel(first) == 1
    assert jobs.retry(first) == 1
    assert jobs.cancel(queue="mail") == 2
    assert jobs.delete(second) == 1
    with pytest.raises(UnknownJob):
        jobs.get("nobody")
    plain.sync.queues.pause("mail")
    assert [each.key for each in plain.sync.limits.list() if each.pauses] == ["queue:mail"]
    assert plain.sync.queues.stats().counts
    assert plain.sync.dead.list().records == ()
    plain.sync.schedules.upsert("daily", send.job("ann"), every=86_400)
    assert [each.name for each in plain.sync.schedules.list()] == ["daily"]
    assert plain.sync.jobs.get(plain.sync.schedules.trigger("daily")).job.task == send.name


def test_the_look_ups_are_named_and_documented_as_the_calls_they_make(plain: App) -> None:
    for view, calls in ((plain.sync.jobs, plain.jobs), (plain.sync.schedules, plain.schedules)):
        assert (view.get.__name__, view.get.__doc__) == ("get", calls.get.__doc__)


async def test_a_look_up_on_its_own_loop_raises_an_error_that_names_await(app: App) -> None:
    with pytest.raises(EventLoopError, match="await the method of the app"):
        app.sync.jobs.get("nobody")


async def test_the_error_has_its_former_name_too(app: App) -> None:
    with pytest.raises(NestedTransaction):
        app.sync.queues.stats()


def test_a_taken_id_is_an_error_without_a_loop_too(plain: App) -> None:
    @plain.task
    async def double(n: int) -> int:
        return n * 2

    specs = [double.options(id=f"n{n}").job(n) for n in (1, 1, 2)]
    assert [job.created for job in plain.sync.enqueue(specs)] == [True, False, True]
    with pytest.raises(IdTaken):
        plain.sync.enqueue(double.options(id="n1").job(3))


def test_many_threads_at_once(plain: App) -> None:
    @plain.task(inline=True)
    def double(n: int) -> int:
        return n * 2

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: plain.sync.result(plain.sync.enqueue(double.job(n)), 30), range(40)))
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
    with pytest.raises(EventLoopError, match="await the method of the app"):
        app.sync.enqueue(t.job())


async def test_a_task_in_a_thread_enqueues_on_the_loop_of_its_worker(app: App) -> None:
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    def parent() -> int:
        return app.sync.result(app.sync.enqueue(child.job(1)), timeout=30)

    async with work(app):
        assert await (await parent.enqueue()).result(timeout=30) == 2


def test_closing_ends_the_thread_and_the_waiting_calls(plain: App) -> None:
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
    waiter.join(30)
    assert not waiter.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name == "treadle-sync"]
    plain.sync.close()


def test_threads_that_use_and_close_app_sync_at_once(plain: App) -> None:
    """A call that is interrupted by another thread's close is carried out, or raises a public error that says it may
    have been."""

    @plain.task
    async def t() -> None: ...

    stored: list[str] = []
    errors: list[BaseException] = []

    def use(first: int) -> None:
        for n in range(8):
            try:
                stored.append(plain.sync.enqueue(t.job()).id)
                if n % 2 == first:
                    plain.sync.close()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=use, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert {type(error) for error in errors} <= {StorageUnavailable}
    assert {row.job.id for row in plain.sync.jobs.iterate()} >= set(stored)
    plain.sync.close()


def test_app_sync_can_be_used_again_after_closing(plain: App) -> None:
    @plain.task
    async def t() -> None: ...

    first = plain.sync.enqueue(t.job())
    plain.sync.close()
    assert plain.sync.call(plain.jobs.get(first)).job.id == first.id


def test_a_loop_that_cannot_be_made_is_an_error_and_later_calls_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example with too many open files."""
    app = App("memory://")

    @app.task
    async def send() -> None: ...

    def fails() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", fails)
        with pytest.raises(OSError, match="Too many open files"):
            send.enqueue_sync()
    assert send.enqueue_sync().id
    app.sync.close()
