"""Wakes the coroutines of this process that wait for topics. Every storage publishes its topics through one of these.

A topic is only a hint: a waiter that misses one finds the change at its next poll.
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
    """The topics, and the coroutines that wait for them. All calls must come from one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[_Waiter, None]] = {}  # ordered, so a simulation can be repeated

    @property
    def topics(self) -> Iterable[str]:
        """The topics that a coroutine waits for now."""
        return self._waiting

    def wake(self, topics: Iterable[str]) -> None:
        """Wake all coroutines that wait for one of the topics. A topic that ends in "*" matches by its prefix."""
        waiting = self._waiting
        if not waiting:
            return
        # sorted, because the order of a set of texts is another in each process: a simulation could not be repeated
        for topic in sorted([topic for topic in topics if topic in waiting or topic.endswith("*")]):
            if topic.endswith("*"):
                self.wake([known for known in waiting if known.startswith(topic[:-1])])
                continue
            for waiter in waiting.get(topic, ()):
                waiter.heard.add(topic)
                if not waiter.future.done() and not waiter.future.get_loop().is_closed():
                    waiter.future.set_result(None)

    async def wait(self, topics: Sequence[str], timeout: float) -> set[str]:
        """Wait until one of the topics is published, or for `timeout` seconds; return the published ones."""
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
