"""SIGTERM and SIGINT for a worker, and whatever was there before put back afterwards.

Without it a deploy would kill running jobs, and a program that embeds a worker would lose its own handlers.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Signals:
    """SIGTERM and SIGINT call `on_signal` while this lasts; in another thread than the main one nothing changes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None]) -> None:
        self._loop, self._on_signal = loop, on_signal
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.getsignal(number)
            try:
                self._loop.add_signal_handler(number, self._on_signal)
            except NotImplementedError:  # Windows: no handlers on the loop
                signal.signal(number, lambda *_: self._loop.call_soon_threadsafe(self._on_signal))

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            with suppress(NotImplementedError):
                self._loop.remove_signal_handler(number)
            if before is not None:  # None: set by something that is not Python
                signal.signal(number, before)
