"""Handles SIGTERM and SIGINT for a worker, and restores the previous handlers afterwards, or sets another one."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class Signals:
    """In this context SIGTERM and SIGINT call `on_signal`. Has no effect outside the main thread.

    after  the handler that they get when the context ends; None: the ones they had before
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None], after: Handler | None = None
    ) -> None:
        self._loop, self._on_signal, self._after = loop, on_signal, after
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
            handler = self._after or before
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)
