"""Tests in synchronous code: `app.sync.testing()`. Its `drain()` runs plain functions in the calling thread.

So they share the open resources of that thread, such as the database connection of a Django `TestCase`. Coroutines run
on an event loop in a separate thread, and the calling thread waits for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar

from treadle.concurrency.threads import Answer
from treadle.core.awaiting import plain_block
from treadle.core.errors import BadOption
from treadle.durable import Leaving, leaves
from treadle.resources import Overrides
from treadle.testing.app import BLOCK, Testing
from treadle.testing.assertions import Call, What
from treadle.testing.clock import HandClock
from treadle.worker import Item, deliver, outcome

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.app.sync_views import SyncJobs
    from treadle.tasks.stub import Stub
    from treadle.tasks.task import AnyTask
    from treadle.testing.given_storage import Given
    from treadle.testing.transactions import When

T = TypeVar("T")

END = 5.0  # seconds that an interrupted call has to end
FOR_THE_RUN = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, Leaving)  # exceptions that end only a run


class CallingThread:
    """Replaces the worker's thread pool: the thread that waits for the drain runs the functions."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self.items.put((call, loop, future))
        return future

    def close(self) -> None:
        """Nothing to close."""


@plain_block("write `with app.sync.testing() as t:`, or in a coroutine `async with app.testing() as t:`")
class SyncTesting:
    """`Testing` for synchronous code. Use it as `with app.sync.testing() as t:`."""

    __test__ = False

    def __init__(
        self,
        core: AppCore,
        clock: HandClock | None,
        storage: Given,
        within: When,
        overrides: Overrides | None,
        jobs: SyncJobs,
    ) -> None:
        self._jobs = jobs
        self._threads = CallingThread()
        self._testing = Testing(core, clock, storage=storage, within=within, threads=self._threads, overrides=overrides)
        self.clock, self.storage = self._testing.clock, self._testing.storage
        self._loop: asyncio.AbstractEventLoop | None = None  # inside the block

    def __enter__(self) -> Self:
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="treadle-testing", daemon=True)
        self._thread.start()
        try:
            self.call(self._testing.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.call(self._testing.__aexit__(kind, error, tb))
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    @property
    def jobs(self) -> SyncJobs:
        """`app.sync.jobs`."""
        return self._jobs

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of the app. Meanwhile the calling thread runs the plain functions of tasks."""
        if self._loop is None:
            work.close()
            raise BadOption("testing", f"run calls only inside the block: {BLOCK}")
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_told(work, ended), self._loop)
        future.add_done_callback(lambda done: self._threads.items.put(None))
        try:
            while (item := self._threads.items.get()) is not None:
                call, loop, future_of_call = item
                answer = outcome(call)
                deliver(loop, future_of_call, answer)
                if ends_test(answer[1]):
                    raise answer[1]
        except BaseException:
            future.cancel()
            ended.wait(END)  # otherwise the end of the test stops the loop under the worker of a drain
            raise
        return future.result()

    def drain(
        self,
        *,
        tasks: Iterable[str | AnyTask] | None = None,
        limit: int = 10_000,
        raise_errors: bool = False,
        concurrency: int = 1,
    ) -> int:
        """Same as `Testing.drain`."""
        return self.call(
            self._testing.drain(tasks=tasks, limit=limit, raise_errors=raise_errors, concurrency=concurrency)
        )

    def advance(self, seconds: float | timedelta, *, raise_errors: bool = False) -> int:
        """Same as `Testing.advance`."""
        return self.call(self._testing.advance(seconds, raise_errors=raise_errors))

    def finish(self, *, limit: int = 10_000, raise_errors: bool = False) -> int:
        """Same as `Testing.finish`."""
        return self.call(self._testing.finish(limit=limit, raise_errors=raise_errors))

    def enqueued(self, task: AnyTask | Stub | str) -> list[Call]:
        """Same as `Testing.enqueued`."""
        return self._testing.enqueued(task)

    def assert_enqueued(self, what: What, /, *args: Any, **kwargs: Any) -> Call:
        """Same as `Testing.assert_enqueued`."""
        return self._testing.assert_enqueued(what, *args, **kwargs)

    def assert_not_enqueued(self, what: What, /, *args: Any, **kwargs: Any) -> None:
        """Same as `Testing.assert_not_enqueued`."""
        self._testing.assert_not_enqueued(what, *args, **kwargs)


def ends_test(error: BaseException | None) -> TypeGuard[BaseException]:
    """Whether it is meant for this thread, which runs the test: Ctrl-C, `pytest.fail()`, a test that takes too long. In
    production, `sys.exit()` in a plain function only fails the attempt, and `Leaving` ends a run that sleeps."""
    return error is not None and not all(isinstance(leaf, FOR_THE_RUN) for leaf in leaves(error))


async def _told(work: Coroutine[Any, Any, T], ended: threading.Event) -> T:
    """The result of `work`. Sets the event when it has ended."""
    try:
        return await work
    finally:
        ended.set()
