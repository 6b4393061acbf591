"""Who waits for which topic in this process. Every storage speaks into one of these; nothing depends on it.

Without it workers would find new work, and waiters their results, at the next poll only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence


class _Waiter:
    __slots__ = ("future", "heard")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.heard: set[str] = set()


class TopicWaiters:
    """Topics and those who wait for them. All calls belong to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[_Waiter, None]] = {}  # in the order they came, so a simulation can be repeated

    @property
    def topics(self) -> Iterable[str]:
        """What somebody waits for now."""
        return self._waiting

    def speak(self, topics: Iterable[str]) -> None:
        """Wake everybody who waits for one of the topics; a topic ending in "*" stands for all that begin so."""
        waiting = self._waiting
        if not waiting:
            return
        for topic in topics:
            if topic.endswith("*"):
                self.speak([known for known in waiting if known.startswith(topic[:-1])])
                continue
            for waiter in waiting.get(topic, ()):
                waiter.heard.add(topic)
                if not waiter.future.done() and not waiter.future.get_loop().is_closed():
                    waiter.future.set_result(None)

    async def wait(self, topics: Sequence[str], timeout: float) -> set[str]:
        """Until one of the topics speaks, or `timeout` seconds; answers those that spoke."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future())
        for topic in topics:
            self._waiting.setdefault(topic, {})[waiter] = None
        timer = loop.call_later(timeout, self._expire, waiter)
        try:
            await waiter.future
        finally:
            timer.cancel()
            for topic in topics:
                others = self._waiting.get(topic)
                if others is not None:
                    others.pop(waiter, None)
                    if not others:
                        del self._waiting[topic]
        return waiter.heard

    @staticmethod
    def _expire(waiter: _Waiter) -> None:
        if not waiter.future.done():
            waiter.future.set_result(None)
