"""Threads for tasks that are plain functions.

Without it a function that never returns would keep the process alive after the second signal: the threads of
`concurrent.futures` are waited for at exit, whatever one does. And it would lose a StopIteration: an asyncio future
cannot carry one, and the job would hang.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

Answer = tuple[Any, BaseException | None]
Item = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Answer]"]


class Threads:
    """At most `most` of them, started when needed and kept."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Answer]:
        """Call it in a thread; the future answers (value, None) or (None, what it raised), and never raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._items.put((call, loop, future))
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def close(self) -> None:
        """Each thread ends when its function has returned."""
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
                return
            _call(*item)
            del item  # or the last job's arguments would live as long as the thread is idle


def _call(call: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Answer]) -> None:
    answer: Answer
    try:
        answer = call(), None
    except BaseException as error:
        answer = None, error
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_set, future, answer)


def _set(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
