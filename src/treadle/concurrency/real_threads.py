"""Threads of the operating system, even where gevent or eventlet has replaced `threading` by greenlets.

A greenlet would share the thread of its caller, and so the running event loop. Locks of these libraries cannot be
waited for across threads, so a greenlet that waits for a thread looks again and again.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def _patched_by() -> str | None:
    """The library that has replaced the threads of this process."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        return "gevent"
    return "eventlet" if eventlet is not None and eventlet.is_monkey_patched("thread") else None


def are_greenlets() -> bool:
    """Whether `threading` makes greenlets."""
    return _patched_by() is not None


def start(run: Callable[[], object], name: str) -> Callable[[], None]:
    """Run a function in a daemon thread -> a function that waits for its end."""
    library = _patched_by()
    if library is None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread.join
    patcher: Any = sys.modules["gevent.monkey" if library == "gevent" else "eventlet.patcher"]
    begin = (
        patcher.get_original("_thread", "start_new_thread")
        if library == "gevent"
        else patcher.original("_thread").start_new_thread
    )
    ended: list[None] = []

    def work() -> None:
        try:
            run()
        finally:
            ended.append(None)

    def wait() -> None:
        until(lambda: bool(ended))

    begin(work, ())
    return wait


class _WokenLoop(asyncio.SelectorEventLoop):
    """Wakes for each callback. The threads of its executors are greenlets of its own thread, and since CPython 3.14 the
    end of their work uses `call_soon`, which leaves the loop asleep in the `select` of a greenlet."""

    call_soon = asyncio.SelectorEventLoop.call_soon_threadsafe


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a thread that `start` began. Call this in that thread, to which gevent binds its selector."""
    return _WokenLoop() if are_greenlets() else asyncio.new_event_loop()


def until(is_over: Callable[[], bool], timeout: float | None = None) -> None:
    """Let other greenlets run until it is over, or for `timeout` seconds."""
    end, pause = None if timeout is None else time.monotonic() + timeout, 0.0001
    while not is_over() and (end is None or time.monotonic() < end):
        time.sleep(pause)
        pause = min(2 * pause, 0.005)
