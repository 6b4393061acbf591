"""Runs tasks that are plain functions in daemon threads.

The interpreter joins the threads of `concurrent.futures` at exit, so there a function that never returns would keep the
process alive after the second signal. Exceptions are passed as values, because an asyncio future cannot raise a
StopIteration, and the job would hang.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from treadle.concurrency import forks
from treadle.concurrency.threads import Answer, Threads, starting
from treadle.worker.executors.django import close_connections, close_old_connections

Item = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Answer]"]


class Runs(Threads, Protocol):
    """Threads or processes that can be closed."""

    def close(self) -> None: ...


class DaemonThreads:
    """At most `limit` threads, started when needed and kept."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        """Call it in a thread. The future's result is (value, None) or (None, exception); it never raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        is_idle = self._idle.acquire(blocking=False)
        if is_idle or self._started < self._limit:
            starting.add(future)
        self._items.put((call, loop, future))
        if not is_idle and self._started < self._limit:
            self._start(future)
        return future

    def _start(self, future: asyncio.Future[Answer]) -> None:
        """Start one more thread. If the system allows no more, the other threads make the call; without other threads
        this raises."""
        name = f"{self._name}-{self._started + 1}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:
            starting.discard(future)
            if not self._started:
                self._items.get_nowait()
                raise
        else:
            self._started += 1

    def close(self) -> None:
        """End each thread when its function has returned."""
        for _ in range(self._started):
            self._items.put(None)

    def _serve(self) -> None:
        while True:
            try:
                item = self._items.get_nowait()
            except Empty:
                self._idle.release()
                item = self._items.get()
            if item is None:
                close_connections()
                return
            call, loop, future = item
            starting.discard(future)
            close_old_connections()
            result = outcome(call)
            close_old_connections()  # before the job ends, so that its connection is free then
            deliver(loop, future, result)
            del item, call, loop, future, result  # otherwise an idle thread keeps the last job's arguments alive


def outcome(call: Callable[[], Any]) -> Answer:
    """Call the function in this thread. Returns (value, None) or (None, exception)."""
    try:
        return forks.contained(call), None
    except BaseException as error:
        return None, error


def deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Answer], answer: Answer) -> None:
    """Set the future of another thread's loop."""
    with suppress(RuntimeError):  # the loop is closed, so no caller waits
        loop.call_soon_threadsafe(_set, future, answer)


def _set(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


class Executors:
    """After `close`, `threads` and `processes` make new ones."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self._threads: Runs | None = None
        self._processes: Any = None

    def lend(self, threads: Runs) -> None:
        """Run plain functions in these threads, until `close`."""
        self._threads = threads

    def threads(self) -> Runs:
        if self._threads is None:
            self._threads = DaemonThreads(self._size, f"treadle-{self._name}")
        return self._threads

    def processes(self) -> Any:
        if self._processes is None:
            from treadle.worker.executors.processes import ProcessPool

            self._processes = ProcessPool()
        return self._processes

    async def close(self, hurry: asyncio.Event | None = None) -> None:
        """End each thread when its function has returned, and end the processes now; idle processes close their
        resources first, unless `hurry` is set."""
        threads, processes, self._threads, self._processes = self._threads, self._processes, None, None
        if threads is not None:
            threads.close()
        if processes is not None:
            await processes.close(hurry)
