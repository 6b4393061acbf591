"""Handles SIGTERM and SIGINT for a worker, and restores the previous handlers afterwards."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Signals:
    """In this context SIGTERM and SIGINT call `on_signal`. Has no effect outside the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None]) -> None:
        self._loop, self._on_signal = loop, on_signal
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.getsignal(number)
            try:
                self._loop.add_signal_handler(number, self._on_signal)
            except NotImplementedError:  # Windows: event loops handle no signals
                signal.signal(number, lambda *_: self._loop.call_soon_threadsafe(self._on_signal))

    def __exit__(self, *_: object) -> None:
        for number, before in self._previous.items():
            with suppress(NotImplementedError):
                self._loop.remove_signal_handler(number)
            if before is not None:  # None: it was not set from Python
                signal.signal(number, before)
