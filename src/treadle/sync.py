"""The same from plain threads: one portal into an event loop of its own, never a second copy of the code.

Without it Django views, Flask and scripts could not enqueue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from treadle.errors import BadSession, NestedTransaction, StorageError
from treadle.job import Job, JobSpec
from treadle.storage.sessions import at_once, bound_to, is_async

if TYPE_CHECKING:
    from treadle.app import App

T = TypeVar("T")


class Portal:
    """`app.sync`: every call runs on the app's event loop and waits for its answer.

    If the app is open on a running loop (a worker in this process, an async web server), that one is used, so a task
    in a thread may enqueue. Otherwise the portal starts a loop of its own in a daemon thread and opens the app there.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @overload
    def enqueue(self, spec: JobSpec[T], /, **options: Any) -> Job[T, T]: ...
    @overload
    def enqueue(self, specs: Iterable[JobSpec[T]], /, **options: Any) -> list[Job[T, T]]: ...
    @overload
    def enqueue(self, *specs: JobSpec[Any] | Iterable[JobSpec[Any]], **options: Any) -> list[Job[Any, Any]]: ...
    def enqueue(self, *specs: Any, **options: Any) -> Any:  # type: ignore[misc]  # mypy: not all of signature 1 and 2
        """As `app.enqueue`. One spec answers one Job, anything else a list.

        With `within=` the jobs are stored in this thread, on the connection you give, and on no event loop.
        """
        within = options.pop("within", None)
        if within is None:
            return self.call(self._app.enqueue(*specs, **options))
        if is_async(within):
            raise BadSession(
                f"a {type(within).__name__}", "it belongs to an event loop: `await app.enqueue(...)` there"
            )
        flat, single = self._app.flatten(specs, **options)
        storage = self.call(self._app._opened())
        jobs = at_once(self._app.client.send_bound(flat, bound_to(storage, within))) if flat else []
        return jobs[0] if single else jobs

    def result(self, job: Job[T, Any], timeout: float | timedelta | None = None) -> T:
        """As `job.result`."""
        return self.call(job.result(timeout))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of this app and wait for its answer: `app.sync.call(app.jobs.get(id))`."""
        loop = self._app.loop
        if loop is None or loop is self._loop:  # ours: also looked at where the app is open, or a fork would hang
            try:
                loop = self._start()
            except BaseException:
                work.close()
                raise
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            work.close()
            raise NestedTransaction(
                "app.sync was called on its own event loop, where it would wait for itself: await it"
            )
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the app and end the portal's thread. Calls that still wait there are cancelled. Twice is once."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self.call(self._app.close())
        finally:
            with self._lock:
                mine, self._loop, self._thread = self._loop is loop, None, None
            if mine:
                loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._thread is not None and not self._thread.is_alive():
                raise StorageError(
                    "app.sync was used before this process was forked: call app.sync.close() before that"
                )
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(loop,), name="treadle-sync", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            if self._app.loop is loop:  # a call that came while it was closed has opened it again
                loop.run_until_complete(self._app.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
