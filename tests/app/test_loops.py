"""One App on several event loops, threads and processes: at the same time, one after the other, and while one ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import KINDS, a_url
from tests.served import memory_url
from tests.waiting import each_turn, turn, until, until_blocking
from treadle import App, StorageError, StorageUnavailable, Worker
from treadle.concurrency import cross_loop
from treadle.core.query_model import Stats
from treadle.errors import EventLoopError
from treadle.ports.memory import memory_backend
from treadle.storage import loop_ownership
from treadle.storage.composed import ComposedStorage
from treadle.storage.memory import MemoryStorage

LONG = 30.0  # seconds after which a test counts as hung

pytestmark = pytest.mark.usefixtures("swept")


@pytest.fixture(params=[*KINDS, "http", "ports"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    if request.param == "ports":
        yield _with_task(App(ports=memory_backend()))
    elif request.param == "http":
        yield _with_task(App(memory_url(None)))
    else:
        with a_url(request.param, tmp_path) as url:
            app = _with_task(App(url))
            yield app
            app.sync.close()


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with a_url(request.param, tmp_path) as url:
        app = _with_task(App(url))
        yield app
        app.sync.close()


def _with_task(app: App) -> App:
    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    return app


async def _double(app: App, n: int) -> Any:
    return await app.tasks["double"].enqueue(n)


def _count(app: App) -> int:
    return app.sync.call(app.jobs.list(limit=0, count=True)).total or 0


def _at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make these calls at the same time, each in a thread of its own. Return their results."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        barrier.wait(LONG)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(one, call) for call in calls]
        return [future.result(LONG) for future in futures]


def test_threads_that_run_a_loop_for_each_call(app: App) -> None:
    def view() -> int:
        return len([asyncio.run(_double(app, n)).id for n in range(5)])

    assert _at_once(view, view, view) == [5, 5, 5]
    assert _count(app) == 15
    app.sync.close()


def test_two_loops_that_open_the_app_at_once(app: App) -> None:
    async def use() -> str:
        async with app:
            return str((await _double(app, 1)).id)

    for _ in range(3):
        assert len(set(_at_once(lambda: asyncio.run(use()), lambda: asyncio.run(use())))) == 2
    assert app._core.loop is None


def test_a_worker_in_a_thread_and_calls_of_another_at_once(app: App) -> None:
    for _ in range(3):
        ended = threading.Event()

        async def run(ended: threading.Event) -> None:
            async with app, Worker(app, poll=0.2):
                await asyncio.to_thread(ended.wait, LONG)

        def call(ended: threading.Event) -> list[int]:
            try:
                jobs = [app.sync.enqueue(app.tasks["double"].job(n)) for n in range(3)]
                return [app.sync.result(job, LONG) for job in jobs]
            finally:
                ended.set()

        assert _at_once(lambda e=ended: asyncio.run(run(e)), lambda e=ended: call(e))[1] == [0, 2, 4]
    app.sync.close()
    assert app._core.loop is None


def test_the_loop_of_app_sync_gives_the_storage_to_a_worker(stored: App) -> None:
    job = stored.sync.enqueue(stored.tasks["double"].job(1))
    waiter = threading.Thread(target=lambda: results.append(stored.sync.result(job, LONG)))
    results: list[int] = []
    waiter.start()

    async def run() -> None:
        async with Worker(stored, poll=0.2):
            assert stored._core.loop is asyncio.get_running_loop()
            assert await job.result(LONG) == 2
            await asyncio.to_thread(waiter.join, LONG)

    asyncio.run(run())
    assert results == [2]


def test_a_worker_stops_while_threads_call(stored: App) -> None:
    stop, ended = threading.Event(), threading.Event()

    async def run() -> None:
        async with Worker(stored, poll=0.2):
            await asyncio.to_thread(stop.wait, LONG)

    def call(first: bool) -> int:
        made = 0
        while not ended.is_set() or made < 20:
            stored.sync.enqueue(stored.tasks["double"].job(made))
            made += 1
            if first and made == 10:
                stop.set()
        return made

    def worker() -> int:
        try:
            asyncio.run(run())
        finally:
            ended.set()
        return 0

    made = sum(_at_once(worker, lambda: call(True), lambda: call(False)))
    assert _count(stored) == made


def test_asyncio_run_and_then_app_sync(app: App) -> None:
    asyncio.run(_double(app, 1))
    app.sync.enqueue(app.tasks["double"].job(2))
    asyncio.run(_double(app, 3))
    assert _count(app) == 3
    app.sync.close()


def test_app_sync_and_then_a_loop(app: App) -> None:
    app.sync.enqueue(app.tasks["double"].job(1))

    async def endpoint() -> int:
        await asyncio.gather(*(_double(app, n) for n in range(5)))
        await asyncio.to_thread(app.sync.enqueue, app.tasks["double"].job(1))
        return (await app.jobs.list(limit=0, count=True)).total or 0

    assert asyncio.run(endpoint()) == 7
    app.sync.close()


def test_inline_jobs_of_another_loop(stored: App) -> None:
    job = stored.sync.enqueue(stored.tasks["double"].options(inline=True).job(4))
    assert stored.sync.result(job, LONG) == 8

    async def endpoint() -> int:
        return int(await (await stored.tasks["double"].options(inline=True).enqueue(5)).result(LONG))

    assert asyncio.run(endpoint()) == 10


@pytest.mark.filterwarnings("ignore")  # the drivers' own warnings about connections that a loop left open
def test_a_loop_that_ends_without_closing_anything(stored: App, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_double(stored, 1))
    loop.close()
    left = weakref.ref(stored._core.life.storage)
    asyncio.run(_double(stored, 2))
    assert _count(stored) == 2
    for _ in range(3):
        gc.collect()  # the end of a task that was left can make another cycle, which must not be found in a later test
    assert left() is None or stored.url == "memory://", "the storage of a loop that is gone is kept"
    caplog.clear()  # asyncio's warnings about tasks that the program left


def test_a_call_to_a_stopped_loop_of_the_same_thread_raises(stored: App) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_double(stored, 1))
    with pytest.raises(EventLoopError, match="stopped"):
        asyncio.run(_double(stored, 2))
    loop.run_until_complete(stored.close())
    loop.close()
    asyncio.run(_double(stored, 2))


def test_a_loop_that_is_blocked_is_an_error_and_no_hang(stored: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_loop, "BLOCKED", 0.2)

    async def owner() -> None:
        async with stored:
            thread = ThreadPoolExecutor(1)
            with pytest.raises(StorageUnavailable, match="blocks"):
                # the loop waits for a thread that waits for the loop
                thread.submit(lambda: asyncio.run(_double(stored, 1))).result(LONG)
            with pytest.raises(StorageUnavailable, match="blocks"):
                thread.submit(lambda: stored.sync.enqueue(stored.tasks["double"].job(1))).result(LONG)
            thread.shutdown()
            await _double(stored, 1)

    asyncio.run(owner())


def test_one_loop_after_the_other_leaves_no_descriptors(app: App) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(_double(app, 0))
    before = descriptors()
    for n in range(8):
        asyncio.run(_double(app, n))
    until_blocking(lambda: descriptors() <= before, "the server's end of the last connection is closed")


@pytest.mark.parametrize("how", ["sync", "run"])
def test_a_forked_child_while_the_app_is_open(app: App, how: str) -> None:
    """The child opens a storage of its own, or raises an error; the parent's storage continues to work."""
    alone = app.url == "memory://" or app.url is None

    def in_child() -> None:
        if how == "sync":
            app.sync.enqueue(app.tasks["double"].job(2))
            app.sync.close()
        else:
            asyncio.run(_double(app, 2))

    async def parent() -> int:
        async with app:
            await _double(app, 1)
            assert await asyncio.to_thread(_forked, in_child) == ("StorageError" if alone else "")
            await _double(app, 3)
            return (await app.jobs.list(limit=0, count=True)).total or 0

    assert asyncio.run(parent()) == (2 if alone else 3)


def test_a_forked_child_of_a_process_that_used_app_sync(app: App) -> None:
    app.sync.enqueue(app.tasks["double"].job(1))
    alone = app.url == "memory://" or app.url is None
    found = _forked(lambda: (app.sync.enqueue(app.tasks["double"].job(2)), app.sync.close()))
    assert found == ("StorageError" if alone else "")
    assert _count(app) == (1 if alone else 2)
    app.sync.close()


def _forked(work: Callable[[], object]) -> str:
    """The name of the error that the work raises in a forked child; "" for none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            work()
        except StorageError as error:
            said = type(error).__name__
        except BaseException:
            said = traceback.format_exc()
        os.write(writer, said.encode() or b"-")
        os._exit(0)
    os.close(writer)
    try:
        said = os.read(reader, 60_000).decode()
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    return said.removeprefix("-")


def test_an_open_that_is_cancelled_can_be_made_again(app: App) -> None:
    async def run() -> None:
        for turns in range(12):
            opening = asyncio.create_task(app.open())
            await turn(turns)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            if not opening.cancelled():
                await app.release()
            assert app._core.loop is None, turns
        async with app:
            await _double(app, 1)

    asyncio.run(run())


def test_a_close_that_is_cancelled_closes(app: App) -> None:
    async def run() -> None:
        for turns in range(8):
            await _double(app, turns)
            closing = asyncio.create_task(app.close())
            await turn(turns)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await app.close()
            assert app._core.loop is None, turns
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert _count(app) == 8
    app.sync.close()


@pytest.mark.parametrize("victim", range(10))
def test_tasks_that_are_cancelled_before_they_began(app: App, victim: int) -> None:
    """`asyncio.run` cancels all remaining tasks; a task that has not begun executes no line, not even a `finally`."""

    async def run() -> None:
        canceller = _CancelAll(victim)
        calls = [asyncio.create_task(_double(app, n)) for n in range(3)]
        await asyncio.wait(calls, timeout=LONG)
        assert all(call.done() for call in calls)
        canceller.end()
        await asyncio.gather(app.close(), return_exceptions=True)
        await app.close()
        assert app._core.loop is None
        await asyncio.wait_for(_double(app, 1), LONG)
        await app.close()

    asyncio.run(run())
    app.sync.close()


def test_a_call_of_another_loop_that_is_cancelled_before_it_began_is_made_again(stored: App) -> None:
    async def owner() -> None:
        async with stored:
            canceller = _CancelAll(len(asyncio.all_tasks()) - 1)
            await asyncio.to_thread(stored.sync.enqueue, stored.tasks["double"].job(1))
            canceller.end()

    asyncio.run(owner())
    assert _count(stored) == 1


def test_a_job_whose_task_is_cancelled_before_it_began_is_run_again(stored: App) -> None:
    cancelled: list[str] = []

    def cancel_runs() -> None:
        loop = asyncio.get_running_loop()
        for task in asyncio.all_tasks():
            if task.get_name() == job.id and not cancelled:
                cancelled.append(job.id)
                task.cancel()
        if not cancelled:
            loop.call_soon(cancel_runs)

    job = stored.sync.enqueue(stored.tasks["double"].job(4))

    async def run() -> None:
        cancel_runs()
        async with Worker(stored, poll=0.2, lease=0.6):
            assert await job.result(LONG) == 8

    asyncio.run(run())


class _Stuck(MemoryStorage):
    """A storage whose query and close end late when they are cancelled."""

    late = 50  # turns of the loop

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.closes = threading.Event(), 0

    async def stats(self) -> Stats:
        self.looked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await turn(self.late)
        raise AssertionError

    async def close(self) -> None:
        self.closes += 1
        await turn(self.late)
        await super().close()


def test_a_close_that_is_cancelled_while_it_ends_calls_closes_the_storage() -> None:
    storage = _Stuck()
    app = App(storage=storage)

    async def run() -> None:
        await app.open()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(lambda: app.sync.call(app.storage.stats()))
            await asyncio.to_thread(storage.looked.wait, LONG)
            closing = asyncio.create_task(app.close())
            mine = {asyncio.current_task(), closing}
            async for _ in each_turn(lambda: storage.closes == 0 and bool(asyncio.all_tasks() - mine)):
                for task in asyncio.all_tasks() - mine:
                    task.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            assert isinstance(call.exception(LONG), StorageUnavailable)

    asyncio.run(run())
    assert storage.closes == 1
    assert app._core.loop is None


def test_a_close_that_fails_after_its_caller_was_cancelled_prints_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    class Broken(MemoryStorage):
        async def close(self) -> None:
            reached.set()
            await go_on.wait()
            raise StorageUnavailable("the disk is gone")

    async def main() -> None:
        app = App(storage=Broken())
        await app.open()
        closing = asyncio.create_task(app.close())
        await reached.wait()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        go_on.set()
        await until(lambda: len(asyncio.all_tasks()) == 1, "the end of the close")
        del closing
        gc.collect()

    asyncio.run(main())
    assert not caplog.records


def test_an_opening_that_is_cancelled_while_it_closes_what_a_loop_left_can_be_made_again() -> None:
    app = _with_task(App(storage=_Stuck()))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_double(app, 1))
    loop.close()  # the app was not closed

    async def run() -> None:
        call = asyncio.create_task(_double(app, 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.wait_for(_double(app, 3), LONG)
        await app.close()

    asyncio.run(run())


def test_a_call_of_another_loop_does_not_open_the_app_where_it_was_closed(
    stored: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That loop may be ending, and would leave the app half open."""
    monkeypatch.setattr(loop_ownership, "PATIENCE", 0.05)

    async def slow() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await closed.wait()  # it takes longer than closing waits
        await _double(stored, 1)

    async def run() -> None:
        nonlocal call
        await stored.open()
        call = pool.submit(lambda: stored.sync.call(slow()))
        await asyncio.to_thread(begun.wait, LONG)
        await stored.close()
        closed.set()
        with pytest.raises(StorageUnavailable):
            await asyncio.wrap_future(call)
        assert stored._core.loop is None

    begun, closed, call = threading.Event(), asyncio.Event(), Future[None]()
    with ThreadPoolExecutor(1) as pool:
        asyncio.run(run())
    assert _count(stored) == 0


def test_an_opening_that_begins_while_the_loop_ends_is_ended_with_it(stored: App) -> None:
    left: list[asyncio.Task[Any]] = []

    async def late() -> None:
        try:
            await asyncio.Event().wait()
        finally:  # the loop cancels what it has now, and not what comes
            left.append(asyncio.create_task(_double(stored, 1)))

    async def run() -> None:
        left.append(asyncio.create_task(late()))
        await asyncio.sleep(0)

    asyncio.run(run())
    assert stored._core.loop is None
    left[1]._log_destroy_pending = False  # type: ignore[attr-defined]  # it is the program's own
    asyncio.run(_double(stored, 2))


def test_a_task_that_a_call_of_another_loop_left_behind_may_open_the_app_again(stored: App) -> None:
    """When the call has ended, the task belongs to the loop that it runs on, like any other task there."""

    async def run() -> None:
        async def begin() -> asyncio.Task[Any]:
            return asyncio.create_task(later())

        async def later() -> str:
            await closed.wait()
            return str((await _double(stored, 1)).id)

        closed = asyncio.Event()
        async with stored:
            task = await asyncio.to_thread(lambda: stored.sync.call(begin()))
        assert stored._core.loop is None
        closed.set()
        assert await task
        await stored.close()

    asyncio.run(run())
    assert _count(stored) == 1


def test_code_started_by_a_call_of_another_loop_gets_a_public_error(stored: App) -> None:
    """An error class of Treadle's internals never reaches the user's code."""
    errors: list[Exception] = []

    async def call() -> None:
        async def child() -> None:
            begun.set()
            await closed.wait()
            try:
                await _double(stored, 1)
            except Exception as error:
                errors.append(error)

        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(children.setdefault("one", asyncio.create_task(child())))
        await children["one"]

    async def run() -> None:
        await stored.open()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda: stored.sync.call(call()))
            await asyncio.to_thread(begun.wait, LONG)
            closing = asyncio.create_task(stored.close())
            await asyncio.wait([closing], timeout=LONG)
            closed.set()
            await asyncio.wrap_future(answer)

    begun, closed, children = threading.Event(), asyncio.Event(), dict[str, asyncio.Task[None]]()
    asyncio.run(run())
    assert [isinstance(error, StorageUnavailable) for error in errors] == [True]


def test_a_call_of_another_loop_may_open_another_app_where_one_was_closed(stored: App) -> None:
    other = _with_task(App("memory://"))

    async def call() -> str:
        await stored.close()
        return str((await _double(other, 1)).id)

    async def run() -> None:
        async with stored:
            assert await asyncio.to_thread(lambda: stored.sync.call(call()))
            assert other._core.loop is asyncio.get_running_loop()
        await other.close()

    asyncio.run(run())


def test_a_call_during_a_close_ends_before_the_close_does(stored: App) -> None:
    """In whatever turn of the loop the call comes. A call that is not ended would be left on a loop that ends."""

    async def run() -> None:
        for turns in range(12):
            await stored.open()
            ran: list[bool] = []

            async def long(ran: list[bool] = ran) -> None:
                ran.append(True)
                await asyncio.Event().wait()

            ownership = stored._core.life.ownership
            assert ownership is not None
            closing = asyncio.create_task(stored.close())
            await turn(turns)
            call = ownership.call(long)
            await asyncio.wait_for(closing, LONG)
            await asyncio.sleep(0)
            with pytest.raises(cross_loop.LoopEnded) as ended:
                await call.wait()
            assert ended.value.begun or not ran, turns
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


class _Slow(MemoryStorage):
    """A storage whose opening waits, and whose closing takes some turns of the loop."""

    slow = 6

    def __init__(self) -> None:
        super().__init__()
        self.began, self.opens = asyncio.Event(), asyncio.Event()
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        self.began.set()
        if self.opened == 1:
            await self.opens.wait()
        await super().open()

    async def close(self) -> None:
        await turn(self.slow)
        await super().close()


@pytest.mark.parametrize("turns", range(10))
def test_a_call_during_a_cancelled_opening_keeps_the_app_open(turns: int) -> None:
    storage = _Slow()
    app = _with_task(App(storage=storage))

    async def run() -> None:
        gone = asyncio.create_task(app.open())
        await storage.began.wait()
        gone.cancel()
        await turn(turns)
        user = asyncio.create_task(app.open())
        await asyncio.sleep(0)
        storage.opens.set()
        await asyncio.wait_for(user, LONG)
        await asyncio.gather(gone, return_exceptions=True)
        async with app:
            pass
        assert app._core.loop is asyncio.get_running_loop(), "another user has left, this one has not"
        await app.release()
        assert app._core.loop is None

    asyncio.run(run())


@pytest.mark.parametrize("how", ["close", "the loop ends"])
def test_a_close_is_carried_out_although_another_caller_reopens_the_app(stored: App, how: str) -> None:
    """The last user leaves, one caller closes the app, and another opens it meanwhile: the close still happens."""

    async def run() -> None:
        async def before_close() -> None:
            reached.set()
            await asyncio.wait([go])

        reached, go = asyncio.Event(), asyncio.get_running_loop().create_future()
        await stored.open()
        stop, stored._core.life._before_close = stored._core.life._before_close, before_close
        leaving = asyncio.create_task(stored.release())
        await reached.wait()
        stored._core.life._before_close = stop
        if how == "close":
            closing = asyncio.create_task(stored.close())
            await asyncio.sleep(0)
        await stored.open()
        go.set_result(None)
        if how == "close":
            await asyncio.wait_for(asyncio.gather(leaving, closing), LONG)
            assert stored._core.loop is None
        kept.append(leaving)

    kept: list[Any] = []
    asyncio.run(run())
    assert stored._core.loop is None


def test_threads_that_close_app_sync_at_once_leave_no_thread(app: App) -> None:
    for _ in range(20):
        app.sync.enqueue(app.tasks["double"].job(1))
        _at_once(app.sync.close, app.sync.close, app.sync.close)
        assert not [each for each in threading.enumerate() if each.name == "treadle-sync"]
        assert app._core.loop is None


def test_threads_that_close_app_sync_while_others_call(stored: App) -> None:
    """A call that comes at that time opens the app again, or raises an error that says it was closed."""

    def call() -> int:
        made = 0
        for n in range(20):
            with contextlib.suppress(StorageUnavailable):
                stored.sync.enqueue(stored.tasks["double"].job(n))
                made += 1
        return made

    def close() -> int:
        for _ in range(10):
            stored.sync.close()
        return 0

    made = sum(_at_once(call, close, call, close))
    assert _count(stored) >= made


def test_a_composed_storage_continues_after_its_loop_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Calls in progress on that loop never end, and no caller waits for them."""
    app = _with_task(App(storage=ComposedStorage(memory_backend())))
    for n in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_double(app, n))
        left = asyncio.all_tasks(loop)
        loop.close()
        assert left, "nothing is left in the middle: the test shows nothing"

    async def run() -> None:
        async with asyncio.timeout(LONG):
            await _double(app, 3)
            assert (await app.jobs.list(limit=0, count=True)).total == 4
            await app.close()

    asyncio.run(run())
    left.clear()
    gc.collect()
    caplog.clear()  # asyncio's warnings about tasks that those programs left


class _CancelAll:
    """Cancels all other tasks of this loop as soon as the task with that number exists, before it begins to run."""

    def __init__(self, number: int) -> None:
        self._number, self._me, self._seen = number, asyncio.current_task(), set[asyncio.Task[Any]]()
        self._next: asyncio.Handle | None = None
        self._look()

    def _look(self) -> None:
        others = asyncio.all_tasks() - {self._me}
        self._seen |= others  # this runs in each turn of the loop; a new task begins in the turn after it is made
        if len(self._seen) > self._number:
            for task in others:
                task.cancel()
        else:
            self._next = asyncio.get_running_loop().call_soon(self._look)

    def end(self) -> None:
        if self._next is not None:
            self._next.cancel()


def test_callers_that_wait_for_one_opening_do_not_cancel_each_other(app: App) -> None:
    async def run() -> None:
        one, other = asyncio.create_task(_double(app, 1)), asyncio.create_task(_double(app, 2))
        await asyncio.sleep(0)
        one.cancel()
        assert (await other).id
        await asyncio.gather(one, return_exceptions=True)

    asyncio.run(run())
